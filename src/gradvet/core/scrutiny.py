"""Is a derivative right, by its own error bar? A few near walks, and the ladder where they leave doubt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gradvet.core.arithmetic import all_finite, dot, namespace, norm, peak
from gradvet.core.coarse import fails_again, in_few_steps
from gradvet.core.judgement import Judgement, Reason, Standard, judge
from gradvet.core.kinks import bent_rows, set_kinks_aside
from gradvet.core.ladder import Reading, read
from gradvet.core.lines import NEAR, Near
from gradvet.core.missing import without_derivative, without_tangent
from gradvet.core.modes import REVERSE, Mode
from gradvet.core.noise import inherited, jitter
from gradvet.core.outcome import Outcome
from gradvet.core.pinpoint import pinpoint
from gradvet.core.results import Verdict
from gradvet.core.shares import only, shares
from gradvet.core.spaces import Array
from gradvet.core.trial import Look, Trial

AGREEMENT = 1e-6
"""Near walks that agree to this part of the slope's scale agree."""

ROUNDOFFS = 8.0
"""The near walk's allowance for roundoff, in standard deviations."""

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
    shares: Mapping[str, float]
    """What a typical entry of each input that moves adds to it."""


class Scrutiny:
    """One mode of one trial."""

    def __init__(self, trial: Trial, mode: Mode) -> None:
        self.trial, self.mode = trial, mode

    def outcome(self) -> Outcome:
        """The worst of what the walks show; where they leave doubt, also as a function of a coarser format."""
        found = self._worst()
        if found.verdict is Verdict.INCONCLUSIVE and not self.trial.late and self.trial.coarsen():
            return self._worst()
        if found.verdict is Verdict.FAIL and self.trial.narrowed:
            # Much narrower steps show the slope of any noise: they may speak for a derivative, but not against it.
            return replace(found, verdict=Verdict.INCONCLUSIVE, reason=Reason.PRECISION)
        return found

    def _worst(self) -> Outcome:
        """The worst of what the walks show, up to the first failure."""
        doubtful: list[Outcome] = []
        for found in self._walks():
            if found.verdict is Verdict.FAIL:
                return found
            if found.verdict is Verdict.INCONCLUSIVE:
                doubtful.append(found)
        return doubtful[0] if doubtful else Outcome(Verdict.PASS, Reason.AGREES)

    def _walks(self) -> Iterator[Outcome]:
        trial = self.trial
        broken = trial.nothing
        for look in trial.looks:
            broken = broken if look.broken is trial.nothing else broken | look.broken
        if broken is not trial.nothing and bool(namespace(broken).any(broken & ~trial.set_aside)):
            yield without_derivative(trial, self.mode, broken)
            trial.set_aside = trial.set_aside | broken
            trial.begin_again()
        undefined = without_tangent(trial, self.mode)
        if undefined is not None:
            yield undefined
            return
        yield self._jointly() if trial.is_fine else in_few_steps(self)
        if trial.is_fine and not trial.late and not self._follows():
            yield self.along(trial.second, trial.looks)
        yield from self._each_alone(trial.looks)
        yield from self._at_the_edge()

    def _follows(self) -> bool:
        """Whether what this mode says of the second walk follows from what reverse mode says there.

        Where the two differ so little along the first walk that one direction misses no more of a difference than two
        would that are held to differences.
        """
        trial = self.trial
        if self.mode is REVERSE or not trial.second.answers.get(REVERSE.name, False):
            return False
        u = trial.first.displacement
        claims = self.mode.claims(trial, u, trial.looks)
        gaps = [abs(claim.predicted(u, 1.0) - dot(look.w, u)) for look, claim in zip(trial.looks, claims, strict=True)]
        bars = [self._seen(trial.second, look).allowed for look in trial.looks]
        return all(FINER * gap <= bar for gap, bar in zip(gaps, bars, strict=True))

    def _at_the_edge(self) -> Iterator[Outcome]:
        """Outputs that exist at the point but not on both sides of it: by lines that stay inside on one side.

        All inputs grow or all shrink, as numbers or in size: that is inside for most edges there are.
        """
        trial, value = self.trial, self.trial.subject.value[: self.trial.subject.codomain.size]
        xp = namespace(value)
        if trial.first.once("finite", lambda: all_finite(trial.first.slope)):
            return
        lost = xp.isfinite(value) & ~xp.isfinite(trial.first.slope)
        if not bool(xp.any(lost)) or not bool(xp.any(trial.first.u != 0.0)):
            return
        look = trial.look(xp.where(lost, trial.subject.signed(value.shape[0]), xp.zeros_like(value)))
        point, size = trial.subject.point, xp.abs(trial.restricted(trial.direction_of_all()))
        found = Outcome(Verdict.INCONCLUSIVE, Reason.DOMAIN)
        for u in (size, xp.where(point < 0.0, -size, size)):
            outcome = self.climb(u, [look])
            if outcome.reason is not Reason.NOT_FINITE:
                found = outcome
                break
        yield found

    def _jointly(self) -> Outcome:
        """All inputs at once; where that leaves doubt, by smaller steps for those that are small or very large."""
        trial = self.trial
        found = self.along(trial.first, trial.looks)
        while found.verdict is Verdict.INCONCLUSIVE and not trial.late and trial.refine():
            found = self.along(trial.first, trial.looks)
        return found

    def _each_alone(self, looks: Sequence[Look]) -> Iterator[Outcome]:
        """Inputs whose errors would drown in the others' slopes."""
        trial, domain = self.trial, self.trial.subject.domain
        if len(domain.leaves) < 2:
            return
        power = trial.options.power
        lost = [i for i, leaf in enumerate(domain.leaves) if not trial.record.resolution.get(leaf.name, 1.0) <= power]
        for number in lost[:ALONE]:
            if trial.late:
                yield Outcome(Verdict.INCONCLUSIVE, Reason.BUDGET)
                return
            u = only(trial.direction_of_all(), domain.slice(number))
            walk = trial.near(trial.restricted(u))
            own = trial.looks_for(walk.slope) if trial.is_fine else looks
            found = self.along(walk, own)
            if found.verdict is Verdict.FAIL and not trial.is_fine and not fails_again(self, domain.slice(number)):
                found = replace(found, verdict=Verdict.INCONCLUSIVE, reason=Reason.PRECISION)
            yield found

    def along(self, walk: Near, looks: Sequence[Look]) -> Outcome:
        """One line: near the point first, the ladder if that leaves doubt, and again without kinks."""
        trial = self.trial
        if not walk.once("length", lambda: peak(walk.u)):
            return Outcome(Verdict.PASS, Reason.NO_SIGNAL)
        bent = walk.once("bent", lambda: bent_rows(trial, walk))
        sharp = trial.is_fine and bent is None
        sharp = sharp and (self._agrees(walk, looks) or self._agrees(walk.once("wider", walk.extrapolated), looks))
        if sharp and all(not r > trial.options.power for r in self._resolutions(walk, looks)):
            walk.answers[self.mode.name] = True
            return Outcome(Verdict.PASS, Reason.AGREES)
        if trial.late:
            return Outcome(Verdict.INCONCLUSIVE, Reason.BUDGET)
        if bent is not None:
            looks = [part for look in looks for part in _split(trial, look, walk, bent)]
        return self.climb(walk.u, looks)

    def _agrees(self, walk: Near, looks: Sequence[Look]) -> bool:
        agree = True
        for look, claim in zip(looks, self.mode.claims(self.trial, walk.displacement, looks), strict=True):
            seen = self._seen(walk, look)
            if abs(seen.slope - claim.predicted(walk.displacement, 1.0)) <= seen.allowed:
                self._note_resolution(seen.shares, seen.allowed)
            else:
                agree = False
        return agree

    def _seen(self, walk: Near, look: Look) -> _Outlook:
        return walk.once(look, partial(self._outlook, walk, look))

    def _outlook(self, walk: Near, look: Look) -> _Outlook:
        scale = max(norm(look.w, walk.displacement), norm(look.v, walk.slope))
        allowed = AGREEMENT * scale + ROUNDOFFS / NEAR * norm(look.v, self.trial.noise)
        return _Outlook(dot(look.v, walk.slope), allowed, dict(shares(self.trial, look.w, walk.displacement)))

    def _resolutions(self, walk: Near, looks: Sequence[Look]) -> list[float]:
        """How sharp this walk was for the only input that it moves; nothing if it moves several."""
        names = self._seen(walk, looks[0]).shares
        return [self.trial.record.resolution.get(name, 0.0) for name in names] if len(names) == 1 else []

    def _note_resolution(self, typical: Mapping[str, float], bar: float) -> None:
        for name, share in typical.items():
            if share:
                self.trial.record.sharpen(name, bar / share)

    def climb(self, u: Array, looks: Sequence[Look]) -> Outcome:
        trial = self.trial
        claims = self.mode.claims(trial, u, looks)
        worst = Outcome(Verdict.PASS, Reason.AGREES)
        for look, rungs in zip(looks, trial.climb(u, claims), strict=True):
            found = self.judged(u, look, read(rungs))
            if found.verdict is Verdict.FAIL or found.reason is Reason.KINK:
                return found
            if found.verdict is Verdict.INCONCLUSIVE and worst.verdict is Verdict.PASS:
                worst = found
        return worst

    def judged(self, u: Array, look: Look, reading: Reading, typical: float = 0.0) -> Outcome:
        """What the ladder along u shows; what must be seen is measured by a typical entry, here or elsewhere."""
        trial = self.trial
        standard = self._standard(u, look)
        standard = replace(standard, typical=max(typical, standard.typical))
        found = judge(reading, standard, trial.options.power)
        if found.verdict is Verdict.FAIL:
            unsure = jitter(trial, look.v, u, found.error)
            # Constants in a coarse format round the function in one way and its derivative in another.
            epsilon = max(standard.epsilon, trial.subject.roughness())
            standard = replace(standard, epsilon=epsilon, unsure=standard.unsure + 2.0 * unsure)
            found = judge(reading, standard, trial.options.power)
        if found.verdict is Verdict.PASS and found.reason is Reason.AGREES:
            self._note_resolution(dict(shares(trial, look.w, u)), max(found.bar, abs(found.error)))
        if found.verdict is Verdict.FAIL:
            return self._confirmed(u, look, found, reading)
        if found.reason is Reason.KINK:
            return self._beside_kinks(u, look)
        if found.reason is Reason.PRECISION and self._is_faint(u, look, standard, found):
            return Outcome(Verdict.PASS, Reason.NO_SIGNAL)
        if reading.one_sided:
            trial.record.note("only one side of the point is inside the function's domain: one-sided differences")
        return Outcome(found.verdict, found.reason, error=found.error, bar=found.bar)

    def _is_faint(self, u: Array, look: Look, standard: Standard, found: Judgement) -> bool:
        """Whether all that the inputs do, and all that the derivative says, is below the roundoff of the outputs."""
        size = norm(look.v, self.trial.subject.value[: look.v.shape[0]])
        nothing = standard.epsilon**FAINT * size
        within = max(found.bar, SLACK * nothing)
        if not standard.scale <= nothing or not abs(found.error) <= within <= math.sqrt(standard.epsilon) * size:
            return False
        names = {name for name, _ in shares(self.trial, look.w, u, moved_only=True)}
        self.trial.record.faint |= names
        self.trial.record.note(f"what {', '.join(sorted(names))} does to the outputs is below the outputs' roundoff")
        return True

    def _standard(self, u: Array, look: Look) -> Standard:
        typical = [size for _, size in shares(self.trial, look.w, u) if size]
        scale = norm(look.w, u)
        return Standard(scale, max(typical, default=scale), self.trial.subject.epsilon, inherited(self.trial, look.v))

    def _confirmed(self, u: Array, look: Look, found: Judgement, reading: Reading) -> Outcome:
        """A failure along a line is a failure if the entry that causes it fails by itself, or if the line is smooth."""
        trial = self.trial
        entry = pinpoint(trial, self.mode, u, look.v)
        smooth = not abs(reading.kink.value) > reading.kink.error
        if entry is not None and entry.judgement.verdict is Verdict.FAIL:
            return Outcome(Verdict.FAIL, entry.judgement.reason, entry, found.error, found.bar)
        if entry is not None and entry.judgement.reason is Reason.KINK:
            return self._beside_kinks(u, look)
        blurred = entry is None or entry.reason in (Reason.PRECISION, Reason.NOT_FINITE) or not trial.is_fine
        if entry is not None and entry.verdict is Verdict.PASS and not blurred:
            # Each entry by itself is right: the joint step was too wide for some of them.
            if trial.refine():
                return self.along(trial.first, trial.looks)
            return Outcome(Verdict.INCONCLUSIVE, Reason.PRECISION, entry, found.error, found.bar)
        if blurred and (smooth or found.reason is Reason.OUTSIDE):
            return Outcome(Verdict.FAIL, found.reason, entry, found.error, found.bar)
        return Outcome(Verdict.INCONCLUSIVE, Reason.KINK, entry, found.error, found.bar)

    def _beside_kinks(self, u: Array, look: Look) -> Outcome:
        """Name the elements at a kink, judge some by themselves, and look at the rest without them."""
        trial = self.trial
        columns, wrong = set_kinks_aside(trial, self.mode, u, look)
        if wrong is not None:
            return Outcome(Verdict.FAIL, wrong.reason, wrong, wrong.judgement.error, wrong.judgement.bar)
        xp = namespace(u)
        fresh = bool(xp.any(columns & ~trial.set_aside))
        trial.set_aside = trial.set_aside | columns
        rest = trial.restricted(u)
        if not fresh or not bool(xp.any(rest != 0.0)):
            return Outcome(Verdict.PASS, Reason.KINK)
        trial.begin_again()
        found = self.along(trial.near(rest), trial.looks)
        return Outcome(found.verdict, Reason.KINK) if found.verdict is Verdict.PASS else found


def _split(trial: Trial, look: Look, walk: Near, bent: Array) -> Iterator[Look]:
    """The rows with a kink, so signed that their kinks add up, and the other rows."""
    xp = namespace(bent)
    zeros = xp.zeros_like(look.v)
    yield trial.look(xp.where(bent, xp.abs(look.v) * xp.sign(walk.even), zeros))
    rest = xp.where(bent, zeros, look.v)
    if bool(xp.any(rest != 0.0)):
        yield trial.look(rest)
