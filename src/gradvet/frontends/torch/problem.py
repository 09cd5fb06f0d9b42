"""`TorchProblem`: a torch function at a point, in real coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from gradvet.core.ledger import Cost
from gradvet.core.problem import AttributeMismatch, Evaluation, Gradient, Perturbation, Problem
from gradvet.core.vectors import Leaf, Space
from gradvet.errors import InvalidProblemError, raise_interruption
from gradvet.frontends.torch import derivatives, inputs, private
from gradvet.frontends.torch.arguments import read_outputs, tensors_in, tensors_like
from gradvet.frontends.torch.autograd_graph import TorchRules, classify_backward_error
from gradvet.frontends.torch.binding import Binding, first_result
from gradvet.frontends.torch.layouts import coordinates_of, layouts_of
from gradvet.frontends.torch.layouts.dense import WORKING_DTYPE, Inputs, flattened, is_zero, unflattened
from gradvet.frontends.torch.random_state import torch_states
from gradvet.frontends.torch.variants import TorchVariants
from gradvet.frontends.torch.wider_version import internal_eps

VECTOR_EPS = torch.finfo(WORKING_DTYPE).eps


class TorchProblem(Problem):
    """A bound function at its arguments, which are perturbed in place and always restored.

    With a surrogate, the values are those of the surrogate and the derivatives those of the function.
    """

    has_undefined_cotangents = True

    def __init__(self, binding: Binding, seed: int, masked: bool = False) -> None:
        self.masked, self.cost = masked, Cost(forwards=1)
        self.isolates_passes = binding.isolates_passes
        self.arguments, self._positions = binding.arguments, binding.checked
        self.inputs = tuple([self.arguments[i] for i in self._positions])
        self.home = self.inputs[0].device if isinstance(self.inputs[0], Tensor) else torch.device("cpu")
        self.layouts = layouts_of(self.inputs, masked, self.home)
        self.independent = all(layout.independent for layout in self.layouts)
        placed = zip(self._positions, self.layouts, strict=True)
        self.domain = Space([Leaf(binding.names[i], layout.coordinates, i) for i, layout in placed])
        self._inputs = Inputs(self.inputs, self.layouts, self.domain)
        self.random = inputs.Sampler(self.home, seed).take
        before = private.hook_count()
        try:
            self.binding, self.function, result = first_result(binding, self.layouts)
        except Exception as error:
            raise_interruption(error)
            raise
        modules = binding.start.modules if binding.start is not None else ()
        self.is_hooked = private.has_hooks(self.inputs, before, modules)
        """Whether the inputs have hooks, or the function registered one."""
        self._read_outputs(result)
        self.is_plain = not has_torch_function(self.differentiable_outputs + self.inputs)
        """Whether inputs and outputs are tensors without `__torch_function__`."""
        self.states_after_forward = [] if binding.is_drop_in else torch_states()
        """The states of torch's generators from which every backward pass starts."""
        self.forward_refusal: Exception | None = None
        """The exception of torch about an operator without forward mode, if there was one."""
        if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
            # Needed by `test_scripted_model_passes_without_forward_mode`.
            self.forward_refusal = NotImplementedError("TorchScript loses tangents from its second call on")
        # The class is compared first: `isinstance` of a plain tensor and Parameter is slow.
        self.has_parameters = any(type(x) is not Tensor and isinstance(x, torch.nn.Parameter) for x in self.inputs)
        self.needs_saved_tensors = not self.has_parameters
        """Whether calls for values or tangents alone save tensors for a backward pass too."""
        self.known_eps: float | None = None
        self._has_graph = True
        self.value: Tensor = (
            self.values(self.arguments)
            if binding.surrogate
            else self.vector(self._all_outputs, _selected(self._all_outputs, self.outputs))
        )

    def _read_outputs(self, result: Any) -> None:
        """Find the outputs in the result of the first call, and those of them that have a derivative."""
        binding = self.binding
        self.outputs, names, self.output_notes = read_outputs(result, binding.output, is_drop_in=binding.is_drop_in)

        def space(indices: Sequence[int]) -> Space:
            coordinates = [coordinates_of(self.outputs[i], self.masked, self.home) for i in indices]
            return Space([Leaf(names[i], own, i) for i, own in zip(indices, coordinates, strict=True)])

        numeric = [i for i, y in enumerate(self.outputs) if y.is_floating_point() or y.is_complex()]
        differentiable = [i for i in numeric if self.outputs[i].requires_grad]
        self.codomain = self._all_outputs = space(differentiable)
        if len(differentiable) < len(numeric):
            self.nondifferentiable = space([i for i in numeric if i not in differentiable])
            self._all_outputs = Space(self.codomain.leaves + self.nondifferentiable.leaves)
        self.differentiable_outputs = tuple([self.outputs[i] for i in differentiable])

    @cached_property
    def is_strided(self) -> bool:
        """Whether all inputs are strided tensors."""
        return all(isinstance(x, Tensor) and x.layout is torch.strided for x in self.inputs)

    @cached_property
    def rules(self) -> TorchRules:
        return TorchRules(self)

    @property
    def variants(self) -> TorchVariants:
        return TorchVariants(self)

    def rebound(self, binding: Binding, seed: int) -> TorchProblem:
        """The problem of another binding, with the same sparse semantics and mode; calls are counted together."""
        if (mode := self.binding.operator_mode) is not None and binding.operator_mode is None:
            binding = replace(binding, function=mode.around(binding.function), operator_mode=mode)
        is_isolated = binding.isolates_passes or self.isolates_passes
        binding = replace(binding, isolates_passes=is_isolated, written=self.binding.written)
        other = TorchProblem(binding, seed, self.masked)
        other.known_eps = None if self.known_eps == self.eps or binding.operator_mode else self.known_eps
        self.cost.forwards, other.cost = self.cost.forwards + other.cost.forwards, self.cost
        return other

    # Vectors.

    @property
    def point(self) -> Tensor:
        return self._inputs.find_point(self.zeros) if self._inputs.point is None else self._inputs.point

    def release(self) -> None:
        self._inputs.release(with_copies=bool(self.has_parameters and self.rules))

    def release_graph(self) -> None:
        if self.has_parameters and self.rules:
            self.outputs = [output.detach() for output in self.outputs]
            self.differentiable_outputs = tuple([self.outputs[leaf.position] for leaf in self.codomain.leaves])
            self._has_graph = False
            self.release()

    @cached_property
    def eps(self) -> float:
        return max([torch.finfo(t.dtype).eps for t in (*self.inputs, *self.differentiable_outputs)], default=VECTOR_EPS)

    def internal_eps(self) -> float:
        if self.known_eps is None:
            self.known_eps = internal_eps(self)
        return self.known_eps

    def with_eps(self, eps: float) -> TorchProblem:
        """The same problem, compared as one of a format with a larger eps."""
        other = copy(self)
        other.eps = eps
        return other

    def zeros(self, size: int | tuple[int, ...]) -> Tensor:
        return torch.zeros(size, dtype=WORKING_DTYPE, device=self.home)

    def representable(self, vector: Tensor, space: Space | None = None) -> Tensor:
        if space is None and self.eps == VECTOR_EPS:
            return vector
        space = space or self.codomain
        return self.vector(space, unflattened(space, vector))

    def vector(self, space: Space, values: Sequence[Any]) -> Tensor:
        """Values as one vector of a space, in its own memory; a missing value counts as zero."""
        vector = flattened(space, values, self.zeros)
        return vector.clone() if len(values) == 1 and values[0] is not None else vector

    # Calls of the function.

    def call(self, arguments: Sequence[Any]) -> list[Any]:
        """The differentiable outputs, then the others, for other arguments."""
        return _selected(self._all_outputs, self._call(self.function, arguments))

    def call_differentiable(self, arguments: Sequence[Any]) -> list[Any]:
        """The differentiable outputs of a fresh call."""
        return _selected(self.codomain, self._call(self.function, arguments))

    def call_uncopied(self, arguments: Sequence[Any]) -> list[Any]:
        """The same, with the arguments themselves even where passes are isolated: the function may write to them."""
        return _selected(self.codomain, self._call(replace(self.binding, isolates_passes=False).call, arguments))

    def recorded_outputs(self) -> Sequence[Any]:
        """The differentiable outputs for one backward pass: of a fresh call where passes are isolated."""
        if self.isolates_passes:
            return self.call_differentiable(self.arguments)
        if not self._has_graph:
            self.differentiable_outputs = tuple(self.call_differentiable(self.arguments))
            self._has_graph = True
        return self.differentiable_outputs

    def overwritten_inputs(self) -> list[str]:
        return self._inputs.overwritten()

    def select_differentiable(self, result: Any) -> list[Any]:
        """The tensors of a result at the places of the differentiable outputs."""
        return _selected(self.codomain, tensors_in(result))

    def values(self, arguments: Sequence[Any]) -> Tensor:
        """All numeric outputs for these arguments as one vector; those of the surrogate if there is one."""
        return self.vector(self._all_outputs, self._outputs_at(arguments))

    def arguments_with(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The arguments with other tensors in place of the inputs."""
        if inputs is self.inputs:
            return self.arguments
        others = dict(zip(self._positions, inputs, strict=True))
        return [others.get(i, argument) for i, argument in enumerate(self.arguments)]

    def _outputs_at(self, arguments: Sequence[Any]) -> list[Any]:
        call = partial(self._call, self.binding.surrogate or self.function, arguments)
        outputs = call() if self.needs_saved_tensors else derivatives.without_saving(self, call)
        return _selected(self._all_outputs, outputs)

    def _call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
        """All outputs. Raises if these have changed in number, shape or dtype."""
        self.cost.forwards += 1
        try:
            return tensors_like(function(*arguments), self.outputs)
        except Exception as error:
            raise_interruption(error)
            raise

    # Evaluation next to the point.

    def step_rounding(self, step: float) -> float:
        return max([layout.step_rounding(step) for layout in self.layouts])

    def perturbation(self, displacement: Tensor) -> Perturbation:
        return self._inputs.perturbation(displacement, has_vector=True)

    def unit_steps(self, start: int, stop: int) -> list[Perturbation]:
        return self._inputs.unit_steps(start, stop)

    def evaluate(self, perturbation: Perturbation, scales: Sequence[float]) -> list[Tensor]:
        try:
            return [self._at(perturbation, scale).clone() for scale in scales]
        finally:
            self._inputs.restore()

    def weighted(self, perturbation: Perturbation, scales: Sequence[float], weights: Sequence[float]) -> Tensor:
        try:
            # In a copy: to multiply torch's zeros without memory, such as the slope of a constant, loads its compiler.
            first = self._at(perturbation, scales[0]).clone()
            total = first if weights[0] == 1.0 else first.mul_(weights[0])
            for scale, weight in zip(scales[1:], weights[1:], strict=True):
                total.add_(self._at(perturbation, scale), alpha=weight)
            return total
        finally:
            self._inputs.restore()

    def _at(self, perturbation: Perturbation, scale: float) -> Tensor:
        """The outputs at a point, to be read before the inputs are restored: they may share memory."""
        if not scale:
            self._inputs.restore()
            return self.value
        arguments = self.arguments_with(self._inputs.perturbed(perturbation, scale))
        return flattened(self._all_outputs, self._outputs_at(arguments), self.zeros)

    def evaluate_at(self, displacement: Tensor) -> Evaluation:
        is_rounded = self.eps > VECTOR_EPS
        try:
            inputs, realised = self._inputs.displaced(displacement, has_vector=not is_rounded)
            if is_rounded:
                realised = self.vector(self.domain, inputs)
                realised -= self.point
            return Evaluation(self.values(self.arguments_with(inputs)), realised)
        except (InvalidProblemError, torch.OutOfMemoryError):
            raise
        except Exception:  # undefined next to the point, which the step sweep takes into account
            return Evaluation(torch.full_like(self.value, torch.nan), displacement * 0.0)
        finally:
            self._inputs.restore()

    evaluate_together = derivatives.evaluate_together

    # Reverse mode.

    def mode(self) -> AbstractContextManager[object]:
        """The mode in which derivatives are computed, with the parameters among the arguments in the module."""
        mode, substitution = self.binding.operator_mode, self.binding.substitution
        if substitution is None:
            return derivatives.NO_MODE if mode is None else mode.active()
        stack = ExitStack()
        stack.enter_context(substitution(self.arguments))
        if mode is not None:
            stack.enter_context(mode.active())
        return stack

    def backward(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a backward pass, which is counted. Of its exceptions, the cause is raised where it is known.

        torch's own exceptions stay as they are in the drop-in functions.
        """
        self.cost.vjps += 1
        try:
            with self.mode():
                return run(*arguments)
        except Exception as error:
            if not self.binding.is_drop_in:
                classify_backward_error(error, self.rules, users_graph=not self.binding.derived)
            raise

    def gradients(
        self, outputs: Sequence[Any], cotangents: Sequence[Tensor], sources: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """The gradients of the inputs, or of other sources, through a graph of the function."""
        run = derivatives.gradients if self.binding.substitution is None else derivatives.gradients_of_module
        return self.backward(run, outputs, self.inputs if sources is None else sources, cotangents)  # type: ignore[no-any-return]

    def gradient_vector(
        self, outputs: Sequence[Any], cotangents: Sequence[Tensor], sources: Sequence[Any] | None = None
    ) -> Tensor:
        """The same as one vector."""
        return self.vector(self.domain, self.gradients(outputs, cotangents, sources))

    def gradients_at_point(self, outputs: Sequence[Any], cotangents: Sequence[Tensor]) -> Sequence[Any]:
        """The gradients of the inputs from the random state that the forward pass left."""
        for generator, state in self.states_after_forward:
            generator.set_state(state)
        return self.gradients(outputs, cotangents)

    def vjp(self, v: Tensor) -> Tensor:
        return self.vector(self.domain, self._gradients(v))

    def gradient(self, v: Tensor) -> Gradient:
        found = self._gradients(v)
        return Gradient(self.vector(self.domain, found), derivatives.gradient_mismatches(self, found))

    def _gradients(self, v: Tensor, output: int | None = None) -> Sequence[Any]:
        """For the cotangents of all outputs, or of one alone."""
        outputs = self.recorded_outputs()
        if output is None:
            return self.gradients_at_point(outputs, unflattened(self.codomain, v))
        cotangent = self.codomain.leaves[output].coordinates.unflatten(v)
        return self.gradients_at_point((outputs[output],), (cotangent,))

    def vjp_of_output(self, output: int, v: Tensor) -> Tensor:
        return self.vector(self.domain, self._gradients(v, output))

    def gradient_by_output(self, v: Tensor) -> Gradient:
        if len(self.codomain.leaves) == 1:
            return self.gradient(v)
        total, mismatches = self.zeros(self.domain.size), dict[AttributeMismatch, None]()
        for output in range(len(self.codomain.leaves)):
            found = self._gradients(v[self.codomain.slices[output]], output)
            total += self.vector(self.domain, found)
            mismatches |= dict.fromkeys(derivatives.gradient_mismatches(self, found))
        return Gradient(total, list(mismatches))

    vjp_batched = derivatives.vjp_batched
    vjp_rows = derivatives.vjp_rows

    def vjp_undefined(self, outputs: Sequence[int], v: Tensor | None = None) -> Gradient:
        found = derivatives.undefined_gradients(self, outputs, v)
        vector = None if all(map(is_zero, found)) else self.vector(self.domain, found)
        return Gradient(vector, derivatives.gradient_mismatches(self, found))

    def vjp_at(self, displacement: Tensor, v: Tensor) -> Tensor:
        try:
            sources, _ = self._inputs.displaced(displacement, has_vector=False)
            outputs = self.call_differentiable(self.arguments_with(sources))
            found = self.gradients(outputs, unflattened(self.codomain, v), sources)
            del outputs  # its graph is as large as the inputs
            return self.vector(self.domain, found)
        finally:
            self._inputs.restore()

    # Forward mode.

    def jvp(self, u: Tensor, missing: int | None = None) -> Tensor:
        tangents: list[Tensor | None] = unflattened(self.domain, u)
        if missing is not None:
            tangents[missing] = None
        found = derivatives.output_tangents(self, tangents)
        return self.vector(self.codomain, [tangent for _, tangent in found])

    def jvp_at(self, displacement: Tensor, u: Tensor) -> Tensor | None:
        try:
            inputs, _ = self._inputs.displaced(displacement, has_vector=False)
            return self.jvp(u) if inputs is self.inputs else None
        finally:
            self._inputs.restore()

    def tangent_mismatches(self, u: Tensor) -> list[AttributeMismatch]:
        return derivatives.tangent_mismatches(derivatives.output_tangents(self, unflattened(self.domain, u)))

    jvp_batched = derivatives.jvp_batched


def _selected(space: Space, outputs: list[Any]) -> list[Any]:
    """The outputs of a space among all."""
    if len(outputs) == 1 and len(space.leaves) == 1:
        return outputs
    return [outputs[leaf.position] for leaf in space.leaves]
