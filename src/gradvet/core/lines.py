"""Walks along a direction: near the point for all outputs at once, over many steps for a few combinations of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from gradvet.core.arithmetic import dot, namespace, norm
from gradvet.core.ladder import Rungs
from gradvet.core.spaces import Array, Space
from gradvet.core.subject import Displaced, Subject

Found = TypeVar("Found")

NEAR = 6e-6
"""The step of the near walk, relative to the size of the inputs: right for float64."""

LADDERS = ((2.0**-40, -4, 24), (2.0**-20, -3, 18), (2.0**-9, -2, 12), (1.0, -1, 9))
"""For a roundoff up to so much: the exponent of the largest step, and how many steps."""


@dataclass(frozen=True, slots=True)
class Near:
    """Slopes by differences for every output of the codomain, and on demand the same at twice the step."""

    u: Array
    displacement: Array
    """What was really walked, per unit of the step."""
    odd: Array
    even: Array
    slope: Array
    """The odd part, or Richardson's extrapolation of it."""
    beyond: Callable[[], tuple[Array, Array]]
    """Walks twice the step, for the odd and the even part there."""
    answers: dict[Hashable, Any] = field(default_factory=dict)
    """What was found out about it, for the mode that asks next."""

    def once(self, question: Hashable, answer: Callable[[], Found]) -> Found:
        """The answer to a question that has one answer for this walk."""
        if question not in self.answers:
            self.answers[question] = answer()
        found: Found = self.answers[question]
        return found

    @property
    def far(self) -> tuple[Array, Array]:
        return self.once("far", self.beyond)

    def extrapolated(self) -> Near:
        """The same with less truncation in its slope."""
        return replace(self, slope=(4.0 * self.odd - self.far[0]) / 3.0, answers={"far": self.far})


def near(subject: Subject, u: Array, step: float = NEAR) -> Near:
    """Two evaluations next to the point; the next two where those leave doubt."""
    f0 = subject.value[: subject.codomain.size]

    def parts(step: float) -> tuple[Array, Array, Array]:
        plus, minus = subject.displaced(step * u), subject.displaced(-step * u)
        a, b = plus.values[: f0.shape[0]] - f0, minus.values[: f0.shape[0]] - f0
        return plus.displacement - minus.displacement, (a - b) / (2.0 * step), (a + b) / (2.0 * step)

    displacement, odd, even = parts(step)
    return Near(u, displacement / (2.0 * step), odd, even, odd, lambda: parts(2.0 * step)[1:])


@dataclass(frozen=True, slots=True)
class Claim:
    """A codirection v, and what the derivative under test says v·f changes by when x moves by d ≈ t u."""

    v: Array
    predicted: Callable[[Array, float], float]


class Walkable(Protocol):
    """What a walk needs of a subject."""

    @property
    def codomain(self) -> Space: ...
    @property
    def value(self) -> Array: ...
    @property
    def epsilon(self) -> float: ...
    def displaced(self, displacement: Array) -> Displaced: ...


def climb(subject: Walkable, u: Array, claims: Sequence[Claim], wobble: Array, steps: Sequence[float]) -> list[Rungs]:
    """The ladder along u, for all claims at once: two evaluations a step."""
    rows = subject.codomain.size
    xp = namespace(u)
    f0 = subject.value[:rows]
    sides: list[tuple[list[float], list[float]]] = [([], []) for _ in claims]
    moved: list[list[tuple[int, int]]] = [[] for _ in claims]
    smallest, largest = [math.inf] * len(claims), [0.0] * len(claims)
    weights = [xp.astype(claim.v != 0.0, claim.v.dtype) for claim in claims]
    for t in steps:
        changed: list[list[int]] = [[] for _ in claims]
        for side, sign in enumerate((1.0, -1.0)):
            walk = subject.displaced(sign * t * u)
            change = walk.values[:rows] - f0
            for number, claim in enumerate(claims):
                rise = dot(claim.v, change)
                sides[number][side].append(rise - claim.predicted(walk.displacement, sign * t))
                smallest[number] = min(smallest[number], abs(rise) or math.inf)
                largest[number] = max(largest[number], abs(rise)) if math.isfinite(rise) else largest[number]
                changed[number].append(int(xp.count_nonzero(change * weights[number])))
        for number, counts in enumerate(changed):
            moved[number].append((counts[0], counts[1]))
    floors = [0.2 * subject.epsilon * norm(claim.v, f0) + norm(claim.v, wobble) for claim in claims]
    return [
        _rungs(steps, sides[number], moved[number], (floors[number], largest[number], grain), subject.epsilon)
        for number, grain in enumerate(
            _grain(steps, m, r, subject.epsilon) for m, r in zip(moved, smallest, strict=True)
        )
    ]


def _rungs(
    steps: Sequence[float],
    sides: tuple[list[float], list[float]],
    moved: Sequence[tuple[int, int]],
    noise: tuple[float, float, float],
    epsilon: float,
) -> Rungs:
    still = [(not plus, not minus) for plus, minus in moved]
    return Rungs(steps, *sides, [sum(counts) for counts in moved], *noise, still, _flat(epsilon))


def _grain(steps: Sequence[float], moved: Sequence[tuple[int, int]], smallest: float, epsilon: float) -> float:
    """Half the smallest rise of values that stand still over narrower steps, because they are rounded to multiples."""
    still = [step for step, count in zip(steps, moved, strict=True) if not any(count)]
    return smallest / 2.0 if still and max(still) < _flat(epsilon) and smallest < math.inf else 0.0


def steps_for(epsilon: float) -> list[float]:
    """The steps of the ladder, relative to the size of the inputs."""
    top, count = next((top, count) for limit, top, count in LADDERS if epsilon <= limit)
    return [2.0 ** (top - level) for level in range(count)]


def few_steps_for(epsilon: float) -> list[float]:
    """The middle half of the ladder: enough for an entry that is known to matter."""
    steps = steps_for(epsilon)
    quarter = len(steps) // 4 if len(steps) > 12 else 0
    return steps[quarter : len(steps) - quarter]


def _flat(epsilon: float) -> float:
    """How wide a stair must be to be the function's own rather than rounding's."""
    return 2.0**-10 if epsilon <= LADDERS[0][0] else 2.0**-4 if epsilon <= LADDERS[1][0] else math.inf
