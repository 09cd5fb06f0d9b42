"""Errors of a gradient from the residuals of many directions: a common factor, a dense error, single columns.

Rounding errors differ from direction to direction and from step to step, and an error of the derivative does not. So
each kind of error is a sum in which it adds up and rounding does not, with an error bar from the spread of the terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gradvet.core import thresholds
from gradvet.core.extrapolation import Estimate, last_consistent
from gradvet.core.vectors import Array, namespace, nonzero_rms, norm, rms


@dataclass(frozen=True, eq=False)
class Slopes:
    """Residuals at one step, or extrapolated from two, with what the derivative predicts: directions × cotangents."""

    steps: tuple[int, ...]
    """Numbers of the steps behind them."""
    residuals: Array
    realised: Array
    """Predicted slopes for the displacements that really happened."""
    predicted: Array
    """Predicted slopes along the directions."""
    directions: Array
    vjps: Array
    matched: int = 0
    """Number of the first cotangents that belong to a direction, so that all outputs add up."""

    def joined(self, more: Slopes) -> Slopes:
        """The same along the directions of both."""
        xp = namespace(self.predicted)
        r, realised, predicted, directions = (
            xp.concat([getattr(some, name) for some in (self, more)])
            for name in ("residuals", "realised", "predicted", "directions")
        )
        return Slopes(self.steps, r, realised, predicted, directions, self.vjps, self.matched)

    @property
    def factor(self) -> Estimate:
        """The relative error that the residuals of matched cotangents share."""
        columns = self.matched or self.predicted.shape[1]
        return _shared(*(table[:, :columns] for table in (self.residuals, self.realised, self.predicted)))

    @property
    def rest(self) -> Array:
        """The residuals without their common factor."""
        return self.residuals - self.factor.value * self.realised

    def worst_column(self) -> tuple[int, float, float, float]:
        """The column that explains the residuals best, and its error for the first cotangent; that error, and the one
        that noise explains, as parts of a typical column, or of its own where that is larger.
        """
        xp = namespace(self.predicted)
        r, u, w = self.rest, self.directions, self.vjps
        error, length = _by_column(r, u)
        size, found = (xp.sqrt(xp.mean(some * some, axis=0)) * length for some in (w, error))
        typical = nonzero_rms(size)
        if not typical:
            return 0, 0.0, 0.0, math.inf
        part = found / xp.clip(size, typical)
        index = int(xp.argmax(part))
        width = 1.0 + (thresholds.PRECISION_SCALE_WIDTH - 1.0) / math.sqrt(w.shape[0])
        noise = width * rms(r) / math.sqrt(u.shape[0])
        return index, float(error[0, index]), float(part[index]), noise / typical


@dataclass(frozen=True, eq=False)
class Residuals:
    """Residuals of all pairs of a direction and a cotangent at every step, with what the derivative predicts."""

    at: Sequence[Array]
    """For each step, from the widest one on, half as wide as the one before: directions × cotangents."""
    evens: Sequence[Array]
    """The same of v·[f(x + h u) + f(x - h u) - 2 f(x)]/2h, and of |v|·[...]/2h in the second half of the columns."""
    bend: Sequence[float]
    """For each step, root mean square of the former: what kinks explain, and roundoff."""
    realised: Sequence[Array]
    """For each step, predicted slopes for the displacements that really happened."""
    centres: Sequence[Array]
    """For each step, what the derivative predicts for the mean of both displacements, which is in the even part too."""
    predicted: Array
    directions: Array
    vjps: Array
    matched: int
    """Number of the first directions and cotangents that belong together."""

    def unmatched(self, table: Array) -> Array:
        """Without the pairs that belong together, in which only a common factor shows."""
        xp = namespace(table)
        rows, columns = (xp.arange(length, device=table.device) for length in table.shape)
        pairs = (rows[:, None] == columns[None, :]) & (rows[:, None] < self.matched)
        return xp.where(pairs, xp.zeros_like(table), table)

    @property
    def size(self) -> float:
        """Root mean square of the slopes of pairs that do not belong together."""
        return rms(self.unmatched(self.predicted))

    def slopes(self, steps: tuple[int, ...]) -> Slopes:
        """The residuals at one step, or at two without their h² term."""
        r, realised = (
            tables[steps[0]] if len(steps) == 1 else (4.0 * tables[steps[1]] - tables[steps[0]]) / 3.0
            for tables in (self.at, self.realised)
        )
        return Slopes(steps, r, realised, self.predicted, self.directions, self.vjps, self.matched)

    def clearest(self, asked: float) -> Slopes:
        """The slopes whose residuals are the smallest but for their common factor, at one step or at two.

        One step must have the same common factor as two, by the resolution asked for: of its h² term there is no other
        sign. Needed by `test_curvature_of_a_scalar_is_not_taken_for_an_error`.
        """
        pairs = [self.slopes(steps) for steps in pairwise(range(len(self.at)))]
        found = list(pairs)
        for pair in pairs:
            plain = self.slopes(pair.steps[:1])
            if abs(plain.factor.value - pair.factor.value) + pair.factor.error <= asked:
                found.append(plain)
        return min(found, key=lambda slopes: rms(slopes.rest))

    def factor(self) -> tuple[Estimate, bool]:
        """The relative error that all residuals share, and whether several steps show the same one."""
        plain = [self.slopes((number,)).factor for number in range(len(self.at))]
        extrapolated = [self.slopes(pair).factor for pair in pairwise(range(len(self.at)))]
        best = min(map(last_consistent, (plain, extrapolated)), key=lambda estimate: estimate.error)
        seen = [one for one in (*plain, *extrapolated) if abs(one.value) > one.error]
        same = [abs(one.value - best.value) <= thresholds.PLATEAU_RTOL * abs(best.value) + one.error for one in seen]
        return best, sum(same) >= thresholds.PLATEAU_STEPS

    def kink_factor(self) -> float:
        """The common factor that kinks explain at most: there |v|·f changes alike on both sides. Needed by
        `test_slope_hidden_in_roundoff_inside_the_function_does_not_fail`.

        The even part of |v|·f is a|h| + b h²: a kink and curvature. One step or two show a, with the other term or with
        more noise: the least of them counts, of one step the larger one of two neighbours.
        """
        columns, used = self.predicted.shape[1], self.matched or self.predicted.shape[1]
        error = self.factor()[0].value
        folds = [
            even[:, columns : columns + used] - error * centre[:, :used]
            for even, centre in zip(self.evens, self.centres, strict=True)
        ]
        weight = abs(self.predicted[:, :used])

        def size(fold: Array) -> float:
            found = _shared(fold, weight, weight)
            return abs(found.value) + found.error

        plain = list(map(size, folds))
        found = list(map(max, plain, plain[1:]))
        found += [size(2.0 * narrow - wide) for wide, narrow in pairwise(folds)]
        return min(found, default=math.inf)

    def dense(self) -> tuple[float, float]:
        """Root mean square of an error of the derivative, and the largest one that rounding explains.

        An error adds the same to the residuals at all steps: the product of two estimates from different steps has its
        square as mean, whatever the noise is, and their difference has the noise alone. The same for kinks is
        subtracted.
        """
        columns, found = self.predicted.shape[1], [(0.0, 0.0)]
        for first in range(len(self.at) - 3):
            steps = (first, first + 1), (first + 2, first + 3)
            square, width = self._common_square([self.slopes(pair).residuals for pair in steps])
            bent = [2.0 * self.evens[b][:, :columns] - self.evens[a][:, :columns] for a, b in steps]
            kink, kink_width = self._common_square(bent)
            found.append((square - thresholds.COHERENT * max(0.0, kink - kink_width), width))
        square, width = max(found, key=lambda pair: pair[0] - pair[1])
        # An error is there at all steps; what is not at the clearest ones is the curvature of wide steps.
        pairs = (self.slopes(steps).residuals for steps in pairwise(range(len(self.at))))
        least = min((rms(self.unmatched(r)) for r in (*self.at, *pairs)), default=0.0)
        return min(math.sqrt(max(0.0, square)), least), math.sqrt(width)

    def _common_square(self, pair: Sequence[Array]) -> tuple[float, float]:
        """Mean square of what two tables have in common, and the largest one that their differences explain."""
        xp = namespace(self.predicted)
        one, other = map(self.unmatched, pair)
        count = self.predicted.shape[0] * self.predicted.shape[1] / 2.0
        noise = float(xp.mean((one - other) ** 2)) / 2.0
        return float(xp.mean(one * other)), thresholds.PRECISION_SCALE_WIDTH * noise / math.sqrt(count)


def _by_column(r: Array, u: Array) -> tuple[Array, Array]:
    """Least squares along each column for each cotangent, Σ r u / Σ u², and the length of each column."""
    xp = namespace(u)
    length = xp.sqrt(xp.mean(u * u, axis=0))
    safe = xp.where(length > 0.0, length, xp.ones_like(length))
    return (xp.matrix_transpose(r) @ u) / (u.shape[0] * safe * safe), length


def _shared(r: Array, realised: Array, predicted: Array) -> Estimate:
    """The value of r ≈ value · realised, by sums with weights that have none of the noise of the displacements.

    The residuals of one direction are not independent of each other.
    """
    xp = namespace(predicted)
    total = float(xp.sum(realised * predicted))
    if not total:
        return Estimate(0.0, math.inf)
    value = float(xp.sum(r * predicted)) / total
    left = xp.sum((r - value * realised) * predicted, axis=1)
    return Estimate(value, thresholds.PRECISION_SCALE_WIDTH * norm(left) / abs(total))
