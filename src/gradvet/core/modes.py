"""The Jacobian as a mode of differentiation knows it: by rows (reverse, VJPs) or by columns (forward, JVPs)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradvet.core.context import Context
from gradvet.core.finite_differences import Prediction
from gradvet.core.projections import Cotangent
from gradvet.core.spaces import Array
from gradvet.core.vectors import all_finite, dot, unit


class ReverseMode:
    """Jᵀv is known: the prediction is its product with the displacement."""

    name = "reverse"
    by_rows = True
    """Whether a derivative pass gives a row of the Jacobian."""

    def require(self, context: Context) -> None:
        """Compute one derivative, so that a mode that the function does not have raises first."""
        if not context.has_reverse:
            context.problem.vjp(context.problem.zeros(context.problem.codomain.size))

    def predictions(self, context: Context, u: Array, cotangents: Sequence[Cotangent]) -> list[Prediction]:
        """What this mode predicts along u for each cotangent."""
        return [_by_vjp(cotangent) for cotangent in cotangents]

    def is_finite_at(self, context: Context, column: int) -> bool:
        """Whether this mode has a finite derivative by an input for which reverse mode has none. May call the JVP."""
        return False

    def slope_at(self, context: Context, place: Array, v: Array, u: Array) -> float:
        """v·J·u next to the point; not a number where it cannot be computed."""
        return dot(context.problem.vjp_at(place, v), u)

    def row_residuals(self, context: Context, slope: Array, displacement: Array) -> Array | None:
        """slope - J·displacement for every row; None where the mode shows only combinations of rows."""
        return None


class ForwardMode:
    """J u is known; the rounding of the displacement is accounted for by the gradient."""

    name = "forward"
    by_rows = False

    def require(self, context: Context) -> None:
        context.cached_jvp(context.first.displacement)

    def predictions(self, context: Context, u: Array, cotangents: Sequence[Cotangent]) -> list[Prediction]:
        jvp = context.cached_jvp(u)
        return [_by_jvp(cotangent, jvp, u, exact=context.is_double) for cotangent in cotangents]

    def is_finite_at(self, context: Context, column: int) -> bool:
        return all_finite(context.problem.jvp(unit(context.problem.zeros(context.problem.domain.size), column)))

    def slope_at(self, context: Context, place: Array, v: Array, u: Array) -> float:
        tangent = context.problem.jvp_at(place, u)
        return math.nan if tangent is None else dot(v, tangent)

    def row_residuals(self, context: Context, slope: Array, displacement: Array) -> Array | None:
        return slope - context.cached_jvp(displacement)


Mode = ReverseMode | ForwardMode

REVERSE, FORWARD = ReverseMode(), ForwardMode()


def _by_vjp(cotangent: Cotangent) -> Prediction:
    return Prediction(cotangent.v, lambda displacement, t: dot(cotangent.vjp, displacement))


def _by_jvp(cotangent: Cotangent, jvp: Array, u: Array, *, exact: bool) -> Prediction:
    slope = dot(cotangent.v, jvp)
    if exact:
        return Prediction(cotangent.v, lambda displacement, t: t * slope)
    return Prediction(cotangent.v, lambda displacement, t: t * slope + dot(cotangent.vjp, displacement - t * u))
