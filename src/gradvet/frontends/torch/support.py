"""What torch says when an operator has no derivative of some kind: not a mistake of the user's, only not offered."""

from __future__ import annotations

SAYINGS = (
    "not implemented",
    "has not been implemented",
    "does not support it",
    "must implement the jvp",
    "must implement a jvp",
    "once_differentiable",
    "setup_context",
    "vmap staticmethod",
    "generate_vmap_rule",
    "batching rule not implemented",
    "does not support forward",
    "not support for forward AD",
    "not supported for forward",
    "Nested forward mode AD is not supported",
    "does not currently support",
    "is not supported",
    "not differentiable",
    "double backward",
    "Sparse CSR tensors do not have",
    "Cannot access data pointer",
    "data-dependent control flow",
    "torch.utils.checkpoint",
    "do not have strides",
)
"""Phrases of torch's messages; matched without regard to case."""


def is_unsupported_error(error: BaseException) -> bool:
    """Whether an exception says that the framework does not offer what was asked."""
    if isinstance(error, NotImplementedError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(saying.lower() in text for saying in SAYINGS)
