"""The wider version of a problem (in float64, else in float32), and the coarsest format inside a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradvet.core import thresholds
from gradvet.core.frontend import Request
from gradvet.core.reference_errors import TF32_EPS
from gradvet.core.vectors import pieces
from gradvet.errors import InvalidProblemError, UnsupportedError
from gradvet.frontends.torch import private
from gradvet.frontends.torch.autograd_graph import is_computed_by_operators, nodes_behind
from gradvet.frontends.torch.binding import bind
from gradvet.frontends.torch.double_precision import DoublePrecision, Formats, largest_eps
from gradvet.frontends.torch.preservation import MAX_SEARCHED_OBJECTS, reachable_objects

if TYPE_CHECKING:
    from gradvet.frontends.torch.problem import TorchProblem

NARROW = (torch.float16, torch.bfloat16, torch.float32)

COARSER_EPS = {torch.float64: torch.finfo(torch.float32).eps, torch.float32: torch.finfo(torch.bfloat16).eps}
"""The eps of the format in which a function that seems to run in this one may compute."""

LARGE_STEPS = (2.0 * torch.finfo(torch.bfloat16).eps, thresholds.NEARBY_PART)
"""Relative changes of the inputs that show in every format of 16 bits: two spacings of the coarsest, and one that is
farther than roundoff inside a function reaches."""

MAX_PROBED_INPUTS = 16
"""Number of inputs of a function with custom rules up to which each is changed alone."""

TF32_DEVICES = ("cuda",)
"""Kinds of devices on which products of float32 numbers may be rounded to TF32: cuDNN's convolutions and Triton's
products do so by default."""


def wider_problem(problem: TorchProblem, request: Request, seed: int) -> tuple[TorchProblem, TorchProblem] | None:
    """The problem, and the same in the widest precision in which it runs; None if that is the given one.

    Calls both functions and their derivatives. The function is called with widened inputs: as it is if all numbers
    inside are double precision then, otherwise in the mode of `double_precision`. A function in half precision that
    has no version in float64 is called in float32. If the given function rounds to a coarser format than that of its
    inputs and outputs, the problem that is returned has the eps of that format.
    """
    formats = _formats_of(problem)
    double = DoublePrecision(formats)
    eps = max(problem.eps, formats.rounding)
    expected = max(eps, TF32_EPS) if may_round_products(problem) else eps
    attempts = [
        # As it is, a function draws other numbers in float64.
        (torch.float64, None, not formats.has_draws),
        (torch.float64, double, double.is_available),
        (torch.float32, None, not formats.has_draws and problem.eps > torch.finfo(torch.float32).eps),
    ]
    for dtype, mode in [(dtype, mode) for dtype, mode, is_possible in attempts if is_possible]:
        wide = _attempt(problem, request, seed, dtype, mode)
        if wide is not None and _is_wider_version(problem, wide, expected, dtype):
            if eps > problem.eps and _loses_digits(problem, wide):
                return problem.with_eps(eps), wide
            if may_round_products(problem) and _rounds_products(problem, wide):
                return problem.with_eps(TF32_EPS), wide
            return problem, wide
    return None


def _formats_of(problem: TorchProblem) -> Formats:
    """The formats of the given function. Calls it."""
    problem.cost.forwards += 1
    try:
        return Formats.of(problem.function, problem.arguments)
    except Exception:  # it has operators that cannot be intercepted
        return Formats(problem.internal_eps())


def _attempt(
    problem: TorchProblem, request: Request, seed: int, dtype: torch.dtype, double: DoublePrecision | None
) -> TorchProblem | None:
    """The problem with widened inputs, from the same random state and buffers; None if the function refuses them."""
    problem.binding.restart()
    try:
        bound = bind(request, wide=dtype, double=double)
        if bound.checked != problem.binding.checked:  # there is no memory for all inputs
            bound = bound.restricted(problem.binding.checked)
        return problem.rebound(bound, seed)
    except InvalidProblemError:
        raise
    except Exception:
        return None


def _is_wider_version(problem: TorchProblem, wide: TorchProblem, eps: float, dtype: torch.dtype) -> bool:
    """Whether a problem with widened inputs is the given function, and in the precision of `dtype`."""
    sizes, expected = ([leaf.coordinates.size for leaf in p.codomain.leaves] for p in (wide, problem))
    spacing = torch.finfo(dtype).eps
    if sizes != expected or any(largest_eps(y) > spacing for y in wide.differentiable_outputs):
        return False
    try:
        if not _agree(problem.value, wide.value, eps) and not _differ_by_rounding(problem, wide):
            return False
        return _is_wide_inside(problem, wide, spacing) and _resolves(wide, dtype)
    except Exception:  # it raises in this precision where it does not in the given one
        return False


def _agree(low: Tensor, high: Tensor, eps: float) -> bool:
    known = torch.isfinite(low) & torch.isfinite(high)
    if not bool(known.any()):
        return False
    size = float(high[known].abs().max())
    allowed: float = min(thresholds.MATERIAL_MAX, thresholds.OPERATION_EPS * eps**thresholds.HALF_THE_DIGITS)
    return float((low - high)[known].abs().max()) <= allowed * size


def _differ_by_rounding(problem: TorchProblem, wide: TorchProblem) -> bool:
    """Whether the values of the wider version differ as much if every operator rounds to the format of the problem.

    Where large terms cancel, half precision leaves few digits of the values, also inside one operator: needed by
    `test_wider_version_is_found_although_few_digits_of_the_values_are_left` and `test_confident_losses_do_not_fail`.
    Calls the wider version.
    """
    values = rounded_as(problem, lambda: wide.values(wide.arguments))
    if values is None:
        return False
    known = torch.isfinite(problem.value) & torch.isfinite(wide.value) & torch.isfinite(values)
    lost = torch.isfinite(problem.value) & torch.isfinite(wide.value) & ~torch.isfinite(values)
    if bool(lost.any()) and not _agree(problem.value[lost], wide.value[lost], problem.eps):
        return False  # roundoff explains infinity, and not another number
    error, expected = ((found - wide.value)[known].abs() for found in (problem.value, values))
    inside = max(problem.eps, thresholds.ROUNDOFFS * torch.finfo(torch.float32).eps)
    return bool(known.any()) and float(error.max()) <= thresholds.COHERENT * float(expected.max()) + inside


def rounded_as(problem: TorchProblem, call: Callable[[], Tensor]) -> Tensor | None:
    """The result of a call in which every operator rounds what it returns to the format of the problem.

    The tensors keep their wider formats; views stay as they are. None where the format is unknown, or operators cannot
    be intercepted.
    """
    narrow = next((dtype for dtype in NARROW if torch.finfo(dtype).eps == problem.eps), None)

    def rounded_value(value: Any) -> Any:
        is_rounded = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(narrow).to(value.dtype) if is_rounded else value

    def rounded(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = operator(*args, **kwargs)
        returns = private.schema_of(operator).returns
        if any(value.alias_info is not None for value in returns):
            if len(returns) == 1 and returns[0].alias_info.is_write and isinstance(result, Tensor):
                result.copy_(rounded_value(result))
            return result
        if isinstance(result, (tuple, list)):
            return type(result)(map(rounded_value, result))
        return rounded_value(result)

    mode = None if narrow is None else private.operator_mode(rounded)
    if mode is None:
        return None
    with mode:
        return call()


def _coarsest_inside(call: Callable[[], object]) -> float:
    """The largest eps of what operators take and return in a call; 0, without a call, if they cannot be seen."""
    return private.largest_over_operators(call, lambda args, result: largest_eps((*args, result)))


def _loses_digits(problem: TorchProblem, wide: TorchProblem) -> bool:
    """Whether coarser numbers inside the given function affect its values or gradients."""
    if any(private.node_eps(node) > problem.eps for node in nodes_behind(problem.differentiable_outputs)):
        return True
    error, size = (problem.value - wide.value).abs(), wide.value.abs()
    known = torch.isfinite(error)
    return bool((error > thresholds.PRECISION_DOUBT * problem.eps * size)[known].any())


def may_round_products(problem: TorchProblem) -> bool:
    """Whether the function computes in float32 on a device that may round products to TF32."""
    tensors = [x for x in problem.inputs if isinstance(x, Tensor)]
    return problem.eps == torch.finfo(torch.float32).eps and any(x.device.type in TF32_DEVICES for x in tensors)


def _rounds_products(problem: TorchProblem, wide: TorchProblem) -> bool:
    """Whether the values, or the gradient of an input, as a whole differ by far more than roundoff of float32.

    Needed by `test_products_rounded_to_tf32_are_compared_in_that_precision`. One VJP of each.
    """
    ones = problem.zeros(problem.codomain.size) + 1.0
    try:
        found, expected = problem.vjp(ones), wide.vjp(ones)
    except UnsupportedError:  # there is no reverse mode, as of cuDNN's recurrent networks in evaluation mode
        return False
    parts = [problem.domain.slices[number] for number in range(len(problem.domain.leaves))]
    for low, high in [(problem.value, wide.value), *((found[part], expected[part]) for part in parts)]:
        known = torch.isfinite(low) & torch.isfinite(high)
        size = float(high[known].norm())
        # A gradient that is zero in exact arithmetic consists of roundoff.
        is_zero = high is not wide.value and size <= problem.eps * float(expected.nan_to_num().norm())
        if not is_zero and float((low - high)[known].norm()) > thresholds.ROUNDOFFS * problem.eps * size:
            return True
    return False


def _is_wide_inside(problem: TorchProblem, wide: TorchProblem, spacing: float) -> bool:
    """Whether no tensor of a call and of a backward pass has a larger spacing, as far as can be seen."""
    double = wide.binding.operator_mode
    if isinstance(double, DoublePrecision):
        _require_vjp(problem, wide)
        is_wide = not double.was_refused and double.coarsest <= spacing
        return is_wide and not double.rounds_outside(lambda h: wide.evaluate_at(h * _probe_direction(wide)))

    def both_passes() -> None:
        wide.call(wide.arguments)
        _require_vjp(problem, wide)

    return _coarsest_inside(both_passes) <= spacing


def _require_vjp(problem: TorchProblem, wide: TorchProblem) -> None:
    """One VJP of the wider version. Raises if it raises where that of the given problem does not."""
    try:
        wide.vjp(wide.zeros(wide.codomain.size) + 1.0)
    except Exception:
        try:
            problem.vjp(problem.zeros(problem.codomain.size) + 1.0)
        except Exception:
            return
        raise


def _resolves(problem: TorchProblem, dtype: torch.dtype) -> bool:
    """Whether the outputs follow tiny changes of the inputs as those of a function in this format do.

    Kernels may compute in lower precision where no operator shows it; the framework's own operators show every format,
    and stairs of theirs are the function's. Needed by `test_detached_rounding_of_fine_steps_does_not_pass`.
    """
    if problem.rules.are_builtin or is_computed_by_operators(problem):
        return True
    coarser, noise = COARSER_EPS[dtype], thresholds.ROUNDOFFS * torch.finfo(dtype).eps
    if not _follows(problem, _tiny_steps(coarser, noise), noise, coarser / 2.0):
        return False
    domain = problem.domain
    if not 1 < len(domain.leaves) <= MAX_PROBED_INPUTS:
        return True
    return all(_follows_input(problem, min(_tiny_steps(coarser)), part) for part in domain.slices)


def _tiny_steps(eps: float, noise: float = 0.0) -> list[float]:
    """Relative changes of the inputs that a format of this spacing follows in jumps, and finer ones smoothly.

    Over an eighth of the spacing, equal steps meet jumps in some elements and none in others. A `ROUNDOFFS`th of that
    is for functions that bend over the other: needed by `distance_of_far_points_halved`. Over a step that noise fills,
    everything seems smooth.
    """
    steps = (eps / 8.0, eps / 8.0 / thresholds.ROUNDOFFS)
    return [step for step in steps if thresholds.PLATEAU_RTOL * step > noise]


def _follows_input(problem: TorchProblem, step: float, part: slice) -> bool:
    """Whether the outputs change with one input alone, unless they do not depend on it.

    Needed by `test_kernel_that_rounds_one_of_its_inputs_is_checked_in_its_own_precision`: the other inputs hide what a
    kernel does not see of this one. Calls the function once, and twice more if nothing changes.
    """
    direction = torch.zeros_like(problem.point)
    direction[part] = _probe_direction(problem)[part]
    near = problem.evaluate_at(step * direction).values
    if bool((near != problem.value).any()):
        return True
    return not _is_rounded(problem, [slice(0, problem.codomain.size)], direction, near, step)


def _follows(problem: TorchProblem, steps: Sequence[float], noise: float, start: float = 0.0) -> bool:
    """Whether the outputs change smoothly over one of these steps, as those of a coarser format do not; those that do
    not change are not rounded.

    The steps begin beside the point: its inputs are numbers of the coarser format, so that around it nothing that is
    rounded would change, and other outputs would seem smooth. Needed by
    `test_kernel_that_rounds_only_some_outputs_is_not_checked_in_float64`.
    """
    direction = _probe_direction(problem)
    for step in steps:
        values = [problem.evaluate_at((start + multiple * step) * direction).values for multiple in (1.0, 2.0, 3.0)]
        smooth, constant = _smoothness(problem, noise, *values)
        if smooth:
            return not constant or not _is_rounded(problem, constant, direction, values[0], step)
    return False


def _is_rounded(problem: TorchProblem, constant: Sequence[slice], direction: Tensor, near: Tensor, tiny: float) -> bool:
    """Whether outputs that do not follow tiny changes are rounded to a coarse format, rather than staircases.

    Such outputs change at the next coarser step wherever they change at all, or have a derivative there. Zero is no
    rounded number: it is the output of a loss whose margins are kept.
    """
    changes = [(problem.evaluate_at(step * direction).values - near).abs() for step in LARGE_STEPS]
    # What double precision itself cannot show at a tiny step says nothing. Needed by
    # `test_doubled_gradient_of_a_faint_scalar_fails_in_bfloat16`.
    seen = changes[1] * (tiny / LARGE_STEPS[1]) > thresholds.ROUNDOFFS * problem.eps * near.abs()
    middle, far = ((change > 0.0) & (near != 0.0) & seen for change in changes)
    for part in constant:
        some, all_that_change = int(middle[part].count_nonzero()), int(far[part].count_nonzero())
        # Not ones: the gradient of the sum of a normalised output is zero.
        v = problem.zeros(problem.codomain.size)
        v[part] = torch.arange(v[part].shape[0], dtype=v.dtype, device=v.device).cos()
        # A straight-through estimator has a derivative on wide stairs.
        if some and (2 * some > all_that_change or bool(problem.vjp(v).any())):
            return True
    return False


def _probe_direction(problem: TorchProblem) -> Tensor:
    """A direction along which every input moves in proportion to its size."""
    point = problem.point
    # Different sizes in [1/2, 1], with changing signs. In place: the inputs may be a whole model.
    direction = torch.arange(point.shape[0], dtype=point.dtype, device=point.device).sin_().mul_(0.25).add_(0.75)
    direction[1::2].neg_()
    if bool(point.any()):
        for piece in pieces(slice(0, point.shape[0])):
            direction[piece].mul_(point[piece].abs())
    problem.release()
    return direction.nan_to_num_(0.0, 0.0, 0.0)


def _captured_eps(problem: TorchProblem) -> float:
    """The eps of a coarser format in which a custom kernel computes because its tables have it; 0 if there is none.

    Kernels hide their operators, so the formats of tensors that they capture or get as constants, float32 and TF32 are
    tried: one counts if the outputs do not follow small changes of the inputs in its steps. Calls the function where
    one is possible.
    """
    objects = (*problem.arguments, *reachable_objects(problem.function, limit=MAX_SEARCHED_OBJECTS))
    # Needed by `test_kernel_that_computes_float64_in_float32_passes`.
    eps = max([largest_eps(thing) for thing in objects if isinstance(thing, Tensor)] + [torch.finfo(torch.float32).eps])
    eps = max(eps, TF32_EPS) if may_round_products(problem) else eps
    if eps <= problem.eps or problem.rules.are_builtin:
        return 0.0
    noise = thresholds.ROUNDOFFS * problem.eps
    steps = _tiny_steps(eps, noise)
    if not steps or _follows(problem, steps, noise, eps / 2.0) or is_computed_by_operators(problem):
        return 0.0
    # Stairs wider than those of the format are the function's own: needed by
    # `test_straight_through_gradient_of_fine_steps_in_a_kernel_does_not_pass`.
    wide = min(thresholds.ROUNDOFFS * eps, LARGE_STEPS[0])
    return eps if _follows(problem, (wide,), thresholds.OPERATION_EPS * eps) else 0.0


def _smoothness(
    problem: TorchProblem, noise: float, near: Tensor, middle: Tensor, far: Tensor
) -> tuple[bool, list[slice]]:
    """Whether each output follows equal steps equally, and the outputs that do not change at all.

    The point itself is left out: it may be the edge of a jump, such as an integer that is rounded down.
    """
    first, second = middle - near, far - 2.0 * middle + near
    known = torch.isfinite(first) & torch.isfinite(second)
    uneven = (second.abs() - noise * middle.abs()).clamp(min=0.0)
    smooth, constant = True, []
    for number in range(len(problem.codomain.leaves)):
        part = problem.codomain.slices[number]
        change = float(first[part][known[part]].abs().sum())
        if not change:
            constant.append(part)
        smooth = smooth and float(uneven[part][known[part]].sum()) <= thresholds.PLATEAU_RTOL * change
    return smooth, constant


def internal_eps(problem: TorchProblem) -> float:
    """The eps of the coarsest format that numbers pass inside the function, as far as can be seen. Calls it."""
    if problem.binding.operator_mode:
        return problem.eps
    return max(problem.eps, _coarsest_eps(problem.function, problem.arguments), _captured_eps(problem))


def _coarsest_eps(function: Callable[..., Any], arguments: Any) -> float:
    """The eps of the coarsest format among the tensors of one call, captured constants included; 0 if unknown."""

    def call() -> None:
        with torch.no_grad():
            function(*arguments)

    try:
        return _coarsest_inside(call)
    except Exception:
        return 0.0
