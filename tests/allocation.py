"""Counts the bytes of the tensors that torch's operators create.

The count depends on neither the speed nor the memory of the machine. Scratch memory within an operator is not counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocation(TorchDispatchMode):
    """Within the context, counts each new storage once: `total` bytes of all, `peak` bytes that exist at a time.

    Strided and COO tensors are counted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = self.peak = self._held = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {key for value in tree_leaves((args, kwargs)) for key in map(_key, _storages(value))}
        result = operator(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            for storage in _storages(value):
                if _key(storage) not in given | self._known:
                    self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = _key(storage), storage.nbytes()
        self._known.add(key)
        self.total += size
        self._held += size
        self.peak = max(self.peak, self._held)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._held -= size


def _storages(value: object) -> list[torch.UntypedStorage]:
    if not isinstance(value, Tensor):
        return []
    parts = (value._indices(), value._values()) if value.layout == torch.sparse_coo else (value,)
    return [part.untyped_storage() for part in parts]


def _key(storage: torch.UntypedStorage) -> int:
    key: int = storage._cdata
    return key


def allocated(run: Callable[[], object]) -> Allocation:
    """What the operators create while `run` is called."""
    allocation = Allocation()
    with allocation:
        run()
    return allocation
