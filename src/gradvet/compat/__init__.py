"""Drop-in replacements for what `torch.autograd.gradcheck` offers, and the switch that puts them in its place."""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

from gradvet.compat.gradcheck import GradcheckError, gradcheck, gradgradcheck
from gradvet.compat.helpers import (
    as_sparse_gradcheck,
    get_analytical_jacobian,
    get_numerical_jacobian,
    get_numerical_jacobian_wrt_specific_input,
)

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


_TORCH = importlib.import_module("torch.autograd.gradcheck")
_NEW: dict[int, Any] = {id(_TORCH.gradcheck): gradcheck, id(_TORCH.gradgradcheck): gradgradcheck}
_active: list[Replacement] = []
_replaced: list[tuple[ModuleType, str, Any]] = []
"""Where torch's functions were, and which: common to all replacements, for there is only one torch."""


class Replacement:
    """An active replacement: `restore()` or leaving the `with` block ends it.

    Several may be active, and may end in any order: torch's own functions are back when none is left.
    """

    def __init__(self) -> None:
        _active.append(self)
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType) and not _is_own(module):
                _replace_in(module)

    def restore(self) -> None:
        """Put torch's own functions back, unless another replacement is still active."""
        if self in _active:
            _active.remove(self)
        while _replaced and not _active:
            module, name, value = _replaced.pop()
            setattr(module, name, value)

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, *exception: object) -> None:
        self.restore()


def replace_torch_gradcheck() -> Replacement:
    """Make every loaded module's `torch.autograd.gradcheck` and `gradgradcheck` run on gradvet.

    >>> import torch
    >>> with replace_torch_gradcheck():
    ...     torch.autograd.gradcheck.__module__
    'gradvet.compat.gradcheck'
    >>> torch.autograd.gradcheck.__module__
    'torch.autograd.gradcheck'
    """
    return Replacement()


def _is_own(module: ModuleType) -> bool:
    name = getattr(module, "__name__", None)
    return isinstance(name, str) and name.partition(".")[0] == "gradvet"


def _replace_in(module: ModuleType) -> None:
    for name, value in list(vars(module).items()):
        new = _new(value)
        if new is not None:
            _replaced.append((module, name, value))
            setattr(module, name, new)


def _new(value: Any) -> Any:
    """gradvet's function for torch's, also inside a partial; None for anything else."""
    if type(value) is functools.partial and id(value.func) in _NEW:
        return functools.partial(_NEW[id(value.func)], *value.args, **value.keywords)
    return _NEW.get(id(value))
