"""Where a report comes from: the code of the function that was checked, and what it ran on."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradvet.core.results import SourceCode

LONGEST = 200
"""Number of lines of code that a report keeps."""

PACKAGES = ("gradvet", "torch", "numpy")


def source_of(func: Callable[..., Any]) -> SourceCode | None:
    """The code of a function, a class or an instance's class with its file and line; None where there is none.

    Code of gradvet and of torch counts as none: it is not the user's.
    """
    written = _written(func)
    if is_own(written):
        return None
    written = getattr(written, "__code__", written)
    # The cache keeps its keys alive: code does not refer to its function, but a class made in a function would stay.
    read = _read if "<locals>" in getattr(written, "__qualname__", "") else _read_once
    try:
        return read(written)
    except TypeError:  # cannot be a key
        return None


def _read(written: Any) -> SourceCode | None:
    try:
        lines, start = inspect.getsourcelines(written)
        file = inspect.getsourcefile(written) or ""
    except (OSError, TypeError):
        return None
    return SourceCode("".join(lines[:LONGEST]).rstrip(), _shown(file), max(start, 1))


_read_once = functools.lru_cache(maxsize=256)(_read)


def is_own(func: Any) -> bool:
    """Whether it is gradvet's or torch's."""
    return (getattr(func, "__module__", None) or "").startswith(("gradvet.", "torch."))


def title_of(func: Any) -> str:
    """What people call it: `Owner.method` for a method, the class for an instance that can be called."""
    while isinstance(func, functools.partial):
        func = func.func
    named = [getattr(func, attribute, None) for attribute in ("__name__", "_name", "name")]
    name = next((name for name in named if isinstance(name, str) and name), type(func).__name__)
    if not inspect.ismethod(func):
        return name
    owner = func.__self__ if isinstance(func.__self__, type) else type(func.__self__)
    return f"{owner.__name__}.{name}"


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


def _shown(file: str) -> str:
    """Relative where the file is below the current folder, if that exists."""
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file
