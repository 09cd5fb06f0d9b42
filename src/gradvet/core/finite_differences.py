"""Directional derivatives from differences of the function itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from gradvet.core.problem import Evaluation, Move, Problem
from gradvet.core.spaces import Array, Space
from gradvet.core.vectors import dot, namespace, norm


@dataclass(frozen=True, slots=True)
class Stencil:
    """Σ weight · f(x + s d) ≈ J d."""

    scales: tuple[float, ...]
    """The values of s; 0 is the point itself, where the value is known."""
    weights: tuple[float, ...]

    def along(self, problem: Problem, move: Move) -> Array:
        """J · move.vector, over codomain and silent outputs."""
        return problem.weighted(move, self.scales, self.weights)


CENTRAL = Stencil((1.0, -1.0), (1.0 / 2.0, -1.0 / 2.0))
"""Two evaluations; error h²/6 · f'''."""

SKEWED = Stencil((1.0, -1.0, 3.0, 0.0), (3.0 / 4.0, -3.0 / 8.0, -1.0 / 24.0, -1.0 / 3.0))
"""Three evaluations and the value at the point; error h³/8 · f''''."""

EXTRAPOLATED = Stencil((1.0, -1.0, 3.0, -3.0), (9.0 / 16.0, -9.0 / 16.0, -1.0 / 48.0, 1.0 / 48.0))
"""Four evaluations; Richardson's step removes the h² term and leaves an error of 3h⁴/40 · f'''''."""


LEAST_STEP = 1e-3
"""Rounding is taken to leave at least this part of a step."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the Jacobian by differences, with an error bar for each entry."""

    value: Array
    error: Array


def column(problem: Problem, index: int, step: float) -> Column:
    """Column `index` at the step given, with its error bar: truncation seen against twice the step, and roundoff."""
    displacement = problem.zeros(problem.domain.size)
    displacement[index] = step
    xp = namespace(displacement)
    move = problem.move(displacement)
    near, mirrored = problem.evaluate(move, (1.0, -1.0))
    value = (near - mirrored) / (2.0 * step)
    try:
        far, mirrored_far = problem.evaluate(move, (2.0, -2.0))
    except Exception:  # the function ends between one step and two: nothing is known about the error
        return Column(value, xp.full_like(value, float("inf")))
    # D(2h) - D(h) = 3 · h²/6 · f''' + ..., so a third of it is D(h)'s own truncation error.
    truncation = xp.abs((far - mirrored_far) / (4.0 * step) - value) / 3.0
    roundoff = 2.0 * xp.finfo(value.dtype).eps * xp.abs(near) / step
    # The step itself is rounded to the inputs' precision, so that the slope is value / (1 ± coarseness).
    coarseness = problem.coarseness(step)
    rounding = coarseness / max(1.0 - coarseness, LEAST_STEP)
    return Column(value, truncation + roundoff + rounding * xp.abs(value))


Found = TypeVar("Found")

NEAR = 6e-6
"""The step of the near walk, relative to the size of the inputs: right for float64."""

LADDERS = ((2.0**-40, -4, 24), (2.0**-20, -3, 18), (2.0**-9, -2, 12), (1.0, -1, 9))
"""For a roundoff up to so much: the exponent of the largest step, and how many steps."""


@dataclass(frozen=True, slots=True)
class DirectionalDifference:
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

    def extrapolated(self) -> DirectionalDifference:
        """The same with less truncation in its slope."""
        return replace(self, slope=(4.0 * self.odd - self.far[0]) / 3.0, answers={"far": self.far})


def near(problem: Problem, u: Array, step: float = NEAR) -> DirectionalDifference:
    """Two evaluations next to the point; the next two where those leave doubt."""
    f0 = problem.value[: problem.codomain.size]

    def parts(step: float) -> tuple[Array, Array, Array]:
        plus, minus = problem.evaluate_at(step * u), problem.evaluate_at(-step * u)
        a, b = plus.values[: f0.shape[0]] - f0, minus.values[: f0.shape[0]] - f0
        return plus.displacement - minus.displacement, (a - b) / (2.0 * step), (a + b) / (2.0 * step)

    displacement, odd, even = parts(step)
    return DirectionalDifference(u, displacement / (2.0 * step), odd, even, odd, lambda: parts(2.0 * step)[1:])


@dataclass(frozen=True, slots=True)
class StepSweep:
    """The residuals v·[f(x ± d) - f(x)] - w·(±d) at each step, both sides, from the largest step to the smallest."""

    steps: Sequence[float]
    plus: Sequence[float]
    minus: Sequence[float]
    moved: Sequence[int]
    """How many outputs changed at all at each step: values that do not move show nothing."""
    floor: float
    """The least noise that a value can have."""
    rise: float = 0.0
    """The most that the values vary by."""
    grain: float = 0.0
    """The noise of values that are rounded more than that."""
    still: Sequence[tuple[bool, bool]] = ()
    """Whether no output changed at all, on each side."""
    flat: float = 2.0**-10
    """A function that does not change at all within steps this wide is constant there; in narrower ones, rounded."""


@dataclass(frozen=True, slots=True)
class Prediction:
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
    def eps(self) -> float: ...
    def evaluate_at(self, displacement: Array) -> Evaluation: ...


def sweep_steps(
    problem: Walkable, u: Array, predictions: Sequence[Prediction], repeat_noise: Array, steps: Sequence[float]
) -> list[StepSweep]:
    """The ladder along u, for all claims at once: two evaluations a step."""
    rows = problem.codomain.size
    xp = namespace(u)
    f0 = problem.value[:rows]
    sides: list[tuple[list[float], list[float]]] = [([], []) for _ in predictions]
    moved: list[list[tuple[int, int]]] = [[] for _ in predictions]
    smallest, largest = [math.inf] * len(predictions), [0.0] * len(predictions)
    weights = [xp.astype(prediction.v != 0.0, prediction.v.dtype) for prediction in predictions]
    for t in steps:
        changed: list[list[int]] = [[] for _ in predictions]
        for side, sign in enumerate((1.0, -1.0)):
            difference = problem.evaluate_at(sign * t * u)
            change = difference.values[:rows] - f0
            for number, prediction in enumerate(predictions):
                rise = dot(prediction.v, change)
                sides[number][side].append(rise - prediction.predicted(difference.displacement, sign * t))
                smallest[number] = min(smallest[number], abs(rise) or math.inf)
                largest[number] = max(largest[number], abs(rise)) if math.isfinite(rise) else largest[number]
                changed[number].append(int(xp.count_nonzero(change * weights[number])))
        for number, counts in enumerate(changed):
            moved[number].append((counts[0], counts[1]))
    floors = [
        0.2 * problem.eps * norm(prediction.v, f0) + norm(prediction.v, repeat_noise) for prediction in predictions
    ]
    return [
        _rungs(steps, sides[number], moved[number], (floors[number], largest[number], grain), problem.eps)
        for number, grain in enumerate(_grain(steps, m, r, problem.eps) for m, r in zip(moved, smallest, strict=True))
    ]


def _rungs(
    steps: Sequence[float],
    sides: tuple[list[float], list[float]],
    moved: Sequence[tuple[int, int]],
    noise: tuple[float, float, float],
    eps: float,
) -> StepSweep:
    still = [(not plus, not minus) for plus, minus in moved]
    return StepSweep(steps, *sides, [sum(counts) for counts in moved], *noise, still, _flat(eps))


def _grain(steps: Sequence[float], moved: Sequence[tuple[int, int]], smallest: float, eps: float) -> float:
    """Half the smallest rise of values that stand still over narrower steps, because they are rounded to multiples."""
    still = [step for step, count in zip(steps, moved, strict=True) if not any(count)]
    return smallest / 2.0 if still and max(still) < _flat(eps) and smallest < math.inf else 0.0


def steps_for(eps: float) -> list[float]:
    """The steps of the ladder, relative to the size of the inputs."""
    top, count = next((top, count) for limit, top, count in LADDERS if eps <= limit)
    return [2.0 ** (top - level) for level in range(count)]


def few_steps_for(eps: float) -> list[float]:
    """The middle half of the ladder: enough for an entry that is known to matter."""
    steps = steps_for(eps)
    quarter = len(steps) // 4 if len(steps) > 12 else 0
    return steps[quarter : len(steps) - quarter]


def _flat(eps: float) -> float:
    """How wide a stair must be to be the function's own rather than rounding's."""
    return 2.0**-10 if eps <= LADDERS[0][0] else 2.0**-4 if eps <= LADDERS[1][0] else math.inf


def slope_along(problem: Problem, u: Array, step: float) -> tuple[Array, Array]:
    """J·u by one central difference, and the displacement per unit of the step."""
    rows = problem.codomain.size
    plus, minus = (problem.evaluate_at(t * u) for t in (step, -step))
    return (plus.values - minus.values)[:rows] / (2.0 * step), (plus.displacement - minus.displacement) / (2.0 * step)


def bend_along(problem: Problem, u: Array, step: float) -> Array:
    """Half the change of slope at the point, for every output."""
    rows = problem.codomain.size
    plus, minus = (problem.evaluate_at(t * u) for t in (step, -step))
    return ((plus.values + minus.values) / 2.0 - problem.value)[:rows] / step


def middle_step(eps: float) -> float:
    """A step at which neither roundoff nor curvature dominates."""
    steps = steps_for(eps)
    return steps[len(steps) // 2]
