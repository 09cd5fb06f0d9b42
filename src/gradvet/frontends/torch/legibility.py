"""Might a function put hooks on tensors or on nodes of the graph? Neither shows them, so its code is read.

What cannot be read is suspect: objects and modules of unknown origin, functions that were imported from such, code that
is made while it runs.
"""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType, FunctionType, ModuleType, NoneType
from typing import Any, NamedTuple

from torch import Tensor

from gradvet.frontends.torch.hooks import have_hooks

TRUSTED = sys.stdlib_module_names | {"torch", "numpy"}
"""Packages of which nothing puts hooks on tensors without being told to."""

HOOK = "hook"
"""What every way to put one has in its name."""

WRITTEN = frozenset({"exec", "eval", "compile", "__import__", "import_module"})
"""Ways to run code that is not there to be read."""


NUMBERS = frozenset({NoneType, bool, int, float, complex})


class Writing(NamedTuple):
    """What stands in the code of a function, and in that of functions within it."""

    names: tuple[str, ...]
    """Of globals and attributes."""
    is_plain: bool
    """Whether there is nothing about hooks in it, and nothing that brings in what cannot be read."""


@functools.lru_cache(maxsize=1024)
def writing_of(code: CodeType) -> Writing:
    """What stands in this code."""
    inner = [writing_of(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    names = tuple(dict.fromkeys([*code.co_names, *(name for writing in inner for name in writing.names)]))
    words = [*code.co_names, *(constant for constant in code.co_consts if isinstance(constant, str))]
    imported = [str(step.argval) for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"]
    is_plain = (
        not any(HOOK in word for word in words)
        and WRITTEN.isdisjoint(names)
        and all(map(_is_trusted, imported))
        and all(writing.is_plain for writing in inner)
    )
    return Writing(names, is_plain)


def is_harmless(thing: Any) -> bool:
    """Whether something that a function can reach puts no hooks anywhere, as far as one can see."""
    if type(thing) in NUMBERS:
        return True
    if isinstance(thing, FunctionType):
        return _is_trusted(thing.__module__) or (writing_of(thing.__code__).is_plain and not _calls_strangers(thing))
    if isinstance(thing, Tensor):
        return not have_hooks((thing,))
    if isinstance(thing, str):
        return HOOK not in thing
    if isinstance(thing, ModuleType):
        return _is_trusted(thing.__name__)
    return _is_trusted((thing if isinstance(thing, type) else type(thing)).__module__)


def _calls_strangers(function: FunctionType) -> bool:
    """Whether it names functions of other files, which are not read."""
    around = function.__globals__
    for name in writing_of(function.__code__).names:
        value = around.get(name)
        if isinstance(value, FunctionType) and value.__globals__ is not around and not _is_trusted(value.__module__):
            return True
    return False


def _is_trusted(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in TRUSTED
