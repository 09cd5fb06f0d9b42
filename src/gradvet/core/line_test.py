"""The error-bar policy along one direction: screen by one difference, then a step sweep, then a decision.

The screen compares v·D with (Jᵀv)·d and costs no evaluation beyond the difference D. It settles most cases. What it
leaves open is swept over many steps. Agreement is entered in the ledger with its resolution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.decision import Decision, ErrorScale, Reason, decide, is_saturated
from gradvet.core.extrapolation import SlopeFit, fit_slope
from gradvet.core.finite_differences import Cotangent, DirectionalDifference, first_change, is_faint
from gradvet.core.gradient_match import derivative_jitter, saturated_roundoff, saturated_slope
from gradvet.core.modes import Mode
from gradvet.core.problem import Problem
from gradvet.core.results import Verdict
from gradvet.core.vectors import Array, all_finite, dot, finite_part, nonzero_rms_by_leaf, norm, peak, window

WIDE_STAIRS = (
    "the function is constant around the point and jumps farther away, as rounding does: its gradient is zero there. "
    "For the gradient of a straight-through estimator, name the function that it is about: surrogate="
)
SATURATED = (
    "roundoff of numbers of size one inside the function hides how the outputs change with {}: slopes as small as "
    "these count as zero"
)
NO_CHANGE = "no output changes with {} by more than roundoff, and its gradient is zero"

MAX_BENT_ROWS = 2
"""Number of outputs with a kink that the screen of a generated point tests one by one. Further ones are not compared
there: the full test of a ReLU at zeros would take ten times the evaluations of the whole check."""


def typical_contributions(problem: Problem, w: Array, u: Array) -> dict[str, float]:
    """For each input that u moves: root mean square of the nonzero products w_j u_j, zero if all are zero."""
    moved = zip(problem.domain.sections, nonzero_rms_by_leaf(problem.domain, w * u), strict=True)
    return {leaf.name: typical for (leaf, part), typical in moved if typical or bool((u[part] != 0.0).any())}


def open_rows(context: Context, mode: Mode) -> list[str]:
    """Open the ledger rows of a mode; returns the inputs whose rows are new. NaN in inputs or outputs is left out.

    No step changes what is infinite, such as a mask: it is not among the elements of a row, and a note names it.
    """
    problem, xp, ledger, opened = context.problem, context.xp, context.record, []
    value, is_finite = context.value, all_finite(problem.point)
    lost = int(xp.count_nonzero(value != value))
    for leaf, part in problem.domain.sections:
        row, size, unknown = (leaf.name, mode.name, context.precision), leaf.coordinates.size, 0
        if not is_finite:
            size = int(xp.count_nonzero(~xp.isinf(problem.point[part]))) or size
            unknown = int(xp.count_nonzero(problem.point[part] != problem.point[part]))
        if ledger.open(*row, size, context.asked_resolution):
            opened.append(leaf.name)
        if lost:
            ledger.left_out(*row, min(lost, size), f"NaN in {lost} of {value.shape[0]} outputs")
        elif unknown:
            ledger.left_out(*row, unknown, "NaN in the input")
    return opened


def enter_resolution(context: Context, mode: Mode, contributions: Mapping[str, float], bar: float) -> None:
    """Enter in the ledger that an error of `bar` along a direction would have been seen."""
    if not bar and not any(contributions.values()):
        _note_constant(context, contributions)
    for name, contribution in contributions.items():
        if contribution or not bar:
            context.record.compared(name, mode.name, context.precision, bar / contribution if contribution else 0.0)


def _note_constant(context: Context, names: Iterable[str]) -> None:
    """Say that a gradient of zero was compared with outputs that do not change."""
    for name in names:
        context.record.note(NO_CHANGE.format(name))


def screen(
    context: Context, mode: Mode, cotangent: Cotangent, d: Array, slope: Array, bend: Array | None = None
) -> tuple[float, float]:
    """Residual |v·D - v·J·d| and what is allowed: rtol times the scale of the slope, plus roundoff.

    With `bend`, half the change of slope at a kink, v·J·d may lie anywhere between the one-sided slopes.
    """
    v = cotangent.v
    rtol = thresholds.GENERATED_PEAK_RTOL if context.is_generated else thresholds.SCREEN_RTOL
    rtol += context.options.accuracy
    allowed = rtol * max(norm(cotangent.vjp, d), norm(v, slope))
    allowed += thresholds.INTERVAL_WIDTH / thresholds.SCREEN_STEP * norm(v, context.value_noise)
    if context.immaterial_slope:
        allowed += context.immaterial_slope * norm(v)
    if bend is not None:
        allowed += abs(dot(v, bend)) * (1.0 + thresholds.KINK_RTOL)
    return abs(dot(v, slope) - float(mode.slope(context, cotangent, d))), allowed


def screen_agrees(
    context: Context, mode: Mode, difference: DirectionalDifference, cotangents: Sequence[Cotangent]
) -> bool:
    """Whether every cotangent shows agreement, which is entered in the ledger."""
    agree = True
    for cotangent in cotangents:
        if not peak(cotangent.v):
            return False  # no output has a finite slope
        residual, allowed = screen(context, mode, cotangent, difference.displacement, difference.odd)
        if residual <= allowed:
            contributions = typical_contributions(context.problem, cotangent.vjp, difference.displacement)
            enter_resolution(context, mode, contributions, allowed)
        else:
            agree = False
    return agree


def bent_rows(context: Context, difference: DirectionalDifference) -> Array | None:
    """Outputs whose even part is that of a kink rather than of curvature; None if there is none.

    Without this the screen accepts any derivative whose odd part agrees, beside a jump as well. Needed by
    `test_other_value_at_the_point_itself_is_a_jump`, which passes without it.
    """
    if not context.is_double:
        return None
    xp = context.xp
    even = xp.abs(difference.even)
    noise = thresholds.ROUNDOFFS / thresholds.SCREEN_STEP * context.peak_noise
    bent = even > xp.maximum(thresholds.KINK_RTOL * xp.abs(difference.odd), noise)
    if not bool(xp.any(bent)):
        return None
    shrinks = 2.0 * xp.abs(difference.at_twice_the_step.even) < thresholds.KINK_SHRINKAGE * even
    bent = bent & shrinks & xp.isfinite(even)
    return bent if bool(xp.any(bent)) else None


def split_kinks(
    context: Context, cotangent: Cotangent, difference: DirectionalDifference, bent: Array
) -> Iterator[Cotangent]:
    """The rows with a kink, signed so that their kinks add up, and the other rows.

    Roundoff of large inputs looks like kinks in some rows. Needed by `test_wave_at_1e16_passes`.
    """
    xp = context.xp
    zeros = xp.zeros_like(cotangent.v)
    yield context.cotangent(xp.where(bent, xp.abs(cotangent.v) * xp.sign(difference.even), zeros))
    rest = xp.where(bent, zeros, cotangent.v)
    if bool(xp.any(rest != 0.0)):
        yield context.cotangent(rest)


def screen_point(context: Context, mode: Mode) -> bool:
    """Whether the screen settles a generated point: one evaluation and one VJP where the function is smooth.

    Where it is not, both sides are compared, and some of the outputs with a kink one by one.
    """
    problem, xp = context.problem, context.xp
    rows, step = problem.codomain.size, thresholds.SCREEN_STEP
    ahead = problem.evaluate_at(step * context.joint_direction())
    rise = ahead.values[:rows] - context.value
    cotangent = context.cotangents_for(rise / step, 1)[0]
    if cotangent.nonfinite is not None:
        return False
    residual, allowed = screen(context, mode, cotangent, ahead.displacement / step, rise / step)
    if residual <= allowed:
        return True
    behind = problem.evaluate_at(-ahead.displacement)
    fall = behind.values[:rows] - context.value
    displacement = (ahead.displacement - behind.displacement) / (2.0 * step)
    slope, bend = (rise - fall) / (2.0 * step), (rise + fall) / (2.0 * step)
    bent = _is_bent(context, slope, bend) & (cotangent.v != 0.0)
    smooth = xp.where(bent, xp.zeros_like(cotangent.v), cotangent.v)
    tested: list[tuple[Cotangent, Array | None]] = []
    if bool(xp.any(smooth != 0.0)):
        tested.append((context.cotangent(smooth), None))
    for row in xp.nonzero(bent)[0][:MAX_BENT_ROWS]:
        tested.append((context.row(int(row)), bend))
    return all(
        other.nonfinite is None and residual <= allowed
        for other, kink in tested
        for residual, allowed in [screen(context, mode, other, displacement, slope, kink)]
    )


def _is_bent(context: Context, slope: Array, bend: Array) -> Array:
    """Outputs whose change of slope is material at a generated point."""
    xp = context.xp
    bend, slope = xp.abs(bend), xp.abs(slope)
    noise = thresholds.ROUNDOFFS / thresholds.SCREEN_STEP * context.peak_noise
    material = thresholds.GENERATED_RTOL * slope + thresholds.GENERATED_PEAK_RTOL * peak(slope)
    return (bend > material) & (bend > noise)


def sweep_line(context: Context, mode: Mode, u: Array, cotangents: Sequence[Cotangent]) -> list[SlopeFit]:
    """One fitted slope for each cotangent, from a sweep over all steps along u."""
    return [fit_slope(sweep) for sweep in context.sweep_steps(u, cotangents, partial(mode.change, context))]


def decide_line(context: Context, mode: Mode, u: Array, cotangent: Cotangent, fit: SlopeFit) -> Decision:
    """The decision about v·J·u by its step sweep; agreement is entered in the ledger."""
    if not peak(cotangent.v):
        return Decision(Verdict.PASS, Reason.NO_SIGNAL)  # nothing is finite: the ledger stays open
    contributions = typical_contributions(context.problem, cotangent.vjp, u)
    is_constant = not (fit.rise or any(contributions.values()) or bool(context.xp.any(cotangent.v == 0.0)))
    scale = error_scale(context, u, cotangent, contributions)
    is_on_stair = fit.has_stairs and not scale.slope and _has_own_stairs(context, u, cotangent.v)
    if is_on_stair:
        fit = replace(fit, error=fit.within_stair, has_stairs=False)
    size = norm(cotangent.v, context.value)
    if hides_slope := is_saturated(fit, scale):
        scale = replace(scale, typical=max(size, scale.unit))
        contributions = dict.fromkeys(_not_faint(context, u, cotangent, contributions), scale.typical)
    elif scale.slope <= size * context.eps**thresholds.ZERO_SLOPE_POWER and not context.scaling.is_narrow:
        scale = _zero_slope_scale(context, u, cotangent, fit, scale)
        if not scale.slope:
            is_seen = fit.rise > scale.saturated and len(contributions) == 1
            names = contributions if is_seen else _not_faint(context, u, cotangent, contributions)
            contributions = dict.fromkeys(names, scale.typical)
    decision = decide_beyond_jitter(context, u, cotangent, fit, scale)
    if decision.verdict is Verdict.PASS and decision.reason is Reason.AGREES:
        if not contributions:
            return decision.weakened()  # nothing was compared
        if is_constant:
            _note_constant(context, contributions)
        if is_on_stair:
            context.record.note(WIDE_STAIRS)
        if hides_slope and not is_constant:
            context.record.note(SATURATED.format(", ".join(contributions)))
        enter_resolution(context, mode, contributions, max(decision.bar, abs(decision.error)))
    if decision.verdict is not Verdict.FAIL and fit.one_sided:
        context.record.note("only one side of the point is inside the function's domain: one-sided differences")
    return decision


def _zero_slope_scale(context: Context, u: Array, cotangent: Cotangent, fit: SlopeFit, scale: ErrorScale) -> ErrorScale:
    """The scale for a derivative of zero, whose own size is no scale: what the function does.

    That is the change of the outputs or their slope, if it exceeds their roundoff, and their size if they are
    constant. A derivative above its own roundoff is not zero, however small its effect over a tiny step is. Without
    this a lost gradient agrees with roundoff. Needed by `test_lost_gradient_behind_a_large_offset_does_not_pass`,
    `test_bias_before_a_normalisation_passes`, `test_faint_input_of_its_own_output_does_not_pass`,
    `shift_of_1e_14_negated` and `test_lost_gradient_of_an_output_of_tiny_size_does_not_pass`.
    """
    if fit.rise > scale.saturated:
        return replace(scale, slope=0.0, typical=fit.rise)
    if not scale.slope and abs(fit.error.value) > thresholds.CLEAR * fit.error.error:
        return replace(scale, typical=abs(fit.error.value))
    if scale.slope > thresholds.INTERVAL_WIDTH * derivative_jitter(context, cotangent.v, u, scale.slope):
        return scale
    return replace(scale, slope=0.0, typical=norm(cotangent.v, context.value))


def _not_faint(context: Context, u: Array, cotangent: Cotangent, names: Iterable[str]) -> Iterator[str]:
    """Of these inputs, those for which a derivative of zero was compared: roundoff does not hide their slope.

    Or their derivative consists of roundoff, which shows that terms cancel, and not that it was lost. Without this the
    lost gradient of an input with an effect below roundoff passes. Calls the function. Needed by
    `test_lost_gradient_of_a_faint_input_does_not_pass`, and the other alternative by
    `test_common_shift_before_a_softmax_passes`.
    """
    v = cotangent.v
    for leaf, part in context.problem.domain.sections:
        own = window(u, part)
        claimed = norm(cotangent.vjp, own)
        if leaf.name in names and (
            not is_faint(context.problem, own, v, context.eps)
            or 0.0 < claimed <= thresholds.INTERVAL_WIDTH * derivative_jitter(context, v, own, claimed)
        ):
            yield leaf.name


def rows_changing_by_roundoff(context: Context, u: Array, v: Array) -> Array | None:
    """Outputs whose change, at the first step that changes any output, is at most their roundoff. Calls the function.

    None if there is none: the first change of a function with steps, such as floor, is larger. `value_noise` has the
    roundoff of numbers inside the function, without which such outputs look like stairs: needed by
    `test_lost_gradient_of_values_that_vary_by_roundoff_inside_fails`.
    """
    change = first_change(context.problem, u, v)
    hidden = (change > 0.0) & (change <= thresholds.ROUNDOFFS * context.value_noise)
    return hidden if bool(context.xp.any(hidden)) else None


def _has_own_stairs(context: Context, u: Array, v: Array) -> bool:
    """Whether the function has stairs, such as floor, and rounding inside it is not what makes its values constant.

    Then zero is the derivative. No operator may use a coarser format, and the first change of the values must be larger
    than rounding to half precision explains, relative to outputs and inputs. Needed by `floor_between_integers`, which
    is inconclusive without it, and the conditions by `test_lost_gradient_behind_hidden_rounding_does_not_pass`. Calls
    the function.
    """
    if not context.is_double or not context.computes_in_io_dtype:
        return False
    xp, point = context.xp, finite_part(context.problem.point)
    change = first_change(context.problem, u, v)
    size = xp.clip(xp.abs(context.value), peak(xp.where(u != 0.0, point, xp.zeros_like(point))))
    return bool(xp.all((change == 0.0) | (change > thresholds.MATERIAL_MAX * size)))


def decide_beyond_jitter(
    context: Context, u: Array, cotangent: Cotangent, fit: SlopeFit, scale: ErrorScale
) -> Decision:
    """A disagreement must also exceed the noise of the derivative, which costs a few VJPs next to the point.

    Where the derivative jumps at the point, noise is what varies on one side of it. Needed by
    `huber_of_threshold_too_flat_beyond`.
    """
    decision = decide(fit, scale, context.options.resolution)
    if decision.verdict is not Verdict.FAIL:
        return decision
    error = decision.error
    # Constants in a coarse format round the function in one way and its derivative in another.
    eps = max(scale.eps, context.problem.internal_eps())
    for one_sided in (False, True):
        jitter = derivative_jitter(context, cotangent.v, u, error, one_sided=one_sided)
        noise = scale.derivative_noise + 2.0 * jitter
        decision = decide(fit, replace(scale, eps=eps, derivative_noise=noise), context.options.resolution)
        if decision.verdict is not Verdict.INCONCLUSIVE:
            break
    return decision


def error_scale(context: Context, u: Array, cotangent: Cotangent, contributions: Mapping[str, float]) -> ErrorScale:
    """The scales with which an error along u is compared, by the gradient of the cotangent."""
    slope = norm(cotangent.vjp, u)
    typical = max((size for size in contributions.values() if size), default=slope)
    granted = context.options.accuracy * slope
    saturated, cancelled = saturated_slope(context, cotangent.v, u), saturated_roundoff(context, cotangent.v, peak(u))
    return ErrorScale(slope, typical, context.eps, granted, norm(cotangent.v), saturated, cancelled)
