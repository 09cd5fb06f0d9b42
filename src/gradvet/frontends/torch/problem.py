"""A torch function at a point, as the engine sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import optree
import torch
from torch import Tensor
from torch.overrides import has_torch_function, is_tensor_like

from gradvet.core.problem import Cost, Misfit, Move
from gradvet.core.spaces import Leaf, Space
from gradvet.errors import InvalidProblemError, OutputsChangedError
from gradvet.frontends.torch.batching import evaluate_together
from gradvet.frontends.torch.coordinates import WORK
from gradvet.frontends.torch.derivatives import TorchForward, TorchReverse
from gradvet.frontends.torch.draws import APART, EVEN, Draws
from gradvet.frontends.torch.hooks import have_hooks, hooks_so_far
from gradvet.frontends.torch.layouts import Layout, coordinates_of, layouts_of, moving
from gradvet.frontends.torch.passes import stock_kinds
from gradvet.frontends.torch.replay import Replay, evaluate_replayed

NOTHING = Space([])

_HALF_A_UNIT = torch.finfo(WORK).eps / 2.0


def tensors_in(result: Any) -> list[Any]:
    """The tensors among a function's results, in order, whatever holds them."""
    if isinstance(result, Tensor):
        return [result]
    if type(result) in (tuple, list) and all(isinstance(item, Tensor) for item in result):
        return list(result)
    leaves = optree.tree_leaves(result, none_is_leaf=True)
    tensors = [leaf for leaf in leaves if is_tensor_like(leaf)]
    if leaves and not tensors:
        raise InvalidProblemError(
            f"the function returned no tensor but {type(result).__name__}, so there is no derivative to check: return "
            "the tensor that you want checked"
        )
    return tensors


def differentiable(tensor: Any) -> bool:
    """Whether a tensor has a derivative to check."""
    return bool(tensor.requires_grad) and (tensor.is_floating_point() or tensor.is_complex())


class TorchProblem:
    """Calls the function with the caller's own tensors, moved in place and always put back."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        seed: int,
        masked: bool = False,
    ) -> None:
        self.function = function
        self.arguments = tuple(arguments)
        self.cost = Cost()
        self._positions = positions = [
            i for i, argument in enumerate(self.arguments) if is_tensor_like(argument) and differentiable(argument)
        ]
        self.inputs = tuple([self.arguments[i] for i in positions])
        self.home = self.inputs[0].device if isinstance(self.inputs[0], Tensor) else torch.device("cpu")
        self.masked = masked
        self.layouts: list[Layout] = layouts_of(self.inputs, masked, self.home)
        self._moving = moving(self.layouts)
        self.independent = all(layout.independent for layout in self.layouts)
        self.domain = Space(
            [
                Leaf(f"input {number}", layout.coordinates, position)
                for number, (position, layout) in enumerate(zip(positions, self.layouts, strict=True))
            ]
        )
        self.draws = Draws(self.home, seed)
        before = hooks_so_far()
        self.outputs = self._call(self.arguments)
        self.is_hooked = hooks_so_far() > before or have_hooks(self.inputs)
        """Whether somebody put hooks on the inputs, or the function on whatever it made."""
        self._signature = _signature(self.outputs)
        live: list[int] = []
        nondifferentiable: list[int] = []
        for i, output in enumerate(self.outputs):
            if output.is_floating_point() or output.is_complex():
                (live if output.requires_grad else nondifferentiable).append(i)
        self._numeric = live + nondifferentiable
        self.codomain, self.nondifferentiable = (
            self._space(live),
            self._space(nondifferentiable) if nondifferentiable else NOTHING,
        )
        self._everything = (
            Space(self.codomain.leaves + self.nondifferentiable.leaves) if nondifferentiable else self.codomain
        )
        self.live = tuple([self.outputs[i] for i in live])
        self.ordinary = not has_torch_function(self.live + self.inputs)
        self.replay: Replay | None = None
        self.reverse = TorchReverse(self)

    @property
    def is_known_builtin(self) -> bool:
        return self._kinds is not None and len(self.live) == 1

    @cached_property
    def _kinds(self) -> set[str] | None:
        """The kinds of nodes in the graph, if they are all torch's own and nobody put hooks on anything."""
        return stock_kinds(self.live) if self.ordinary and not self.is_hooked else None

    @cached_property
    def forward(self) -> TorchForward:
        return TorchForward(self)

    def vjp(self, v: Tensor) -> Tensor:
        return self.reverse.vjp(v)

    def vjp_of_output(self, output: int, v: Tensor) -> Tensor:
        return self.reverse.vjp_of_output(output, v)

    def vjp_by_output(self, v: Tensor) -> Tensor:
        return self.reverse.vjp_by_output(v)

    def vjp_batched(self, V: Sequence[Tensor]) -> list[Tensor]:
        return self.reverse.vjp_batched(V)

    def vjp_rows(self, output: int, start: int, stop: int) -> Tensor | None:
        return self.reverse.vjp_rows(output, start, stop)

    def vjp_undefined(self, outputs: Sequence[int]) -> Tensor | None:
        return self.reverse.vjp_undefined(outputs)

    def jvp(self, u: Tensor) -> Tensor:
        return self.forward.jvp(u)

    def jvp_batched(self, U: Sequence[Tensor]) -> list[Tensor]:
        return self.forward.jvp_batched(U)

    def jvp_undefined(self, u: Tensor, leaf: int) -> Tensor:
        return self.forward.jvp_undefined(u, leaf)

    def gradient_misfits(self) -> list[Misfit]:
        return self.reverse.misfits()

    def tangent_misfits(self) -> list[Misfit]:
        return self.forward.misfits()

    def equal(self, one: Tensor, other: Tensor) -> bool:
        return torch.equal(one, other)

    def vanishes(self, vector: Tensor) -> bool:
        return not torch.count_nonzero(vector)

    def zeros(self, size: int | tuple[int, ...]) -> Tensor:
        return torch.zeros(size, dtype=WORK, device=self.home)

    def signed(self, size: int, scale: float = 1.0) -> Tensor:
        return self.draws.take(APART, size, scale)

    def uniform(self, size: int, scale: float = 1.0) -> Tensor:
        return self.draws.take(EVEN, size, scale)

    def coarseness(self, step: float) -> float:
        return max([layout.coarseness(step) for layout in self.layouts])

    def keeps(self, step: float, within: float) -> bool:
        # One product for all of them shows it as a rule.
        return self._moving.extent * _HALF_A_UNIT <= within * step or self.coarseness(step) <= within

    @cached_property
    def value(self) -> Tensor:
        return self._side_by_side(self._everything, [self.outputs[i] for i in self._numeric])

    def move(self, displacement: Tensor) -> Move:
        return self._moving.move(displacement)

    def evaluate(self, move: Move, scales: Sequence[float]) -> list[Tensor]:
        try:
            return [self._at(move, scale).clone() for scale in scales]
        finally:
            self._moving.restore()

    def weighted(self, move: Move, scales: Sequence[float], weights: Sequence[float]) -> Tensor:
        try:
            total = self._at(move, scales[0]) * weights[0]
            for scale, weight in zip(scales[1:], weights[1:], strict=True):
                total.add_(self._at(move, scale), alpha=weight)
            return total
        finally:
            self._moving.restore()

    def _at(self, move: Move, scale: float) -> Tensor:
        """The outputs at a point, to be read while the inputs are there: they may share memory."""
        if not scale:
            self._moving.restore()
            return self.value
        return self._side_by_side(self._everything, self.call(self._placed(move, scale)))

    def _placed(self, move: Move, scale: float) -> Sequence[Any]:
        """The arguments, moved; to be restored by all means."""
        others = self._moving.place(move, scale)
        if others is None:
            return self.arguments
        arguments = list(self.arguments)
        for position, argument in zip(self._positions, others, strict=True):
            arguments[position] = argument
        return arguments

    def evaluate_together(self, displacements: Tensor) -> Tensor | None:
        return evaluate_together(self, displacements)

    def evaluate_replayed(self, displacements: Tensor) -> Tensor | None:
        return evaluate_replayed(self, displacements)

    def vector(self, space: Space, values: Sequence[Any]) -> Tensor:
        """Values as one vector of a space, in memory of its own; a missing one counts as zero."""
        vector = self._side_by_side(space, values)
        return vector.clone() if len(values) == 1 and values[0] is not None else vector

    def _side_by_side(self, space: Space, values: Sequence[Any]) -> Tensor:
        """The same, perhaps in the memory of the only value."""
        if len(values) == 1 and values[0] is not None:
            alone: Tensor = space.leaves[0].coordinates.flatten(values[0])
            return alone
        parts = [
            self.zeros(leaf.coordinates.size) if value is None else leaf.coordinates.flatten(value)
            for leaf, value in zip(space.leaves, values, strict=True)
        ]
        return torch.cat(parts) if parts else self.zeros(0)

    def gathered(self, gradients: Sequence[Any]) -> Tensor:
        """Gradients as one vector of the domain, in memory of its own."""
        at_once = self._moving.gathered(gradients)
        return self.vector(self.domain, gradients) if at_once is None else at_once

    def values(self, arguments: Sequence[Any]) -> Tensor:
        """The outputs for these arguments as one vector, the silent ones last."""
        return self.vector(self._everything, self.call(arguments))

    def call(self, arguments: Sequence[Any]) -> list[Any]:
        """The live outputs, then the silent ones, for other arguments (duals, say)."""
        outputs = self._call(arguments)
        self._verify(outputs)
        return [outputs[i] for i in self._numeric]

    def _call(self, arguments: Sequence[Any]) -> list[Any]:
        self.cost.forwards += 1
        return tensors_in(self.function(*arguments))

    def _space(self, indices: list[int]) -> Space:
        return Space([Leaf(f"output {i}", coordinates_of(self.outputs[i], self.masked, self.home), i) for i in indices])

    def _verify(self, outputs: list[Any]) -> None:
        if _signature(outputs) == self._signature:
            return
        for i, (output, (size, dtype)) in enumerate(zip(outputs, self._signature, strict=False)):
            if output.size() != size:
                raise _changed("shape", i, size, output.size())
            if output.dtype != dtype:
                raise _changed("dtype", i, dtype, output.dtype)
        if len(outputs) != len(self._signature):
            raise _changed("number", 0, len(self._signature), len(outputs))


def _signature(outputs: Sequence[Any]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(output.size(), output.dtype) for output in outputs]


def _changed(attribute: str, index: int, before: object, after: object) -> OutputsChangedError:
    return OutputsChangedError(
        f"the function must return outputs with the same {attribute} when inputs are perturbed: output {index} has "
        f"{attribute} {before} at the point and {after} next to it. Choose inputs away from such a switch."
    )
