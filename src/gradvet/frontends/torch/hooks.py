"""Does a function change gradients by hooks on its tensors? The graph does not show them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

_found: Callable[..., Any] = Tensor.register_hook
_watching: ContextVar[list[Callable[..., Any]] | None] = ContextVar("hooks that were registered", default=None)
_lock = threading.Lock()
_watchers = 0


@contextmanager
def noticed_hooks() -> Iterator[list[Callable[..., Any]]]:
    """The hooks that are registered inside, by this thread."""
    global _watchers, _found
    seen: list[Callable[..., Any]] = []
    before = _watching.set(seen)
    with _lock:
        if not _watchers:
            _found = Tensor.register_hook
            Tensor.register_hook = _noticing  # type: ignore[method-assign]
        _watchers += 1
    try:
        yield seen
    finally:
        with _lock:
            _watchers -= 1
            if not _watchers:
                Tensor.register_hook = _found  # type: ignore[method-assign]
        _watching.reset(before)


def _noticing(self: Tensor, hook: Callable[..., Any]) -> Any:
    seen = _watching.get()
    if seen is not None:
        seen.append(hook)
    return _found(self, hook)
