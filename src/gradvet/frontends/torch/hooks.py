"""Does a function change gradients by hooks on its tensors? The graph does not show them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle


def hooks_so_far() -> int:
    """How many hooks of any kind were registered in this process: a call after which it is the same puts none."""
    return int(RemovableHandle.next_id)


def have_hooks(tensors: Any) -> bool:
    """Whether somebody put hooks on any of these himself."""
    return any(
        isinstance(tensor, Tensor) and (tensor._backward_hooks or tensor._post_accumulate_grad_hooks)
        for tensor in tensors
    )
