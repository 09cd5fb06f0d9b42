"""Random directions and cotangents of the tolerance policy, each drawn and evaluated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gradvet.core.finite_differences import CENTRAL, EXTRAPOLATED, SKEWED, Stencil
from gradvet.core.problem import Misfit, Move, Problem
from gradvet.core.spaces import Array
from gradvet.options import Options

SCHEMES = (
    (CENTRAL, 4.0),
    (SKEWED, 16.0),
    (SKEWED, 32.0),
    (EXTRAPOLATED, 16.0),
    (SKEWED, 64.0),
    (EXTRAPOLATED, 256.0),
    (SKEWED, 6.0),
    (EXTRAPOLATED, 8.0),
    (SKEWED, 2.5),
    (EXTRAPOLATED, 1.0),
    (CENTRAL, 2.0 / 3.0),
)
"""How a direction is walked, and how much further than the entrywise step: far, where roundoff matters, near, where the
function bends within reach, and at last no further than the entrywise step itself. More evaluations leave less
truncation."""

SHORT, LONG, LONGER, FAR_SCHEME, NEAR_SCHEME, NEAREST, NARROW, WITHIN = map(
    SCHEMES.index,
    (
        (CENTRAL, 4.0),
        (SKEWED, 16.0),
        (SKEWED, 32.0),
        (SKEWED, 64.0),
        (SKEWED, 6.0),
        (EXTRAPOLATED, 8.0),
        (SKEWED, 2.5),
        (CENTRAL, 2.0 / 3.0),
    ),
)
"""The ways to begin with."""


class OutOfReachError(Exception):
    """The function cannot be evaluated where a direction leads, though perhaps within the entrywise step."""


STRICT = 1e-6
"""From this limit on the miss probability down, several random combinations are needed whatever the function."""

FEW = 2
"""So few inputs are then moved one by one rather than in as many combinations."""


FACTOR = -2.0
"""A product with it is exact, and so is everything linear that follows: rounding knows neither signs nor binades."""


_NONE_YET = (0.0, 0, 0)


class ProbeDirection(NamedTuple):
    """A displacement as it was really walked, and J times it by differences, for the codomain and the silent outputs.

    It is `step` times a random direction of the size of one; products with it are to be divided by `step`.
    """

    displacement: Array
    difference: Array
    nondifferentiable: Array
    """None where there are no silent outputs."""
    step: float


@dataclass(frozen=True, slots=True)
class AtZero:
    """What a cotangent of zeros gives: the gradient, if it is not zero, and where its attributes do not fit."""

    gradient: Array | None
    misfits: list[Misfit]


@dataclass(frozen=True, slots=True)
class Proportion:
    """Whether a multiple of a codirection gives that multiple of its gradient, bit for bit, and what does not fit.

    If it does, the backward pass is reproducible, and adds nothing to that gradient that rounding would show.
    """

    kept: bool
    misfits: list[Misfit]


class ProbeCotangent(NamedTuple):
    """A codirection v and the derivative under test along it, Jᵀv."""

    v: Array
    vjp: Array


class Projections:
    """Lazily drawn directions and codirections of a problem."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem = problem
        self.options = options
        self._scheme = 0
        self.linear = True
        """Whether random codirections may stand for single rows, as far as is known."""
        self._directions: list[ProbeDirection] = []
        self._cotangents: list[ProbeCotangent] = []
        self._rows: dict[int, Array] = {}
        self._pushes: list[Array] = []
        self._gaps = _NONE_YET
        """The widest gap, and between how many codirections and directions."""
        self._proportion: Proportion | None = None
        strict = options.miss <= STRICT
        few = FEW if strict else 1
        # Jitter that is held to a tolerance is to be seen in every row.
        self._draw = problem.uniform if strict and not options.nondeterminism else problem.signed
        self.sees_all_columns = problem.domain.size <= few
        """Whether the inputs are so few that the directions are simply the basis."""
        self.sees_all_rows = problem.codomain.size <= 1
        """Whether there is one output at most, so that the codirection is simply the basis."""

    def probe_directions(self, number: int | None) -> list[ProbeDirection]:
        """So many directions, walked when they are first asked for; the whole basis if the inputs are few."""
        number = self.problem.domain.size if self.sees_all_columns or number is None else number
        while len(self._directions) < number:
            self._directions.append(self._walk(len(self._directions)))
        return self._directions[:number]

    def probe_jvps(self, number: int | None) -> list[Array]:
        """The derivative under test in forward mode along so many directions."""
        directions = self.probe_directions(number)
        for direction in directions[len(self._pushes) :]:
            self._pushes.append(self.problem.jvp(direction.displacement))
        return self._pushes[: len(directions)]

    def probe_cotangents(self, number: int | None) -> list[ProbeCotangent]:
        """So many codirections; a single output is its own."""
        rows = self.problem.codomain.size
        number = rows if self.sees_all_rows or number is None else number
        for index in range(len(self._cotangents), number):
            if self.sees_all_rows:
                v = self.problem.zeros(rows)
                v[index] = 1.0
                self._cotangents.append(ProbeCotangent(v, self.row(index)))
            else:
                v = self._draw(rows)
                # The first looks at each output alone: a derivative may depend on which cotangents there are.
                vjp = self.problem.vjp if index else self.problem.vjp_by_output
                self._cotangents.append(ProbeCotangent(v, vjp(v)))
        return self._cotangents[:number]

    def largest_residual(self, cotangents: Sequence[ProbeCotangent], directions: Sequence[ProbeDirection]) -> float:
        """The largest |v·D - (Jᵀv)·u| among these, the first of those that were drawn; NaN if one of them is."""
        worst, rows, columns = self._gaps
        # Pair by pair: few numbers are sooner multiplied than put together, and many need not be copied.
        for number, (v, vjp) in enumerate(cotangents):
            for u, difference, _, _ in directions[columns if number < rows else 0 :]:
                gap = abs(float(v @ difference) - float(vjp @ u))
                if not gap <= worst:
                    worst = gap if worst == worst else worst
        if len(cotangents) >= rows and len(directions) >= columns:
            self._gaps = worst, len(cotangents), len(directions)
        return worst

    def row(self, index: int, *, keep: bool = True) -> Array:
        """One row of J by a backward pass that starts at its output alone."""
        if index in self._rows:
            return self._rows[index]
        codomain = self.problem.codomain
        output = codomain.leaf_of(index)
        cotangent = self.problem.zeros(codomain.leaves[output].coordinates.size)
        cotangent[index - codomain.offsets[output]] = 1.0
        row = self.problem.vjp_of_output(output, cotangent)
        if keep:
            self._rows[index] = row
        return row

    @property
    def proportion(self) -> Proportion:
        """The first codirections again, times a number by which a product rounds no differently."""
        if self._proportion is None:
            self._proportion = self._in_proportion()
        return self._proportion

    def _in_proportion(self) -> Proportion:
        probes, problem = self.probe_cotangents(1), self.problem
        if not probes or not problem.domain.size or not problem.ordinary:
            return Proportion(False, [])
        for v, vjp in probes:
            if not problem.equal(problem.vjp_by_output(v * FACTOR), vjp * FACTOR):
                return Proportion(False, problem.gradient_misfits())
        return Proportion(True, problem.gradient_misfits())

    @cached_property
    def at_zero(self) -> AtZero:
        """The backward pass of a zero cotangent.

        Rules of the framework's own that keep proportion give nothing for nothing: where that was asked already, as the
        classical call does first, they are not asked again.
        """
        problem = self.problem
        if self._proportion is not None and self._proportion.kept and problem.is_known_builtin:
            return AtZero(None, self._proportion.misfits)
        gradient = problem.vjp_undefined(())
        return AtZero(gradient, problem.gradient_misfits())

    def use_scheme(self, scheme: int) -> None:
        """From now on walk the directions in this of the ways; other directions are drawn for it."""
        if scheme != self._scheme:
            self._scheme = scheme
            self._directions, self._pushes, self._gaps = [], [], _NONE_YET

    def _walk(self, number: int) -> ProbeDirection:
        stencil, widening = SCHEMES[self._scheme]
        problem, step = self.problem, widening * self.options.step
        move = problem.move(self._displacement(number, step))
        difference, rows = self._along(stencil, move), problem.codomain.size
        if not problem.nondifferentiable.size:
            return ProbeDirection(move.vector, difference, None, step)
        return ProbeDirection(move.vector, difference[:rows], difference[rows:], step)

    def difference_along(self, displacement: Array) -> Array:
        """J times a displacement by central differences, over codomain and silent outputs."""
        return self._along(CENTRAL, self.problem.move(displacement))

    def _along(self, stencil: Stencil, move: Move) -> Array:
        try:
            return stencil.along(self.problem, move)
        except Exception as error:
            self._raise_unless_repeated(error, stencil, move)
            raise OutOfReachError("the function raises at a point next to the one that is checked") from error

    def _raise_unless_repeated(self, error: Exception, stencil: Stencil, move: Move) -> None:
        """An exception that does not come back at the same points is not about the points, and escapes."""
        try:
            stencil.along(self.problem, move)
        except Exception:
            return
        raise error

    def _displacement(self, number: int, step: float) -> Array:
        if not self.sees_all_columns:
            return self._draw(self.problem.domain.size, step)
        displacement = self.problem.zeros(self.problem.domain.size)
        displacement[number] = step
        return displacement
