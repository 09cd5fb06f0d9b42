"""gradvet tells whether gradients are right."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradvet.api import assert_gradients, check, numerical_jacobian
    from gradvet.api.blame import blame, watch
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
    from gradvet.core.results import InconclusiveWarning, Report, Verdict
    from gradvet.errors import GradientError, InvalidProblemError
    from gradvet.options import Budget
    from gradvet.suite import case

__version__ = "0.1.0"

_NAMES = {
    "api": ("assert_gradients", "check", "numerical_jacobian"),
    "api.blame": ("blame", "watch"),
    "compat": (
        *("GradcheckError", "as_sparse_gradcheck", "gradcheck", "gradgradcheck", "replace_torch_gradcheck"),
        *("get_analytical_jacobian", "get_numerical_jacobian", "get_numerical_jacobian_wrt_specific_input"),
    ),
    "core.results": ("InconclusiveWarning", "Report", "Verdict"),
    "errors": ("GradientError", "InvalidProblemError"),
    "options": ("Budget",),
    "suite": ("case",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Budget",
    "GradcheckError",
    "GradientError",
    "InconclusiveWarning",
    "InvalidProblemError",
    "Report",
    "Verdict",
    "as_sparse_gradcheck",
    "assert_gradients",
    "blame",
    "case",
    "check",
    "get_analytical_jacobian",
    "get_numerical_jacobian",
    "get_numerical_jacobian_wrt_specific_input",
    "gradcheck",
    "gradgradcheck",
    "numerical_jacobian",
    "replace_torch_gradcheck",
    "watch",
]


if not TYPE_CHECKING:  # a type checker that sees it takes every name for a name of gradvet

    def __getattr__(name: str) -> Any:
        """Public names are loaded when they are first used, so that importing gradvet imports no framework."""
        if name not in _HOMES:
            raise AttributeError(f"module 'gradvet' has no attribute {name!r}")
        importlib.import_module("gradvet.reports")  # from here on a report can show itself in a notebook
        # The package before its module: threads that import both in different orders would see them half imported.
        importlib.import_module(f"gradvet.{_HOMES[name].partition('.')[0]}")
        value = globals()[name] = getattr(importlib.import_module(f"gradvet.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    """The public names, each once, for completion at a prompt."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
