"""The derivative under test as predictions of slopes: by rows in reverse mode, by columns in forward mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gradvet.core.arithmetic import all_finite, dot
from gradvet.core.lines import Claim
from gradvet.core.spaces import Array
from gradvet.core.trial import Look, Trial


class Mode(Protocol):
    """A way to know J."""

    @property
    def name(self) -> str: ...
    def claims(self, trial: Trial, u: Array, looks: Sequence[Look]) -> list[Claim]:
        """What this mode predicts along u, seen through each codirection."""
        ...

    def is_finite_at(self, trial: Trial, column: int) -> bool:
        """Whether this mode has a finite derivative by an input for which reverse mode has none."""
        ...

    def column_gap(self, trial: Trial, v: Array, slope: Array, displacement: Array) -> Array | None:
        """v ∘ (slope - J·displacement) for every row, where this mode shows all rows at once."""
        ...


class ReverseMode:
    """Jᵀv is known: the prediction is its product with whatever displacement really happened."""

    name = "reverse"

    def claims(self, trial: Trial, u: Array, looks: Sequence[Look]) -> list[Claim]:
        return [_pulled(look) for look in looks]

    def is_finite_at(self, trial: Trial, column: int) -> bool:
        return False

    def column_gap(self, trial: Trial, v: Array, slope: Array, displacement: Array) -> None:
        return None


class ForwardMode:
    """J u is known; what rounding made of the displacement is accounted for with the gradient."""

    name = "forward"

    def claims(self, trial: Trial, u: Array, looks: Sequence[Look]) -> list[Claim]:
        pushed = trial.pushed(u)
        return [_pushed(look, pushed, u, exact=trial.is_fine) for look in looks]

    def is_finite_at(self, trial: Trial, column: int) -> bool:
        u = trial.subject.zeros(trial.subject.domain.size)
        u[column] = 1.0
        return all_finite(trial.subject.forward.push(u))

    def column_gap(self, trial: Trial, v: Array, slope: Array, displacement: Array) -> Array:
        return v * (slope - trial.pushed(displacement))


REVERSE, FORWARD = ReverseMode(), ForwardMode()


def _pulled(look: Look) -> Claim:
    return Claim(look.v, lambda displacement, t: dot(look.w, displacement))


def _pushed(look: Look, pushed: Array, u: Array, *, exact: bool) -> Claim:
    slope = dot(look.v, pushed)
    if exact:
        return Claim(look.v, lambda displacement, t: t * slope)
    return Claim(look.v, lambda displacement, t: t * slope + dot(look.w, displacement - t * u))
