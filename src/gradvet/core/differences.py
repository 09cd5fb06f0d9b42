"""Directional derivatives from differences of the function itself."""

from __future__ import annotations

from dataclasses import dataclass

from gradvet.core.arithmetic import namespace
from gradvet.core.problem import Move, Problem
from gradvet.core.spaces import Array


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
