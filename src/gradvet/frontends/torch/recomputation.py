"""Runs a function as `torch.utils.checkpoint` does: what backward needs is computed by a second forward pass.

`torch.utils.checkpoint` itself loads the compiler, which takes longer than a whole check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def call_recomputing(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """The result of a call whose graph keeps no tensors: the first one that backward asks for calls it again.

    The function is expected to start from the same random state each time.
    """
    kept: list[tuple[torch.Size, torch.dtype]] = []
    again: list[Tensor] = []

    def forget(tensor: Tensor) -> int:
        kept.append((tensor.shape, tensor.dtype))
        return len(kept) - 1

    def record(tensor: Tensor) -> Tensor:
        again.append(tensor.detach())
        return again[-1]

    def recomputed(number: int) -> Tensor:
        if not again:
            with torch.enable_grad(), saved_tensors_hooks(record, lambda tensor: tensor):
                function(*arguments)
        if number >= len(again) or (again[number].shape, again[number].dtype) != kept[number]:
            raise RuntimeError("torch.utils.checkpoint refuses the function: a second call saves other tensors")
        return again[number]

    with saved_tensors_hooks(forget, recomputed):
        return function(*arguments)
