"""Does a function change gradients by hooks on its tensors? The graph does not show them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

_register_hook = Tensor.register_hook
_watching: ContextVar[list[Callable[..., Any]] | None] = ContextVar("hooks that were registered", default=None)
_lock = threading.Lock()
_watchers = 0


@contextmanager
def noticed_hooks() -> Iterator[list[Callable[..., Any]]]:
    """The hooks that are registered inside, by this thread."""
    global _watchers
    seen: list[Callable[..., Any]] = []
    before = _watching.set(seen)
    with _lock:
        _watchers += 1
        Tensor.register_hook = _noticing  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        with _lock:
            _watchers -= 1
            if not _watchers:
                Tensor.register_hook = _register_hook  # type: ignore[method-assign]
        _watching.reset(before)


def _noticing(self: Tensor, hook: Callable[..., Any]) -> Any:
    seen = _watching.get()
    if seen is not None:
        seen.append(hook)
    return _register_hook(self, hook)  # type: ignore[no-untyped-call]
