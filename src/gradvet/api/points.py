"""The same question at other points and shapes: which are tried, and what their answers come to.

INCONCLUSIVE at a point that gradvet chose says nothing about the user's own point, so it is counted, not concluded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from gradvet.checks.catalogue import Selection
from gradvet.checks.points import raising, test_finite, test_point
from gradvet.core.context import Context
from gradvet.core.results import Finding, Verdict
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.binding import Binding, Request, bind
from gradvet.frontends.torch.bound_problem import BoundProblem
from gradvet.frontends.torch.glances import Glance
from gradvet.frontends.torch.points import Neighbourhood, Point, special_points
from gradvet.frontends.torch.shapes import special_shapes
from gradvet.frontends.torch.strategies import examples, is_strategy
from gradvet.frontends.torch.support import is_unsupported_error

SMALL, THOROUGH = "small", "thorough"
EXAMPLES = 8
"""So many examples of a strategy of inputs are tried."""

EMPTY = (
    "empty inputs: all rules are torch's own, and some of its kernels crash at length 0; points='thorough' tries them"
)
"""Why they are left out unless somebody asks."""

DOUBTS = 3
"""So many points that a short look does not settle are looked into, unless the search is thorough."""

TOGETHER = 10_000
"""Up to so many inputs, the graphs of several points are held at a time."""

PROPORTION = 1e10
"""Values that are so much larger than at the user's point have lost the digits that a derivative needs."""

IMMATERIAL = 1e-8
"""Slopes below this part of the steepest one at the user's point are nothing."""


@dataclass(frozen=True, slots=True)
class PointSettings:
    """Which points are tried beside the user's own: some of gradvet's choice, or others of the user's."""

    extent: str = SMALL
    own: Mapping[str, Any] | None = None
    domain: Any = None

    @classmethod
    def of(cls, points: Any, domain: Any, seed: int) -> PointSettings | None:
        """None, "small", "thorough", a list or a mapping of inputs, or a Hypothesis strategy of inputs."""
        if points is None or points is False:
            return None
        if points in (SMALL, THOROUGH) if isinstance(points, str) else False:
            return cls(points, None, domain)
        if is_strategy(points):
            points = examples(points, EXAMPLES, seed)
        if isinstance(points, Mapping):
            return cls(SMALL, {str(name): inputs for name, inputs in points.items()}, domain)
        if isinstance(points, list):
            return cls(SMALL, {f"point {number}": inputs for number, inputs in enumerate(points)}, domain)
        raise InvalidProblemError(
            f"points= is 'small', 'thorough', None, a list of inputs, a mapping of names to inputs, or a Hypothesis "
            f"strategy of inputs; found {points!r}"
        )

    @property
    def settings(self) -> dict[str, str]:
        """What a call that tries the same points is given, as code."""
        points = {} if self.extent == SMALL else {"points": repr(self.extent)}
        points = points if self.own is None else {"points": "points"}
        return points | ({"domain": "domain"} if self.domain is not None else {})

    def of_kind(self, kind: str, request: Request, context: Context) -> Iterator[Point]:
        """The points, or the shapes, to be tried."""
        assert isinstance(context.problem, BoundProblem)
        if self.own is not None:
            for name, inputs in self.own.items() if kind == "points" else ():
                yield Point(name, iter([bind(replace(request, inputs=inputs))]), given=True)
            return
        near = Neighbourhood.of(context.problem.binding, request.func, self.domain, context.options.seed)
        thorough = self.extent == THOROUGH
        variants = context.problem.variants
        brief = not thorough and variants.is_builtin() and not variants.branches_smoothly()
        points = (
            special_points(near, thorough)
            if kind == "points"
            else special_shapes(near, thorough, empty=thorough or not variants.is_builtin())
        )
        for point in points:
            point.brief = brief
            yield point


@dataclass
class _Tally:
    """What came of the points of one kind."""

    exercised: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    doubts: int = 0
    brief: bool = False

    def findings(self, kind: str) -> Iterator[Finding]:
        if self.exercised:
            what = "no gradient that is not finite" if self.brief else "no wrong derivative"
            facts = {"exercised": list(self.exercised), "finiteness alone": self.brief}
            yield Finding(kind, Verdict.PASS, f"{what} at {', '.join(self.exercised)}", facts=facts)
        if self.skipped:
            yield Finding(kind, Verdict.SKIPPED, "; ".join(self.skipped), facts={"skipped": list(self.skipped)})


def generated_points(context: Context, request: Request, wanted: PointSettings, selection: Selection) -> list[Finding]:
    """Findings about points and shapes; after the first that fails, no more of its kind are tried.

    What the function warns about at points that nobody asked for is not passed on.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(_findings(context, request, wanted, selection))


def _findings(context: Context, request: Request, wanted: PointSettings, selection: Selection) -> Iterator[Finding]:
    modes = [mode for mode in ("reverse", "forward") if mode in selection]
    modes = modes if wanted.extent == THOROUGH else modes[:1]
    for kind in ("points", "shapes"):
        if kind not in selection or not modes:
            continue
        unasked = kind == "shapes" and wanted.extent != THOROUGH and wanted.own is None
        if unasked and _is_fragile(context):
            yield Finding(kind, Verdict.SKIPPED, "kernels of your own on a device; points='thorough' tries them")
            continue
        yield from _of_kind(kind, context, wanted.of_kind(kind, request, context), modes, wanted)
        if unasked and context.problem.variants.is_builtin() and _has_lengths(context):
            yield Finding(kind, Verdict.SKIPPED, EMPTY)


def _is_fragile(context: Context) -> bool:
    """Whether other lengths may do harm: a read beyond the end is an error that a device does not recover from."""
    assert isinstance(context.problem, BoundProblem)
    return context.problem.home.type != "cpu" and not context.problem.variants.is_builtin()


def _has_lengths(context: Context) -> bool:
    assert isinstance(context.problem, BoundProblem)
    return any(tensor.dim() for tensor in context.problem.inputs)


def _of_kind(
    kind: str, context: Context, points: Iterable[Point], modes: list[str], wanted: PointSettings
) -> Iterator[Finding]:
    tally = _Tally()
    glance = _glance(context)
    for point in _unsettled(points, context, modes, tally, glance):
        if context.out_of_time:
            tally.skipped.append(f"{point.name} and the following (the time that was given is spent)")
            break
        if tally.doubts >= DOUBTS and wanted.extent != THOROUGH:
            tally.skipped.append(f"{point.name} and the following (too many kinks; points='thorough' tries them)")
            break
        found = _answer(point, context, modes, glance)
        tally.brief = point.brief
        tally.doubts += found.verdict is Verdict.INCONCLUSIVE
        if found.verdict is Verdict.FAIL or (wanted.own is not None and found.verdict is Verdict.INCONCLUSIVE):
            yield _named(kind, point.name, found)
            if found.verdict is Verdict.FAIL:
                break
        elif found.verdict is Verdict.PASS:
            tally.exercised.append(point.name)
        else:
            tally.skipped.append(f"{point.name} ({found.headline})")
    yield from tally.findings(kind)


def _unsettled(
    points: Iterable[Point], context: Context, modes: list[str], tally: _Tally, glance: Glance
) -> Iterator[Point]:
    """The points, after a glance at all of them together; none where that settles them."""
    if not context.reversible or context.problem.domain.size > TOGETHER:
        yield from points
        return
    gathered = [(point, next(point.forms, None)) for point in points]
    brief = [form for point, form in gathered if point.brief and form is not None]
    if len(brief) == len(gathered) > 1 and glance.are_finite(*brief):
        tally.brief = True
        tally.exercised += [point.name for point, _ in gathered]
        return
    seen = [(point, form) for point, form in gathered if form and _may_be_glanced_at(point, form, context, modes)]
    for (point, _), answer in zip(seen, glance.agree([form for _, form in seen]), strict=True):
        point.agrees = answer
    for point, form in gathered:
        point.forms = chain([form] if form else [], point.forms)
        yield point


def _named(kind: str, point: str, found: Finding) -> Finding:
    facts = {**found.facts, "point": point}
    return replace(found, check=kind, headline=f"at {point}: {found.headline}", facts=facts)


def _glance(context: Context) -> Glance:
    most = PROPORTION * max(context.largest, 1.0)
    return Glance(most, IMMATERIAL * context.steepest, context.options.seed, context.problem.cost)


def _answer(point: Point, context: Context, modes: list[str], glance: Glance) -> Finding:
    """What the first form of the point at which the function is at home shows; the worst of the modes."""
    answer = Finding("", Verdict.SKIPPED, "nothing to change")
    for form in point.forms:
        if point.brief and context.reversible and glance.are_finite(form):
            return Finding("", Verdict.PASS, "finite")
        agrees, point.agrees = point.agrees, None
        if agrees is None and _may_be_glanced_at(point, form, context, modes):
            agrees = glance.agree([form])[0]
        if agrees:
            return Finding("", Verdict.PASS, "agrees")
        try:
            there = _context_at(form, context)
        except InvalidProblemError:
            raise
        except Exception as error:
            answer = Finding("", Verdict.SKIPPED, f"refused: {type(error).__name__}")
            continue
        if not point.given and there.largest > glance.most:
            answer = Finding("", Verdict.SKIPPED, "values out of all proportion")
            continue
        for mode in modes:
            answer = _tested(there, mode, test_finite if point.brief else test_point)
            if answer.verdict is not Verdict.PASS:
                break
        if answer.verdict is not Verdict.SKIPPED:
            return answer
    return answer


def _may_be_glanced_at(point: Point, form: Binding, context: Context, modes: list[str]) -> bool:
    """Whether the function's own values along one line are all that is asked for, and tell the same each time."""
    asked = not point.brief and not point.given and modes == ["reverse"] and form.surrogate is None
    return asked and context.reversible and context.is_steady


def _tested(there: Context, mode: str, cotangent: Callable[[Context, str], Finding]) -> Finding:
    try:
        return cotangent(there, mode)
    except InvalidProblemError:
        raise
    except Exception as error:
        return raising(there, mode, error, is_unsupported_error)


def _context_at(binding: Binding, context: Context) -> Context:
    """The same trial at another point; it shares the time and the cost."""
    assert isinstance(context.problem, BoundProblem)
    problem = BoundProblem(binding, context.options.seed, context.problem.masked)
    context.problem.cost.forwards += problem.cost.forwards
    problem.cost = context.problem.cost
    there = Context(problem, context.options)
    there.deadline, there.reversible = context.deadline, context.reversible
    there.immaterial = IMMATERIAL * context.steepest
    if context.is_steady:
        there.repeat_noise = problem.zeros(problem.codomain.size)
    return there
