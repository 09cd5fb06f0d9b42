"""VJPs and JVPs of a problem as tensors: backward passes, dual numbers, and the attributes of what they return.

At the end, many points or many rows in one call, by vmap: other kernels, so the engine compares it with plain calls.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn

from gradvet.core.problem import AttributeMismatch
from gradvet.core.vectors import Space
from gradvet.errors import InvalidProblemError, raise_interruption
from gradvet.frontends.torch import private, process_state
from gradvet.frontends.torch.autograd_graph import USED_UP, is_unsupported_error, nodes_behind
from gradvet.frontends.torch.layouts import can_be_cut
from gradvet.frontends.torch.layouts.dense import WORKING_DTYPE, Dense, dual_of, unflattened, unit_matrix
from gradvet.frontends.torch.preservation import PreservedGradients, accumulating_leaves, preserved_containers

if TYPE_CHECKING:
    from gradvet.frontends.torch.problem import TorchProblem

ACCUMULATING = "compatible with .grad()", "currently running autograd.grad()"
"""Phrases of the exceptions of reentrant checkpoints and of hooks on several leaves, which need `backward()`."""

Tangents = list[tuple[Tensor, Tensor | None]]
"""Outputs with their tangents; None for a tangent that is missing."""


def run_backward(
    outputs: Sequence[Any],
    sources: Sequence[Any],
    cotangents: Sequence[Any],
    *,
    create_graph: bool = False,
    accumulate: bool = False,
    batched: bool = False,
) -> Sequence[Any]:
    """A backward pass that keeps the graph; a source without a gradient gives None.

    Plain tensors pass by the checks of the arguments: they cost as much as a small backward pass, and the first one
    loads sympy (half a second). With `accumulate`, gradients are added to the `.grad` of the sources. With `batched`,
    cotangents and gradients have a first axis more.
    """
    kinds = {*map(type, outputs), *map(type, sources), *map(type, cotangents)}
    is_plain = private.ENGINE is not None and kinds <= private.PLAIN_TYPES
    if create_graph:  # users' own cotangents
        is_plain = is_plain and [(y.size(), y.dtype) for y in outputs] == [(v.size(), v.dtype) for v in cotangents]
    if not is_plain and accumulate:
        torch.autograd.backward(outputs, cotangents, retain_graph=True, inputs=sources)
        return ()
    if not is_plain:
        given = {"retain_graph": True, "create_graph": create_graph, "is_grads_batched": batched}
        return torch.autograd.grad(outputs, sources, cotangents, allow_unused=True, **given)

    def run(*cotangents: Any) -> Any:
        given = tuple(outputs), cotangents, True, create_graph, tuple(sources), True
        return private.ENGINE.run_backward(*given, accumulate_grad=accumulate)

    if batched:
        run = private.dual_vmap()(run, 0, 0, allow_none_pass_through=True)
    found: Sequence[Any] = run(*cotangents)
    return found


def gradients(outputs: Sequence[Any], sources: Sequence[Any], cotangents: Sequence[Tensor]) -> Sequence[Any]:
    """One backward pass: the gradient of every source, None if it has none. The graph is kept, if it can be."""
    try:
        return run_backward(outputs, sources, cotangents)
    except RuntimeError as error:
        if USED_UP in str(error):
            return torch.autograd.grad(outputs, sources, cotangents, allow_unused=True)
        if not any(phrase in str(error) for phrase in ACCUMULATING):
            raise
    return accumulated_gradients(outputs, sources, cotangents)


def accumulated_gradients(
    outputs: Sequence[Any], sources: Sequence[Any], cotangents: Sequence[Tensor]
) -> Sequence[Any]:
    """The same through `backward()`. Every `.grad` is left as it was."""
    found: dict[int, Any] = {}
    inner = [source for source in sources if not source.is_leaf]
    hooks = [source.register_hook(functools.partial(found.__setitem__, id(source))) for source in inner]
    try:
        own = PreservedGradients((*accumulating_leaves(outputs), *(source for source in sources if source.is_leaf)))
        with own, own:  # twice: the first restoration may be interrupted
            torch.autograd.backward(outputs, cotangents, retain_graph=True)
            return [source.grad if source.is_leaf else found.get(id(source)) for source in sources]
    finally:
        for hook in hooks:
            hook.remove()


NO_MODE = contextlib.nullcontext()
"""In place of a context where there is nothing to set or to restore."""


def gradients_of_module(outputs: Sequence[Any], sources: Sequence[Any], cotangents: Sequence[Tensor]) -> Sequence[Any]:
    """The gradients, with what the pass itself adds to `.grad`, as `backward()` inside a reversible layer does.

    Needed by `test_model_whose_backward_pass_calls_a_module_passes_in_single_precision`.
    """
    # Entered once: what an interruption leaves in `.grad` is restored with the other state of the check.
    with PreservedGradients([source for source in sources if source.is_leaf]):
        found = gradients(outputs, sources, cotangents)
        added = [source.grad if source.is_leaf else None for source in sources]
    return [g if more is None else more if g is None else g + more for g, more in zip(found, added, strict=True)]


def accumulate(outputs: Sequence[Any], sources: Sequence[Any], cotangents: Sequence[Tensor]) -> None:
    """Add the gradients to the `.grad` of the sources. The graph is kept. Other leaves keep their `.grad`."""
    # A reentrant checkpoint refuses `inputs=` in the middle of the pass, when some leaves have their gradients.
    if not any(hasattr(node, "run_function") for node in nodes_behind(outputs)):
        run_backward(outputs, sources, cotangents, accumulate=True)
        return
    own = set(map(id, sources))
    others = PreservedGradients(leaf for leaf in accumulating_leaves(outputs) if id(leaf) not in own)
    with others, others:  # twice: the first restoration may be interrupted
        torch.autograd.backward(outputs, cotangents, retain_graph=True)


def undefined_gradients(problem: TorchProblem, undefined: Sequence[int], v: Tensor | None = None) -> Sequence[Any]:
    """Gradients with undefined grad_output for some outputs and zeros, or those of v, for the others."""
    outputs = [
        private.without_cotangent(y) if i in undefined and can_be_cut(y) else y
        for i, y in enumerate(problem.recorded_outputs())
    ]
    cotangents = [torch.zeros_like(y) for y in outputs] if v is None else unflattened(problem.codomain, v)
    return problem.gradients_at_point(outputs, cotangents)


@contextlib.contextmanager
def in_vmap(problem: TorchProblem) -> Iterator[None]:
    """The context of passes inside `vmap`. They are gradvet's own, and their tensors cannot be used after it.

    Tensors that custom rules keep, such as sums of grad_outputs, are removed from their containers: needed by
    `test_backward_that_keeps_statistics_passes`. torch's warning about operators without batching rule is silenced.
    Compiled functions run as plain Python: one that torch's compiler meets in vmap is never compiled again.
    """
    passes = [getattr(rule, name, None) for rule in problem.rules.custom() for name in ("forward", "backward")]
    try:
        with (
            warnings.catch_warnings(),
            private.CompiledAsPython(),
            preserved_containers(*passes) if passes else NO_MODE,
        ):
            warnings.filterwarnings("ignore", message="There is a performance drop")
            yield
    except Exception as error:
        raise_interruption(error)
        raise


def _saving(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Any]) -> contextlib.AbstractContextManager[Any]:
    """Torch's hooks on saved tensors, which its compiler leaves alone: it traces those that run in compiled code."""
    if "torch._dynamo" in sys.modules:
        pack, unpack = torch.compiler.disable(pack), torch.compiler.disable(unpack)
    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def call_recomputing(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """The result of a call whose graph keeps no tensors: the first one that backward needs calls it again.

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
            with torch.enable_grad(), _saving(record, torch.detach):
                function(*arguments)
        if number >= len(again) or (again[number].shape, again[number].dtype) != kept[number]:
            raise RuntimeError("torch.utils.checkpoint refuses the function: a second call saves other tensors")
        return again[number]

    with _saving(forget, recomputed):
        return function(*arguments)


def gradient_mismatches(problem: TorchProblem, found: Sequence[Any]) -> list[AttributeMismatch]:
    """Attributes in which gradients differ from their inputs; those of a module's parameters may be sparse."""
    may_be_sparse = problem.binding.substitution is not None
    return [
        AttributeMismatch(leaf, *mismatch, kind=str(gradient.layout).removeprefix("torch.").removesuffix("_coo"))
        for leaf, (layout, gradient) in enumerate(zip(problem.layouts, found, strict=True))
        if gradient is not None
        for mismatch in layout.mismatches(gradient)
        if not (may_be_sparse and gradient.is_sparse and isinstance(problem.inputs[leaf], nn.Parameter))
    ]


def tangent_mismatches(found: Tangents) -> list[AttributeMismatch]:
    """Tangents that are complex although their values are real, or the reverse."""
    return [
        AttributeMismatch(leaf, "dtype", str(tangent.dtype), str(value.dtype))
        for leaf, (value, tangent) in enumerate(found)
        if tangent is not None and tangent.is_complex() != value.is_complex()
    ]


def prepare_forward_mode() -> None:
    """Has torch load its formulas, and call its kernels for dual numbers without loading its compiler."""
    process_state.set_kernels_direct(True)
    _load_formulas()


@functools.cache
def _load_formulas() -> None:
    """Make the first dual number: torch then loads its formulas, with a warning that does not concern the user."""
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError), forward_ad.dual_level():
        warnings.simplefilter("ignore")
        forward_ad.make_dual(torch.zeros((), device="cpu"), torch.zeros((), device="cpu"))


def output_tangents(problem: TorchProblem, tangents: Sequence[Tensor | None]) -> Tangents:
    """The outputs with their tangents for tangents of the inputs, by the forward mode that the binding names."""
    # torch's refusals take long, so one is enough.
    if problem.forward_refusal is not None:
        raise problem.forward_refusal
    try:
        return _output_tangents(problem, tangents)
    except Exception as error:
        raise_interruption(error)
        if not problem.binding.is_drop_in and is_unsupported_error(error):
            # A new exception, because the traceback of this one keeps all its frames alive.
            kind = NotImplementedError if isinstance(error, (NotImplementedError, AssertionError)) else RuntimeError
            problem.forward_refusal = kind(str(error))
        raise


def _output_tangents(problem: TorchProblem, tangents: Sequence[Tensor | None]) -> Tangents:
    problem.cost.jvps += 1
    prepare_forward_mode()
    if problem.binding.nests_jvps:
        return nested_tangents(problem, tangents)
    recorded = problem.is_strided and not problem.binding.is_drop_in
    with forward_ad.dual_level():
        duals = [
            # One that requires grad, for functions that take gradients themselves.
            dual_of(tensor.detach().requires_grad_(), tangent) if recorded else layout.dual(tangent)
            for tensor, layout, tangent in zip(problem.inputs, problem.layouts, tangents, strict=True)
        ]
        pairs = [
            forward_ad.unpack_dual(y)
            for y in without_saving(problem, lambda: problem.call_differentiable(problem.arguments_with(duals)))
        ]
        # A tangent lives as long as its level, so copies are returned.
        return [(value, None if tangent is None else tangent.clone()) for value, tangent in pairs]


def without_saving(problem: TorchProblem, call: Callable[[], list[Any]]) -> list[Any]:
    """The result of a call of the function, of a module without the tensors that a backward pass would need.

    They take as much memory as a training step, in float64 twice as much, and of dual numbers several times that. A
    module that takes gradients itself, or refuses hooks, is called again as it is. Needed by
    `test_values_and_tangents_of_a_module_keep_no_activations`.
    """
    if problem.needs_saved_tensors:
        return call()
    asked: list[object] = []
    with contextlib.suppress(Exception):  # it is raised again if it is not about the hooks
        # A queue of length zero forgets every tensor without running Python code.
        with _saving(deque[Any](maxlen=0).append, asked.append):
            found = call()
        if not asked:
            return found
    found = call()
    problem.needs_saved_tensors = True
    return found


def nested_tangents(problem: TorchProblem, tangents: Sequence[Tensor | None]) -> Tangents:
    """By `torch.func.jvp`, the only forward mode that can be nested."""
    if any(tangent is None for tangent in tangents):
        raise InvalidProblemError("nested forward mode needs a tangent for every input")

    def outputs(*sources: Any) -> tuple[Tensor, ...]:
        return tuple(problem.select_differentiable(problem.function(*problem.arguments_with(sources))))

    points = tuple(tensor.detach() for tensor in problem.inputs)
    return list(zip(*torch.func.jvp(outputs, points, tuple(tangents)), strict=True))


def evaluate_together(problem: TorchProblem, displacements: Tensor) -> Tensor | None:
    """The outputs at each displaced point by one `vmap` of the function; None if it cannot be mapped."""
    pieces = torch.split(displacements, [leaf.coordinates.size for leaf in problem.domain.leaves], dim=1)
    points: list[Any] = [layout.points(piece) for layout, piece in zip(problem.layouts, pieces, strict=True)]
    if not problem.is_plain or any(point is None for point in points) or problem.rules.keeps_tensors:
        return None

    def outputs(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(problem.call(problem.arguments_with(values)))

    try:
        with (
            warnings.catch_warnings(),
            private.CompiledAsPython(),
            torch.no_grad(),
            process_state.without_vmap_fallback(),
        ):
            warnings.simplefilter("ignore")
            found = torch.func.vmap(outputs)(*points)
    except Exception as error:  # the points can still be evaluated one by one
        raise_interruption(error)
        return None
    return _rows(found, len(displacements), problem.home)


def vjp_batched(problem: TorchProblem, V: Sequence[Tensor]) -> list[Tensor]:
    """Jᵀv for several cotangents by one batched backward pass."""
    problem.cost.vjps += 1
    outputs = problem.recorded_outputs()
    with problem.mode(), in_vmap(problem):
        found = run_backward(outputs, problem.inputs, stacked(problem.codomain, V), batched=True)
    return [problem.vector(problem.domain, [g if g is None else g[k] for g in found]) for k in range(len(V))]


def vjp_rows(problem: TorchProblem, output: int, start: int, stop: int) -> Tensor | None:
    """Some rows of one output by one batched backward pass; None if the derivative cannot be mapped."""
    chosen = problem.differentiable_outputs[output]
    if not problem.is_plain or any(tensor.layout is not torch.strided for tensor in (chosen, *problem.inputs)):
        return None
    coordinates = problem.codomain.leaves[output].coordinates
    assert isinstance(coordinates, Dense)
    cotangents = coordinates.unflatten_rows(unit_matrix(start, stop, coordinates.size, problem.home))
    try:
        with problem.mode(), in_vmap(problem), process_state.without_vmap_fallback():
            warnings.simplefilter("ignore")
            recorded = problem.recorded_outputs()[output]
            gradients = run_backward((recorded,), problem.inputs, (cotangents,), batched=True)
    except Exception:  # the rows can still be computed one by one
        return None
    problem.cost.vjps += 1
    found = [
        cotangents.new_zeros(stop - start, *tensor.shape, dtype=tensor.dtype) if gradient is None else gradient
        for tensor, gradient in zip(problem.inputs, gradients, strict=True)
    ]
    return _rows(found, stop - start, problem.home)


def jvp_batched(problem: TorchProblem, U: Sequence[Tensor]) -> list[Tensor]:
    """J u for several tangents by one `vmap` of the forward mode."""
    vmap = private.dual_vmap()
    pairs_of = nested_tangents if vmap is None else output_tangents

    def jvp(*tangents: Tensor) -> tuple[Tensor, ...]:
        found = [tangent for _, tangent in pairs_of(problem, tangents)]
        return tuple(
            torch.zeros_like(y) if tangent is None else tangent
            for y, tangent in zip(problem.differentiable_outputs, found, strict=True)
        )

    with in_vmap(problem):
        found = (vmap or torch.func.vmap)(jvp)(*stacked(problem.domain, U))
    return [problem.vector(problem.codomain, [tangent[k] for tangent in found]) for k in range(len(U))]


def stacked(space: Space, vectors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of several vectors of a space, stacked along a first axis."""
    return [torch.stack(column) for column in zip(*[unflattened(space, vector) for vector in vectors], strict=True)]


def _rows(values: Any, number: int, home: torch.device) -> Tensor | None:
    """Batched values as real coordinates, one row each; None if one of them is not strided."""
    columns = []
    for value in values:
        if value.layout is not torch.strided:
            return None
        real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        columns.append(real.detach().reshape(number, -1).to(home, WORKING_DTYPE))
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
