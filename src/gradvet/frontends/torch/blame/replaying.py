"""Records a step of a model, and replays a recorded call: as a function to check, and once to compare its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.core.blame import MODULE
from gradvet.core.frontend import Request
from gradvet.core.provenance import title_of
from gradvet.errors import first_line
from gradvet.frontends.torch.arguments import ArgumentTree, fill, map_tensors, tensors_of, unfilled
from gradvet.frontends.torch.binding import callable_of, unchanged, widened_copy
from gradvet.frontends.torch.blame.private import Replica, without_accumulation_hooks
from gradvet.frontends.torch.blame.recording import Recorder
from gradvet.frontends.torch.blame.sketches import Call, copied, is_sketch_of
from gradvet.frontends.torch.blame.stops import StopMode
from gradvet.frontends.torch.blame.straight_through import is_constant_in
from gradvet.frontends.torch.inputs import templates_of
from gradvet.frontends.torch.preservation import (
    MAX_SEARCHED_OBJECTS,
    PreservedGradients,
    PreservedState,
    preserved_containers,
)
from gradvet.frontends.torch.random_state import preserved_rng

Around = Callable[[Callable[[], Any]], Any]
"""Runs a call under some condition: (the call without arguments) ↦ its result."""

WIDE_DTYPES = frozenset({torch.float64, torch.complex128})

REPLAYS = 2
"""Number of replays that must give the recorded values: state that a call leaves behind shows in the second."""


def plainly(call: Callable[[], Any]) -> Any:
    """Run a call under no condition."""
    return call()


def record_step(
    recorder: Recorder, request: Request, loss: Callable[[Any], Any] | None, *, all_inputs: bool = False
) -> None:
    """Record one forward and one backward pass of a model. Random state, buffers and gradients stay as they are.

    `all_inputs` says that inputs are differentiated as by `check`: all floating-point ones if none requires grad.
    """
    model: nn.Module = request.func  # type: ignore[assignment]
    tree, _, _ = templates_of(request)
    given = (request.positional, dict(request.kwargs or {}))
    requested = not all_inputs or any(tensor.requires_grad for tensor in tree.tensors)

    def prepared(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        return copy if requested or not (copy.is_floating_point() or copy.is_complex()) else copy.requires_grad_()

    args, kwargs = map_tensors(prepared, given)
    with PreservedState(model, request.positional), PreservedGradients(model.parameters()), torch.enable_grad():
        try:
            with recorder, recorder:  # twice: the first restoration may be interrupted
                recorder.start()
                result = model(*args, **kwargs)
                _run_backward(model, result if loss is None else loss(result))
        finally:
            recorder.rewind()


def _run_backward(model: nn.Module, result: Any) -> None:
    """One backward pass, in which checkpoints call their functions again. A pass that raises is checked elsewhere.

    Reentrant checkpoints need `backward()`, which adds to `.grad`.
    """
    tree = ArgumentTree()
    tree.template(result, "")
    live = [tensor for tensor in tree.tensors if tensor.requires_grad]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not live or not parameters:
        return
    try:
        ones = [torch.ones_like(tensor) for tensor in live]  # torch has none for sparse tensors
        torch.autograd.grad(live, parameters, ones, allow_unused=True, retain_graph=True)
        return
    except Exception:
        pass
    with without_accumulation_hooks(parameters), suppress(Exception):
        torch.autograd.backward(live, [torch.ones_like(tensor) for tensor in live])


def request_of(call: Call, around: Around = plainly) -> Request:
    """The call as a request of a check, with fresh arguments."""
    if call.modules:
        return _request_of_modules(call, around)
    with _objects_as_recorded(call):
        args, kwargs = arguments_of(call, _fresh(call))
    if call.kind == MODULE:
        is_constant = not any(call.requires_grad) and any(p.requires_grad for p in call.target.parameters())
        given = (args, kwargs) if is_constant else None
        replica = Replica(call.target, partial(_outputs_of_module, call, around, given), type(call.target).__name__)
        return Request(replica, ()) if is_constant else Request(replica, args, kwargs or None)
    func = callable_of(call.target)
    if around is plainly and not call.autocast and not call.written:
        return Request(call.target, args, kwargs or None)
    workspace: dict[tuple[int, torch.dtype], Tensor] = {}
    args, kwargs = arguments_of(call, [None if n in call.written else t for n, t in enumerate(_fresh(call))])

    def replayed(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _with_workspace(call, workspace, args, kwargs)
        with _autocast(call):
            return around(lambda: func(*args, **kwargs))

    replayed.__name__ = call.name
    return Request(replayed, args, kwargs or None)


def _outputs_of_module(call: Call, around: Around, constants: Any, inner: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The floating-point results of a module for copies of its inputs; `constants` are these if none required grad."""
    if constants is not None:
        is_wide = not WIDE_DTYPES.isdisjoint(p.dtype for p in inner.parameters())
        args, kwargs = map_tensors(widened_copy if is_wide else unchanged, constants)
    args, kwargs = map_tensors(lambda t: t if isinstance(t, nn.Parameter) else t.clone(), (args, kwargs))
    _restore(call)
    with _autocast(call), _objects_as_recorded(call):
        result = around(lambda: inner(*args, **kwargs))
    return tuple(tensor for tensor in tensors_of(result) if tensor.is_floating_point() or tensor.is_complex())


def _request_of_modules(call: Call, around: Around) -> Request:
    """A Function that gets modules and their parameters, as one of adjoint methods does, as a module of these modules.

    So its backward pass calls them with the parameters of its forward pass. There is nothing in place of the parameters
    in the arguments: the module has them.
    """
    modules = nn.ModuleDict({"inner": nn.ModuleList(call.modules)})
    known = {id(p): (m, name) for m in modules.modules() for name, p in m.named_parameters(recurse=False)}
    owners = [known.get(id(tensor)) for tensor in call.tensors]
    fresh = zip(owners, _fresh(call), strict=True)
    args, kwargs = arguments_of(call, [None if owner else tensor for owner, tensor in fresh])

    def run(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = iter(tensors_of((args, kwargs)))
        tensors = [getattr(*owner) if owner else next(given) for owner in owners]
        args, kwargs = arguments_of(call, tensors)
        with _autocast(call):
            return around(lambda: callable_of(call.target)(*args, **kwargs))

    return Request(Replica(modules, run, call.name), args, kwargs or None)


def _with_workspace(
    call: Call, shared: dict[tuple[int, torch.dtype], Tensor], args: Any, kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with the tensors that the call writes to, in the same memory in all replays, as in the model.

    They have the recorded values. So a backward pass that reads them after another call shows. Needed by the recurrent
    network of `test_fault_is_named_with_its_path_and_line`.
    """
    given = tensors_of((args, kwargs))
    is_wide = not WIDE_DTYPES.isdisjoint(tensor.dtype for tensor in given)
    others, tensors = iter(given), list[Tensor]()
    for n, kept in enumerate(call.tensors):
        if n not in call.written:
            tensors.append(next(others))
            continue
        values = widened_copy(kept) if is_wide else kept
        memory = shared.setdefault((n, values.dtype), copied(values))
        tensors.append(memory.copy_(values))
    return arguments_of(call, tensors)


def torch_stops(function: Callable[[], Any]) -> list[str]:
    """The lines at which a function calls code of torch that stops the gradient deliberately. Calls the function."""
    mode = StopMode(holds_torch=True)
    try:
        mode.around(function)
    except Exception:  # some code does not run in such a mode
        return []
    return list(mode.deliberate.values())


def within(func: Any, mode: StopMode) -> Any:
    """A function that is called in a mode."""
    if isinstance(func, nn.Module):
        return Replica(func, partial(_called_in, mode), type(func).__name__)
    call = callable_of(func)

    def held(*args: Any, **kwargs: Any) -> Any:
        return _called_in(mode, call, *args, **kwargs)

    held.__name__ = title_of(func)
    return held


def _called_in(mode: StopMode, func: Any, *args: Any, **kwargs: Any) -> Any:
    return mode.around(lambda: func(*args, **kwargs))


def refusal(call: Call) -> str:
    """Why a call cannot be replayed; nothing if it can. Calls the function."""
    if not call.has_returned:
        return "when it was recorded it raised an exception, or returned what cannot be copied"
    try:
        results = [run(call) for _ in range(REPLAYS)]
    except Exception as error:
        return f"the replay raises {type(error).__name__}: {first_line(error)}"
    for result in results:
        found = tensors_of(result)
        if len(found) != len(call.outputs) or not all(map(is_sketch_of, call.outputs, found)):
            return "the replay gives other values than the model did: it depends on state that is not recorded"
    return ""


def run(call: Call, around: Around = plainly) -> Any:
    """The result of one replay, from the recorded random state and buffers."""
    func = call.target if call.kind == MODULE else callable_of(call.target)
    tensors = [t if isinstance(t, nn.Parameter) else t.clone() for t in _fresh(call)]
    with preserved_rng(), _autocast(call), torch.enable_grad(), _objects_as_recorded(call):
        args, kwargs = arguments_of(call, tensors)
        call.random.restore()
        _restore(call)
        if call.restore_tensors is not None:
            call.restore_tensors()
        return around(lambda: func(*args, **kwargs))


def is_locally_constant(call: Call, positions: Sequence[int]) -> bool:
    """Whether the values of a Function do not change with these arguments. Calls it three times."""
    args, kwargs = arguments_of(call, [tensor.detach() for tensor in _fresh(call)])
    with preserved_rng(), _autocast(call):
        call.random.restore()
        return is_constant_in(lambda *given: callable_of(call.target)(*given, **kwargs), args, positions)


def arguments_of(call: Call, tensors: Sequence[Tensor | None]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with these tensors in their places."""
    args, kwargs = fill(call.template, tensors)
    return tuple(args), dict(kwargs)


def _fresh(call: Call) -> list[Tensor]:
    """New tensors with the recorded values; parameters are the module's own."""
    return [
        tensor if isinstance(tensor, nn.Parameter) else _leaf(tensor, needed)
        for tensor, needed in zip(call.tensors, call.requires_grad, strict=True)
    ]


def _leaf(tensor: Tensor, needs_grad: bool) -> Tensor:
    copy = copied(tensor)
    return copy.requires_grad_(needs_grad and (copy.is_floating_point() or copy.is_complex()))


def _restore(call: Call) -> None:
    """Give the modules the attributes that they had when the recording began, and generators of theirs their state."""
    call.random.restore_given()
    if call.restore_attributes is not None:
        call.restore_attributes()


@contextmanager
def _objects_as_recorded(call: Call) -> Iterator[None]:
    """Give objects among the arguments the attributes that they had when the call was recorded; put them back."""
    if call.restore_objects is None:
        yield
        return
    with preserved_containers(*unfilled(call.template), limit=MAX_SEARCHED_OBJECTS):
        call.restore_objects()
        yield


@contextmanager
def _autocast(call: Call) -> Iterator[None]:
    with ExitStack() as stack:
        for kind, dtype in call.autocast.items():
            stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
        yield
