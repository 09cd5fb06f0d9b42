"""Tolerance policy, fast mode: a verdict from a bounded number of projections.

In this order: a certificate from one random direction, at two step lengths; torch's criterion, which compares one
projection per pair of tensors with a tolerance; and, where either shows a disagreement, the entries that may be wrong.
The residual of a projection is beyond its error bar if neither the curvature nor the noise that its own evaluations
show explain it. Where torch's criterion holds, a derivative is refused only for a named entry that is outside the
tolerance at three step lengths and not at a kink.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator

from gradvet.core import thresholds
from gradvet.core.certificate import MIN_COUPLED_INPUTS, is_fine_enough, is_true_to_step
from gradvet.core.entrywise import ComparedEntry, Comparison, compare_all, holds_too_much, located, modulus
from gradvet.core.modes import Mode
from gradvet.core.probe_plans import LATER_PASSES, Plan, price, resolving_ratio, spent, torch_fast_price
from gradvet.core.problem import Problem
from gradvet.core.projections import SCHEMES, SHORT, WITHIN, OutOfReachError, ProbeDirection, Projections
from gradvet.core.vectors import Array, Space, namespace, norm, unit

SECOND_STEP_RATIO = 4.0
"""Ratio of the first step length to the second."""

ATTEMPT_SHARES = (0.7, 0.2, 0.1)
"""Shares of the miss probability for the attempts to certify: first step, second, extrapolation."""

MAX_EVALUATIONS = 3
"""Evaluations before a derivative is accepted, as a multiple of those of torch's fast mode."""

MAX_IF_REFUSED = 200
"""Evaluations that may be spent to find a wrong entry of a derivative that torch's criterion refuses."""

MAX_IF_ACCEPTED = 64
"""The same for a comparison of all entries of a derivative that torch's criterion accepts."""

DESCENTS_IF_REFUSED, DESCENTS_IF_ACCEPTED = 2, 1
"""Searches for a wrong entry, each of about log₂(rows) backward passes and 2 log₂(columns) evaluations; the second
number is for a derivative that torch's criterion accepts."""

WIDER_STEP = 3.7
"""A third step at which a wrong entry is confirmed, as a multiple of the step: no simple ratio, because values that are
rounded to a grid give the same slope at such steps."""

MEDIAN_ROWS = 4096
"""About the number of rows of which a median is taken: to sort a million takes longer than an evaluation."""

UnitVectors = Callable[[int], Array]
"""Draws a vector of a given size with random entries in [0, 1), divided by its norm."""

Draw = Callable[[Problem], UnitVectors]
"""Prepares the draw of unit vectors for a problem."""


Residual = float | Array
"""The residual of a cotangent, or those of all rows where forward mode shows them."""

Refusal = tuple[int, int, str]
"""Output, input and part ("real" or "imag" of complex numbers) of a projection outside torch's tolerance."""


def decide(projections: Projections, mode: Mode, draw: Draw) -> float | Comparison | Refusal:
    """A miss probability (1 if torch's criterion alone was met), wrong entries, or a projection that torch refuses.

    Calls the function and its derivative at most three times as often as torch's fast mode before it accepts.
    """
    test = ProjectionTest(projections, mode)
    miss = test.certified()
    if miss is not None and test.is_linear:
        return miss
    refused = next(torch_refusals(projections, mode, draw(projections.problem)), None)
    if refused is None and not test.disagrees:
        return 1.0
    problem = projections.problem
    if holds_too_much(problem):
        projections.release()
    if price(problem, mode) <= (MAX_IF_REFUSED if refused else max(MAX_IF_ACCEPTED, _left(problem, mode))):
        comparison = compare_all(projections, mode)
    else:
        projections.use_scheme(test.scheme)
        if refused:
            comparison = located(projections, mode, DESCENTS_IF_REFUSED)
        else:
            comparison = located(projections, mode, DESCENTS_IF_ACCEPTED, test.detectable / thresholds.TOLERANCE_PART)
        projections.release()
    if comparison.disagrees:
        return comparison if refused or _confirmed(projections, comparison) else 1.0
    if comparison.complete:
        return comparison.miss
    return 1.0 if refused is None else refused


def _left(problem: Problem, mode: Mode) -> float:
    """Evaluations that are left of those before a derivative is accepted."""
    later = LATER_PASSES * len(problem.codomain.leaves)
    return MAX_EVALUATIONS * torch_fast_price(problem, mode) - spent(problem) - later


class ProjectionTest:
    """Residuals of one random direction at several step lengths."""

    def __init__(self, projections: Projections, mode: Mode) -> None:
        problem, options = projections.problem, projections.options
        self.projections, self.mode = projections, mode
        self.disagrees = False
        """Whether a residual is beyond its error bar."""
        coupled = problem.domain.size > MIN_COUPLED_INPUTS * problem.codomain.size
        self.scheme = WITHIN if coupled else SHORT
        self.width = SCHEMES[self.scheme][1]
        self.rows_seen = not mode.by_rows or projections.sees_all_rows
        self.detectable = options.tolerance.absolute / math.sqrt(max(problem.domain.parts, problem.codomain.parts))
        self.may_certify = self.detectable > 0.0 and problem.independent

    def certified(self) -> float | None:
        """The miss probability of the certificate, or None; then `disagrees` is known.

        No evaluation where rounding loses the step: differences then show nothing of the size of a tolerance.
        """
        if not is_true_to_step(self.projections):
            return None
        wide = self.projections.two_sided(0, self.width)
        of_wide = self._residual(wide)
        if self._is_small(of_wide, 0, self.width):
            return self.miss
        narrow_width = self.width / SECOND_STEP_RATIO
        narrow = self.projections.two_sided(0, narrow_width)
        of_narrow = self._residual(narrow)
        if self._is_small(of_narrow, 1, narrow_width):
            return self.miss
        if wide is None or narrow is None or of_wide is None or of_narrow is None:
            self.scheme = WITHIN
            return None
        # The error of a central difference is c h²: two step lengths remove it.
        extrapolated = (SECOND_STEP_RATIO**2 * of_narrow - of_wide) / (SECOND_STEP_RATIO**2 - 1.0)
        if self._is_small(extrapolated, 2, narrow_width):
            return self.miss
        self.disagrees = self._beyond(wide, narrow, of_wide, of_narrow)
        return None

    @property
    def is_linear(self) -> bool:
        """Whether the cotangent of the certificate stands for others. One backward pass, which later checks use too."""
        return not self.mode.by_rows or self.projections.is_linear_within(thresholds.TOLERANCE_PART * self.detectable)

    @property
    def miss(self) -> float:
        return 0.0 if self.projections.sees_all_columns and self.rows_seen else self.projections.options.miss

    def _residual(self, difference: ProbeDirection | None) -> Residual | None:
        """v·D - (Jᵀv)·d for the first cotangent, or D - J d for all rows, per step."""
        if difference is None:
            return None
        odd, displacement = difference.difference, difference.displacement
        if not self.mode.by_rows:
            return (odd - self.projections.problem.jvp(displacement)) / difference.step
        (probe,) = self.projections.probe_cotangents(1)
        return (float(probe.v @ odd) - float(probe.vjp @ displacement)) / difference.step

    def _ratio(self, share: float) -> float:
        columns_seen = self.projections.sees_all_columns
        if columns_seen and self.rows_seen:
            return thresholds.TOLERANCE_PART
        plan = Plan(None if columns_seen else 1, None if self.rows_seen else 1)
        return resolving_ratio(share * self.projections.options.miss, plan)

    def _is_small(self, residual: Residual | None, attempt: int, width: float) -> bool:
        """Whether the residual certifies all entries."""
        if residual is None or not self.may_certify:
            return False
        ratio = self._ratio(ATTEMPT_SHARES[attempt])
        return _largest(residual) <= ratio * self.detectable and is_fine_enough(self.projections, width, ratio)

    def _beyond(self, wide: ProbeDirection, narrow: ProbeDirection, of_wide: Residual, of_narrow: Residual) -> bool:
        """Whether neither curvature nor noise nor a kink explains the residual at the smaller step.

        The even parts at steps 4h and h, the latter times 16, cancel for a smooth function: what is left of them is
        noise, or a kink. The residuals at both steps differ by the curvature.
        """
        problem = self.projections.problem
        xp = namespace(problem.value)
        size = xp.abs(problem.value[: problem.codomain.size])
        uneven = wide.even_part(problem.value)
        uneven /= SECOND_STEP_RATIO**2
        uneven -= narrow.even_part(problem.value)
        noise = xp.abs(uneven)
        noise += problem.eps / 2.0 * size
        # The noise of one row may be small by chance, so the median relative noise of the rows is the least. Some of
        # many rows show it; the odd distance between them is no multiple of a usual length.
        some = slice(None, None, noise.shape[0] // MEDIAN_ROWS | 1)
        relative = noise[some] / (size[some] + sys.float_info.min)
        usual = float(xp.sort(relative)[relative.shape[0] // 2])
        noise = xp.maximum(noise, usual * size) if math.isfinite(usual) else noise
        if self.mode.by_rows:  # the noise of rows as noise of the residual
            noise = norm(self.projections.probe_cotangents(1)[0].v, noise)
        bar = abs(of_wide - of_narrow) + thresholds.INTERVAL_WIDTH * noise / narrow.step
        within = abs(of_narrow) <= bar
        return not bool(within if self.mode.by_rows else within.all())


def torch_refusals(projections: Projections, mode: Mode, draw: UnitVectors) -> Iterator[Refusal]:
    """The projections that torch's fast mode refuses.

    A projection is v·J·u for one output and one input, with positive unit vectors and the step of single entries. It
    may be off by the relative tolerance and by what an error of the absolute tolerance in every entry would give. Of
    complex numbers, torch takes the parts of outputs one by one in reverse mode and those of inputs in forward mode.
    """
    return _reverse_refusals(projections, draw) if mode.by_rows else _forward_refusals(projections, draw)


def _forward_refusals(projections: Projections, draw: UnitVectors) -> Iterator[Refusal]:
    """One JVP and two evaluations for each part of an input."""
    problem, tolerance = projections.problem, projections.options.tolerance
    directions = [_by_part(problem.domain, leaf, draw, same=True) for leaf in range(len(problem.domain.leaves))]
    for source, parts in enumerate(directions):
        for part, u in reversed(list(enumerate(parts))):
            numerical = _slope(projections, source, part, u)
            derivative = problem.jvp(_embedded(projections, problem.domain, source, part, u))
            allowed = tolerance.absolute * float(namespace(u).sum(u))
            for output, leaf in enumerate(problem.codomain.leaves):
                rows = problem.codomain.slices[output]
                n, a = numerical[None, rows], derivative[None, rows]
                if not _is_close(a, n, leaf.coordinates.parts, (allowed, tolerance.relative)):
                    yield output, source, _part_name(part, len(parts))


def _reverse_refusals(projections: Projections, draw: UnitVectors) -> Iterator[Refusal]:
    """Two evaluations for each part of an input, and one VJP for each part of an output, imaginary ones first."""
    problem, tolerance = projections.problem, projections.options.tolerance
    domain, codomain = problem.domain, problem.codomain
    directions = [_by_part(domain, leaf, draw, same=False) for leaf in range(len(domain.leaves))]
    cotangents = [_by_part(codomain, leaf, draw, same=True) for leaf in range(len(codomain.leaves))]
    probes = [
        (output, part, vectors[part])
        for part in (1, 0)
        for output, vectors in enumerate(cotangents)
        if part < len(vectors)
    ]
    slopes = {}
    for source, parts in enumerate(directions):
        for side, u in enumerate(parts):
            numerical = _slope(projections, source, side, u)
            for output, part, v in probes:
                own = numerical[codomain.slices[output]][part :: len(cotangents[output])]
                slopes[source, side, output, part] = float(v @ own)
    for output, part, v in probes:
        local = _embedded(projections, codomain, output, part, v)[codomain.slices[output]]
        gradient = problem.vjp_of_output(output, local)
        xp = namespace(gradient)
        for source, parts in enumerate(directions):
            section = gradient[domain.slices[source]]
            pairs = [
                (float(section[side :: len(parts)] @ u), slopes[source, side, output, part])
                for side, u in enumerate(parts)
            ]
            allowed = tolerance.absolute * sum(float(xp.sum(u)) for u in parts) * float(xp.sum(v))
            if not _is_within(pairs, allowed, tolerance.relative):
                yield output, source, _part_name(part, len(cotangents[output]))


def _part_name(part: int, parts: int) -> str:
    return ("real", "imag")[part] if parts == 2 else ""


def _is_within(pairs: list[tuple[float, float]], absolute: float, relative: float) -> bool:
    """Whether one number, given by the derivatives and slopes of its parts, is within the tolerance."""
    difference = math.hypot(*(a - n for a, n in pairs))
    return difference <= absolute + relative * math.hypot(*(n for _, n in pairs)) and math.isfinite(difference)


def _is_close(derivative: Array, numerical: Array, parts: int, tolerance: tuple[float, float]) -> bool:
    """Whether each number of one row is within the absolute and relative tolerance."""
    xp, difference = namespace(numerical), modulus(derivative - numerical, parts)
    allowed = tolerance[0] + tolerance[1] * modulus(numerical, parts)
    return bool(xp.all((difference <= allowed) & xp.isfinite(difference)))


def _by_part(space: Space, leaf: int, draw: UnitVectors, *, same: bool) -> list[Array]:
    """A unit vector for the real numbers of a leaf, or two for the parts of its complex numbers, perhaps the same."""
    coordinates = space.leaves[leaf].coordinates
    if not coordinates.size:
        return []
    size, parts = coordinates.size // coordinates.parts, coordinates.parts
    return [draw(size)] * parts if same else [draw(size) for _ in range(parts)]


def _embedded(projections: Projections, space: Space, leaf: int, part: int, vector: Array) -> Array:
    """The vector as those coordinates of the space, zero elsewhere."""
    whole = projections.problem.zeros(space.size)
    whole[space.slices[leaf]][part :: space.leaves[leaf].coordinates.parts] = vector
    return whole


def _slope(projections: Projections, leaf: int, part: int, u: Array) -> Array:
    """J u by a central difference with the step of single entries. What the function raises escapes."""
    problem, step = projections.problem, projections.options.step
    perturbation = problem.perturbation(_embedded(projections, problem.domain, leaf, part, u) * step)
    return problem.weighted(perturbation, (1.0, -1.0), (0.5 / step, -0.5 / step))[: problem.codomain.size]


def _confirmed(projections: Projections, comparison: Comparison) -> bool:
    """Whether a wrong entry is wrong at the step, at half of it and at a larger one, and not at a kink."""
    return any(pair.worst is not None and _is_wrong(projections, pair.worst) for pair in comparison.pairs.values())


def _is_wrong(projections: Projections, entry: ComparedEntry) -> bool:
    """Six evaluations along the entry's own column."""
    problem = projections.problem
    u = unit(problem.zeros(problem.domain.size), entry.column)
    slopes, bends, widths = [], [], [1.0, 0.5]
    for width in widths:
        try:
            found = projections.two_sided_along(u, width)
        except OutOfReachError:
            return False
        slopes.append(float(found.difference[entry.row]) / found.step)
        bends.append(abs(float(found.even_part(problem.value)[entry.row])) / found.step)
        if len(widths) == 2:
            widths.append(WIDER_STEP if slopes[0] else max(WIDER_STEP, thresholds.CONSTANT_STEP[0] / found.step))
    if not all(map(math.isfinite, slopes)) or not math.isfinite(entry.derivative):
        return not math.isfinite(entry.derivative) and all(map(math.isfinite, slopes))
    gap = min(abs(entry.derivative - slope) for slope in slopes)
    # The tolerance is for the modulus of a complex number, of which the entry is one coordinate.
    other_part = max(0.0, entry.difference**2 - (entry.derivative - entry.numerical) ** 2)
    error = math.hypot(gap, math.sqrt(other_part))
    steady = thresholds.PLATEAU_RTOL * gap
    # Per step, the even part of a smooth function halves with the step, and that of a kink stays.
    at_kink = bends[0] > steady and thresholds.KINK_SHRINKAGE * bends[1] > 2.0 * bends[0]
    return error > entry.allowed and max(slopes) - min(slopes) <= steady and not at_kink


def _largest(residual: Residual) -> float:
    """The largest size; infinite if one is not a number."""
    largest = abs(residual) if isinstance(residual, float) else float(abs(residual).max())
    return largest if largest == largest else math.inf
