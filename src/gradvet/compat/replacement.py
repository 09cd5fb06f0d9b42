"""Puts gradvet's functions where `torch.autograd.gradcheck` is, so that existing suites run on gradvet unchanged."""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType, TracebackType
from typing import Any

from gradvet.compat.checker import gradcheck, gradgradcheck


class Replacement:
    """An active replacement: `restore()` or leaving the `with` block ends it."""

    def __init__(self) -> None:
        source = importlib.import_module("torch.autograd.gradcheck")
        self._new: dict[int, Any] = {id(source.gradcheck): gradcheck, id(source.gradgradcheck): gradgradcheck}
        self._old: list[tuple[ModuleType, str, Any]] = []
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType) and not module.__name__.startswith("gradvet"):
                self._replace_in(module)

    def restore(self) -> None:
        """Put torch's own functions back."""
        while self._old:
            module, name, value = self._old.pop()
            setattr(module, name, value)

    def __enter__(self) -> Replacement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def _replace_in(self, module: ModuleType) -> None:
        for name, value in list(vars(module).items()):
            new = self._new.get(id(value))
            if new is None and type(value) is functools.partial and id(value.func) in self._new:
                new = functools.partial(self._new[id(value.func)], *value.args, **value.keywords)
            if new is not None:
                self._old.append((module, name, value))
                setattr(module, name, new)


def replace_torch_gradcheck() -> Replacement:
    """Make every loaded module's `torch.autograd.gradcheck` and `gradgradcheck` run on gradvet.

    >>> import torch
    >>> with replace_torch_gradcheck():
    ...     torch.autograd.gradcheck.__module__
    'gradvet.compat.checker'
    >>> torch.autograd.gradcheck.__module__
    'torch.autograd.gradcheck'
    """
    return Replacement()
