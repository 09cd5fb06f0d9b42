"""Other step lengths for a comparison that is inconclusive with the usual ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.spaces import Array
from gradvet.core.vectors import finite_part, norm, peak

JUMP_RATIO = 4.0
JUMP_STEPS = [2.0**-32 * JUMP_RATIO**level for level in range(15)]
"""Steps over which outputs are looked at for jumps, and their ratio."""

JUMP_GROWTH = JUMP_RATIO**5
"""Growth of the departure from a line, from one step to the next, beyond that of a term of the fourth order."""


def refined(context: Context) -> Context | None:
    """Smaller step lengths: proportional to each coordinate, at most 1, by the derivative, much smaller; then None.

    Needed by `inputs_over_eight_decades`, `distance_far_from_origin`, `zero_rows_normalised` and `tan_near_its_pole`.
    """
    lengths, xp = context.lengths, context.xp
    own = xp.abs(context.problem.point)
    finer = xp.where((own > 0.0) & (own < lengths), own, lengths)
    if not bool(xp.any(finer < lengths)):
        finer = xp.minimum(lengths, xp.ones_like(lengths))
    if bool(xp.any(finer < lengths)):
        return context.rescaled(replace(context.scaling, lengths=finer))
    if not context.is_double:
        return None
    if not context.scaling.is_steep and (steep := by_derivative(context)) is not None:
        return steep
    if context.scaling.is_narrow or not context.computes_in_io_dtype:
        return None
    return context.rescaled(replace(context.scaling, lengths=thresholds.NARROW_FACTOR * lengths, is_narrow=True))


def with_inner_roundoff(context: Context) -> tuple[Context, bool]:
    """With the roundoff that values inside the function leave in outputs far smaller than one, and whether it is any.

    Such an output is smooth over small steps, and over wider ones it jumps by the roundoff of numbers of size one, or
    of the size of the inputs: 1 + erf(x) has a few values around -6. Needed by `gelu_from_minus_nine_to_minus_five`.
    """
    problem, xp, u = context.problem, context.xp, context.first.u
    value = problem.value[: problem.codomain.size]
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
                jumps = departure > JUMP_GROWTH * (last + own + context.eps * abs(change))
                roundoff = xp.maximum(roundoff, xp.where(jumps, departure, xp.zeros_like(departure)))
    size = max(1.0, peak(xp.where(u != 0.0, finite_part(problem.point), xp.zeros_like(u))))
    roundoff = xp.where(roundoff <= thresholds.ROUNDOFFS * context.eps * size, roundoff, xp.zeros_like(roundoff))
    return replace(context.rescaled(context.scaling), inner_roundoff=roundoff), bool(peak(roundoff))


def by_derivative(context: Context) -> Context | None:
    """Step lengths over which the outputs change by no more than their size, if the derivative is right.

    Below double precision those of zeros alone: other numbers have no smaller steps. None if none is smaller.
    """
    cotangent, xp = context.cotangents[0], context.xp
    size = norm(cotangent.v, finite_part(context.problem.value[: cotangent.v.shape[0]]))
    claimed = xp.abs(cotangent.vjp) * context.lengths
    steep = (claimed > size) & ((context.problem.point == 0.0) | context.is_double)
    if not size or not bool(xp.any(steep)):
        return None
    lengths = xp.where(steep, context.lengths * size / xp.clip(claimed, size), context.lengths)
    return context.rescaled(replace(context.scaling, lengths=lengths, is_steep=True))


def other_lengths(context: Context) -> Iterator[Context]:
    """Step lengths of at least 1, then smaller ones, but for the smallest, at which roundoff hides faint inputs.

    Needed by `tiny_input_of_a_norm`, whose effect over steps of its own size is below roundoff.
    """
    lengths, xp, finer = context.lengths, context.xp, refined(context)
    wide = xp.where(lengths > 0.0, xp.clip(lengths, 1.0), lengths)
    if bool(xp.any(wide > lengths)):
        yield context.rescaled(replace(context.scaling, lengths=wide))
    while finer is not None and not finer.scaling.is_narrow:
        yield finer
        finer = refined(finer)
