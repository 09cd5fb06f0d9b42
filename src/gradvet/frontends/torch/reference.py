"""The float64 reference of a problem in low precision, and the precision of the numbers inside a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradvet.core import thresholds
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch import private
from gradvet.frontends.torch.autograd_graph import nodes_behind
from gradvet.frontends.torch.binding import Request, bind
from gradvet.frontends.torch.double_precision import DOUBLE, DoublePrecision, Formats, largest_eps

if TYPE_CHECKING:
    from gradvet.frontends.torch.problem import TorchProblem

FLOAT64_EPS = 2.0**-52

EXPECTED_ROUNDINGS = 16.0
"""Error of a value, in its own roundoffs, that the format of the outputs explains."""

PROBE_STEPS = (2.0**-30, 2.0**-26)
"""Relative changes of the inputs that float64 follows smoothly and float32 follows in jumps. The second is for
functions whose roundoff hides the first."""

COARSE_STEP = 2.0**-6
"""Relative change of the inputs that shows in every format of 16 bits."""

MAX_UNEVENNESS = 2.0**-6
"""Second difference over first difference. Float64 leaves 2**-22 at the smaller step, times the condition number."""

DOUBLE_NOISE = 2.0**-46
"""Part of a value that may be roundoff in float64."""


def reference_problem(problem: TorchProblem, request: Request, seed: int) -> TorchProblem | None:
    """The problem in float64; None if there is none. Calls both functions and their derivatives.

    The function is called with widened inputs: as it is if all numbers inside are double precision then, otherwise in
    the mode of `double_precision`. If the given function rounds to a coarser format than that of its inputs and
    outputs, the given problem settles for that format.
    """
    formats = _formats_of(problem)
    modes: list[DoublePrecision | None] = [DoublePrecision(formats), DoublePrecision(formats, strict=True)]
    if not formats.has_draws:  # as it is, a function draws other numbers in float64
        modes.insert(0, None)
    eps = max(problem.eps, formats.rounding)
    for double in modes:
        if double is None or double.is_available:
            reference = _attempt(problem, request, seed, double)
            if reference is not None and _is_reference(problem, reference, eps):
                if eps > problem.eps and _loses_digits(problem, reference):
                    problem.settle_for(eps)
                return reference
    return None


def _formats_of(problem: TorchProblem) -> Formats:
    """The formats of the given function. Calls it."""
    problem.cost.forwards += 1
    try:
        return Formats.of(problem.function, problem.arguments)
    except Exception:  # it has operators that cannot be intercepted
        return Formats(problem.internal_eps())


def _attempt(problem: TorchProblem, request: Request, seed: int, double: DoublePrecision | None) -> TorchProblem | None:
    """The problem with widened inputs, from the same random state and buffers; None if the function refuses them."""
    if problem.binding.start is not None:
        problem.binding.start.restore()
    try:
        return problem.rebound(bind(request, widened=True, double=double), seed)
    except InvalidProblemError:
        raise
    except Exception:
        return None


def _is_reference(problem: TorchProblem, reference: TorchProblem, eps: float) -> bool:
    """Whether a problem with widened inputs is the given function, and in float64."""
    sizes, expected = ([leaf.coordinates.size for leaf in p.codomain.leaves] for p in (reference, problem))
    if sizes != expected or any(y.dtype not in DOUBLE for y in reference.differentiable_outputs):
        return False
    if not _agree(problem.value, reference.value, eps):
        return False
    try:
        return _is_double_inside(problem, reference) and _resolves_double(reference)
    except Exception:  # it raises in float64 where it does not in low precision
        return False


def _agree(low: Tensor, high: Tensor, eps: float) -> bool:
    known = torch.isfinite(low) & torch.isfinite(high)
    if not bool(known.any()):
        return False
    size = float(high[known].abs().max())
    allowed: float = min(thresholds.MATERIAL_MAX, 4.0 * eps**0.5)
    return float((low - high)[known].abs().max()) <= allowed * size


def _loses_digits(problem: TorchProblem, reference: TorchProblem) -> bool:
    """Whether coarser numbers inside the given function affect its values or gradients."""
    if any(private.node_eps(node) > problem.eps for node in nodes_behind(problem.differentiable_outputs)):
        return True
    error, size = (problem.value - reference.value).abs(), reference.value.abs()
    known = torch.isfinite(error)
    return bool((error > EXPECTED_ROUNDINGS * problem.eps * size)[known].any())


def _is_double_inside(problem: TorchProblem, reference: TorchProblem) -> bool:
    """Whether all tensors of a call and of a backward pass are double precision, as far as can be seen."""
    double = reference.binding.double
    if double is not None:
        _pull(problem, reference)
        return not double.was_refused and double.coarsest <= FLOAT64_EPS

    def both_passes() -> None:
        reference.call(reference.arguments)
        _pull(problem, reference)

    return max(private.watch_operators(both_passes, largest_eps), default=0.0) <= FLOAT64_EPS


def _pull(problem: TorchProblem, reference: TorchProblem) -> None:
    """One VJP of the reference. Raises if it raises where that of the given problem does not."""
    try:
        reference.vjp(reference.zeros(reference.codomain.size) + 1.0)
    except Exception:
        try:
            problem.vjp(problem.zeros(problem.codomain.size) + 1.0)
        except Exception:
            return
        raise


def _resolves_double(reference: TorchProblem) -> bool:
    """Whether the outputs follow tiny changes of the inputs as those of a function in float64 do.

    Kernels may compute in lower precision where no operator shows it.
    """
    point = reference.point
    count = torch.arange(point.shape[0], dtype=point.dtype, device=point.device)
    # Different sizes in [1/2, 1], with changing signs.
    pattern = (0.75 + 0.25 * torch.sin(count)) * torch.where(count % 2 == 0, 1.0, -1.0)
    size = point.abs() if bool(point.any()) else torch.ones_like(point)
    direction = torch.nan_to_num(pattern * size, 0.0, 0.0, 0.0)
    quiet: list[slice] = []
    for step in PROBE_STEPS:
        values = [reference.evaluate_at(multiple * step * direction).values for multiple in (1.0, 2.0, 3.0)]
        smooth, quiet = _smoothness(reference, *values)
        if smooth:
            break
    else:
        return False
    if not quiet:
        return True
    changed = reference.evaluate_at(COARSE_STEP * direction).values != values[0]
    return all(2 * int(changed[part].count_nonzero()) <= part.stop - part.start for part in quiet)


def _smoothness(reference: TorchProblem, near: Tensor, middle: Tensor, far: Tensor) -> tuple[bool, list[slice]]:
    """Whether each output follows equal steps equally, and the outputs that do not change at all.

    The point itself is left out: it may be the edge of a jump, such as an integer that is rounded down.
    """
    first, second = middle - near, far - 2.0 * middle + near
    known = torch.isfinite(first) & torch.isfinite(second)
    uneven = (second.abs() - DOUBLE_NOISE * middle.abs()).clamp(min=0.0)
    smooth, quiet = True, []
    for number in range(len(reference.codomain.leaves)):
        part = reference.codomain.slice(number)
        change = float(first[part][known[part]].abs().sum())
        if not change:
            quiet.append(part)
        smooth = smooth and float(uneven[part][known[part]].sum()) <= MAX_UNEVENNESS * change
    return smooth, quiet


def coarsest_eps(function: Callable[..., Any], arguments: Any) -> float:
    """The eps of the coarsest format among the tensors of one call, captured constants included; 0 if unknown."""

    def call() -> None:
        with torch.no_grad():
            function(*arguments)

    try:
        return max(private.watch_operators(call, largest_eps), default=0.0)
    except Exception:
        return 0.0
