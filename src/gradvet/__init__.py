"""gradvet tells whether gradients are right."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradvet.compat import (
        GradcheckError,
        as_sparse_gradcheck,
        get_analytical_jacobian,
        get_numerical_jacobian,
        get_numerical_jacobian_wrt_specific_input,
        gradcheck,
        gradgradcheck,
        replace_torch_gradcheck,
    )

__version__ = "0.1.0"

_HOMES = {
    "GradcheckError": "compat",
    "as_sparse_gradcheck": "compat",
    "get_analytical_jacobian": "compat",
    "get_numerical_jacobian": "compat",
    "get_numerical_jacobian_wrt_specific_input": "compat",
    "gradcheck": "compat",
    "gradgradcheck": "compat",
    "replace_torch_gradcheck": "compat",
}

__all__ = [
    "GradcheckError",
    "as_sparse_gradcheck",
    "get_analytical_jacobian",
    "get_numerical_jacobian",
    "get_numerical_jacobian_wrt_specific_input",
    "gradcheck",
    "gradgradcheck",
    "replace_torch_gradcheck",
]


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first used, so that importing gradvet imports no framework."""
    if name not in _HOMES:
        raise AttributeError(f"module 'gradvet' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"gradvet.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
