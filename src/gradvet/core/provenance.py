"""The source code of the function that was checked, and the versions that it ran on."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import linecache
import os
import platform
import re
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from gradvet.core.results import SourceCode

LONGEST = 200
"""Number of lines of code that a report keeps."""

PACKAGES = ("gradvet", "torch", "numpy")

FOREIGN_PREFIXES = ("torch.", "gradvet.", "optree.", "numpy.")
"""Beginnings of the names of modules whose code is not the user's."""

STANDARD_LIBRARY, INSTALLED = sysconfig.get_path("stdlib"), ("site-packages", "dist-packages")
"""The folder of Python's own modules, and folders in it with those of others."""


def source_of(func: Callable[..., Any]) -> SourceCode | None:
    """The code of a function, a class or an instance's class with its file and line; None where there is none.

    Code of gradvet and of torch counts as none: it is not the user's.
    """
    written = _written(func)
    try:
        return None if is_foreign(getattr(written, "__module__", None)) else _read(written)
    except (OSError, TypeError):
        return None


def _read(written: Any) -> SourceCode | None:
    """The code of a function or a class, if a file has it.

    `inspect.getsourcelines` searches all modules for the file and parses the whole file of a class, which takes up to
    seconds.
    """
    is_class = isinstance(written, type)
    code = _first_code(written) if is_class else getattr(written, "__code__", None)
    file = code.co_filename if code else inspect.getsourcefile(written) or ""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    start = code.co_firstlineno if code else 0
    if is_class:
        statement = re.compile(rf"\s*class\s+{re.escape(written.__name__)}\b")
        starts = [number for number, line in enumerate(lines, 1) if statement.match(line)]
        if code is None and len(starts) > 1:
            return None  # no method tells which of them it is
        start = max((number for number in starts if code is None or number < start), default=0)
    text = _block(file, start) if 0 < start <= len(lines) else ""
    return SourceCode(shown_path(file), start, text) if text else None


@functools.lru_cache(maxsize=256)
def _block(file: str, start: int) -> str:
    """The function or class that begins at a line of a file."""
    block = inspect.getblock(linecache.getlines(file)[start - 1 :])
    return "".join(block[:LONGEST]).rstrip()


def _first_code(cls: type) -> CodeType | None:
    """The code of the method that is written first in a class; None for a class without methods of its own."""
    functions = (getattr(value, "__func__", value) for value in vars(cls).values())
    methods = [inspect.unwrap(function) for function in functions if callable(function)]
    codes = [
        method.__code__ for method in methods if inspect.isfunction(method) and method.__module__ == cls.__module__
    ]
    own = [code for code in codes if linecache.getlines(code.co_filename)]  # not those that a decorator has made
    return min(own, key=lambda code: code.co_firstlineno, default=None)


def is_foreign(module: str | None) -> bool:
    """Whether a module is not the user's."""
    return f"{module or ''}.".startswith(FOREIGN_PREFIXES)


def is_hidden(frame: FrameType) -> bool:
    """Whether a frame runs no code of the user: that of torch, gradvet or Python, or none with a source."""
    file = frame.f_code.co_filename
    if file.startswith(STANDARD_LIBRARY) and not any(folder in file for folder in INSTALLED):
        return True
    return is_foreign(frame.f_globals.get("__name__")) or (file.startswith("<") and not linecache.getline(file, 1))


def title_of(func: Any) -> str:
    """The name by which users know it: `Owner.method` for a method, the class for an instance that can be called."""
    while isinstance(func, functools.partial):
        func = func.func
    named = [getattr(func, attribute, None) for attribute in ("__name__", "_name", "name")]
    name = next((name for name in named if isinstance(name, str) and name), type(func).__name__)
    owner = getattr(func, "__self__", None)
    # From torch 2.15 on, `apply` of an autograd.Function is written in C.
    if not inspect.ismethod(func) and not (name == "apply" and isinstance(owner, type)):
        return name
    return f"{(owner if isinstance(owner, type) else type(owner)).__name__}.{name}"


@functools.cache
def environment() -> dict[str, str]:
    """Versions by name."""
    found = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _written(func: Any) -> Any:
    """The code that the user wrote: behind partials and wrappers, the class of a method or of a callable instance."""
    while isinstance(func, functools.partial):
        func = func.func
    func = inspect.unwrap(func) if callable(func) else func
    owner = getattr(func, "__self__", None)
    if isinstance(owner, type):
        return owner
    if inspect.isroutine(func) or isinstance(func, type):
        return func
    return type(func)


def shown_path(file: str) -> str:
    """Relative where the file is below the current folder, if that exists."""
    try:
        return _path_from(os.getcwd(), file)
    except OSError:
        return file


@functools.lru_cache
def _path_from(folder: str, file: str) -> str:
    path = Path(file).resolve()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file


def raising_line(error: BaseException) -> str:
    """`file:line` of the innermost line of the user's code in the traceback of an exception, or of its cause.

    A line of an installed package counts where there is no other. Empty if there is none.
    """
    frames = traceback.walk_tb((error.__cause__ or error).__traceback__)
    lines = [(frame.f_code.co_filename, number) for frame, number in frames if not is_hidden(frame)]
    own = [line for line in lines if not any(folder in line[0] for folder in INSTALLED)] or lines
    return f"{shown_path(own[-1][0])}:{own[-1][1]}" if own else ""
