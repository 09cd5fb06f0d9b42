"""Directional derivatives from differences of the function itself."""

from __future__ import annotations

from dataclasses import dataclass

from gradvet.core.arithmetic import namespace
from gradvet.core.problem import Move, Problem
from gradvet.core.spaces import Array


@dataclass(frozen=True, slots=True)
class Stencil:
    """Central differences D(s) = [f(x + s d) - f(x - s d)] / 2s, combined as Σ weight · D(s) ≈ J d."""

    terms: tuple[tuple[float, float], ...]
    """Pairs (s, weight); the weights add up to one."""

    def along(self, problem: Problem, move: Move) -> Array:
        """J · move.vector, over codomain and silent outputs."""
        values = problem.evaluate(move, [sign * scale for scale, _ in self.terms for sign in (1.0, -1.0)])
        total = None
        for number, (scale, weight) in enumerate(self.terms):
            difference = values[2 * number]
            difference -= values[2 * number + 1]
            difference *= weight / (2.0 * scale)
            total = difference if total is None else total + difference
        return total


CENTRAL = Stencil(((1.0, 1.0),))
"""Two evaluations; error h²/6 · f'''."""

EXTRAPOLATED = Stencil(((1.0, 4.0 / 3.0), (2.0, -1.0 / 3.0)))
"""Four evaluations; Richardson's step removes the h² term and leaves an error of order h⁴."""


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
    # The step itself is rounded to the inputs' precision.
    return Column(value, truncation + roundoff + problem.coarseness(step) * xp.abs(value))
