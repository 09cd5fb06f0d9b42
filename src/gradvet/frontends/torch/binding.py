"""The user's function as a function of flat arguments: which of them are checked, and the name of each."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import is_tensor_like

from gradvet.core.events import one_at_a_time
from gradvet.core.frontend import CONSTANT_INPUTS, Request
from gradvet.core.provenance import title_of
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch import private
from gradvet.frontends.torch.arguments import ArgumentTree, Slot, fill
from gradvet.frontends.torch.branches import BranchMode
from gradvet.frontends.torch.double_precision import DoublePrecision, wide_dtype
from gradvet.frontends.torch.inputs import require_precision, templates_of
from gradvet.frontends.torch.layouts.dense import is_freed, overlaps, refill, same_numbers
from gradvet.frontends.torch.preservation import PreservedState, reachable_objects
from gradvet.frontends.torch.random_state import generators_among, preserved_rng
from gradvet.frontends.torch.state import FixedState

LEAF_WRITTEN = "leaf Variable that requires grad"
"""Phrase of the exception that torch raises if a function writes to such an input."""

Change = Callable[[Any], Any]
"""Makes one tensor of another."""

Substitution = Callable[[Sequence[Any]], AbstractContextManager[None]]
"""Gives a module the parameters among the arguments of a call, until the context ends."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A function of flat arguments, some of which are checked, and how a problem is to treat it."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    names: tuple[str, ...]
    """The name of each argument."""
    title: str
    notes: tuple[str, ...] = ()
    surrogate: Callable[..., Any] | None = None
    """Another function of the same arguments, with whose slopes the derivative is compared."""
    output: str = "output"
    """The name of an output."""
    derived: bool = False
    """Whether the function is a derivative of the user's function, made by torch."""
    nests_jvps: bool = False
    """Whether JVPs are those of `torch.func.jvp`, which can be nested."""
    is_drop_in: bool = False
    """Whether it is treated as torch's gradcheck does. Backward passes do not start from the random state that the
    forward pass left, and their exceptions are raised as they are; dual numbers do not require grad, which functions
    that take gradients themselves need; a single output is numbered too, and may be a wrapper around tensors."""
    start: FixedState | None = None
    """The state from which every call of the function starts."""
    substitution: Substitution | None = None
    """Gives a module the parameters among some arguments, as long as derivatives are computed at them: backward passes
    of checkpoints, of adjoint methods and of implicit functions call the module again."""
    operator_mode: DoublePrecision | BranchMode | None = None
    """Replaces operators, by those of higher precision or of fixed branches, while the function is called and its
    derivatives are computed; None: torch's own are used."""
    safe_devices: tuple[str, ...] | None = ("cpu",)
    """Kinds of devices on which the function is called with other shapes and alignments in this process."""
    isolates_passes: bool = False
    """Whether every backward pass gets a forward pass of its own, on copies of the arguments."""
    written: tuple[int, ...] | None = None
    """Positions of arguments of which every call gets a copy, because the function may write to them; None: unknown."""

    def restart(self) -> None:
        """Put back the state from which calls start."""
        if self.start is not None:
            self.start.restore()

    @property
    def call(self) -> Callable[..., Any]:
        """The function as it is called for a pass, with copies of what it may write to."""
        copied = range(len(self.arguments)) if self.isolates_passes else self.written
        if not copied:
            return self.function
        return lambda *values: self.function(*[_copy(x) if i in copied else x for i, x in enumerate(values)])

    @property
    def checked(self) -> list[int]:
        """The positions of the arguments that are checked."""
        return [i for i, argument in enumerate(self.arguments) if _is_checked(argument)]

    def restricted(self, positions: Sequence[int]) -> Binding:
        """The binding with these arguments alone checked; the others are constants."""
        others = set(self.checked) - set(positions)
        return self.at(argument.detach() if i in others else argument for i, argument in enumerate(self.arguments))

    def at(self, arguments: Iterable[Any]) -> Binding:
        """The binding with other arguments."""
        return replace(self, arguments=tuple(arguments))


def _copy(value: Any) -> Any:
    """A copy of a dense tensor; anything else as it is."""
    return value.clone() if isinstance(value, Tensor) and value.layout is torch.strided else value


def first_result(binding: Binding, layouts: Iterable[Any]) -> tuple[Binding, Callable[..., Any], Any]:
    """The binding with the arguments to which the function may write, its `call`, and the result at the arguments.

    The function may write to tensors that are not checked, such as running statistics, and to checked ones that it
    marks as dirty, which torch refuses for leaves. An unmarked write to a checked one is a mistake. Calls the function.
    Needed by `test_kernel_that_marks_its_inputs_dirty_is_checked_on_copies` and
    `test_statistics_that_forward_updates_are_the_same_in_every_call`.
    """
    call = binding.call
    if binding.written is not None:
        return binding, call, call(*binding.arguments)
    checked, result, is_refused = binding.checked, None, False
    others = {i: _copy(value) for i, value in enumerate(binding.arguments) if i not in checked}
    try:
        result = call(*binding.arguments)
    except RuntimeError as error:
        if not (is_refused := LEAF_WRITTEN in str(error)):
            raise
    written = [i for i, copy in others.items() if _is_changed(binding.arguments[i], copy)]
    for i in written:
        refill(binding.arguments[i], others[i])
    for i, layout in zip(checked, layouts, strict=True):
        if is_freed(binding.arguments[i]):
            refill(binding.arguments[i], layout.base)
            written.append(i)
    if is_refused:
        for layout in layouts:  # the call wrote to inputs before torch refused it
            layout.restore()
        copies = [_copy(value) for value in binding.arguments]
        binding.function(*copies)
        # A new copy has version 0.
        written += [i for i in checked if isinstance(copies[i], Tensor) and private.version(copies[i])]
    binding = replace(binding, written=tuple(written))
    if not written:
        return binding, call, result
    names = ", ".join(binding.names[i] for i in sorted(written))
    note = f"the function writes to {names}: every call was made with a copy"
    binding = replace(binding, notes=(*binding.notes, note))
    return binding, binding.call, binding.call(*binding.arguments)


def _is_changed(value: Any, copy: Any) -> bool:
    """Whether a tensor differs from a copy of it; not where torch compares no numbers of its kind."""
    with suppress(RuntimeError, TypeError):
        return value is not copy and not same_numbers(value.detach(), copy.detach())
    return False


def is_differentiable(tensor: Any) -> bool:
    """Whether a tensor requires grad and has a dtype with derivatives."""
    return bool(tensor.requires_grad) and bool(tensor.is_floating_point() or tensor.is_complex())


def _is_checked(argument: Any) -> bool:
    return is_tensor_like(argument) and is_differentiable(argument)


def drop_in_binding(function: Callable[..., Any], arguments: Sequence[Any]) -> Binding:
    """The binding of `gradcheck`: the user's own tensors, torch's exceptions as they are, no fixed random state."""
    numbers = itertools.count()
    names = [f"input {next(numbers)}" if _is_checked(argument) else "" for argument in arguments]
    return Binding(function, tuple(arguments), tuple(names), "", is_drop_in=True, written=())


def bind(request: Request, *, wide: torch.dtype | None = None, double: DoublePrecision | None = None) -> Binding:
    """Find the tensors in inputs and keywords, and the parameters if the function is a module.

    `wide` replaces all floating-point tensors of lower precision by copies in that one; with `double`, the function is
    called in that mode.
    """
    if torch.is_inference_mode_enabled():
        raise InvalidProblemError("inside torch.inference_mode() torch records no gradients: check outside of it")
    func: Any = request.func
    call = callable_of(func)
    tree, templates, keywords = templates_of(request)
    change = unchanged if wide is None else functools.partial(widened_copy, wide=wide)
    tensors, notes = _prepared(tree, func, change, _chosen(tree.names, request))
    notes += [CONSTANT_INPUTS] if request.has_constant_inputs else []
    parameters, fixed_state = _state(func, change)
    count = len(tensors)
    substituted = _substitution(func, parameters, fixed_state, count)
    in_order = [template.index if isinstance(template, Slot) else None for template in templates] == list(range(count))
    as_given = in_order and not keywords and not parameters and not fixed_state
    as_given = as_given and all(expand is unchanged for _, expand in tensors)

    def arranged(target: Any, values: Sequence[Any]) -> Any:
        shown = [expand(value) for value, (_, expand) in zip(values[:count], tensors, strict=True)]
        args = shown if in_order else [fill(template, shown) for template in templates]
        words = {name: fill(template, shown) for name, template in keywords.items()}
        if target is not func:
            return target(*args, **words)
        with substituted(values):
            return call(*args, **words)

    generators = generators_among(reachable_objects(func, request.positional, request.kwargs))
    fixed, inside = FixedState(func, generators), double.around if double else unchanged
    bound = Binding(
        fixed.around(inside(call if as_given else lambda *values: arranged(func, values))),
        (*(tensor for tensor, _ in tensors), *parameters.values()),
        (*tree.names, *parameters),
        title_of(func),
        (*tree.notes, *notes),
        fixed.around(inside(lambda *values: arranged(request.surrogate, values))) if request.surrogate else None,
        start=fixed,
        substitution=substituted if parameters else None,
        operator_mode=double,
        safe_devices=request.safe_devices,
    )
    if request.argnums is not None:
        bound = bound.restricted([position for position in bound.checked if position < count])
    for position in bound.checked:
        require_precision(bound.arguments[position], bound.names[position])
    if not bound.checked:
        raise _nothing_to_differentiate(request, tree)
    return bound


def _substitution(func: Any, parameters: Mapping[str, Any], fixed_state: Mapping[str, Any], start: int) -> Substitution:
    """The substitution for arguments that have the parameters from this position on; other state is copied."""
    own = [p for p in func.parameters() if p.requires_grad] if parameters else []

    def substituted(values: Sequence[Any]) -> AbstractContextManager[None]:
        given = values[start : start + len(own)]
        if not fixed_state and all(one is other for one, other in zip(given, own, strict=True)):
            return nullcontext()
        # A call may write to buffers.
        copies = {name: tensor.detach().clone() for name, tensor in fixed_state.items()}
        return private.with_state(func, {**copies, **dict(zip(parameters, given, strict=True))})

    return substituted


@one_at_a_time
def with_constant_inputs(request: Request) -> Request | None:
    """The request with the parameters alone to be checked, if a module runs only so; otherwise None.

    For a call that raised: some models refuse inputs that require grad, which those of a training step do not. Calls
    the function. Needed by `test_model_that_refuses_inputs_that_require_grad_passes`.
    """
    tree, _, _ = templates_of(request)
    is_given = request.argnums is not None or any(map(is_differentiable, tree.tensors))
    if is_given or request.has_constant_inputs or not isinstance(request.func, nn.Module):
        return None
    held = replace(request, has_constant_inputs=True)
    try:
        bound = bind(held)
        state = PreservedState(request.func, bound.arguments)
        with state, state:  # twice: the first restoration may be interrupted
            bound.function(*bound.arguments)
    except Exception:
        return None
    return held


def settle(request: Request, names: Sequence[str]) -> bool:
    """Whether the first call of a module, and no later one, sets these parameters; then it has been called.

    Such as an initialisation from the first data. An embedding with `max_norm` sets its weight whenever that is large.
    The caller preserves the state of the module. Needed by `test_flow_that_is_initialised_by_its_first_data_passes`.
    """
    own = dict(request.func.named_parameters()) if isinstance(request.func, nn.Module) else {}
    if not all(name in own for name in names):
        return False
    parameters, bound = [own[name] for name in names], bind(request)
    with PreservedState(request.func, bound.arguments):
        bound.function(*bound.arguments)
        later = bind(request)
        with torch.no_grad():
            doubled = [parameter.mul_(2.0).clone() for parameter in parameters]
        later.function(*later.arguments)
        if not all(map(same_numbers, map(Tensor.detach, parameters), doubled)):
            return False
    with preserved_rng():
        bound.function(*bound.arguments)
    return True


ONE_TENSOR = "Pass at least one such tensor, for instance x.double() or torch.as_tensor(array)"


def _nothing_to_differentiate(request: Request, tree: ArgumentTree) -> InvalidProblemError:
    kinds = [str(tensor.dtype).removeprefix("torch.") for tensor in tree.tensors]
    tensors = [f"{name}: {kind}" for name, kind in zip(tree.names, kinds, strict=True)]
    others = [f"input {number}: {type(value).__name__}" for number, value in enumerate(request.positional)]
    found = ", ".join(tensors or others) or "no input"
    return InvalidProblemError(
        f"there is nothing to differentiate: a floating-point or complex tensor was expected among the inputs, "
        f"found {found}. {ONE_TENSOR}."
    )


def widened_copy(tensor: Tensor, wide: torch.dtype = torch.float64) -> Tensor:
    """A copy with at least this precision, a parameter of one; integers and booleans are returned as they are."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    copy = tensor.detach().to(wide_dtype(tensor.dtype, wide), copy=True)
    return (
        nn.Parameter(copy, tensor.requires_grad)
        if type(tensor) is nn.Parameter
        else copy.requires_grad_(tensor.requires_grad)
    )


def _state(func: Any, change: Change) -> tuple[dict[str, Any], dict[str, Any]]:
    """The checked parameters of a module, and its other parameters and buffers if they have to be converted."""
    if not isinstance(func, nn.Module):
        return {}, {}
    parameters = {name: change(p) for name, p in func.named_parameters() if p.requires_grad}
    if change is unchanged:
        return parameters, {}
    fixed = {name: change(p) for name, p in func.named_parameters() if not p.requires_grad}
    return parameters, {**fixed, **{name: change(buffer) for name, buffer in func.named_buffers()}}


def _chosen(names: Sequence[str], request: Request) -> list[bool]:
    """Which tensors of the arguments may be checked, by their names."""
    if request.argnums is None or request.has_constant_inputs:
        return [not request.has_constant_inputs] * len(names)
    beginnings = tuple(f"input {number}{end}" for number in request.argnums for end in ("[", ".", " "))
    return [f"{name} ".startswith(beginnings) for name in names]


def _prepared(
    tree: ArgumentTree, func: Any, change: Change, chosen: Sequence[bool]
) -> tuple[list[tuple[Any, Change]], list[str]]:
    """Each tensor as it is perturbed, with the function that makes the argument from it, and notes."""
    requested = any(is_differentiable(tensor) for tensor, asked in zip(tree.tensors, chosen, strict=True) if asked)
    prepared: list[tuple[Any, Change]] = []
    notes = []
    for tensor, name, asked in zip(tree.tensors, tree.names, chosen, strict=True):
        floating = tensor.is_floating_point() or tensor.is_complex()
        if not asked:
            tensor = tensor.detach()
        elif not requested and floating:
            # No input requires grad, so the caller's tensors are not changed.
            tensor = tensor.detach() if _is_expanded(tensor) else tensor.detach().clone()
            tensor.requires_grad_()
        if is_differentiable(tensor) and (private.is_view_of_grad(tensor) or _is_result(tensor, func)):
            # A view made in no-grad mode is in no graph; a retained `.grad` would keep what vmap leaves there; and the
            # result of operators may depend on another input.
            tensor = tensor.detach().requires_grad_()
        if is_differentiable(tensor) and _is_expanded(tensor):
            notes.append(f"{name} is expanded: it is moved through the storage behind it")
            expand: Change = methodcaller("expand", tensor.size())
            tensor = _behind(tensor)
        else:
            expand = unchanged
        if is_differentiable(tensor) and overlaps(tensor):
            notes.append(f"elements of {name} share memory: a contiguous copy was checked in its place")
            tensor = tensor.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
        prepared.append((change(tensor), expand))
    return prepared, notes


def _is_result(tensor: Tensor, func: Any) -> bool:
    """Whether a tensor is the result of operators, and the function does not refer to it otherwise."""
    return tensor.grad_fn is not None and all(thing is not tensor for thing in reachable_objects(func))


def _is_expanded(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    return any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.size(), strict=True))


def _behind(tensor: Tensor) -> Tensor:
    """The stored numbers of an expanded tensor, each once."""
    for dimension, step in enumerate(tensor.stride()):
        if step == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor.detach().requires_grad_()


def unchanged(tensor: Any) -> Any:
    """The tensor itself."""
    return tensor


def callable_of(func: Any) -> Any:
    """The callable: `apply` of an `autograd.Function`, anything else itself."""
    if isinstance(func, type) and issubclass(func, torch.autograd.Function):
        return func.apply
    if isinstance(func, torch.autograd.Function):
        raise InvalidProblemError(f"pass the class {type(func).__name__}, not an instance of it")
    return func
