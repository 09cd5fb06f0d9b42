"""The stages of one check, from what the user passed to the report.

1. Bind: find the tensors among the arguments and parameters (`frontends`).
2. Preflight: one VJP; if a custom rule raises, that is the only finding.
3. Reference: the same function in float64, if the given precision is lower and the function accepts it.
4. Exact checks in the given precision, then derivatives against differences in the reference.
5. Low precision against the reference, second order, generated points, tools.
6. Report: findings, ledger, notes and cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gradvet.api.points import PointSettings, generated_points
from gradvet.api.replay_command import replay
from gradvet.api.selection import Selection
from gradvet.checks.catalogue import (
    COMPILE,
    EXACT,
    GENERATED,
    PRECISION,
    REGISTRATION,
    SECOND_ORDER,
    SLOPES,
    SYMMETRY,
    Check,
    runnable,
)
from gradvet.checks.precision import precision_against
from gradvet.checks.second_order import composition, symmetry
from gradvet.checks.toolchain import compiled_against, registered
from gradvet.core.context import REFERENCE, Context
from gradvet.core.frontend import Binding, Frontend, Request
from gradvet.core.problem import Problem
from gradvet.core.provenance import environment, source_of
from gradvet.core.results import Finding, Report, Verdict
from gradvet.core.runner import IsUnsupported, make_report, run_checks
from gradvet.core.vectors import all_finite, namespace
from gradvet.errors import DerivativeError, InvalidProblemError, OutputsChangedError
from gradvet.options import Options

VECTORS = 16
"""Number of vectors of the size of the inputs that exist at a time, to estimate the memory of a check."""


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What is checked."""

    order: int
    selection: Selection
    points: PointSettings | None = None
    bytes: int | None = None


def run_pipeline(frontend: Frontend, request: Request, settings: PipelineSettings, options: Options) -> Report:
    """The report about one function at one point."""
    if settings.order not in (1, 2):
        raise InvalidProblemError(f"order is 1 or 2, found {settings.order!r}")
    started = time.perf_counter()
    with frontend.preserved_random_state():
        binding, left_out = _within_memory(frontend.bind(request), settings.bytes)

        def report_for(masked: bool) -> Report:
            with frontend.preserved_state(request.func, binding.arguments):
                return _Pipeline(frontend, request, binding, settings, replace(options, masked=masked)).report(left_out)

        try:
            report = report_for(options.masked)
        except (RuntimeError, OutputsChangedError) as error:
            frontend.add_note(error, binding.arguments, options.masked)
            raise
        if report.failures:
            report = frontend.with_other_semantics_tried(report, binding.arguments, options.masked, report_for)
    seconds = time.perf_counter() - started
    return replace(report, seconds=seconds, source=source_of(request.func), environment=environment())


def _within_memory(binding: Binding, limit: int | None) -> tuple[Binding, list[str]]:
    """The inputs whose vectors fit into the memory given, the smallest first, and a line about the others."""
    sizes = {place: binding.arguments[place].numel() for place in binding.checked}
    kept: list[int] = []
    for place in sorted(sizes, key=lambda place: sizes[place]):
        if limit is None or VECTORS * 8 * (sum(sizes[k] for k in kept) + sizes[place]) <= limit:
            kept.append(place)
    if not kept:
        smallest = VECTORS * 8 * min(sizes.values())
        raise InvalidProblemError(f"no input fits into {limit} bytes; the smallest one needs about {smallest}")
    if len(kept) == len(sizes):
        return binding, []
    names = ", ".join(binding.names[place] for place in sizes if place not in kept)
    share = 100.0 * sum(sizes[place] for place in kept) / sum(sizes.values())
    line = f"not exercised: {names}: no memory; {share:.2g} % of the elements of the inputs were checked"
    return binding.restricted(kept), [line]


class _Pipeline:
    """The stages of one check at one point, under one sparse semantics."""

    def __init__(
        self, frontend: Frontend, request: Request, binding: Binding, settings: PipelineSettings, options: Options
    ) -> None:
        self.frontend, self.request, self.binding = frontend, request, binding
        self.settings, self.options = settings, options
        self.problem = frontend.problem(binding, options.seed, masked=options.masked)

    def report(self, left_out: Sequence[str]) -> Report:
        context = Context.of(self.problem, self.options)
        for note in (*self.frontend.notes(self.problem), *_notes_on_values(self.problem)):
            context.record.note(note)
        context, findings = self._preflight(context)
        if not findings:
            reference = self._reference(context)
            sharp = reference or context
            findings = [
                *self._run(context, EXACT, lambda error: True),
                *_something_compared(self._run(sharp, SLOPES, self.frontend.is_unsupported)),
                *self._precision(context, reference),
                *self._second_order(sharp),
            ]
            findings += [*self._generated_points(sharp, findings), *self._tools(context)]
        settings = self.settings
        points = {"points": "None"} if settings.points is None else settings.points.as_code
        command = replay(self.request, settings.order, settings.selection, settings.bytes, self.options, points)
        asked = any(check.name in settings.selection for check in SLOPES) and bool(self.problem.codomain.leaves)
        title = self.binding.title
        return make_report(title, context, findings, replay=command, left_out=left_out, expects_ledger=asked)

    def _preflight(self, context: Context) -> tuple[Context, list[Finding]]:
        """One VJP: a custom rule that raises is the only finding; without a reverse mode the rest goes on without."""
        problem = context.problem
        if not problem.codomain.size or not problem.domain.size:
            return context, []
        try:
            _ = context.random_vjp
        except DerivativeError as error:
            if "reverse" in self.settings.selection:
                advice = "Nothing else was checked: first make backward run on a plain grad_output."
                facts = {"raised": str(error)}
                return context, [Finding("reverse", Verdict.FAIL, str(error), facts=facts, advice=advice)]
        except Exception as error:
            if not self.frontend.is_unsupported(error):
                raise
        else:
            return context, []
        return replace(context, has_reverse=False), []

    def _reference(self, context: Context) -> Context | None:
        """The same in float64 where the given precision is lower."""
        if context.is_double or not context.problem.codomain.leaves:
            return None
        problem = self.frontend.reference(self.problem, self.request, self.options.seed)
        if problem is None:
            context.record.note(
                "the function refuses float64 or gives other values there: its slopes are judged in its own precision"
            )
            return None
        context.record.note("the formula was checked in float64, and the gradient in low precision against it")
        return context.for_problem(problem, precision=REFERENCE)

    def _run(self, context: Context, checks: Iterable[Check], is_unsupported: IsUnsupported) -> Iterator[Finding]:
        """The selected checks whose needs the function meets.

        The exact checks put the function into conditions that it may refuse; a refusal is no mistake in its derivative.
        """
        if not context.problem.codomain.leaves and checks is SLOPES:
            return
        chosen = [check for check in checks if check.name in self.settings.selection]
        has_surrogate = self.binding.surrogate is not None
        yield from run_checks(context, runnable(chosen, context, has_surrogate=has_surrogate), is_unsupported)

    def _precision(self, context: Context, reference: Context | None) -> Iterator[Finding]:
        if reference is not None and PRECISION in self.settings.selection and context.problem.codomain.size:
            yield from run_checks(context, {PRECISION: precision_against(reference)}, self.frontend.is_unsupported)

    def _second_order(self, context: Context) -> Iterator[Finding]:
        problem, selection = context.problem, self.settings.selection
        if self.settings.order < 2 or not problem.codomain.size:
            return
        known: dict[str, Context] = {}

        def derived(name: str) -> Context:
            if name not in known:
                known[name] = context.for_problem(self.frontend.second_order(problem, name, self.options.seed))
            return known[name]

        for name in SECOND_ORDER:
            if name in selection:
                check = composition(name, partial(derived, name))
                yield from run_checks(context, {name: check}, self.frontend.is_unsupported)
        if SYMMETRY in selection:
            check = symmetry(partial(derived, SECOND_ORDER[0]), len(problem.domain.leaves))
            yield from run_checks(context, {SYMMETRY: check}, self.frontend.is_unsupported)

    def _generated_points(self, context: Context, here: Sequence[Finding]) -> Iterator[Finding]:
        """Other points and shapes, unless the derivative at the given point is wrong or undecided already."""
        selection, settings = self.settings.selection, self.settings.points
        chosen = [name for name in GENERATED if name in selection]
        if settings is None or not chosen or not context.problem.codomain.size:
            return
        verdicts = {found.verdict for found in here if found.check in ("reverse", "forward")}
        if Verdict.FAIL in verdicts:
            why = "the derivative is wrong at the point given"
        elif Verdict.INCONCLUSIVE in verdicts:
            why = "the point given could not be decided either"
        elif not context.is_double:
            why = "they need float64, which the function refuses"
        elif context.reads_captured:
            why = "the function reads captured tensors"
        else:
            yield from generated_points(self.frontend, context, self.request, settings, selection)
            return
        yield from (Finding(name, Verdict.SKIPPED, why) for name in chosen)

    def _tools(self, context: Context) -> Iterator[Finding]:
        """The registration of a custom operator, and torch.compile, as far as they are selected and apply."""
        selection = self.settings.selection
        if (
            REGISTRATION in selection
            and (complaints := self.frontend.registration_complaints(self.request)) is not None
        ):
            yield from registered(complaints)
        if COMPILE not in selection or not context.problem.codomain.size or not context.problem.domain.size:
            return
        if self.frontend.draws_random_numbers(self.request):
            yield Finding(COMPILE, Verdict.SKIPPED, "the function draws random numbers, and compiled code draws others")
            return
        try:
            compiled = self.frontend.compiled(self.problem, self.request)
        except Exception as error:
            words = (str(error).strip().splitlines() or [""])[0][:200]
            yield Finding(COMPILE, Verdict.INCONCLUSIVE, f"torch.compile fails: {type(error).__name__}: {words}")
            return
        yield from run_checks(context, {COMPILE: compiled_against(compiled)}, self.frontend.is_unsupported)


def _notes_on_values(problem: Problem) -> Iterator[str]:
    rows = problem.codomain.size
    if not all_finite(values := problem.value[:rows]):
        xp = namespace(values)
        lost = rows - int(xp.count_nonzero(xp.isfinite(values)))
        yield f"{lost} of {rows} numbers that the function returns are not finite: their derivatives were not compared"


def _something_compared(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, and one more where none of them compared anything."""
    gathered = tuple(findings)
    yield from gathered
    if gathered and all(finding.verdict is Verdict.SKIPPED for finding in gathered):
        yield Finding(
            gathered[0].check,
            Verdict.INCONCLUSIVE,
            f"no derivative could be compared with the function: {gathered[0].headline}",
            advice="The operators have no derivative for such inputs: this says nothing about the gradient.",
        )
