"""Writes to tensors that were saved for the backward pass, past autograd's version counter; writes to `.grad`.

Both run the recorded call of a model forward and backward; neither leaves gradients behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from gradvet.core import thresholds
from gradvet.core.blame import CodeLine
from gradvet.frontends.torch.arguments import tensors_of
from gradvet.frontends.torch.blame import private
from gradvet.frontends.torch.blame.recording import Call
from gradvet.frontends.torch.blame.replaying import run
from gradvet.frontends.torch.blame.sketches import checksum
from gradvet.frontends.torch.blame.source_lines import calling_line, running_module
from gradvet.frontends.torch.preservation import preserved_state
from gradvet.frontends.torch.private import PUBLIC_ONLY, storage_reference, uncompiled


@dataclass(frozen=True, slots=True)
class Write:
    """A line that makes a gradient wrong by a write."""

    place: CodeLine
    what: str
    owner: nn.Module | None = None
    """The module whose code writes."""


@dataclass(slots=True)
class _Saved:
    """A tensor that was saved for the backward pass."""

    tensor: Tensor
    values: object
    """The checksum of its values."""
    place: CodeLine | None
    owner: nn.Module | None
    start: int
    """Number of writes before."""


class _Writes(TorchFunctionMode):
    """Notes the memory that is written to, with the line, in order, and the tensors that are saved.

    A function of torch may fill a tensor after it has saved it, as `rrelu` does with its noise: the values at its end
    count. Needed by `test_right_model_has_no_culprit`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, CodeLine | None, nn.Module | None]] = []
        self.saved: list[_Saved] = []

    def save(self, tensor: Tensor) -> int:
        self.saved.append(_Saved(tensor, checksum(tensor), calling_line(), running_module(), len(self.found)))
        return len(self.saved) - 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        count = len(self.saved)
        result = func(*args, **(kwargs or {}))
        for one in self.saved[count:]:
            one.values = checksum(one.tensor)
        name = str(getattr(func, "__name__", ""))
        if (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__iadd__", "__imul__"):
            self.note(args[0] if args else None)
        elif kwargs and isinstance(kwargs.get("out"), Tensor):
            self.note(kwargs["out"])
        return result

    def note(self, target: Any) -> None:
        is_traced = torch.compiler.is_compiling()
        if isinstance(target, Tensor) and target.layout is torch.strided and not (target.is_meta or is_traced):
            self.found.append((storage_reference(target), calling_line(), running_module()))


def overwritten_saved_tensors(call: Call) -> list[Write]:
    """The lines that write to saved tensors of a model's call so that its gradient changes.

    Every run of the model begins with the same state. A gradient changes if it differs from that of a run with copies
    of the saved tensors, and two runs as they are do not differ as much.
    """
    writes = _Writes()
    changed: list[_Saved] = []

    def unpack(number: int) -> Tensor:
        saved = writes.saved[number]
        if saved.values != checksum(saved.tensor):
            changed.append(saved)
        return saved.tensor

    with preserved_state(call.target, call.tensors):
        with saved_tensors_hooks(uncompiled(writes.save), uncompiled(unpack)):
            outputs = run(call, lambda forward: _within(writes, forward))
        as_they_are = _gradients(call, outputs)
    if not changed:
        return []
    with preserved_state(call.target, call.tensors):
        again = _gradients(call, run(call))
    with preserved_state(call.target, call.tensors):
        with saved_tensors_hooks(uncompiled(torch.clone), lambda tensor: tensor):
            outputs = run(call)
        if _agree(as_they_are, _gradients(call, outputs), again):
            return []
    found: dict[str, Write] = {}
    for saved in changed:
        memory = storage_reference(saved.tensor)
        after = [(line, owner) for other, line, owner in writes.found[saved.start :] if other == memory]
        line, owner = next(((line, owner) for line, owner in after if line is not None), (saved.place, saved.owner))
        if line is not None:
            at = f"the tensor that {saved.place} saves for its backward pass" if saved.place else "a saved tensor"
            what = f"{at} is overwritten {'here' if after else 'later'}, past autograd's version counter"
            found.setdefault(str(line), Write(line, what, owner))
    return list(found.values())


def writes_to_grad(call: Call) -> bool:
    """Whether a backward pass writes to `.grad` of parameters beside autograd, so that `.grad` is wrong."""
    parameters = _sources(call)
    before = [parameter.grad for parameter in parameters]
    if PUBLIC_ONLY:  # hooks that run an optimiser cannot be taken out
        return False
    try:
        outputs = run(call)
        live, cotangents = _seeds(outputs)
        if not live or not parameters:
            return False
        expected = torch.autograd.grad(live, parameters, cotangents, allow_unused=True, retain_graph=True)
        for parameter in parameters:
            parameter.grad = None
        with private.without_accumulation_hooks(parameters):
            torch.autograd.backward(live, cotangents, inputs=parameters)
        found = [parameter.grad for parameter in parameters]
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
    return not _agree(expected, found)


def _within(mode: Any, call: Callable[[], Any]) -> Any:
    with mode:
        return call()


def _sources(call: Call) -> list[Tensor]:
    module: nn.Module = call.target
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _seeds(outputs: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The differentiable outputs, and a fixed cotangent for each."""
    live = [tensor for tensor in tensors_of(outputs) if tensor.requires_grad]
    generator = torch.Generator().manual_seed(0)
    return live, [torch.randn(y.shape, generator=generator, dtype=y.dtype, device="cpu").to(y.device) for y in live]


def _gradients(call: Call, outputs: Any) -> Sequence[Tensor | None]:
    live, cotangents = _seeds(outputs)
    sources = _sources(call)
    if not live or not sources:
        return []
    return torch.autograd.grad(live, sources, cotangents, allow_unused=True)


def _agree(
    ones: Sequence[Tensor | None], others: Sequence[Tensor | None], again: Sequence[Tensor | None] | None = None
) -> bool:
    """Whether gradients are the same up to roundoff of another order of summation.

    `again` are the first ones of another run: what they differ by is no disagreement.
    """
    peak = max((_size(one) for one in ones if one is not None), default=0.0)
    for one, other, repeated in zip(ones, others, ones if again is None else again, strict=True):
        if one is None or other is None or repeated is None:
            if one is not other:
                return False
            continue
        eps = torch.finfo(one.dtype).eps
        # A gradient that is zero because its terms cancel consists of their roundoff.
        allowed = max(eps**0.5 * _size(one), thresholds.ROUNDOFFS * eps * peak)
        if _size(one - other) > max(allowed, thresholds.INTERVAL_WIDTH * _size(one - repeated)):
            return False
    return True


def _size(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0
