"""What is kept of a call, and of a tensor to recognise its values, whatever is written to it later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.core import thresholds
from gradvet.core.results import SourceCode
from gradvet.frontends.torch.layouts.dense import separate
from gradvet.frontends.torch.random_state import RandomState
from gradvet.frontends.torch.state import Restore

MAX_WEIGHTED = 2**20
"""Number of elements from which the sum with weights is that of a part of the elements, or formed part by part."""

INTEGER_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by their number of bytes."""


def copied(tensor: Tensor) -> Tensor:
    """A copy outside the graph, with the strides of the tensor where no two of its elements share memory.

    It is made inside the user's code, and so without `no_grad`: an interruption there would leave the grad mode off.
    """
    values = tensor.detach()
    copy = values.clone()
    if tensor.layout is not torch.strided or copy.stride() == tensor.stride():
        return copy
    if type(values) is not Tensor or not separate(tensor.size(), tensor.stride()):
        return copy
    strided = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return strided.copy_(values)


def checksum(tensor: Tensor) -> tuple[object, ...]:
    """Sums of the bits of a tensor, which are exact and the same in every order; they change with any value.

    Two sums with different weights: numbers that change places show too.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        return (tensor.dtype,)
    values = tensor.detach()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    words = values.resolve_neg().contiguous().flatten().view(INTEGER_DTYPES[values.element_size()])
    total = weighted = 0
    for start in range(0, words.numel(), MAX_WEIGHTED):
        part = words[start : start + MAX_WEIGHTED].to(torch.int64)
        # Cubes as weights; products and sums of 64 bits overflow in the same way everywhere.
        weights = torch.arange(start + 1, start + part.numel() + 1, device=part.device).pow_(3)
        total, weighted = total + int(part.sum()), weighted + int((part * weights).sum())
    return tensor.shape, tensor.dtype, total, weighted


Sketch = tuple[torch.Size, torch.dtype, list[float] | None]
"""What is kept of a tensor to recognise it: its format, and the sum of its values, the sum with weights, the sum of
sizes; None for formats whose values are not compared."""


def sketch_of(tensor: Tensor) -> Sketch:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return tensor.shape if not tensor.is_nested else torch.Size(), tensor.dtype, None
    values = tensor.detach()
    values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    values = values.flatten() if values.dtype is torch.bool else values.flatten().nan_to_num(0.5, 0.25, 0.125)
    sample = values[:: 1 + values.numel() // MAX_WEIGHTED].to(torch.float64)
    weights = torch.arange(sample.numel(), dtype=torch.float64, device=values.device).sin()
    size = values.abs() if values.is_floating_point() else values
    sums = torch.stack([values.sum(dtype=torch.float64), sample @ weights, size.sum(dtype=torch.float64)])
    return tensor.shape, tensor.dtype, sums.tolist()


def is_sketch_of(sketch: Sketch, tensor: Tensor) -> bool:
    """Whether a tensor has the values of a sketch up to the roundoff of a sum in another order."""
    *format, sums = sketch
    *other_format, others = sketch_of(tensor)
    if format != other_format or sums is None or others is None:
        return format == other_format and sums is others
    dtype = sketch[1]
    exact = not (dtype.is_floating_point or dtype.is_complex)
    allowed = 0.0 if exact else thresholds.ROUNDOFFS * torch.finfo(dtype).eps * sums[2]
    return all(abs(one - two) <= allowed for one, two in zip(sums, others, strict=True))


@dataclass(slots=True, eq=False)
class Call:
    """One recorded call."""

    kind: str
    name: str
    path: str
    target: Any
    """The Function, the operator or the module."""
    place: SourceCode | None
    called: SourceCode | None
    template: Any
    """Positional and keyword arguments with slots in place of tensors."""
    tensors: list[Tensor]
    """Copies of the tensors among the arguments; parameters of modules that are called are kept themselves."""
    given: list[Tensor]
    """The tensors themselves, until the call has returned."""
    requires_grad: list[bool]
    random: RandomState
    autocast: dict[str, torch.dtype]
    restore_attributes: Restore | None = None
    """Restores the attributes of all modules, for a module that is called."""
    restore_tensors: Restore | None = None
    """Restores the buffers of all modules, likewise; the parameters of modules among the arguments of a Function."""
    restore_objects: Restore | None = None
    """Restores the attributes of objects among the arguments of a module, such as a cache of keys."""
    modules: tuple[nn.Module, ...] = ()
    """Modules that a Function gets beside their parameters, as adjoint methods do: its backward pass calls them."""
    written: tuple[int, ...] = ()
    """Positions of tensors without grad that the call has written to, such as a workspace."""
    number: int = 1
    within: str | None = None
    """The path of the recorded module whose forward pass made the call, in the first call of the model."""
    outer: Call | None = None
    """The call of a Function whose forward pass made this one."""
    checks: tuple[str, ...] = ()
    """Checks beside those of its kind, for the rules by which transforms run it."""
    outputs: list[Sketch] = field(default_factory=list)
    has_returned: bool = False

    def note_writes(self) -> None:
        """Note the tensors without grad among the arguments that the call has written to."""
        pairs, self.given = zip(self.tensors, self.given, self.requires_grad, strict=True), []
        self.written = tuple(
            n
            for n, (copy, tensor, required) in enumerate(pairs)
            if not required and copy.layout is torch.strided and copy is not tensor and not torch.equal(copy, tensor)
        )
