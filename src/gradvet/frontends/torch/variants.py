"""The same gradient under other conditions: other memory layouts, fresh calls, frozen inputs, vmap, checkpointing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradvet.core import thresholds
from gradvet.core.problem import FreshGradient, GradientVariants
from gradvet.core.vectors import Space, peak
from gradvet.errors import DerivativeError, OtherValuesError, UnsupportedError
from gradvet.frontends.torch.arguments import tensors_in
from gradvet.frontends.torch.derivatives import (
    accumulate,
    call_recomputing,
    in_vmap,
    run_backward,
    stacked,
    without_saving,
)
from gradvet.frontends.torch.double_precision import is_strided
from gradvet.frontends.torch.layouts.dense import refill, same_numbers, unflattened
from gradvet.frontends.torch.preservation import PreservedGradients
from gradvet.frontends.torch.random_state import RandomState, preserved_rng

REENTRANT_NODE = "CheckpointFunctionBackward"
"""The node of a reentrant checkpoint."""

if TYPE_CHECKING:
    from gradvet.frontends.torch.problem import TorchProblem

ALIGNMENT = 64
"""Numbers of any dtype after which vectorised kernels find their alignment again."""


def _transposed(t: Tensor) -> Tensor:
    return t.mT.contiguous().mT if t.dim() > 1 else t


def _sliced(t: Tensor) -> Tensor:
    return torch.stack([t, t + 1], -1).select(-1, 0)


def _transposed_and_sliced(t: Tensor) -> Tensor:
    return _sliced(t.mT).mT if t.dim() > 1 else _sliced(t)


def _offset(t: Tensor, ahead: int = 0) -> Tensor:
    """The same numbers later in memory; aligned on a device, where a misaligned read in a kernel ends the process."""
    ahead = ahead or (1 if t.device.type == "cpu" else ALIGNMENT)
    return t.new_ones(ahead + t.numel())[ahead:].view(t.shape).copy_(t)


def _channels_last(t: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t


def _conjugated(t: Tensor) -> Tensor:
    return t.conj().resolve_conj().conj() if t.is_complex() else t


OFFSET = "offset"
"""The layout with the usual strides and another storage offset."""

REARRANGEMENTS: Mapping[str, Callable[[Tensor], Tensor]] = {
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


def _differ_in_layout(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ in strides, storage offset or conjugate bit."""
    apart = one.stride() != other.stride() or one.storage_offset() != other.storage_offset()
    return apart or one.is_conj() != other.is_conj()


class TorchVariants(GradientVariants):
    """Gradients of one problem, obtained in other ways."""

    problem: TorchProblem

    @property
    def _layouts(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        """The layouts to try. Kernels of the user may read beyond the alignment that they expect."""
        rules = self.problem.rules
        if rules.may_crash:
            return AT_ONCE
        return REARRANGEMENTS if rules.are_builtin else {**REARRANGEMENTS, OFFSET: partial(_offset, ahead=1)}

    def cotangent_layouts(self, v: Tensor) -> Mapping[str, Callable[[], Tensor]]:
        plain = unflattened(self.problem.codomain, v)
        found: dict[str, Callable[[], Tensor]] = {}
        for name, change in self._layouts.items():
            laid_out = [change(t) if t.layout is torch.strided else t for t in plain]
            if any(_differ_in_layout(one, other) for one, other in zip(laid_out, plain, strict=True)):
                found[name] = partial(self._for_cotangents, name, laid_out)
        return found

    def _for_cotangents(self, name: str, cotangents: Sequence[Tensor]) -> Tensor:
        """Through the graph that was recorded at the point; of a fresh call where passes are isolated."""
        with _named(f"for a grad_output that is {name} in memory"):
            return self.problem.gradient_vector(self.problem.recorded_outputs(), cotangents)

    def expanded_cotangent(self, v: Tensor) -> Tensor | None:
        plain = unflattened(self.problem.codomain, v)
        if any(t.layout is not torch.strided for t in plain):
            return None
        expanded = [t.reshape(-1)[0].expand(t.shape) if t.numel() else t for t in plain]
        return self._for_cotangents("expanded", expanded)

    def fresh_pass(self, v: Tensor, displacement: Tensor | None = None) -> tuple[Tensor, Tensor]:
        problem = self.problem
        arguments = [a.detach().clone() if isinstance(a, Tensor) else a for a in problem.arguments]
        point = problem.point if displacement is None else problem.point + displacement
        for leaf, value in zip(problem.domain.leaves, unflattened(problem.domain, point), strict=True):
            own = arguments[leaf.position]
            # Strides stay as they were given.
            arguments[leaf.position] = (own.copy_(value) if is_strided(own) else value).requires_grad_()
        outputs = problem.call(arguments)
        values = problem.vector(Space([*problem.codomain.leaves, *problem.nondifferentiable.leaves]), outputs)
        return values, self._gradient(outputs[: len(problem.codomain.leaves)], v, arguments)

    def fresh_gradient(self, v: Tensor, *, interleaved: bool = False, shifted: bool = False) -> FreshGradient:
        problem = self.problem
        given = self._laid_out(self._layouts.get(OFFSET)) if shifted else problem.arguments
        if given is None:
            raise UnsupportedError("no copy of the inputs begins elsewhere in memory")
        cotangents = unflattened(problem.codomain, v)
        names = [f"the grad_output of {leaf.name}" for leaf in problem.codomain.leaves]
        arguments = [(n, a) for n, a in zip(problem.binding.names, given, strict=True) if is_strided(a)]
        before = [(n, t, t.detach().clone()) for n, t in (*zip(names, cotangents, strict=True), *arguments)]
        outputs = problem.call_uncopied(given)
        reads_arguments = interleaved and self._values_differ_elsewhere()
        sources = self._sources(given)
        with _named("after a forward pass at other inputs" if interleaved else ""):
            gradients = problem.gradients(outputs, cotangents, sources)
        vector = problem.vector(problem.domain, gradients)
        if not (problem.rules.are_builtin or problem.isolates_passes):
            found = [(leaf.name, g) for leaf, g in zip(problem.domain.leaves, gradients, strict=True) if is_strided(g)]
            before += [(f"the gradient of {name} from an earlier pass", g, g.clone()) for name, g in found]
            problem.vjp(-0.5 * v)  # needed by `sine_with_one_gradient_buffer`
        # Tensors to which the passes wrote are restored.
        changed = [(name, tensor, copy) for name, tensor, copy in before if not same_numbers(tensor.detach(), copy)]
        reused = {
            leaf.name for leaf, x, g in zip(problem.domain.leaves, sources, gradients, strict=True) if _share(x, g)
        }
        for _, tensor, copy in changed:
            refill(tensor, copy)
        names = [name for name, _, _ in changed]
        if interleaved and not changed and (later := self._after_other_passes(v)) is not None:
            vector = later if torch.equal(vector, problem.vjp(v)) else vector
        return FreshGradient(vector, names, [name for name in names if name in reused], reads_arguments)

    def _other_arguments(self) -> list[Any]:
        """Arguments of the same shapes with other numbers."""
        return [
            (0.5 * a.detach() + 0.25).to(a.dtype).requires_grad_() if _floating(a) and a.requires_grad else a
            for a in self.problem.arguments
        ]

    def _after_other_passes(self, v: Tensor) -> Tensor | None:
        """The gradient after both passes at other inputs, if that does not change the values; for modules of the user.

        Needed by `module_that_adds_up_gradients`: what passes leave in attributes is restored before all other calls.
        """
        problem, start = self.problem, self.problem.binding.start
        if start is None or not start.has_attributes or problem.rules.are_builtin:
            return None
        with start.attributes_left(), suppress(ArithmeticError, RuntimeError, ValueError, IndexError):
            for arguments in (self._other_arguments(), problem.arguments):
                outputs = problem.call_differentiable(arguments)
                found = self._gradient(outputs, v, arguments)
            return found if self._same_values(outputs) else None
        return None

    def _sources(self, arguments: Sequence[Any]) -> list[Any]:
        return [arguments[leaf.position] for leaf in self.problem.domain.leaves]

    def _gradient(self, outputs: Sequence[Any], v: Tensor, arguments: Sequence[Any] | None = None) -> Tensor:
        """Jᵀv through the graph behind some outputs, for the inputs or for those among other arguments."""
        sources = None if arguments is None else self._sources(arguments)
        return self.problem.gradient_vector(outputs, unflattened(self.problem.codomain, v), sources)

    def _values_differ_elsewhere(self) -> bool:
        """Whether a call with other inputs of the same shapes returns other values. Calls the function."""
        problem, others = self.problem, self._other_arguments()
        problem.cost.forwards += 1
        try:
            found = without_saving(problem, lambda: tensors_in(problem.function(*others)))
            if len(found) != len(problem.outputs):
                return False
            there = [found[leaf.position] for leaf in problem.codomain.leaves]
            return any(map(_differ, there, problem.differentiable_outputs))
        except (ArithmeticError, RuntimeError, ValueError, IndexError):
            problem.function(*[a.detach().clone().requires_grad_() if _floating(a) else a for a in problem.arguments])
            return False

    def repeated(self, v: Tensor) -> Tensor:
        outputs = self.problem.recorded_outputs()
        # Another number each time: where passes are isolated, each starts from the same random state.
        torch.rand(1 + self.problem.cost.vjps, device=self.problem.home)
        return self._gradient(outputs, v)

    def of_one_input(self, leaf: int, v: Tensor) -> Tensor | None:
        problem = self.problem
        if REENTRANT_NODE in problem.rules.node_names:
            raise NotImplementedError("a reentrant checkpoint has no gradients unless an input of it requires grad")
        arguments = list(problem.arguments)
        for number, other in enumerate(problem.domain.leaves):
            if number != leaf:
                arguments[other.position] = arguments[other.position].detach()
        source = arguments[problem.domain.leaves[leaf].position]
        outputs = problem.call_differentiable(arguments)
        pairs = [(y, t) for y, t in zip(outputs, unflattened(problem.codomain, v), strict=True) if y.requires_grad]
        if not pairs:
            if problem.binding.substitution is not None and problem.rules.custom():
                raise NotImplementedError("no custom Function in the model gets a tensor that requires grad")
            return None
        recorded, cotangents = zip(*pairs, strict=True)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Full backward hook is firing")  # no input requires grad
                gradient = problem.gradients(recorded, cotangents, [source])[0]
        except DerivativeError as error:
            if problem.binding.substitution is None:
                raise
            raise RuntimeError(str(error)) from error  # in a model, rules do not compute gradients of frozen parameters
        coordinates = problem.domain.leaves[leaf].coordinates
        found: Tensor = problem.zeros(coordinates.size) if gradient is None else coordinates.flatten(gradient)
        return found

    def input_layouts(self, v: Tensor) -> Mapping[str, Callable[[], Tensor | None]]:
        laid_out = {name: self._laid_out(change) for name, change in self._layouts.items()}
        return {
            name: partial(self._for_inputs, name, arguments, v)
            for name, arguments in laid_out.items()
            if arguments is not None
        }

    def draws_random_numbers(self) -> bool:
        problem = self.problem
        problem.cost.forwards += 1
        with preserved_rng():
            problem.binding.restart()
            before = RandomState()
            problem.function(*problem.arguments)
            return not before.is_torch_current()

    def _for_inputs(self, name: str, arguments: Sequence[Any], v: Tensor) -> Tensor | None:
        problem, outputs = self.problem, None
        with suppress(ArithmeticError, RuntimeError, ValueError, IndexError):
            outputs = problem.call_uncopied(arguments)
        if outputs is None:
            return None
        if not self._same_values(outputs):
            raise OtherValuesError(f"for inputs that are {name} in memory")
        with _named(f"for inputs that are {name} in memory"):
            return self._gradient(outputs, v, arguments)

    def _laid_out(self, change: Callable[[Tensor], Tensor] | None) -> list[Any] | None:
        """Copies of the arguments in another memory layout; None if there is none, or inputs are not strided."""
        problem = self.problem
        if change is None or not problem.is_strided:
            return None
        arguments, differs = list(problem.arguments), False
        for leaf in problem.domain.leaves:
            own = arguments[leaf.position]
            # A module keeps its parameters contiguous.
            if not isinstance(own, torch.nn.Parameter):
                arguments[leaf.position] = copy = change(own.detach()).requires_grad_()
                differs = differs or _differ_in_layout(copy, own)
        return arguments if differs else None

    def mapped(self, V: Sequence[Tensor]) -> list[Tensor]:
        problem = self.problem
        outputs = problem.recorded_outputs()

        def vjp(*cotangents: Tensor) -> tuple[Tensor, ...]:
            found = run_backward(outputs, problem.inputs, cotangents)
            return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, problem.inputs, strict=True))

        problem.cost.vjps += 1
        with in_vmap(problem):
            together = torch.func.vmap(vjp)(*stacked(problem.codomain, V))
        return [problem.vector(problem.domain, [g[k] for g in together]) for k in range(len(V))]

    def values_mapped(self) -> tuple[Tensor, Tensor]:
        problem = self.problem
        points = [[x.detach(), (1.0 - 2.0**-6) * x.detach()] for x in problem.inputs]

        def values(*sources: Tensor) -> tuple[Tensor, ...]:
            return tuple(problem.call_differentiable(problem.arguments_with(sources)))

        with in_vmap(problem):
            together = torch.func.vmap(values)(*[torch.stack(pair) for pair in points])
        apart = [values(*row) for row in zip(*points, strict=True)]
        return (
            torch.cat([problem.vector(problem.codomain, [y[k] for y in together]) for k in range(2)]),
            torch.cat([problem.vector(problem.codomain, row) for row in apart]),
        )

    def reads_captured(self) -> bool:
        problem = self.problem
        step = 1e-2 * problem.point + 1e-3
        values = [value.requires_grad_() for value in unflattened(problem.domain, problem.point + step)]
        arguments = problem.arguments_with(values)
        copied = problem.vector(problem.codomain, problem.call_differentiable(arguments))
        if not torch.equal(copied, here := problem.value[: copied.shape[0]]):
            return False  # it reads its arguments
        moved = problem.evaluate_at(step)
        return bool(moved.displacement.any()) and not torch.equal(moved.values[: copied.shape[0]], here)

    def without_grad_mode(self) -> Tensor:
        problem = self.problem
        with torch.no_grad():
            outputs = problem.call_differentiable(problem.arguments)
        return problem.vector(problem.codomain, outputs)

    def accumulated(self, v: Tensor) -> Iterator[Tensor]:
        problem = self.problem
        if problem.is_strided and all(tensor.is_leaf for tensor in problem.inputs):
            yield self._accumulated(problem.recorded_outputs(), v)
            yield self._accumulated(problem.call_differentiable(problem.arguments), v)

    def _accumulated(self, outputs: Sequence[Any], v: Tensor) -> Tensor:
        problem = self.problem
        own = PreservedGradients(problem.inputs)
        with own, own:  # twice: the first restoration may be interrupted
            for tensor in problem.inputs:
                tensor.grad = torch.full_like(tensor, 2.0)
            problem.backward(accumulate, outputs, problem.inputs, unflattened(problem.codomain, v))
            found = [tensor.grad for tensor in problem.inputs]
            if any(gradient is None for gradient in found):
                raise UnsupportedError("a hook sets it to None")
            return problem.vector(problem.domain, [gradient - 2.0 for gradient in found if gradient is not None])

    def checkpointed(self, v: Tensor) -> Tensor:
        problem = self.problem
        problem.cost.forwards += 2
        outputs = tensors_in(call_recomputing(problem.function, problem.arguments))
        return self._gradient([output for output in outputs if output.requires_grad], v)

    def _same_values(self, outputs: Sequence[Any]) -> bool:
        problem, own = self.problem, self.problem.differentiable_outputs
        if all(is_strided(one) and torch.equal(one, other) for one, other in zip(outputs, own, strict=True)):
            return True
        values, expected = (problem.vector(problem.codomain, tensors) for tensors in (outputs, own))
        # Sums in another order leave roundoff of the largest value.
        atol = thresholds.ROUNDOFFS * problem.eps * peak(expected)
        return torch.allclose(values, expected, rtol=problem.eps**thresholds.HALF_THE_DIGITS, atol=atol, equal_nan=True)


@contextmanager
def _named(condition: str) -> Iterator[None]:
    """Add the condition, if there is one, to the message of a `DerivativeError`."""
    try:
        yield
    except DerivativeError as error:
        raise DerivativeError(f"{error} ({condition})" if condition else str(error)) from error.__cause__


def _floating(value: Any) -> bool:
    return is_strided(value) and bool(value.is_floating_point() or value.is_complex())


def _share(one: Any, other: Any) -> bool:
    """Whether two tensors lie in the same memory."""
    return (
        is_strided(one) and is_strided(other) and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    )


def _differ(one: Any, other: Any) -> bool:
    return is_strided(one) and is_strided(other) and not torch.equal(one, other)
