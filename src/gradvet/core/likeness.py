"""Do two gradients that should be the same differ by more than roundoff? Other kernels may round otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from gradvet.core.arithmetic import all_finite, finite_part, namespace, peak
from gradvet.core.noise import grain, roundoffs
from gradvet.core.spaces import Array, Location
from gradvet.core.trial import Trial

SHARE = 0.6
"""Roundoff to this power, relative to the largest entry of the input's gradient, is always forgiven."""

COARSE_SHARE = 0.4
"""In low precision, where other kernels round much otherwise, to this power."""

FORGIVEN = 1e-6
"""So is this part of it: a function may be less precise inside than outside."""

FAINT = 0.75
"""And roundoff to this power, relative to what the most influential input adds to the slope: where terms cancel, their
roundoff is left."""

RESPONSES = 32.0
"""Beyond that, so many times what the gradient changes by when the inputs change by two roundoffs."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The worst difference between two gradients."""

    place: Location
    found: float
    expected: float

    def __str__(self) -> str:
        return f"at {self.place}: {self.found:.10g} instead of {self.expected:.10g}"


def gap_between(trial: Trial, v: Array, found: Array, expected: Array) -> Gap | None:
    """Where two gradients for the codirection v differ most, or None if they are alike."""
    if trial.subject.equal(found, expected):
        return None
    xp = namespace(expected)
    domain = trial.subject.domain
    difference = xp.abs(found - expected)
    if not all_finite(difference):
        # Where the reference is not finite there is nothing to hold the other to.
        agree = (found == expected) | ~xp.isfinite(expected)
        difference = xp.where(agree, xp.zeros_like(difference), difference)
        difference = xp.where(xp.isnan(difference), xp.full_like(difference, float("inf")), difference)
    response: Array | None = None
    share = max(FORGIVEN, trial.subject.epsilon ** (SHARE if trial.is_fine else COARSE_SHARE))
    for number in range(len(domain.leaves)):
        part = domain.slice(number)
        gap = float(xp.max(difference[part])) if part.stop > part.start else 0.0
        if not gap:
            continue
        top = peak(expected[part])
        if gap <= top * share or gap <= 64.0 * grain(trial, v, part):
            continue
        index = part.start + int(xp.argmax(difference[part]))
        if gap * float(trial.sizes[index]) <= trial.subject.epsilon**FAINT * _influence(trial, expected):
            continue
        response = _response(trial, v) if response is None else response
        if gap <= RESPONSES * float(xp.max(response[part])):
            continue
        if gap <= top * trial.subject.roughness() ** COARSE_SHARE and not trial.is_rough_as_it_looks:
            continue
        return Gap(domain.locate(index), float(found[index]), float(expected[index]))
    return None


def _influence(trial: Trial, gradient: Array) -> float:
    """The most that one input of its own size adds to the slope."""
    return peak(gradient * trial.sizes)


def _response(trial: Trial, v: Array) -> Array:
    """By how much the gradient changes when the inputs change by two roundoffs."""
    subject = trial.subject
    xp = namespace(v)
    tiny = 2.0 * roundoffs(trial)
    return finite_part(xp.abs(subject.pulled_at(tiny, v) - subject.pulled_at(-tiny, v)))
