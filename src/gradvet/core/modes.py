"""The derivative under test as predictions of slopes: by rows in reverse mode, by columns in forward mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gradvet.core.context import Context, Cotangent
from gradvet.core.finite_differences import Prediction
from gradvet.core.spaces import Array
from gradvet.core.vectors import all_finite, dot


class Mode(Protocol):
    """A way to know J."""

    @property
    def name(self) -> str: ...
    def predictions(self, context: Context, u: Array, cotangents: Sequence[Cotangent]) -> list[Prediction]:
        """What this mode predicts along u, seen through each codirection."""
        ...

    def is_finite_at(self, context: Context, column: int) -> bool:
        """Whether this mode has a finite derivative by an input for which reverse mode has none."""
        ...

    def column_gap(self, context: Context, v: Array, slope: Array, displacement: Array) -> Array | None:
        """v ∘ (slope - J·displacement) for every row, where this mode shows all rows at once."""
        ...


class ReverseMode:
    """Jᵀv is known: the prediction is its product with whatever displacement really happened."""

    name = "reverse"

    def predictions(self, context: Context, u: Array, cotangents: Sequence[Cotangent]) -> list[Prediction]:
        return [_pulled(cotangent) for cotangent in cotangents]

    def is_finite_at(self, context: Context, column: int) -> bool:
        return False

    def column_gap(self, context: Context, v: Array, slope: Array, displacement: Array) -> None:
        return None


class ForwardMode:
    """J u is known; what rounding made of the displacement is accounted for with the gradient."""

    name = "forward"

    def predictions(self, context: Context, u: Array, cotangents: Sequence[Cotangent]) -> list[Prediction]:
        jvp = context.cached_jvp(u)
        return [_pushed(cotangent, jvp, u, exact=context.is_double) for cotangent in cotangents]

    def is_finite_at(self, context: Context, column: int) -> bool:
        u = context.problem.zeros(context.problem.domain.size)
        u[column] = 1.0
        return all_finite(context.problem.jvp(u))

    def column_gap(self, context: Context, v: Array, slope: Array, displacement: Array) -> Array:
        return v * (slope - context.cached_jvp(displacement))


REVERSE, FORWARD = ReverseMode(), ForwardMode()


def _pulled(cotangent: Cotangent) -> Prediction:
    return Prediction(cotangent.v, lambda displacement, t: dot(cotangent.w, displacement))


def _pushed(cotangent: Cotangent, jvp: Array, u: Array, *, exact: bool) -> Prediction:
    slope = dot(cotangent.v, jvp)
    if exact:
        return Prediction(cotangent.v, lambda displacement, t: t * slope)
    return Prediction(cotangent.v, lambda displacement, t: t * slope + dot(cotangent.w, displacement - t * u))
