"""Branches of a function: which side of a kink each element takes, and which element a maximum selects.

Roundoff may put an element on the other side of a kink in a wider format. Both gradients are right then, those of
different smooth pieces. So the sides taken in one precision are recorded operator by operator, in the forward and in
the backward pass, and taken again in the other: an element next to a kink is moved over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradvet.core import thresholds
from gradvet.core.frontend import BranchCounts
from gradvet.frontends.torch import private
from gradvet.frontends.torch.double_precision import DoublePrecision

if TYPE_CHECKING:
    from gradvet.frontends.torch.problem import TorchProblem

OTHER = ("other",)
BREAKPOINTS: Mapping[str, tuple[float | str, ...]] = {
    **dict.fromkeys(("gt", "ge", "lt", "le", "eq", "ne", "maximum", "minimum", "fmax", "fmin"), OTHER),
    **dict.fromkeys(("relu", "abs", "sign", "sgn", "heaviside", "leaky_relu", "elu", "rrelu_with_noise"), (0.0,)),
    **dict.fromkeys(("leaky_relu_backward", "elu_backward", "rrelu_with_noise_backward"), (0.0,)),
    **dict.fromkeys(("_prelu_kernel", "_prelu_kernel_backward"), (0.0,)),
    **dict.fromkeys(("threshold", "threshold_backward"), ("threshold",)),
    **dict.fromkeys(("hardtanh", "hardtanh_backward"), ("min_val", "max_val")),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), ("min", "max")),
    **dict.fromkeys(("hardswish", "hardswish_backward", "hardsigmoid", "hardsigmoid_backward"), (-3.0, 3.0)),
    **dict.fromkeys(("softshrink", "softshrink_backward", "hardshrink", "hardshrink_backward"), ("lambd", "-lambd")),
}
"""Operators that act on each element alone: where the formula changes, as numbers or names of arguments."""

SELECTIONS: Mapping[str, int] = {
    **dict.fromkeys(("max", "min", "sort", "topk", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin"), 0),
    **dict.fromkeys(("max_pool2d_with_indices", "adaptive_max_pool2d", "fractional_max_pool2d"), 2),
    **dict.fromkeys(("max_pool3d_with_indices", "adaptive_max_pool3d", "fractional_max_pool3d"), 3),
}
"""Operators that return selected elements and their indices: number of the last axes that an index counts through; 0:
the axis that is an argument."""

POSITIONS = ("argmax", "argmin")
"""Operators that return the index of an element alone."""

ROUNDING_OPERATORS = ("floor", "ceil", "round", "trunc", "bucketize", "floor_divide", "_to_copy")
"""Operators whose result is constant but for jumps, conversions to integers included."""

GRIDS = tuple(
    f"{kind}{end}" for kind in ("grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler") for end in ("", "_backward")
)
"""Operators that interpolate between elements at the places of a grid: the formula changes from cell to cell."""

BRANCHING_OPERATORS = frozenset((*BREAKPOINTS, *SELECTIONS, *POSITIONS, *ROUNDING_OPERATORS, *GRIDS))


@dataclass(frozen=True, slots=True)
class _Call:
    """The call of an operator with branches."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    base: str
    """The operator's name without namespace, overload and the mark of writing in place."""

    @property
    def subject(self) -> Any:
        """The tensor that has branches."""
        if self.base in GRIDS:
            return self.argument("grid")
        return self.argument("self_or_result" if self.base == "elu_backward" else "self")

    @property
    def kind(self) -> tuple[str, torch.Size]:
        return str(self.operator), self.subject.shape

    def argument(self, name: str) -> Any:
        for position, argument in enumerate(private.schema_of(self.operator).arguments):
            if argument.name == name:
                default = argument.default_value
                return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)
        return None

    def with_subject(self, tensor: Tensor) -> _Call:
        if not self.writes:
            return self._on(tensor)
        self.subject.copy_(tensor)
        return self

    def _on(self, tensor: Tensor) -> _Call:
        own = self.subject
        args = tuple(tensor if value is own else value for value in self.args)
        return replace(self, args=args, kwargs={k: tensor if v is own else v for k, v in self.kwargs.items()})

    def extended(self, moved: Tensor) -> Any:
        """The result with the formula of the moved elements: the parabola through three points on their side."""
        x = self.subject
        near = self._of_copy(moved)
        if not near.is_floating_point():
            return near
        away = torch.where(moved == x, 0.0, moved - x)  # infinite elements stay where they are
        # In place, since these tensors are the largest of a model: 3 f(m) - 3 f(m + a) + f(m + 2a).
        beyond = self._of_copy(moved + away).sub_(near).mul_(-3.0).add_(self._of_copy(moved + 2.0 * away))
        result = torch.where(away == 0.0, near, beyond)
        return x.copy_(result) if self.writes else result

    def _of_copy(self, tensor: Tensor) -> Any:
        """The result for another subject, which an operator that writes in place gets as a copy."""
        return self._on(tensor.clone() if self.writes else tensor).run()

    @property
    def writes(self) -> bool:
        """Whether the operator writes in place."""
        return private.schema_of(self.operator).arguments[0].alias_info is not None

    def breakpoints(self) -> Iterator[Any]:
        for point in BREAKPOINTS[self.base]:
            if not isinstance(point, str):
                yield point
            elif (value := self.argument(point.removeprefix("-"))) is not None:
                yield -value if point.startswith("-") else value

    def run(self) -> Any:
        return self.operator(*self.args, **self.kwargs)


@dataclass(slots=True)
class Branches:
    """The branches that one pass of a function took, and how many another precision would have taken otherwise."""

    eps: float
    """The eps of the format in which they were recorded."""
    extends: bool = False
    """Whether other passes take the recorded branches at any distance, and continue their formulas beyond a kink."""
    count: int = 0
    """Number of recorded elements."""
    changed: int = 0
    """Largest number of elements that were moved over a kink in a pass that took the recorded branches."""
    _moved: int = 0
    _records: dict[tuple[str, torch.Size], list[Any]] = field(default_factory=dict)
    _next: dict[tuple[str, torch.Size], int] = field(default_factory=dict)

    def counts(self) -> tuple[int, int]:
        return self.count, self.changed

    def clear(self) -> None:
        self._records.clear()
        self.count = 0

    def restart(self) -> None:
        """Begin another pass with the recorded branches."""
        self._next.clear()
        self._moved = 0

    def record(self, call: _Call) -> Any:
        if call.base in BREAKPOINTS:
            kept: Any = [_sides(call.subject, point) for point in call.breakpoints()]
            result = call.run()
        elif call.base in GRIDS:
            kept, result = _half_cells(call), call.run()
        elif call.base in ROUNDING_OPERATORS:
            kept = call.subject.clone()
            result = call.run()
        else:
            result = call.run()
            kept = result[1] if call.base in SELECTIONS else result
        self._records.setdefault(call.kind, []).append(kept)
        self.count += call.subject.numel()
        return result

    def take(self, call: _Call) -> Any:
        """The operator's result on the recorded branches; as it is where nothing was recorded."""
        number = self._next.get(call.kind, 0)
        self._next[call.kind] = number + 1
        records = self._records.get(call.kind, ())
        if number >= len(records):
            return call.run()
        if call.base in BREAKPOINTS:
            return self._on_sides(call, records[number])
        if call.base in GRIDS:
            return self._in_cells(call, records[number])
        if call.base in ROUNDING_OPERATORS:
            return self._on_stairs(call, records[number])
        return self._selected(call, records[number])

    def _within(self, distance: Tensor, x: Tensor) -> Tensor:
        """Whether roundoff inside a function explains these distances between elements of a tensor."""
        if self.extends:
            return torch.ones_like(distance, dtype=torch.bool)
        allowed: Tensor = self.eps**thresholds.HALF_THE_DIGITS * x[torch.isfinite(x)].square().mean().sqrt()
        return distance <= allowed

    def _count(self, moved: Tensor) -> None:
        self._moved += int(torch.count_nonzero(moved))
        self.changed = max(self.changed, self._moved)

    def _on_sides(self, call: _Call, sides: Sequence[Tensor]) -> Any:
        x = call.subject
        for point, side in zip(call.breakpoints(), sides, strict=True):
            differs = _sides(x, point) != side
            if not bool(differs.any()):
                continue
            distance = (x - point).abs()
            differs &= self._within(distance, x)
            if self.extends:
                differs &= side != 0  # at the kink itself there is no formula to continue
            self._count(differs)
            # The mirror image of an element, or the breakpoint itself; one on it moves by the least number.
            tiny = torch.finfo(x.dtype).eps * (1.0 + torch.as_tensor(point, device=x.device).abs())
            x = torch.where(differs, point + side * torch.maximum(distance, tiny.to(x)), x)
        if x is call.subject:
            return call.run()
        return call.extended(x) if self.extends else call.with_subject(x).run()

    def _in_cells(self, call: _Call, cells: Tensor) -> Any:
        """The interpolation with places that roundoff put into the next half cell moved over the edge between them."""
        x, (sizes, is_aligned) = call.subject, _cell_units(call)
        away = cells - _half_cells(call)
        edge = torch.maximum(cells, cells - away)
        tiny = 4.0 * torch.finfo(x.dtype).eps * (1.0 + edge.abs())
        moved = (edge + away * tiny - (sizes - 1.0)) / (sizes - 1.0 if is_aligned else sizes)
        differs = (away.abs() == 1.0) & self._within((moved - x).abs(), x)
        self._count(differs)
        return call.with_subject(torch.where(differs, moved, x)).run()

    def _on_stairs(self, call: _Call, narrow: Tensor) -> Any:
        x = call.subject
        moved = torch.where(self._within((x - narrow).abs(), x), narrow.to(x), x)
        as_it_is, result = call.run(), call.with_subject(moved).run()
        self._count(as_it_is != result)
        return result

    def _selected(self, call: _Call, indices: Tensor) -> Any:
        result, x = call.run(), call.subject
        own = result[1] if call.base in SELECTIONS else result
        if own.shape != indices.shape or torch.equal(own, indices):
            return result
        here, there = (_gathered(call, x, index) for index in (own, indices))
        allowed = (own != indices) & self._within((here - there).abs(), x)
        self._count(allowed)
        chosen = torch.where(allowed, indices, own)
        return (_gathered(call, x, chosen), chosen) if call.base in SELECTIONS else chosen


def _sides(x: Tensor, point: Any) -> Tensor:
    """1 above a breakpoint, -1 below, 0 at it and for NaN."""
    above = (x > point).to(torch.int8)
    return torch.sub(above, (x < point).to(torch.int8))


def _cell_units(call: _Call) -> tuple[Tensor, bool]:
    """The number of elements along each axis of a grid; whether -1 and 1 are centres of elements, or their edges."""
    x, shape = call.subject, call.argument("input" if call.argument("self") is None else "self").shape
    sizes = torch.tensor(shape[2:][::-1], dtype=x.dtype, device=x.device)
    return sizes, call.argument("align_corners") is not False


def _half_cells(call: _Call) -> Tensor:
    """The half cell of each place: formulas change at elements, halfway between them, and at the borders."""
    x, (sizes, is_aligned) = call.subject, _cell_units(call)
    # Rounded as torch's kernels round.
    return torch.floor(2.0 * ((x + 1.0) / 2.0 * (sizes - 1.0) if is_aligned else ((x + 1.0) * sizes - 1.0) / 2.0))


def _gathered(call: _Call, x: Tensor, indices: Tensor) -> Tensor:
    """The elements of a tensor that a selection with these indices has."""
    axes = SELECTIONS.get(call.base, 0)
    if axes:
        return x.flatten(-axes).gather(-1, indices.flatten(-axes)).view(indices.shape)
    dim = call.argument("dim")
    if dim is None or not x.dim():
        return x.flatten()[indices]
    if indices.dim() < x.dim():
        return x.gather(dim, indices.unsqueeze(dim)).squeeze(dim)
    return x.gather(dim, indices)


def _branching(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Call | None:
    """The call of an operator whose result depends on branches of real numbers; None for other operators."""
    base = private.schema_of(operator).name.removeprefix("aten::").removesuffix("_")
    if base not in BRANCHING_OPERATORS:
        return None
    call = _Call(operator, tuple(args), kwargs, base)
    subject = call.subject
    if not isinstance(subject, Tensor) or not subject.is_floating_point() or subject.layout is not torch.strided:
        return None
    if not subject.numel() or (base in SELECTIONS and len(private.schema_of(operator).returns) < 2):
        return None
    wanted = kwargs.get("dtype") or subject.dtype
    if base == "_to_copy" and (wanted.is_floating_point or wanted.is_complex):
        return None
    return call


class BranchMode:
    """Runs a function and its derivatives with a record of branches, which it fills or takes."""

    def __init__(self, branches: Branches, double: DoublePrecision | None, *, takes: bool) -> None:
        self._branches, self._double, self._takes = branches, double, takes
        self._mode = private.operator_mode(self._run)

    @property
    def is_available(self) -> bool:
        return self._mode is not None

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called in the mode: each call begins a pass."""

        def with_branches(*values: Any) -> Any:
            self._branches.restart() if self._takes else self._branches.clear()
            with self._entered():
                return function(*values)

        return with_branches

    @contextmanager
    def active(self) -> Iterator[None]:
        """Enter the mode, unless it is entered already, and that of double precision."""
        with self._entered(), self._double.active() if self._double else nullcontext():
            yield

    def _entered(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._mode is None or self._mode.is_open else self._mode

    def _run(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        body = private.operator_body(operator)
        if body is not None:
            with self._mode:  # type: ignore[union-attr]
                return body(*args, **kwargs)
        call = _branching(operator, args, kwargs)
        if call is None:
            return operator(*args, **kwargs)
        return self._branches.take(call) if self._takes else self._branches.record(call)


def on_smooth_piece(problem: TorchProblem) -> tuple[TorchProblem, BranchCounts] | None:
    """A problem whose values continue the formulas that a function has at the point, and its derivatives as they are.

    A step in a direction of many inputs takes some elements inside a function across kinks. Their formulas at the point
    are those that the derivative is about. None for functions without kinks or with a surrogate, or if operators cannot
    be intercepted. Calls the function.
    """
    own = problem.binding
    branches = Branches(problem.eps, extends=True)
    record, take = (BranchMode(branches, None, takes=takes) for takes in (False, True))
    if own.surrogate is not None or not record.is_available:
        return None
    problem.cost.forwards += 1
    record.around(own.call)(*own.arguments)
    if not branches.count:
        return None
    made = copy(problem)  # with the same graph, which may be as large as the activations of a training step
    on_piece = take.around(own.call)
    made.binding, made.function = replace(own, surrogate=on_piece), on_piece
    return made, branches.counts


def on_same_branches(
    problem: TorchProblem, wide: TorchProblem, seed: int
) -> tuple[TorchProblem, TorchProblem, BranchCounts] | None:
    """A problem and its wider version such that a pass of the latter takes the branches of the last pass of the former.

    Calls both functions. None if operators cannot be intercepted.
    """
    branches = Branches(problem.eps)
    found = []
    for own, takes in ((problem, False), (wide, True)):
        double = own.binding.operator_mode
        mode = BranchMode(branches, double if isinstance(double, DoublePrecision) else None, takes=takes)
        if not mode.is_available:
            return None
        binding = replace(
            own.binding, function=mode.around(own.binding.function), operator_mode=mode, isolates_passes=True
        )
        made = own.rebound(binding, seed).with_eps(own.eps)
        made.rules = own.rules
        # Every backward pass makes its own graph: that of the first call is not kept.
        made.release_graph()
        found.append(made)
    return found[0], found[1], branches.counts
