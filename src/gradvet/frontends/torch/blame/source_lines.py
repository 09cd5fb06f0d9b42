"""Lines of the user's code: the one that is running, and those that define a function, a class or a hook.

At the end, what the name of a function of torch says.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import textwrap
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from gradvet.core.blame import CodeLine
from gradvet.core.provenance import shown_path

FOREIGN = ("torch.", "gradvet.", "optree.", "contextlib.", "functools.")
"""Beginnings of the names of modules whose code is not the user's."""

MACHINERY = ("gradvet.", "contextlib.", "torch.overrides.", "torch._tensor.", "torch.autograd.", "torch.utils.")
"""Beginnings of the names of modules between the code that calls a function of torch, or opens a context, and a mode.
"""

VALUELESS_ENDS, VALUELESS_STARTS = ("_like",), ("new_",)
"""Names of functions that read shape and format of a tensor, not its values."""

TORCH_FOLDER = str(Path(torch.__file__).parent)


def is_foreign(module: str | None) -> bool:
    """Whether a module is not the user's."""
    return f"{module or ''}.".startswith(FOREIGN)


def calling_line() -> CodeLine | None:
    """The innermost line of the user's code that is running; None if there is none.

    A decorator such as `@torch.no_grad()` runs in behalf of the function that it decorates.
    """
    frame = inspect.currentframe()
    while frame is not None and _is_hidden(frame):
        # From torch 2.15 on, the wrapper is named after the decorator.
        decorated = frame.f_locals.get("func") if "ctx_factory" in frame.f_code.co_freevars else None
        if decorated is not None and (line := definition(decorated)) is not None:
            return line
        frame = frame.f_back
    return None if frame is None else _line(frame.f_code.co_filename, frame.f_lineno)


def running_code() -> str:
    """The name of the Python module whose code is running, torch's machinery of modes and contexts left out."""
    frame = inspect.currentframe()
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith(MACHINERY):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__"))


def entered_context() -> bool | None:
    """Whether a context is being entered (True) or left (False) by torch's own code; None if neither."""
    frame = inspect.currentframe()
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith(MACHINERY):
        if frame.f_code.co_name in ("__enter__", "__exit__"):
            return frame.f_code.co_name == "__enter__"
        frame = frame.f_back
    return None


def _is_hidden(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return is_foreign(frame.f_globals.get("__name__")) or (file.startswith("<") and not linecache.getline(file, 1))


def definition(function: Any) -> CodeLine | None:
    """The line with the `def` of a function; None if its code is not Python or is foreign."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")  # of an object that can be called
    code = getattr(function, "__code__", None)
    if code is None or is_foreign(getattr(function, "__module__", None)) or code.co_filename.startswith(TORCH_FOLDER):
        return None
    # The first line of a function is that of its first decorator.
    is_lambda = code.co_name == "<lambda>"
    for number in () if is_lambda else range(code.co_firstlineno, code.co_firstlineno + MAX_DECORATOR_LINES):
        if linecache.getline(code.co_filename, number).lstrip().startswith(("def ", "async def ")):
            return _line(code.co_filename, number)
    return _line(code.co_filename, code.co_firstlineno)


MAX_DECORATOR_LINES = 20
"""Number of lines below the first one that are searched for `def`."""


def running_module() -> nn.Module | None:
    """The innermost module whose code is running: the first argument of a function."""
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(owner, nn.Module):
            return owner
        frame = frame.f_back
    return None


def uncompiled() -> AbstractContextManager[object]:
    """Run compiled functions as plain Python inside, whose lines can be seen. Needed by
    `test_stop_in_a_compiled_part_is_named`."""
    is_loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_loaded else nullcontext()


def assignment(cls: type, attribute: str) -> CodeLine | None:
    """The line of a class that first assigns `self.attribute`; None if there is none."""
    for base in cls.__mro__:
        found = [] if is_foreign(base.__module__) else _attributes(base, attribute)
        lines = [line for line, owner, is_written in found if owner in _own_names(base) and is_written]
        if lines:
            return lines[0]
    return None


def _own_names(cls: type) -> set[str]:
    """What the methods of a class call their first argument."""
    codes = [function.__code__ for function in vars(cls).values() if inspect.isfunction(function)]
    return {code.co_varnames[0] for code in codes if code.co_argcount}


def grad_write(cls: type) -> CodeLine | None:
    """The line of a class that first writes to an attribute `grad`; None if there is none."""
    return next((line for line, _, is_written in _attributes(cls, "grad") if is_written), None)


def _attributes(cls: type, attribute: str) -> list[tuple[CodeLine, str, bool]]:
    """The lines of a class with an attribute of this name, what it is an attribute of, and whether it is written to.

    A method call such as `x.grad.add_(...)` writes too.
    """
    try:
        lines, start = inspect.getsourcelines(cls)
        file = inspect.getsourcefile(cls) or ""
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return []
    methods = {id(node.value): node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found = [
        (
            node.lineno,
            ast.unparse(node.value),
            isinstance(node.ctx, ast.Store) or methods.get(id(node), "").endswith("_"),
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == attribute
    ]
    return [(_line(file, max(start, 1) + number - 1), owner, written) for number, owner, written in sorted(found)]


def _line(file: str, number: int) -> CodeLine:
    return CodeLine(shown_path(file), number, linecache.getline(file, number).strip())


def is_valueless(name: str) -> bool:
    """Whether a function does not read the values of its arguments."""
    return name.endswith(VALUELESS_ENDS) or (name.startswith(VALUELESS_STARTS) and name != "new_tensor")


def function_name(func: Any) -> str:
    """The name of a function of torch; of the getter or setter of an attribute, that of the attribute."""
    name = str(getattr(func, "__name__", ""))
    owner = getattr(func, "__self__", None)
    return str(getattr(owner, "__name__", name)) if name in ("__get__", "__set__") else name


def is_in_place(name: str) -> bool:
    """Whether a function of this name writes to its first argument."""
    return (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__iadd__", "__imul__")
