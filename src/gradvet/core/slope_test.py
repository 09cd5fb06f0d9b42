"""Is a derivative right, by its own error bar? A few near walks, and the ladder where they leave doubt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gradvet.core.context import Context, Cotangent
from gradvet.core.decision import Decision, Entry, ErrorScale, Reason, SlopeDecision, decide
from gradvet.core.extrapolation import SlopeFit, fit_slope
from gradvet.core.finite_differences import NEAR, DirectionalDifference
from gradvet.core.gradient_match import inherited, jitter
from gradvet.core.kinks import bent_rows, exclude_kinks
from gradvet.core.line_test import ROUNDOFFS, typical_contributions
from gradvet.core.localise import find_wrong_entry, slope_of_column
from gradvet.core.low_precision import fails_again, test_low_precision
from gradvet.core.modes import REVERSE, Mode
from gradvet.core.results import Verdict
from gradvet.core.spaces import Array, Location
from gradvet.core.vectors import all_finite, dot, namespace, norm, only, peak

AGREEMENT = 1e-6
"""Near walks that agree to this part of the slope's scale agree."""

ALONE = 64
"""At most so many inputs are walked alone because they are lost in a walk of all together."""

FAINT = 0.75
"""What changes the outputs by less than roundoff to this power, over a step of the inputs' own size, is no slope."""

FINER = 3.0 * 128.0
"""No input moves along the second walk by more than three times what it moves along the first; and what is held to a
bar 100 times as fine along one direction is missed no more often than what is held to it along two."""

SLACK = 64.0
"""So many times that may be left of a sum that should be nothing."""


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What a walk shows through one codirection, whichever mode is held to it."""

    slope: float
    allowed: float
    """By how much a prediction of the slope may differ from it."""
    typical_contributions: Mapping[str, float]
    """What a typical entry of each input that moves adds to it."""


class SlopeTest:
    """One mode of one trial."""

    def __init__(self, context: Context, mode: Mode) -> None:
        self.context, self.mode = context, mode

    def decision(self) -> Decision:
        """The worst of what the walks show; where they leave doubt, also as a function of a coarser format."""
        found = self._worst()
        if found.verdict is Verdict.INCONCLUSIVE and not self.context.out_of_time and self.context.coarsen():
            return self._worst()
        if found.verdict is Verdict.FAIL and self.context.narrowed:
            # Much narrower steps show the slope of any noise: they may speak for a derivative, but not against it.
            return replace(found, verdict=Verdict.INCONCLUSIVE, reason=Reason.PRECISION)
        return found

    def _worst(self) -> Decision:
        """The worst of what the walks show, up to the first failure."""
        doubtful: list[Decision] = []
        for found in self._walks():
            if found.verdict is Verdict.FAIL:
                return found
            if found.verdict is Verdict.INCONCLUSIVE:
                doubtful.append(found)
        return doubtful[0] if doubtful else Decision(Verdict.PASS, Reason.AGREES)

    def _walks(self) -> Iterator[Decision]:
        context = self.context
        broken = context.nothing
        for cotangent in context.cotangents:
            broken = broken if cotangent.broken is context.nothing else broken | cotangent.broken
        if broken is not context.nothing and bool(namespace(broken).any(broken & ~context.excluded)):
            yield without_derivative(context, self.mode, broken)
            context.excluded = context.excluded | broken
            context.redraw()
        undefined = without_tangent(context, self.mode)
        if undefined is not None:
            yield undefined
            return
        yield self._jointly() if context.is_double else test_low_precision(self)
        if context.is_double and not context.out_of_time and not self._follows():
            yield self.along(context.second, context.cotangents)
        yield from self._each_alone(context.cotangents)
        yield from self._at_the_edge()

    def _follows(self) -> bool:
        """Whether what this mode says of the second walk follows from what reverse mode says there.

        Where the two differ so little along the first walk that one direction misses no more of a difference than two
        would that are held to differences.
        """
        context = self.context
        if self.mode is REVERSE or not context.second.answers.get(REVERSE.name, False):
            return False
        u = context.first.displacement
        predictions = self.mode.predictions(context, u, context.cotangents)
        gaps = [
            abs(prediction.predicted(u, 1.0) - dot(cotangent.w, u))
            for cotangent, prediction in zip(context.cotangents, predictions, strict=True)
        ]
        bars = [self._seen(context.second, cotangent).allowed for cotangent in context.cotangents]
        return all(FINER * gap <= bar for gap, bar in zip(gaps, bars, strict=True))

    def _at_the_edge(self) -> Iterator[Decision]:
        """Outputs that exist at the point but not on both sides of it: by lines that stay inside on one side.

        All inputs grow or all shrink, as numbers or in size: that is inside for most edges there are.
        """
        context, value = self.context, self.context.problem.value[: self.context.problem.codomain.size]
        xp = namespace(value)
        if context.first.once("finite", lambda: all_finite(context.first.slope)):
            return
        lost = xp.isfinite(value) & ~xp.isfinite(context.first.slope)
        if not bool(xp.any(lost)) or not bool(xp.any(context.first.u != 0.0)):
            return
        cotangent = context.cotangent(xp.where(lost, context.problem.signed(value.shape[0]), xp.zeros_like(value)))
        point, size = context.problem.point, xp.abs(context.restricted(context.joint_direction()))
        found = Decision(Verdict.INCONCLUSIVE, Reason.DOMAIN)
        for u in (size, xp.where(point < 0.0, -size, size)):
            decision = self.sweep_steps(u, [cotangent])
            if decision.reason is not Reason.NOT_FINITE:
                found = decision
                break
        yield found

    def _jointly(self) -> Decision:
        """All inputs at once; where that leaves doubt, by smaller steps for those that are small or very large."""
        context = self.context
        found = self.along(context.first, context.cotangents)
        while found.verdict is Verdict.INCONCLUSIVE and not context.out_of_time and context.refine():
            found = self.along(context.first, context.cotangents)
        return found

    def _each_alone(self, cotangents: Sequence[Cotangent]) -> Iterator[Decision]:
        """Inputs whose errors would drown in the others' slopes."""
        context, domain = self.context, self.context.problem.domain
        if len(domain.leaves) < 2:
            return
        power = context.options.power
        lost = [i for i, leaf in enumerate(domain.leaves) if not context.record.resolution.get(leaf.name, 1.0) <= power]
        for number in lost[:ALONE]:
            if context.out_of_time:
                yield Decision(Verdict.INCONCLUSIVE, Reason.BUDGET)
                return
            u = only(context.joint_direction(), domain.slice(number))
            difference = context.near(context.restricted(u))
            own = context.cotangents_for(difference.slope) if context.is_double else cotangents
            found = self.along(difference, own)
            if found.verdict is Verdict.FAIL and not context.is_double and not fails_again(self, domain.slice(number)):
                found = replace(found, verdict=Verdict.INCONCLUSIVE, reason=Reason.PRECISION)
            yield found

    def along(self, difference: DirectionalDifference, cotangents: Sequence[Cotangent]) -> Decision:
        """One line: near the point first, the ladder if that leaves doubt, and again without kinks."""
        context = self.context
        if not difference.once("length", lambda: peak(difference.u)):
            return Decision(Verdict.PASS, Reason.NO_SIGNAL)
        bent = difference.once("bent", lambda: bent_rows(context, difference))
        sharp = context.is_double and bent is None
        sharp = sharp and (
            self._agrees(difference, cotangents)
            or self._agrees(difference.once("wider", difference.extrapolated), cotangents)
        )
        if sharp and all(not r > context.options.power for r in self._resolutions(difference, cotangents)):
            difference.answers[self.mode.name] = True
            return Decision(Verdict.PASS, Reason.AGREES)
        if context.out_of_time:
            return Decision(Verdict.INCONCLUSIVE, Reason.BUDGET)
        if bent is not None:
            cotangents = [part for cotangent in cotangents for part in _split(context, cotangent, difference, bent)]
        return self.sweep_steps(difference.u, cotangents)

    def _agrees(self, difference: DirectionalDifference, cotangents: Sequence[Cotangent]) -> bool:
        agree = True
        for cotangent, prediction in zip(
            cotangents, self.mode.predictions(self.context, difference.displacement, cotangents), strict=True
        ):
            seen = self._seen(difference, cotangent)
            if abs(seen.slope - prediction.predicted(difference.displacement, 1.0)) <= seen.allowed:
                self._note_resolution(seen.typical_contributions, seen.allowed)
            else:
                agree = False
        return agree

    def _seen(self, difference: DirectionalDifference, cotangent: Cotangent) -> _Outlook:
        return difference.once(cotangent, partial(self._outlook, difference, cotangent))

    def _outlook(self, difference: DirectionalDifference, cotangent: Cotangent) -> _Outlook:
        scale = max(norm(cotangent.w, difference.displacement), norm(cotangent.v, difference.slope))
        allowed = AGREEMENT * scale + ROUNDOFFS / NEAR * norm(cotangent.v, self.context.noise)
        return _Outlook(
            dot(cotangent.v, difference.slope),
            allowed,
            dict(typical_contributions(self.context, cotangent.w, difference.displacement)),
        )

    def _resolutions(self, difference: DirectionalDifference, cotangents: Sequence[Cotangent]) -> list[float]:
        """How sharp this walk was for the only input that it moves; nothing if it moves several."""
        names = self._seen(difference, cotangents[0]).typical_contributions
        return [self.context.record.resolution.get(name, 0.0) for name in names] if len(names) == 1 else []

    def _note_resolution(self, typical: Mapping[str, float], bar: float) -> None:
        for name, share in typical.items():
            if share:
                self.context.record.sharpen(name, bar / share)

    def sweep_steps(self, u: Array, cotangents: Sequence[Cotangent]) -> Decision:
        context = self.context
        predictions = self.mode.predictions(context, u, cotangents)
        worst = Decision(Verdict.PASS, Reason.AGREES)
        for cotangent, step_sweep in zip(cotangents, context.sweep_steps(u, predictions), strict=True):
            found = self.decided(u, cotangent, fit_slope(step_sweep))
            if found.verdict is Verdict.FAIL or found.reason is Reason.KINK:
                return found
            if found.verdict is Verdict.INCONCLUSIVE and worst.verdict is Verdict.PASS:
                worst = found
        return worst

    def decided(self, u: Array, cotangent: Cotangent, fit: SlopeFit, typical: float = 0.0) -> Decision:
        """What the ladder along u shows; what must be seen is measured by a typical entry, here or elsewhere."""
        context = self.context
        scale_of_error = self._standard(u, cotangent)
        scale_of_error = replace(scale_of_error, typical=max(typical, scale_of_error.typical))
        found = decide(fit, scale_of_error, context.options.power)
        if found.verdict is Verdict.FAIL:
            unsure = jitter(context, cotangent.v, u, found.error)
            # Constants in a coarse format round the function in one way and its derivative in another.
            eps = max(scale_of_error.eps, context.problem.internal_eps())
            scale_of_error = replace(scale_of_error, eps=eps, unsure=scale_of_error.unsure + 2.0 * unsure)
            found = decide(fit, scale_of_error, context.options.power)
        if found.verdict is Verdict.PASS and found.reason is Reason.AGREES:
            self._note_resolution(
                dict(typical_contributions(context, cotangent.w, u)), max(found.bar, abs(found.error))
            )
        if found.verdict is Verdict.FAIL:
            return self._confirmed(u, cotangent, found, fit)
        if found.reason is Reason.KINK:
            return self._beside_kinks(u, cotangent)
        if found.reason is Reason.PRECISION and self._is_faint(u, cotangent, scale_of_error, found):
            return Decision(Verdict.PASS, Reason.NO_SIGNAL)
        if fit.one_sided:
            context.record.note("only one side of the point is inside the function's domain: one-sided differences")
        return Decision(found.verdict, found.reason, error=found.error, bar=found.bar)

    def _is_faint(self, u: Array, cotangent: Cotangent, scale_of_error: ErrorScale, found: SlopeDecision) -> bool:
        """Whether all that the inputs do, and all that the derivative says, is below the roundoff of the outputs."""
        size = norm(cotangent.v, self.context.problem.value[: cotangent.v.shape[0]])
        nothing = scale_of_error.eps**FAINT * size
        within = max(found.bar, SLACK * nothing)
        if (
            not scale_of_error.scale <= nothing
            or not abs(found.error) <= within <= math.sqrt(scale_of_error.eps) * size
        ):
            return False
        names = {name for name, _ in typical_contributions(self.context, cotangent.w, u, moved_only=True)}
        self.context.record.faint |= names
        self.context.record.note(f"what {', '.join(sorted(names))} does to the outputs is below the outputs' roundoff")
        return True

    def _standard(self, u: Array, cotangent: Cotangent) -> ErrorScale:
        typical = [size for _, size in typical_contributions(self.context, cotangent.w, u) if size]
        scale = norm(cotangent.w, u)
        return ErrorScale(
            scale, max(typical, default=scale), self.context.problem.eps, inherited(self.context, cotangent.v)
        )

    def _confirmed(self, u: Array, cotangent: Cotangent, found: SlopeDecision, fit: SlopeFit) -> Decision:
        """A failure along a line is a failure if the entry that causes it fails by itself, or if the line is smooth."""
        context = self.context
        entry = find_wrong_entry(context, self.mode, u, cotangent.v)
        smooth = not abs(fit.kink.value) > fit.kink.error
        if entry is not None and entry.decision.verdict is Verdict.FAIL:
            return Decision(Verdict.FAIL, entry.decision.reason, entry, found.error, found.bar)
        if entry is not None and entry.decision.reason is Reason.KINK:
            return self._beside_kinks(u, cotangent)
        blurred = entry is None or entry.reason in (Reason.PRECISION, Reason.NOT_FINITE) or not context.is_double
        if entry is not None and entry.verdict is Verdict.PASS and not blurred:
            # Each entry by itself is right: the joint step was too wide for some of them.
            if context.refine():
                return self.along(context.first, context.cotangents)
            return Decision(Verdict.INCONCLUSIVE, Reason.PRECISION, entry, found.error, found.bar)
        if blurred and (smooth or found.reason is Reason.OUTSIDE):
            return Decision(Verdict.FAIL, found.reason, entry, found.error, found.bar)
        return Decision(Verdict.INCONCLUSIVE, Reason.KINK, entry, found.error, found.bar)

    def _beside_kinks(self, u: Array, cotangent: Cotangent) -> Decision:
        """Name the elements at a kink, judge some by themselves, and look at the rest without them."""
        context = self.context
        columns, wrong = exclude_kinks(context, self.mode, u, cotangent)
        if wrong is not None:
            return Decision(Verdict.FAIL, wrong.reason, wrong, wrong.decision.error, wrong.decision.bar)
        xp = namespace(u)
        fresh = bool(xp.any(columns & ~context.excluded))
        context.excluded = context.excluded | columns
        rest = context.restricted(u)
        if not fresh or not bool(xp.any(rest != 0.0)):
            return Decision(Verdict.PASS, Reason.KINK)
        context.redraw()
        found = self.along(context.near(rest), context.cotangents)
        return Decision(found.verdict, Reason.KINK) if found.verdict is Verdict.PASS else found


def _split(
    context: Context, cotangent: Cotangent, difference: DirectionalDifference, bent: Array
) -> Iterator[Cotangent]:
    """The rows with a kink, so signed that their kinks add up, and the other rows."""
    xp = namespace(bent)
    zeros = xp.zeros_like(cotangent.v)
    yield context.cotangent(xp.where(bent, xp.abs(cotangent.v) * xp.sign(difference.even), zeros))
    rest = xp.where(bent, zeros, cotangent.v)
    if bool(xp.any(rest != 0.0)):
        yield context.cotangent(rest)


BROKEN = 4
"""So many columns without a finite derivative are looked at."""


def without_tangent(context: Context, mode: Mode) -> Decision | None:
    """Forward mode gives something that is not finite for an output that has a finite slope."""
    xp, slope = namespace(context.first.slope), context.first.slope
    gap = mode.column_gap(context, xp.ones_like(slope), slope, context.first.displacement)
    if gap is None or all_finite(gap):
        return None
    bad = xp.isfinite(slope) & ~xp.isfinite(gap)
    if not bool(xp.any(bad)):
        return None
    row = int(xp.argmax(xp.astype(bad, xp.int64)))
    if bool(xp.any(context.excluded)):
        return Decision(Verdict.INCONCLUSIVE, Reason.NOT_FINITE)
    place = Location(0, "the direction", "")
    numerical = float(slope[row])
    entry = Entry(context.problem.codomain.locate(row), place, math.nan, numerical, math.nan)
    return Decision(Verdict.FAIL, Reason.NOT_FINITE, entry)


def without_derivative(context: Context, mode: Mode, broken: Array) -> Decision:
    """The derivative is not finite in some columns: is the function's slope finite there?"""
    xp = namespace(broken)
    missing = False
    for column in [int(place) for place in xp.nonzero(broken)[0][:BROKEN]]:
        if mode.is_finite_at(context, column):
            continue
        missing = True
        where = context.problem.domain.locate(column)
        slope = slope_of_column(context, column)
        if slope is None:
            context.record.note(f"the derivative is not finite at {where}, and the function has no finite slope there")
            continue
        entry = Entry(None, where, math.nan, slope.value, slope.error, column=column)
        return Decision(Verdict.FAIL, Reason.NOT_FINITE, entry)
    return Decision(Verdict.INCONCLUSIVE if missing else Verdict.PASS, Reason.NOT_FINITE)
