"""Random directions and cotangents of the tolerance policy, each drawn and evaluated once.

A direction is evaluated by a scheme: a stencil, and a step length as a multiple of the step of single entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from gradvet.core.finite_differences import CENTRAL, EXTRAPOLATED, SKEWED, Cotangent, Stencil
from gradvet.core.problem import Distribution, Gradient, Perturbation, Problem
from gradvet.core.vectors import Array, equal, unit, unit_rows
from gradvet.options import Options

SCHEMES = (
    (CENTRAL, 4.0),
    (SKEWED, 16.0),
    (SKEWED, 32.0),
    (SKEWED, 64.0),
    (EXTRAPOLATED, 256.0),
    (EXTRAPOLATED, 2048.0),
    (SKEWED, 6.0),
    (CENTRAL, 2.0 / 3.0),
    (CENTRAL, 1.0 / 16.0),
    (CENTRAL, 1.0 / 128.0),
)
"""Finite-difference schemes: large steps against roundoff, small ones against curvature, and very small ones for
functions with many kinks, which a step of all inputs crosses sooner than a step of one."""

SHORT, NEAR_SCHEME, WITHIN = map(SCHEMES.index, ((CENTRAL, 4.0), (SKEWED, 6.0), (CENTRAL, 2.0 / 3.0)))
"""Indices of the schemes that are named elsewhere."""


class OutOfReachError(Exception):
    """The function raises at a point of a joint direction, though perhaps not within the step of a single entry."""


MAX_STRICT_MISS = 1e-6
"""Largest miss probability of the strict policy (slow mode), which needs several random directions for any function."""

BASIS_SIZE = 2
"""Largest number of inputs that are perturbed one by one instead of in as many random combinations, if strict."""


COTANGENT_FACTOR = -2.0
"""Multiplying by -2 is exact in binary floating point, so a linear VJP must return exactly -2 · Jᵀv."""


_NO_RESIDUALS = (0.0, 0, 0)


class ProbeDirection(NamedTuple):
    """A displacement as rounding left it, and J times it by differences.

    It is `step` times a random direction of size one; products with it are to be divided by `step`.
    """

    displacement: Array
    difference: Array
    step: float
    nondifferentiable: Array = None
    """J times the displacement for the outputs without derivative; None where there are none."""
    total: Array = None
    """Of a central difference, f(x + d) + f(x - d)."""

    def even_part(self, value: Array) -> Array:
        """[f(x + d) + f(x - d)] / 2 - f(x): O(d²) for a smooth function, O(d) at a kink, and roundoff."""
        found = self.total / 2.0
        found -= value[: self.total.shape[0]]
        return found


class Projections:
    """Lazily drawn directions and cotangents of a problem."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem = problem
        self.options = options
        self._scheme = 0
        self.linear = True
        """Whether random cotangents can replace single rows, as far as is known."""
        self._directions: list[ProbeDirection] = []
        self._units: list[Array] = []
        self._two_sided: dict[tuple[int, float], ProbeDirection | None] = {}
        self._cotangents: list[Cotangent] = []
        self._rows: dict[int, Array] = {}
        self._jvps: list[Array] = []
        self._residuals = _NO_RESIDUALS
        """The largest residual, and the numbers of cotangents and directions that it covers."""
        self.is_strict = options.miss <= MAX_STRICT_MISS
        """Slow mode: the miss probability is small enough to replace a comparison of all entries."""
        # With a nonzero tolerance for jitter, the jitter of every row must be visible.
        even = self.is_strict and not options.nondeterminism
        self._distribution = Distribution.UNIFORM if even else Distribution.OFF_ZERO
        self.sees_all_columns = problem.domain.size <= (BASIS_SIZE if self.is_strict else 1)
        """Whether the inputs are few and the directions are the basis."""
        self.sees_all_rows = problem.codomain.size <= 1
        """Whether there is at most one output and the cotangent is the basis."""

    def _draw(self, size: int, scale: float = 1.0) -> Array:
        return self.problem.random(size, self._distribution, scale)

    @property
    def evaluated(self) -> int:
        """Number of directions that are evaluated by the present scheme."""
        return len(self._directions)

    @property
    def known_vjps(self) -> int:
        """Number of cotangents whose VJPs are computed."""
        return len(self._cotangents)

    def probe_directions(self, number: int | None) -> list[ProbeDirection]:
        """The first directions, evaluated when they are first needed; the whole basis if the inputs are few."""
        number = self.problem.domain.size if self.sees_all_columns or number is None else number
        while len(self._directions) < number:
            self._directions.append(self._evaluated(len(self._directions)))
        return self._directions[:number]

    def probe_jvps(self, number: int | None) -> list[Array]:
        """The derivative under test in forward mode along the first directions."""
        directions = self.probe_directions(number)
        for direction in directions[len(self._jvps) :]:
            self._jvps.append(self.problem.jvp(direction.displacement))
        return self._jvps[: len(directions)]

    def probe_cotangents(self, number: int | None) -> list[Cotangent]:
        """The first cotangents with their VJPs; for a single output, the unit cotangent."""
        rows = self.problem.codomain.size
        number = rows if self.sees_all_rows or number is None else number
        for index in range(len(self._cotangents), number):
            if self.sees_all_rows:
                v = self.problem.zeros(rows) + 1.0
                vjp = self.problem.vjp_of_output(self.problem.codomain.leaf_of(index), v)
                self._cotangents.append(Cotangent(v, vjp))
            else:
                v = self._draw(rows)
                # The first one output by output: a derivative may depend on which cotangents are defined.
                vjp = self.problem.vjp(v) if index else self.problem.gradient_by_output(v).vector
                self._cotangents.append(Cotangent(v, vjp))
        return self._cotangents[:number]

    def largest_residual(self, cotangents: Sequence[Cotangent], directions: Sequence[ProbeDirection]) -> float:
        """The largest |v·D - (Jᵀv)·u| among the first cotangents and directions; NaN if one of them is."""
        worst, rows, columns = self._residuals
        # Pair by pair: stacking costs more for few numbers, and memory for many.
        for number, (v, vjp, _) in enumerate(cotangents):
            for u, difference, *_ in directions[columns if number < rows else 0 :]:
                residual = abs(float(v @ difference) - float(vjp @ u))
                if not residual <= worst:
                    worst = residual if worst == worst else worst
        if len(cotangents) >= rows and len(directions) >= columns:
            self._residuals = worst, len(cotangents), len(directions)
        return worst

    def row(self, index: int) -> Array:
        """One row of J, computed once."""
        if self.sees_all_rows:
            return self.probe_cotangents(1)[0].vjp
        if index not in self._rows:
            self._rows[index] = self.fresh_row(index)
        return self._rows[index]

    def rows(self, output: int, start: int, stop: int) -> list[Array]:
        """Some rows of one output, one backward pass each; they are not kept, but for the only one."""
        problem, before = self.problem, self.problem.codomain.offsets[output]
        if self.sees_all_rows:
            return [self.row(before)]
        size = problem.codomain.leaves[output].coordinates.size
        units = unit_rows(problem.zeros((stop - start, size)), start)
        numbers = range(start, stop)
        known = [self._rows.get(before + number) for number in numbers]
        return [
            problem.vjp_of_output(output, units[number - start, :]) if row is None else row
            for number, row in zip(numbers, known, strict=True)
        ]

    def fresh_row(self, index: int) -> Array:
        """One row of J by a backward pass that starts at its output alone."""
        codomain = self.problem.codomain
        output = codomain.leaf_of(index)
        zeros = self.problem.zeros(codomain.leaves[output].coordinates.size)
        return self.problem.vjp_of_output(output, unit(zeros, index - codomain.offsets[output]))

    @cached_property
    def multiple(self) -> Gradient | None:
        """The backward pass of -2 times the first cotangent; None where there is nothing to compare it with."""
        probes, problem = self.probe_cotangents(1), self.problem
        if not probes or not problem.domain.size or not problem.is_plain:
            return None
        return problem.gradient_by_output(probes[0].v * COTANGENT_FACTOR)

    @cached_property
    def proportional(self) -> Gradient | None:
        """That pass; None if it does not give exactly -2 times the VJP.

        If it does, the backward pass is reproducible and adds nothing to the gradient that rounding would show.
        """
        found = self.multiple
        expected = None if found is None else self.probe_cotangents(1)[0].vjp * COTANGENT_FACTOR
        return found if found is not None and equal(found.vector, expected) else None

    def is_linear_within(self, error: float) -> bool:
        """Whether the gradient of -2 times the first cotangent is -2 times its gradient, up to an error per entry.

        Random cotangents say little about a backward pass that loses the sign of its cotangent.
        """
        found = None if self.multiple is None else self.multiple.vector
        if found is None or self.proportional is not None:
            return True
        return float(abs(found / COTANGENT_FACTOR - self.probe_cotangents(1)[0].vjp).max()) <= error

    @property
    def is_seen_nonlinear(self) -> bool:
        """Whether `multiple` was computed, and is not -2 times the VJP."""
        return self.__dict__.get("multiple") is not None and self.proportional is None

    @property
    def vanishes_at_zero(self) -> bool:
        """Whether the gradient of a zero cotangent, and of an undefined one, is known to be zero without a pass.

        It is for builtin rules of a single output that are proportional. Only where an earlier check has asked for
        that: to find out would take a pass as well.
        """
        problem = self.problem
        known = self.__dict__.get("proportional") is not None
        return known and len(problem.codomain.leaves) == 1 and problem.rules.are_builtin

    @cached_property
    def at_zero(self) -> Gradient:
        """The backward pass of a zero cotangent, where its gradient is not known."""
        if self.vanishes_at_zero and self.proportional is not None:
            return Gradient(None, self.proportional.mismatches)
        return self.problem.vjp_undefined(())

    def use_scheme(self, scheme: int) -> None:
        """Evaluate directions by this scheme from now on; other directions are drawn for it."""
        if scheme != self._scheme:
            self._scheme = scheme
            self._directions, self._jvps, self._residuals = [], [], _NO_RESIDUALS

    def unit_direction(self, number: int) -> Array:
        """A random direction of size one, drawn once; a vector of the basis if the inputs are few."""
        while len(self._units) <= number:
            if self.sees_all_columns:
                self._units.append(unit(self.problem.zeros(self.problem.domain.size), len(self._units)))
            else:
                self._units.append(self._draw(self.problem.domain.size))
        return self._units[number]

    def two_sided(self, number: int, width: float) -> ProbeDirection | None:
        """The outputs at x ± width · step · u for one direction, evaluated once; None if the function raises there."""
        if (number, width) not in self._two_sided:
            try:
                self._two_sided[number, width] = self.two_sided_along(self.unit_direction(number), width)
            except OutOfReachError:
                self._two_sided[number, width] = None
        return self._two_sided[number, width]

    def release(self) -> None:
        """Forget rows, the evaluations of directions and their vectors, for the sake of memory."""
        self._two_sided, self._units, self._rows = {}, [], {}
        self._directions, self._jvps, self._residuals = [], [], _NO_RESIDUALS

    def two_sided_along(self, u: Array, width: float) -> ProbeDirection:
        """Evaluate the function at x ± width · step · u. OutOfReachError if it raises there."""
        problem, step = self.problem, width * self.options.step
        perturbation, rows = problem.perturbation(u * step), problem.codomain.size
        # These vectors are changed in place: of a million numbers, new memory takes longer than the arithmetic.
        plus, minus = self._repeatable(lambda: problem.evaluate(perturbation, (1.0, -1.0)))
        odd, total = plus - minus, plus
        odd /= 2.0
        total += minus
        if not problem.nondifferentiable.size:
            return ProbeDirection(perturbation.vector, odd, step, None, total)
        return ProbeDirection(perturbation.vector, odd[:rows], step, odd[rows:], total[:rows])

    def _evaluated(self, number: int) -> ProbeDirection:
        stencil, widening = SCHEMES[self._scheme]
        if stencil is CENTRAL and (number, widening) in self._two_sided:
            found = self._two_sided[number, widening]
            if found is None:
                raise OutOfReachError("the function raises at a point next to the one that is checked")
            return found
        problem, step = self.problem, widening * self.options.step
        if self.sees_all_columns:
            displacement = self.unit_direction(number) * step
        else:
            displacement = self._draw(problem.domain.size, step)
        perturbation = problem.perturbation(displacement)
        difference, rows = self._along(stencil, perturbation), problem.codomain.size
        if not problem.nondifferentiable.size:
            return ProbeDirection(perturbation.vector, difference, step)
        return ProbeDirection(perturbation.vector, difference[:rows], step, difference[rows:])

    def difference_along(self, displacement: Array) -> Array:
        """J times a displacement by central differences, for all outputs."""
        return self._along(CENTRAL, self.problem.perturbation(displacement))

    def slope_of(self, u: Array) -> tuple[Array, Array]:
        """The same for the outputs with a derivative, with the displacement."""
        return self.difference_along(u)[: self.problem.codomain.size], u

    def _along(self, stencil: Stencil, perturbation: Perturbation) -> Array:
        return self._repeatable(lambda: self.problem.weighted(perturbation, *stencil))

    def _repeatable(self, evaluate: Callable[[], Array]) -> Array:
        """OutOfReachError for an exception that comes back at the same points; another one is not about the points."""
        try:
            return evaluate()
        except Exception as error:
            try:
                evaluate()
            except Exception:
                raise OutOfReachError("the function raises at a point next to the one that is checked") from error
            raise
