"""Causes of wrong gradients in a backward pass: writes to saved tensors past autograd's version counter, writes to
`.grad`, gradients that are not finite, other random numbers in a checkpoint.

Each runs the recorded call of a module forward and backward; none leaves gradients behind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from gradvet.core import thresholds
from gradvet.core.provenance import is_hidden
from gradvet.core.results import SourceCode
from gradvet.frontends.torch.arguments import tensors_of
from gradvet.frontends.torch.autograd_graph import leaves_behind
from gradvet.frontends.torch.blame import private
from gradvet.frontends.torch.blame.replaying import Around, run
from gradvet.frontends.torch.blame.sketches import Call, checksum
from gradvet.frontends.torch.blame.source_lines import (
    Candidate,
    accumulation_hooks,
    calling_line,
    function_name,
    is_in_place,
    line_of,
    persistent_hooks,
    running_layer,
    running_module,
    unpreserved_checkpoint,
    without,
)
from gradvet.frontends.torch.blame.stops import HOOKING, StopMode
from gradvet.frontends.torch.derivatives import gradients
from gradvet.frontends.torch.preservation import PreservedState
from gradvet.frontends.torch.private import PUBLIC_ONLY, FunctionMode, Operators, storage_reference, version
from gradvet.frontends.torch.random_state import RandomState

IN_PLACE = "modified by an inplace operation"
"""Part of torch's message about a saved tensor whose version is another one."""

SAVED_TENSOR_WRITE = "write to a saved tensor"
NOT_FINITE_GRADIENT = (
    "its gradient is not finite for a finite grad_output: 0/0, 0·inf, or a branch that is masked too late"
)
OTHER_DRAWS = "without preserve_rng_state it draws other random numbers when the backward pass runs it again"


@dataclass(frozen=True, slots=True)
class Origin:
    """The code that saves a tensor or writes to one."""

    line: SourceCode | None
    """The line of a module's code; None if layers of torch run in no code of the user's."""
    owner: nn.Module | None
    layer: str
    """The class of the layer of torch that runs, or nothing."""

    @classmethod
    def now(cls) -> Origin:
        """That of the code that runs."""
        layer, owner = running_layer(), running_module()
        name = "" if layer is None else type(layer).__name__
        return cls(None, layer, name) if owner is None and layer is not None else cls(calling_line(), owner, name)

    def __str__(self) -> str:
        return " at ".join(filter(None, (self.layer, str(self.line or ""))))


@dataclass(slots=True)
class _Saved:
    """A tensor that was saved for the backward pass."""

    tensor: Tensor
    values: object
    """The checksum of its values."""
    origin: Origin
    start: int
    """Number of writes before."""


class _Writes:
    """Notes the memory that is written to, with the line, in order, and the tensors that are saved.

    A function of torch may fill a tensor after it has saved it, as `rrelu` does with its noise: the values at its end
    count. Needed by `test_right_model_has_no_culprit`.
    """

    def __init__(self, watched: Sequence[int] = ()) -> None:
        self.found: list[tuple[Any, Origin]] = []
        self.saved: list[_Saved] = []
        self._watched = watched
        """Numbers of saved tensors that are compared after every line of the user's code."""
        self._values: dict[int, object] = {}
        self._last = Origin(None, None, "")

    def save(self, tensor: Tensor) -> int:
        self.saved.append(_Saved(tensor, checksum(tensor), Origin.now(), len(self.found)))
        return len(self.saved) - 1

    def saved_tensor(self, number: int) -> Tensor:
        return self.saved[number].tensor

    def to_saved(self, number: int) -> Origin | None:
        """The first write to a saved tensor after it was saved."""
        if number >= len(self.saved):
            return None
        saved = self.saved[number]
        memory = storage_reference(saved.tensor)
        return next((origin for other, origin in self.found[saved.start :] if other == memory), None)

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """A trace function of Python: notes the line that has changed a watched tensor."""
        for number in self._watched if event in ("line", "return") else ():
            if number < len(self.saved):
                values = checksum(self.saved[number].tensor)
                if self._values.setdefault(number, values) != values:
                    self.found.append((storage_reference(self.saved[number].tensor), self._last))
                self._values[number] = values
        if event == "call" and is_hidden(frame):
            return None
        self._last = Origin(line_of(frame), running_module(frame), "")
        return self.trace

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function of torch. Notes what it writes to."""
        count = len(self.saved)
        given = tensors_of((args, kwargs))
        versions = list(map(version, given))
        result = func(*args, **kwargs)
        # The name says that a result of `.data` is written to; its version is not that of the tensor that was saved.
        written = {id(args[0]): args[0]} if is_in_place(function_name(func)) and args else {}
        written.update((id(t), t) for t, before in zip(given, versions, strict=True) if version(t) != before)
        if not torch.compiler.is_compiling():
            values = [
                t for t in written.values() if isinstance(t, Tensor) and t.layout is torch.strided and not t.is_meta
            ]
            self.found += [(storage_reference(tensor), Origin.now()) for tensor in values]
        for one in self.saved[count:]:
            one.values, one.start = checksum(one.tensor), len(self.found)
        return result


def overwritten_saved_tensors(call: Call) -> list[tuple[Origin, str]]:
    """The code that writes to saved tensors of a model's call, and what happens: its gradient changes or raises.

    Every run of the model begins with the same state. A gradient changes if it differs from that of a run with copies
    of the saved tensors, and two runs as they are agree.
    """
    writes = _Writes()
    with PreservedState(call.target, call.tensors):
        with _keeping(writes.save, writes.saved_tensor):
            outputs = run(call, lambda forward: _within(writes.called, forward))
        as_they_are = _gradients(call, outputs)
        changed = [n for n, saved in enumerate(writes.saved) if saved.values != checksum(saved.tensor)]
    if not changed:
        return []
    try:
        with PreservedState(call.target, call.tensors):
            again = _gradients(call, run(call))
    except RuntimeError as error:
        if IN_PLACE not in str(error):
            raise
        return _lines(call, changed, writes, "so that the backward pass raises")
    with PreservedState(call.target, call.tensors):
        with _keeping(torch.clone, lambda copy: copy):
            outputs = run(call)
        if not _agree(as_they_are, again) or _agree(as_they_are, _gradients(call, outputs)):
            return []
    return _lines(call, changed, writes, "past autograd's version counter")


@contextmanager
def _keeping(keep: Callable[[Tensor], Any], kept: Callable[[Any], Tensor]) -> Iterator[None]:
    """Packs and unpacks what is saved for the backward pass, tensors that are attributes of `ctx` at once."""

    def applied(cls: type, args: Any, kwargs: Any, apply: Callable[..., Any]) -> Any:
        result = apply(*args, **kwargs)
        for node in {tensor.grad_fn for tensor in tensors_of(result)}:
            for name, value in list(getattr(node, "__dict__", {}).items()):
                if type(value) in (Tensor, nn.Parameter) and not private.is_wrapped(value):
                    setattr(node, name, kept(keep(value)))
        return result

    with saved_tensors_hooks(keep, kept), private.applied_functions(applied):
        yield


def _watched(call: Call, numbers: Sequence[int]) -> _Writes:
    """The writes of a call, also those that no function of torch makes, as by NumPy, to these saved tensors."""
    writes, before = _Writes(numbers), sys.gettrace()
    with PreservedState(call.target, call.tensors), _keeping(writes.save, writes.saved_tensor):
        sys.settrace(writes.trace)
        try:
            run(call, lambda forward: _within(writes.called, forward))
        finally:
            sys.settrace(before)
    return writes


def _lines(call: Call, changed: Sequence[int], writes: _Writes, consequence: str) -> list[tuple[Origin, str]]:
    """The code that wrote to saved tensors; the code that saved one where no write to it was seen."""
    found: dict[str, tuple[Origin, str]] = {}
    unseen = [number for number in changed if writes.to_saved(number) is None]
    watched = _watched(call, unseen) if unseen else writes
    # What torch updates in C++, such as running statistics, changes too, and does not matter beside what is seen.
    seen = [number for number in changed if writes.to_saved(number) or watched.to_saved(number)]
    for number in seen or changed:
        saved, write = writes.saved[number], writes.to_saved(number) or watched.to_saved(number)
        origin = write or saved.origin
        at = f"the tensor that {saved.origin} saves for its backward pass" if str(saved.origin) else "a saved tensor"
        where = f"{f'by {origin.layer} ' * bool(origin.layer)}here" if write else "later"
        if origin.owner is not None or origin.line is not None:
            what = f"{at} is overwritten {where}, {consequence}"
            found.setdefault(f"{origin} {id(origin.owner)}", (origin, what))
    return list(found.values())


def writes_to_grad(call: Call, around: Around) -> bool:
    """Whether a backward pass writes to `.grad` of parameters beside autograd, so that `.grad` is wrong.

    Each of three passes has a graph of its own: a pass may use up what the forward pass saved. Needed by
    `test_writes_to_grad_are_found_behind_a_backward_pass_that_runs_once`.
    """
    parameters = _sources(call)
    before = [parameter.grad for parameter in parameters]
    if PUBLIC_ONLY:  # hooks that run an optimiser cannot be taken out
        return False
    try:
        expected, again = (_gradients(call, run(call, around)) for _ in range(2))
        if not expected:
            return False
        live, cotangents = _seeds(run(call, around))
        for parameter in parameters:
            parameter.grad = None
        with private.without_accumulation_hooks(parameters):
            torch.autograd.backward(live, cotangents, inputs=parameters)
        found = [parameter.grad for parameter in parameters]
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
    return _agree(expected, again) and not _agree(expected, found)


def hook_that_writes_to_grad(call: Call) -> Candidate | None:
    """The hook without which a backward pass no longer writes to `.grad`. Calls function and derivative.

    Needed by the graph network of `test_fault_is_named_with_its_path_and_line`.
    """
    mode = StopMode()
    run(call, mode.around)
    inside = [one for one in mode.found.values() if one.name in HOOKING]
    for candidate in [*inside, *persistent_hooks(call.target)]:
        with without([candidate]):
            if not writes_to_grad(call, StopMode(released=frozenset([candidate.key])).around):
                return candidate
    return None


def accumulation_hooks_that_change_grad(call: Call) -> list[Candidate]:
    """The hooks after accumulation that change `.grad` and leave the parameter as it is. Calls function and derivative.

    Each is called with a copy of its parameter: a step of an optimiser changes it, or does not know the copy.
    """
    candidates = list(accumulation_hooks(call.target))
    if not candidates:
        return []
    sources = _sources(call)
    found = dict(zip(map(id, sources), _gradients(call, run(call)), strict=True))
    return [candidate for candidate, parameter in candidates if _changes_grad(candidate, parameter, found)]


def _changes_grad(candidate: Candidate, parameter: nn.Parameter, gradients: dict[int, Tensor | None]) -> bool:
    """Whether a hook changes the gradient of a parameter. Calls it."""
    gradient = gradients.get(id(parameter))
    if gradient is None or candidate.hook is None:
        return False
    hooks, key = candidate.hook
    copy = nn.Parameter(parameter.detach().clone())
    copy.grad = gradient.clone()
    try:
        hooks[key](copy)
    except Exception:  # it does not know the copy
        return False
    return copy.grad is not None and torch.equal(copy, parameter) and not torch.equal(copy.grad, gradient)


def unsound_operations(call: Call) -> list[Candidate]:
    """The operation whose gradient is not finite for a finite grad_output, so that those of the leaves are not.

    If there is none, the checkpoints that draw other random numbers in their second run than in their first.
    """
    nodes: dict[Any, tuple[SourceCode | None, nn.Module | None]] = {}
    checkpoints: dict[str, Candidate] = {}
    found: list[Any] = []

    def called(func: Any, args: Any, kwargs: Any) -> Any:
        """Notes the line that made each node of the graph, and the checkpoints that draw and keep no random state."""
        checkpoint = unpreserved_checkpoint()
        before = RandomState() if checkpoint is not None else None
        result = func(*args, **kwargs)
        if before is not None and not before.is_torch_current() and (line := calling_line(checkpoint)) is not None:
            candidate = Candidate(line, "checkpoint", OTHER_DRAWS, running_module(checkpoint))
            checkpoints.setdefault(str(line), candidate)
        new = [tensor.grad_fn for tensor in tensors_of(result)]
        origin = calling_line(), running_module()
        while new:
            node = new.pop()
            if node is not None and node not in nodes:
                nodes[node] = origin
                new += [behind for behind, _ in node.next_functions]
        return result

    def note(node: Any, gradients: Any, grad_outputs: Any) -> None:
        if _is_finite(grad_outputs) and not _is_finite(gradients):
            found.append(node)

    with PreservedState(call.target, call.tensors):
        live, cotangents = _seeds(run(call, lambda forward: _within(called, forward)))
        for node in nodes:
            node.register_hook(partial(note, node))
        found_gradients = gradients(live, leaves_behind(live), cotangents)
    if not found or _is_finite(found_gradients):
        return list(checkpoints.values())
    line, owner = nodes[found[0]]
    return [] if line is None else [Candidate(line, found[0].name(), NOT_FINITE_GRADIENT, owner)]


def _is_finite(tensors: Sequence[Tensor | None]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors if tensor is not None)


def _within(called: Operators, call: Callable[[], Any]) -> Any:
    with FunctionMode(called):
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
    return gradients(live, sources, cotangents)


def _agree(ones: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> bool:
    """Whether gradients are the same up to roundoff of another order of summation."""
    peak = max((_size(one) for one in ones if one is not None), default=0.0)
    for one, other in zip(ones, others, strict=True):
        if one is None or other is None:
            if one is not other:
                return False
            continue
        eps = torch.finfo(one.dtype).eps
        # A gradient that is zero because its terms cancel consists of their roundoff.
        if _size(one - other) > max(eps**thresholds.HALF_THE_DIGITS * _size(one), thresholds.ROUNDOFFS * eps * peak):
            return False
    return True


def _size(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0
