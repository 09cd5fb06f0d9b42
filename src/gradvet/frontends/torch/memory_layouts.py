"""The same values laid out in memory in other ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

ALIGNMENT = 64
"""Numbers of any dtype after which vectorised kernels find their alignment again."""


def _transposed(t: Tensor) -> Tensor:
    return t.mT.contiguous().mT if t.dim() > 1 else t


def _sliced(t: Tensor) -> Tensor:
    return torch.stack([t, t + 1], -1).select(-1, 0)


def _transposed_and_sliced(t: Tensor) -> Tensor:
    return _sliced(t.mT).mT if t.dim() > 1 else _sliced(t)


def misaligned(t: Tensor) -> Tensor:
    """The same numbers one element later in memory."""
    return _shifted(t, 1)


def _offset(t: Tensor) -> Tensor:
    # Not misaligned on a device: a misaligned read in a kernel there ends the process.
    return _shifted(t, 1 if t.device.type == "cpu" else ALIGNMENT)


def _shifted(t: Tensor, ahead: int) -> Tensor:
    return t.new_ones(ahead + t.numel())[ahead:].view(t.shape).copy_(t)


def _channels_last(t: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t


def _conjugated(t: Tensor) -> Tensor:
    return t.conj().resolve_conj().conj() if t.is_complex() else t


OFFSET = "offset"
"""The layout with the usual strides and another storage offset."""

LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "transposed": _transposed,
    "sliced": _sliced,
    OFFSET: _offset,
    "channels last": _channels_last,
    "conjugated": _conjugated,
}

AT_ONCE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "transposed and sliced": _transposed_and_sliced,
    "channels last": _channels_last,
    "conjugated": _conjugated,
}
"""Few layouts, for kernels that are compiled for each and must not be called with other alignments."""


def differ_in_layout(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ in strides, storage offset or conjugate bit."""
    apart = one.stride() != other.stride() or one.storage_offset() != other.storage_offset()
    return apart or one.is_conj() != other.is_conj()
