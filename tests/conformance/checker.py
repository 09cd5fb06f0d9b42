"""The drop-in functions under test, and the three outcomes that a check can have.

A check accepts a function, rejects it (`GradcheckError`, or `False` on request), or refuses the request with any
other exception, which `raise_exception=False` must not silence. Each outcome is one method of `Checker`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

LIBRARIES = ("gradvet", "torch")
MODES = ("slow", "fast")


@dataclass(frozen=True, slots=True)
class Library:
    """One implementation: the module, or what stands for it, that has all the names."""

    name: str
    module: Any

    @property
    def gradcheck(self) -> Callable[..., bool]:
        return self.module.gradcheck  # type: ignore[no-any-return]

    @property
    def gradgradcheck(self) -> Callable[..., bool]:
        return self.module.gradgradcheck  # type: ignore[no-any-return]

    @property
    def error(self) -> type[RuntimeError]:
        return self.module.GradcheckError  # type: ignore[no-any-return]


def library(name: str) -> Library:
    """The implementation called `name`; imported only here, so that either one can be run without the other."""
    # The function `torch.autograd.gradcheck` hides the module of the same name, which a plain import would not give.
    return Library(name, importlib.import_module("torch.autograd.gradcheck" if name == "torch" else name))


@dataclass(frozen=True, slots=True)
class Checker:
    """A library in slow or fast mode; `order` 2 asks the same of gradgradcheck."""

    library: Library
    mode: str
    order: int = 1

    @property
    def name(self) -> str:
        return self.library.name

    @property
    def second_order(self) -> Checker:
        return Checker(self.library, self.mode, order=2)

    def __call__(self, func: Callable[..., Any], inputs: Any, *args: Any, **options: Any) -> bool:
        check = self.library.gradcheck if self.order == 1 else self.library.gradgradcheck
        return check(func, inputs, *args, fast_mode=self.mode == "fast", **options)

    def accepts(self, func: Callable[..., Any], inputs: Any, *args: Any, **options: Any) -> None:
        """The verdict is the Python bool True."""
        assert self(func, inputs, *args, **options) is True

    def rejects(self, phrase: str, func: Callable[..., Any], inputs: Any, *args: Any, **options: Any) -> str:
        """The verdict is a GradcheckError with `phrase`, or False with `raise_exception=False`; gives its text."""
        with pytest.raises(self.library.error, match=phrase) as caught:
            self(func, inputs, *args, **options)
        assert self(func, inputs, *args, raise_exception=False, **options) is False
        return str(caught.value)

    def refuses(
        self, exception: type[Exception], phrase: str, func: Callable[..., Any], inputs: Any, *args: Any, **options: Any
    ) -> None:
        """There is no verdict: `exception` comes out, which is no GradcheckError, whatever `raise_exception` says."""
        for raise_exception in (True, False):
            with pytest.raises(exception, match=phrase) as caught:
                self(func, inputs, *args, raise_exception=raise_exception, **options)
            assert not isinstance(caught.value, library("torch").error)
