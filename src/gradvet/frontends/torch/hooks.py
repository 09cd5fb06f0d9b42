"""Does a function change gradients by hooks on its tensors? The graph does not show them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class HookWatch(TorchFunctionMode):
    """Notices hooks that are registered on tensors, as every call of torch, inside of it and by its own thread."""

    def __init__(self) -> None:
        super().__init__()
        self.noticed = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.noticed += func is Tensor.register_hook
        return func(*args, **(kwargs or {}))


def have_hooks(tensors: Any) -> bool:
    """Whether somebody put hooks on any of these himself."""
    return any(
        isinstance(tensor, Tensor) and (tensor._backward_hooks or tensor._post_accumulate_grad_hooks)
        for tensor in tensors
    )
