"""The comparison at generated points and shapes: which are tried, and how their results combine.

An inconclusive result at a generated point does not affect the report's verdict; it is listed under coverage.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import chain
from typing import Any

from gradvet.api.validation import Selection, refuse
from gradvet.checks.jacobian import failure
from gradvet.core import thresholds
from gradvet.core.confirmation import is_confirmed
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Reason
from gradvet.core.frontend import Frontend, Point, Request, examples, is_strategy
from gradvet.core.ledger import Record
from gradvet.core.line_test import screen_point
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.problem import Distribution, Problem
from gradvet.core.results import Finding, Verdict
from gradvet.core.slope_test import decide_slopes
from gradvet.core.vectors import Array, all_finite, is_zero, peak
from gradvet.errors import DerivativeError, InvalidProblemError, UnsupportedError, first_line

POINT_CALLS = 600
"""Forward passes at one generated point, at most. Of the gallery's points that are decided none takes more than 410.
Needed by `test_evaluations_at_generated_points_of_a_model_are_bounded`."""

DOMAIN_ADVICE = "If the function is not meant for such inputs, pass domain=."
"""Advice about a failure at a generated point. Needed by `test_failure_at_a_generated_point_names_the_domain`."""


def compare_at_point(context: Context, mode: Mode) -> Finding:
    """One generated point in one mode: the screen, then the full test where that leaves it open.

    FAIL only where `is_confirmed` agrees; SKIPPED where the function itself is not finite.
    """
    problem = context.problem
    if not all_finite(problem.value):
        return Finding(mode.name, Verdict.SKIPPED, "values not finite")
    if not problem.codomain.leaves:
        return Finding(mode.name, Verdict.SKIPPED, "no derivative")
    if not problem.codomain.size or not problem.domain.size:
        problem.vjp(problem.zeros(problem.codomain.size))
        return Finding(mode.name, Verdict.PASS, "there is no entry to compare")
    if screen_point(context, mode):
        return Finding(mode.name, Verdict.PASS, "agrees")
    decision, context = decide_slopes(context, mode)
    if decision.verdict is Verdict.FAIL and not is_confirmed(context, decision):
        decision = decision.weakened(decision.reason)
    if decision.verdict is not Verdict.FAIL:
        return Finding(mode.name, decision.verdict, decision.reason.value)
    convention = _convention(context, decision)
    return Finding(mode.name, Verdict.INCONCLUSIVE, convention) if convention else failure(context, mode, decision)


def has_finite_gradient(problem: Problem, v: Array) -> bool:
    """Whether values and Jᵀv are finite at a generated point. One VJP.

    Enough for builtin rules: the numbers that they give at kinks and ties are conventions.
    """
    is_empty = not problem.codomain.size or not problem.domain.size
    return not is_empty and all_finite(problem.value) and all_finite(problem.vjp(v))


def finding_of_exception(problem: Problem, mode: Mode, error: Exception) -> Finding:
    """The finding about an exception: a custom rule that raises at inputs that the function accepts is wrong there."""
    leaves = (*problem.domain.leaves, *problem.codomain.leaves)
    words = first_line(error, 160)
    if isinstance(error, DerivativeError) and all(leaf.coordinates.size for leaf in leaves):
        return Finding(mode.name, Verdict.FAIL, f"{words}, though the forward pass accepts these inputs")
    if isinstance(error, UnsupportedError) or problem.rules.is_unsupported(error):
        return Finding(mode.name, Verdict.SKIPPED, "the operators have no derivative there")
    return Finding(mode.name, Verdict.INCONCLUSIVE, f"the check raised {type(error).__name__}: {words}")


def _convention(context: Context, decision: Decision) -> str:
    """Why a derivative is not blamed: builtin rules follow a convention or a documented limit, or values are rounded.

    Needed by `matrix_root_by_eigenvectors` and `best_rank_one_matrix`, which fail without it.
    """
    rules = context.problem.rules
    if decision.reason is Reason.NOT_FINITE:
        if rules.decomposes:
            return "equal eigenvalues or singular values"
        return "the framework's own operator has no finite derivative" if rules.calls_one_operator() else ""
    if not context.computes_in_io_dtype:
        return "values inside the function are rounded to a coarser format than that of the inputs"
    if not rules.are_builtin or rules.is_smooth_branch or decision.entry is None:
        return ""
    entry = decision.entry
    return (
        f"the framework's own operators together give {entry.derivative:.4g} for d {entry.output} / d {entry.input}, "
        f"where the slope is {entry.numerical:.4g}"
    )


SMALL, THOROUGH = "small", "thorough"
EXAMPLES = 8
"""Number of examples that are drawn from a strategy of inputs."""

NO_EMPTY_SHAPES = (
    "empty inputs: all rules are torch's own, and some of its kernels crash at length 0; points='thorough' tries them"
)
FRAGILE = (
    "custom kernels on a device, where a fault ends the process; points='thorough' tries them in a process of its own"
)

AT_ZEROS = ("zeros", "the origin")
"""Generated points of exact zeros."""

Announce = Callable[[str, str], None]
"""Called with the name of a check and what it tries next."""

MAX_INCONCLUSIVE = 3
"""Number of inconclusive points after which the search ends, unless it is thorough."""


@dataclass(frozen=True, slots=True)
class PointSettings:
    """Which points are tried beside the given one: generated ones, or others that the user gives."""

    extent: str = SMALL
    own: Mapping[str, Any] | None = None
    domain: Any = None

    @classmethod
    def of(cls, points: Any, domain: Any, seed: int) -> PointSettings | None:
        """None, "small", "thorough", a list or a mapping of inputs, or a Hypothesis strategy of inputs."""
        if points is None or points is False:
            return None
        if isinstance(points, str) and points in (SMALL, THOROUGH):
            return cls(points, None, domain)
        if is_strategy(points):
            points = examples(points, EXAMPLES, seed)
        if isinstance(points, (Mapping, list)) and not points:
            raise InvalidProblemError("points= has no inputs: leave it out, or pass None to try no other points")
        if isinstance(points, Mapping):
            return cls(SMALL, {str(name): inputs for name, inputs in points.items()}, domain)
        if isinstance(points, list):
            return cls(SMALL, {f"point {number}": inputs for number, inputs in enumerate(points)}, domain)
        refuse(
            "points= is 'small', 'thorough', None, a list of inputs, a mapping of names to inputs, or a Hypothesis "
            "strategy of inputs",
            points,
        )

    @property
    def as_code(self) -> dict[str, str]:
        """The arguments of a call that tries the same points."""
        points = {} if self.extent == SMALL else {"points": repr(self.extent)}
        points = points if self.own is None else {"points": "points"}
        return points | ({"domain": "domain"} if self.domain is not None else {})


@dataclass(eq=False)
class PointSearch:
    """The comparison at the generated or given points and shapes of one problem."""

    frontend: Frontend
    context: Context
    request: Request
    settings: PointSettings
    selection: Selection
    announce: Announce | None = None

    def __post_init__(self) -> None:
        context, settings, self.problem = self.context, self.settings, self.context.problem
        self.is_thorough = settings.extent == THOROUGH
        modes = [mode for mode in (REVERSE, FORWARD) if mode.name in self.selection]
        self.modes: Sequence[Mode] = modes if self.is_thorough else modes[:1]
        self._asked = (self.problem, self.request, settings.domain, context.options.seed)
        self._cotangent = cache(partial(self.problem.random, distribution=Distribution.NEAR_UNIT))
        """A random cotangent of a size, the same for all points."""
        rules = self.problem.rules
        self.is_builtin = rules.are_builtin
        is_convention = self.is_builtin and not rules.is_smooth_branch
        is_approximate = context.options.accuracy > 0.0 and settings.domain is None
        self.finite_only = settings.own is None and not self.is_thorough and (is_convention or is_approximate)
        """Whether gradients are tested for finiteness alone: the rest is convention of builtin rules, or the accuracy
        of a solver, which the user knows at the given point. Needed by
        `test_accuracy_is_that_at_the_given_point_and_inside_the_domain`."""

    def findings(self) -> Iterator[Finding]:
        """Findings about points and shapes; after the first failure no more of its kind are tried.

        Warnings of the function at these points are not passed on.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for kind, points in (("points", self.points), ("shapes", self.shapes)):
                if kind in self.selection and self.modes:
                    yield from points()

    @cached_property
    def _conditions(self) -> dict[str, Any]:
        """The changes of the context that all generated points have in common."""
        context = self.context
        steepest = peak(context.slope_of(context.first)) if self.problem.codomain.size else 0.0
        return {
            "is_generated": True,
            "is_known_deterministic": is_zero(context.repeat_noise),
            "immaterial_slope": self.problem.eps**thresholds.HALF_THE_DIGITS * steepest,
        }

    def points(self) -> Iterator[Finding]:
        if self.settings.own is None:
            found = self.frontend.points(*self._asked, thorough=self.is_thorough)
            return self._tested("points", found)
        return self._tested("points", self._given_points(self.settings.own))

    def _given_points(self, own: Mapping[str, Any]) -> Iterator[Point]:
        for name, inputs in own.items():
            binding = self.frontend.bind(replace(self.request, inputs=inputs))
            yield Point(name, iter([binding]), given=True)

    def shapes(self) -> Iterator[Finding]:
        if self.settings.own is not None:
            return
        if self.problem.rules.may_crash:
            # A read beyond the end of a buffer is an error that a device does not recover from.
            if not self.is_thorough:
                yield Finding("shapes", Verdict.SKIPPED, FRAGILE)
            return
        empty = self.is_thorough or not self.is_builtin
        found = self.frontend.shapes(*self._asked, thorough=self.is_thorough, empty=empty)
        if (first := next(found, None)) is None:
            return
        yield from self._tested("shapes", chain([first], found))
        if not empty:
            yield Finding("shapes", Verdict.SKIPPED, NO_EMPTY_SHAPES)

    def _tested(self, kind: str, points: Iterable[Point]) -> Iterator[Finding]:
        """A failure as soon as there is one; then what was tried without one, and what was left out."""
        exercised: list[str] = []
        skipped: list[str] = []
        inconclusive = 0
        for point in points:
            if reason := self._reason_to_end(kind, inconclusive):
                skipped.append(f"{point.name} and the following ({reason})")
                if point.given:
                    yield Finding(kind, Verdict.INCONCLUSIVE, f"not tried: {skipped[-1]}")
                break
            found = self._noted_only(kind, point, self._announced(kind, point))
            if point.given and found.verdict is Verdict.SKIPPED:
                found = Finding(kind, Verdict.INCONCLUSIVE, found.headline)
            inconclusive += found.verdict is Verdict.INCONCLUSIVE
            if found.verdict is Verdict.FAIL or (point.given and found.verdict is Verdict.INCONCLUSIVE):
                headline = f"at {point.name}: {found.headline}"
                is_generated = kind == "points" and not point.given and self.settings.domain is None
                advice = f"{found.advice} {DOMAIN_ADVICE}".strip() if is_generated else found.advice
                facts = {**found.facts, "point": point.name}
                yield replace(found, check=kind, headline=headline, facts=facts, advice=advice)
                if found.verdict is Verdict.FAIL:
                    break
            elif found.verdict is Verdict.PASS:
                exercised.append(point.name)
            else:
                skipped.append(f"{point.name} ({found.headline})")
        if exercised:
            what = "no gradient that is not finite" if self.finite_only else "no wrong derivative"
            facts = {"exercised": exercised, "finiteness alone": self.finite_only}
            yield Finding(kind, Verdict.PASS, f"{what} at {', '.join(exercised)}", facts=facts)
        if skipped:
            yield Finding(kind, Verdict.SKIPPED, "; ".join(skipped), facts={"skipped": skipped})

    def _noted_only(self, kind: str, point: Point, found: Finding) -> Finding:
        """The finding, or a note where it is that builtin rules or a solver overflow at numbers the user did not give.

        Exact zeros occur in all data (`energy_by_norm_of_unseen_zero_row`). Needed by `divergence_of_softmax`.
        """
        is_range = kind == "points" and self.settings.domain is None and point.name not in AT_ZEROS
        if found.verdict is not Verdict.FAIL or not self.finite_only or not is_range:
            return found
        whose = "all rules are torch's own" if self.is_builtin else "accuracy= is about your inputs"
        self.context.record.note(f"at {point.name}: {found.headline} ({whose}); domain= or points= tests such inputs")
        return Finding(found.check, Verdict.SKIPPED, "the gradient is not finite there")

    def _reason_to_end(self, kind: str, inconclusive: int) -> str:
        """Why no more points of a kind are tried after this number of inconclusive ones; nothing if more are."""
        if self.context.out_of_budget:
            return "the time budget was spent"
        if inconclusive >= MAX_INCONCLUSIVE and not self.is_thorough:
            return "too many kinks; points='thorough' tries them"
        variations = self.context.record.variations
        return variations.reason if kind == "shapes" and variations.is_spent else ""

    def _announced(self, kind: str, point: Point) -> Finding:
        """The result at one point, which is announced before; the time of a shape counts as that of a variation."""
        if self.announce is not None:
            self.announce(kind, point.name)
        test = partial(self._first_form, point)
        found = self.context.record.variations.measured(test) if kind == "shapes" else test()
        if self.announce is not None and self.frontend.has_lost_device(self.problem):
            raise SystemExit("the device is lost")
        return found

    def _first_form(self, point: Point) -> Finding:
        """The result at the first form of the point that the function accepts; the worst of the modes."""
        finding = Finding("", Verdict.SKIPPED, "nothing to change")
        for form in point.forms:
            try:
                problem = self.problem.rebound(form, self.context.options.seed)
            except InvalidProblemError:
                raise
            except Exception as error:
                finding = Finding("", Verdict.SKIPPED, f"refused: {type(error).__name__}")
                continue
            there = None if self.finite_only else self._context_of(problem)
            for mode in self.modes:
                finding = self._in_mode(problem, there, mode)
                if finding.verdict is not Verdict.PASS:
                    break
            if finding.verdict is not Verdict.SKIPPED:
                return finding
        return finding

    def _in_mode(self, problem: Problem, there: Context | None, mode: Mode) -> Finding:
        """The finding about one point; without a context the full test follows only where a gradient is not finite."""
        try:
            if there is None and has_finite_gradient(problem, self._cotangent(problem.codomain.size)):
                return Finding(mode.name, Verdict.PASS, "finite")
            return compare_at_point(there or self._context_of(problem), mode)
        except InvalidProblemError:
            raise
        except Exception as error:
            return finding_of_exception(problem, mode, error)

    def _context_of(self, problem: Problem) -> Context:
        """A context at another point. Its ledger and notes are its own."""
        record = Record(variations=self.context.record.variations)
        return self.context.limited(POINT_CALLS).for_problem(problem, record=record, **self._conditions)
