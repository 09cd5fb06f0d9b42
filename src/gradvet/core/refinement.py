"""Comparisons after the one with the usual step lengths: with other step lengths, and of hidden outputs apart.

Other step lengths are chosen where the comparison is inconclusive. An output is hidden if its roundoff over a step
makes up more than a part of its own slope and of a typical slope of its tensor (a slope far below the typical one does
not matter), and another output has far less roundoff. Cotangents give such outputs little weight, so that the others
are seen sharply; an agreement of the others says nothing about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Reason
from gradvet.core.extrapolation import ODD_ORDERS
from gradvet.core.finite_differences import Cotangent, DirectionalDifference, steps_for
from gradvet.core.line_test import rows_changing_by_roundoff, typical_contributions
from gradvet.core.modes import Mode
from gradvet.core.problem import Distribution
from gradvet.core.results import Verdict
from gradvet.core.vectors import Array, Leaf, finite_part, nonzero_median, norm, peak, window
from gradvet.errors import first_line

JUMP_RATIO = 4.0
JUMP_STEPS = [2.0**-32 * JUMP_RATIO**level for level in range(15)]
"""Steps over which outputs are searched for jumps, and their ratio."""

SMOOTH_ORDER = 2 * len(ODD_ORDERS) - 1
"""Highest order of a term that a slope fit sees: a departure from a line that grows faster is a jump."""


def refined(context: Context, cotangent: Cotangent | None = None) -> Context | None:
    """The next smaller step lengths, or None after the last ones. Each is tried where wider ones are inconclusive.

    In this order: the size of each coordinate instead of that of its tensor (needed by `largest_five_in_float16`,
    which fails without it); at most 1; lengths over which the outputs change by their own size, by the derivative of
    the cotangent under test, by default the first of the context (needed by `zero_rows_normalised`); and much smaller
    ones (needed by `acos_next_to_one_negated`); without these two, both are inconclusive.
    """
    lengths, xp = context.lengths, context.xp
    own = xp.abs(context.problem.point)
    finer = xp.where((own > 0.0) & (own < lengths), own, lengths)
    if not bool(xp.any(finer < lengths)):
        finer = xp.minimum(lengths, xp.clip(_least_lengths(context), 1.0))
    if bool(xp.any(finer < lengths)):
        return context.rescaled(replace(context.scaling, lengths=finer))
    if not context.is_double:
        return None
    if not context.scaling.is_steep and (steep := by_derivative(context, cotangent)) is not None:
        return steep
    if context.scaling.is_narrow or not context.computes_in_io_dtype:
        return None
    return context.rescaled(replace(context.scaling, lengths=thresholds.NARROW_FACTOR * lengths, is_narrow=True))


def with_inner_roundoff(context: Context) -> tuple[Context, bool]:
    """The context with the roundoff that larger numbers inside the function leave in outputs; whether there is any.

    Such an output is smooth over small steps, and over wider ones it jumps by the roundoff of numbers of size one, of
    the size of the inputs, or of the largest number inside: 1 + erf(x) has a few values around -6, and ((x + c) - c)·x
    has the slope x over small steps. Needed by `square_through_1e10`, which is inconclusive without it.
    """
    problem, xp, u, value = context.problem, context.xp, context.first.u, context.value
    # Their own roundoff, and that of the inputs.
    own = context.eps * (abs(value) + abs(finite_part(context.slope_of(context.first))))
    roundoff = xp.zeros_like(value)
    for sign in (1.0, -1.0):
        change: Array | None = None
        departure: Array | None = None
        for step in JUMP_STEPS:
            nearer, change = change, finite_part(problem.evaluate_at(sign * step * u).values[: value.shape[0]] - value)
            if nearer is None:
                continue
            last, departure = departure, abs(change - JUMP_RATIO * nearer)
            if last is not None:
                jumps = departure > JUMP_RATIO**SMOOTH_ORDER * (last + own + context.eps * abs(change))
                roundoff = xp.maximum(roundoff, xp.where(jumps, departure, xp.zeros_like(departure)))
    size = max(1.0, peak(xp.where(u != 0.0, finite_part(problem.point), xp.zeros_like(u))))
    if peak(roundoff) > thresholds.ROUNDOFFS * context.eps * size:
        size = max(size, problem.rules.largest_inside())
    roundoff = xp.where(roundoff <= thresholds.ROUNDOFFS * context.eps * size, roundoff, xp.zeros_like(roundoff))
    return replace(context.rescaled(context.scaling), inner_roundoff=roundoff), bool(peak(roundoff))


def by_derivative(context: Context, cotangent: Cotangent | None = None) -> Context | None:
    """Step lengths over which the outputs change by no more than their size, if the derivative is right.

    Below double precision those of zeros alone: other numbers have no smaller steps. None if none is smaller.
    """
    cotangent, xp = cotangent or context.cotangents[0], context.xp
    size = norm(cotangent.v, finite_part(context.value))
    claimed = xp.abs(cotangent.vjp) * context.lengths
    steep = (claimed > size) & ((context.problem.point == 0.0) | context.is_double)
    if not size or not bool(xp.any(steep)):
        return None
    lengths = xp.where(steep, context.lengths * size / xp.clip(claimed, size), context.lengths)
    lengths = xp.minimum(context.lengths, xp.maximum(lengths, _least_lengths(context)))
    return context.rescaled(replace(context.scaling, lengths=lengths, is_steep=True))


def _least_lengths(context: Context) -> Array:
    """Step lengths below which rounding takes the largest step away."""
    spacing: float = thresholds.OPERATION_EPS * context.problem.eps / steps_for(context.eps)[0]
    return spacing * context.xp.abs(finite_part(context.problem.point))


def one_sided_outputs(context: Context) -> Cotangent | None:
    """A random cotangent of the outputs that exist at the point and not on both sides of it; None if there are none."""
    if context.first.is_finite or not peak(context.first.u):
        return None
    slope, xp = context.slope_of(context.first), context.xp
    lost = xp.isfinite(context.value) & ~xp.isfinite(slope)
    if not bool(xp.any(lost)):
        return None
    random = context.problem.random(slope.shape[0], Distribution.NEAR_UNIT)
    return context.cotangent(xp.where(lost, random, xp.zeros_like(slope)))


def refusal_beside(context: Context) -> str:
    """What the function raises next to the point, as the end of a sentence; nothing if it returns. Calls the function.

    Needed by `test_exception_next_to_the_point_is_told`.
    """
    first = context.first
    try:
        context.problem.evaluate(context.problem.perturbation(first.step * first.u), (1.0, -1.0))
    except Exception as error:
        return f": {type(error).__name__} there, {first_line(error)}"
    return ""


def other_lengths(context: Context) -> Iterator[Context]:
    """Step lengths of at least 1; in double precision then smaller ones, but for the smallest, which roundoff hides.

    Needed by `tiny_input_of_a_norm`, whose effect over steps of its own size is below roundoff.
    """
    lengths, xp, finer = context.lengths, context.xp, refined(context)
    wide = xp.where(lengths > 0.0, xp.clip(lengths, 1.0), lengths)
    if bool(xp.any(wide > lengths)):
        yield context.rescaled(replace(context.scaling, lengths=wide))
    while context.is_double and finer is not None and not finer.scaling.is_narrow:
        yield finer
        finer = refined(finer)


HIDDEN = "roundoff hides the slopes of {} of {} outputs"

NEGLIGIBLE = HIDDEN + ", which are below the resolution of the gradient that the outputs have together"


def decide_hidden_outputs(
    context: Context,
    sweep: Callable[[Sequence[Cotangent]], Decision],
    leave_out: Callable[[Leaf, int, str], None],
) -> Iterator[Decision]:
    """Outputs that roundoff hides at the usual step, by a sweep over all steps and a cotangent for each output tensor.

    Where that is inconclusive, `leave_out` is called for inputs with a derivative there; for all, if none has one.
    Needed by `identity_behind_1e10_lost_beside_a_square`.
    """
    first, xp = context.first, context.xp
    hidden = _hidden_by_roundoff(context, xp.abs(context.slope_of(first)), first.step, context.options.resolution)
    cotangents = [context.cotangent(v) for v in _by_tensor(context, hidden)]
    if not cotangents or context.out_of_budget:
        return
    decision, numbers = sweep(cotangents), (int(xp.count_nonzero(hidden)), context.problem.codomain.size)
    if decision.verdict is Verdict.INCONCLUSIVE:
        if all(_is_negligible(context, cotangent, sweep([cotangent])) for cotangent in cotangents):
            context.record.note(NEGLIGIBLE.format(*numbers))
            return
        size = sum(xp.abs(finite_part(cotangent.vjp)) for cotangent in cotangents)
        for leaf, part in context.problem.domain.sections:
            if peak(size[part]) or not peak(size):
                leave_out(leaf, leaf.coordinates.size, HIDDEN.format(*numbers))
    yield decision


def _is_negligible(context: Context, cotangent: Cotangent, decision: Decision) -> bool:
    """Whether the slope of hidden outputs is below the resolution of the gradient of their whole tensor.

    Of a softmax, the probability 1 - 1e-20 hides its slope, and that of 1e-20 does not. Needed by `sharp_softmax` and
    `sharp_sigmoid`, which are inconclusive without it.
    """
    if decision.verdict is Verdict.PASS or decision.reason not in (Reason.PRECISION, Reason.STAIRS):
        return decision.verdict is Verdict.PASS
    problem, u = context.problem, context.first.u
    random = problem.random(problem.codomain.size, Distribution.NEAR_UNIT)
    own = (window(random, rows) for rows in problem.codomain.slices if peak(cotangent.v[rows]))
    typical = typical_contributions(problem, context.cotangent(sum(own)).vjp, u)
    slope = norm(finite_part(cotangent.vjp), u) + abs(decision.error) + decision.bar
    parts = typical_contributions(problem, cotangent.vjp, u)
    touched = [name for name, part in parts.items() if part] or list(parts)
    return all(slope <= context.options.resolution * typical[name] for name in touched)


def hides_gradient(context: Context, mode: Mode, u: Array) -> bool:
    """Whether roundoff hides outputs in half precision even over the widest step along u. Calls the function.

    Outputs without a derivative that never change by roundoff are constant, and not hidden. Needed by
    `test_output_that_roundoff_hides_beside_another_does_not_pass`.
    """
    step, xp = steps_for(context.eps)[0], context.xp
    slope = finite_part(xp.abs(DirectionalDifference.along(context.problem, u, step).odd))
    hidden = _hidden_by_roundoff(context, slope, step, 1.0)
    for v in _by_tensor(context, hidden):
        if peak(xp.where(v != 0.0, slope, xp.zeros_like(slope))) or bool(mode.slope(context, context.cotangent(v), u)):
            return True
        if rows_changing_by_roundoff(context, u, v) is not None:
            return True
    return False


def _hidden_by_roundoff(context: Context, slope: Array, step: float, part: float) -> Array:
    """Outputs whose roundoff over a step exceeds this part of their slope and of a typical one of their tensor.

    And so far exceeds that of the output with the least that all of their slope looks like less than the resolution.
    """
    problem, xp = context.problem, context.xp
    own, typical = finite_part(slope), xp.zeros_like(slope)
    for rows in problem.codomain.slices:
        typical[rows] = nonzero_median(own[rows])
    size, noise = xp.maximum(own, typical), finite_part(context.value_noise) / step
    seen = own > 0.0
    if not bool(xp.any(seen)):
        return seen
    least = float(xp.min(noise[seen] / size[seen]))
    return noise > max(part, least / context.options.resolution) * size


def _by_tensor(context: Context, hidden: Array) -> Iterator[Array]:
    """Random weights of the hidden outputs of each output tensor that has any."""
    codomain, xp = context.problem.codomain, context.xp
    v = context.problem.random(codomain.size, Distribution.NEAR_UNIT)
    v = xp.where(hidden, v, xp.zeros_like(v))
    for rows in codomain.slices:
        if peak(own := window(v, rows)):
            yield own
