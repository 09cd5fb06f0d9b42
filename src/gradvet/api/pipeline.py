"""The stages of one check, from what the user passed to the report.

1. Bind: find the tensors among the arguments and parameters (`frontends`).
2. Preflight: one VJP; if a custom rule raises, that is the only finding.
3. Wider version: the same function in float64, else in float32, if the given precision is lower and it runs there.
4. Exact checks in the given precision, then derivatives against differences in the wider version.
5. Low precision against the wider version, second order, generated points, tools.
   With a reference, in place of stages 3 to 5: exact checks, the comparison with the reference, tools.
6. Report: findings, ledger, notes and cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from gradvet.api import parts
from gradvet.api.isolation import findings_of_child
from gradvet.api.points import FRAGILE, THOROUGH, Announce, PointSearch, PointSettings
from gradvet.api.validation import MODES, Selection, replay
from gradvet.checks import (
    COMPILE,
    EXACT,
    HIGHER_ORDER,
    POINT_CHECKS,
    PRECISION,
    REFERENCE,
    REGISTRATION,
    SECOND_ORDER,
    SLOPES,
    SYMMETRY,
    Check,
    runnable,
)
from gradvet.checks.determinism import is_repeatable, runs_again
from gradvet.checks.precision import BranchPair, precision_against
from gradvet.checks.reference import about_reference, compared_with, undecided
from gradvet.checks.reference_passes import Reference
from gradvet.checks.second_order import composition, higher_orders, symmetry
from gradvet.checks.transformations import compiled_against, registered
from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.events import one_at_a_time
from gradvet.core.frontend import Binding, Frontend, Request
from gradvet.core.ledger import FLOAT32, FLOAT64, GIVEN, Record, VariationBudget
from gradvet.core.problem import Problem
from gradvet.core.provenance import environment
from gradvet.core.results import Finding, Report, Verdict
from gradvet.core.runner import code_behind, make_report, run_checks, something_compared
from gradvet.core.vectors import all_finite, namespace
from gradvet.errors import DerivativeError, first_line
from gradvet.options import Options

ONE_SHOT = (
    "a second backward pass through the same graph does not give the gradient again, so retain_graph=True must not be "
    "used with this function; every backward pass was checked after a forward pass of its own"
)
COMPILES = "its first call was compiled for long, so it was not called in float64; points='thorough' does so"
CHECKED_IN = "finite differences were taken in {0}; the gradient in the given precision was compared with that in {0}"
NO_WIDER_VERSION = (
    "the function could not be run in higher precision, or returns other values there: it was checked in the given one"
)
REFERENCE_IN_FLOAT32 = (
    "the reference does not run in this precision, or is not finite in it, so its errors are those of float32"
)
OVERWRITES = "The derivative of such a step is not defined: leave it out for the check."
SET_BY_FIRST_CALL = "the first call sets {}: the module was checked as it is after that call"


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The order of derivatives, the selected checks, the points and the memory limit of one check."""

    order: int
    selection: Selection
    points: PointSettings | None = None
    bytes: int | None = None
    precision: str = GIVEN
    """Name of the inputs' precision in the ledger."""
    announce: Announce | None = None
    """Called before the checks that may end the process, which then run in this one."""


@one_at_a_time
def run_pipeline(frontend: Frontend, request: Request, settings: PipelineSettings, options: Options) -> Report:
    """The report about one function at one point."""
    started = time.perf_counter()
    binding, left_out = parts.within_memory(frontend.bind(request), settings.bytes)
    called = (request.func, request.surrogate, request.inputs, request.kwargs)
    given = settings.points.own if settings.points else None

    def report_for(masked: bool) -> Report:
        state = frontend.preserved_state(called, (*binding.arguments, given))
        with state, state:  # twice: the first restoration may be interrupted
            return _Pipeline(frontend, request, binding, settings, replace(options, masked=masked)).report(left_out)

    report = frontend.explained(report_for, binding.arguments, options.masked)
    seconds = time.perf_counter() - started
    return replace(report, seconds=seconds, environment=environment())


@dataclass(frozen=True)
class _Pipeline:
    """The stages of one check at one point, under one sparse semantics."""

    frontend: Frontend
    request: Request
    binding: Binding
    settings: PipelineSettings
    options: Options
    set_by_first_call: tuple[str, ...] = ()
    """The parameters that the first call of a module has set."""

    def report(self, left_out: Mapping[str, int]) -> Report:
        """All stages; `left_out` has the sizes of inputs for which there is no memory, by name."""
        record = Record(variations=VariationBudget(is_limited=not self._is_thorough))
        make = partial(self.frontend.problem, self.binding, self.options.seed, masked=self.options.masked)
        problem = record.variations.first(make)
        written = problem.overwritten_inputs()
        if written and not self.set_by_first_call and self.frontend.settle(self.request, written):
            binding, left_out = parts.within_memory(self.frontend.bind(self.request), self.settings.bytes)
            return replace(self, binding=binding, set_by_first_call=tuple(written)).report(left_out)
        context = Context.of(problem, self.options, record)
        parts.enter_left_out(context, left_out)
        settled = [SET_BY_FIRST_CALL.format(", ".join(self.set_by_first_call))] if self.set_by_first_call else []
        for note in (*settled, *self.frontend.notes(problem), *_notes_on_values(problem)):
            context.record.note(note)
        context, findings = self._preflight(context, written)
        if not findings and self.request.reference is not None:
            findings = [
                *self._run(context, EXACT, may_refuse=True),
                *self._against_reference(context),
                *self._tools(context),
            ]
        elif not findings:
            context, wide = self._with_wider_version(context)
            widest = wide or context  # the context of the highest precision
            findings = parts.compared_in_parts(self.frontend, context, wide, self._compared)
            context.problem.release_graph()
            widest.problem.release_graph()
            findings += self._second_order(widest)
            findings += [*self._generated_points(widest, findings), *self._tools(context)]
            findings += self._in_child(context, findings)
        settings = self.settings
        points = {"points": "None"} if settings.points is None else settings.points.as_code
        command = replay(self.request, settings.order, settings.selection, settings.bytes, self.options, points)
        names = [check.name for check in SLOPES] if self.request.reference is None else [REFERENCE]
        asked = any(name in settings.selection for name in names) and bool(problem.codomain.leaves)
        report = make_report(self.binding.title, context, findings, replay=command, expects_ledger=asked)
        return replace(report, source=code_behind(report, context.problem, self.request.func))

    @property
    def _is_thorough(self) -> bool:
        return self.settings.points is not None and self.settings.points.extent == THOROUGH

    def _preflight(self, context: Context, written: Sequence[str]) -> tuple[Context, list[Finding]]:
        """One VJP: a custom rule that raises is the only finding; without a reverse mode the rest goes on without."""
        problem = context.problem
        if not problem.codomain.size or not problem.domain.size:
            return context, []
        if problem.rules.are_builtin and written:
            words = f"the forward pass overwrites {', '.join(written)}, so it is no function of the values given"
            return context, [Finding("reverse", Verdict.INCONCLUSIVE, words, advice=OVERWRITES)]
        try:
            _ = context.random_vjp
        except DerivativeError as error:
            if "reverse" in self.settings.selection:
                advice = "Nothing else was checked: first make backward run on a plain grad_output."
                facts = {"raised": str(error)}
                return context, [Finding("reverse", Verdict.FAIL, str(error), facts=facts, advice=advice)]
        except Exception as error:
            if not problem.rules.is_unsupported(error):
                raise
        else:
            return self._with_isolated_passes(context, written), []
        return replace(context, has_reverse=False), []

    def _with_isolated_passes(self, context: Context, written: Sequence[str]) -> Context:
        """The context as it is, or with a forward pass on copies of the inputs for every backward pass.

        That is needed where the passes write to their inputs, or where a backward pass uses up what the forward pass
        saved, as that of a selective checkpoint does. A derivative that differs between isolated passes too is random,
        and stays as it is.
        """
        problem = context.problem
        if problem.rules.are_builtin and runs_again(context):
            return context
        overwritten = [*written, *problem.overwritten_inputs()]
        if not overwritten and is_repeatable(context):
            return context
        isolated = context.for_problem(self.frontend.isolated(problem, self.options.seed))
        if not overwritten:
            if not is_repeatable(isolated, context.random_vjp[1]):
                return context
            context.record.note(ONE_SHOT)
        return isolated

    def _with_wider_version(self, context: Context) -> tuple[Context, Context | None]:
        """The context, and the same in float64, else in float32, where the given precision is lower."""
        parts.release_if_large(context)
        if context.is_double or not context.problem.domain.size or not context.problem.codomain.leaves:
            return context, None
        given = context.problem
        is_left_out = not given.rules.are_builtin and context.record.variations.compiles(
            lambda: given.evaluate_at(given.zeros(given.domain.size))
        )
        pair = None if is_left_out else self.frontend.wider_version(given, self.request, self.options.seed)
        if pair is None:
            context.record.note(COMPILES if is_left_out else NO_WIDER_VERSION)
            return context, None
        problem, wide = pair
        if problem is not context.problem:
            context = replace(context, problem=problem)
        _ = context.reads_captured  # which holds for the wider version too
        return context, context.for_problem(wide, precision=FLOAT64 if wide.eps <= thresholds.DOUBLE_EPS else FLOAT32)

    def _run(self, context: Context, checks: Iterable[Check], *, may_refuse: bool = False) -> list[Finding]:
        """The selected checks whose needs the function meets.

        The exact checks put the function into conditions that it may refuse; a refusal is no mistake in its derivative.
        """
        if not context.problem.codomain.leaves and checks is SLOPES:
            return []
        chosen = [check for check in checks if check.name in self.settings.selection]
        has_surrogate = self.request.surrogate is not None
        announce = self.settings.announce
        if announce is not None and chosen:
            announce(chosen[0].name, "inputs that begin elsewhere in memory" if checks is EXACT else "the point given")
        found = run_checks(context, runnable(chosen, context, has_surrogate=has_surrogate), may_refuse=may_refuse)
        if announce is not None and self.frontend.has_lost_device(context.problem):
            raise SystemExit("the device is lost")
        return found

    def _compared(self, pair: tuple[Context, Context | None]) -> list[Finding]:
        """The exact checks, derivatives against differences, and those in low precision against the wider version."""
        context, wide = pair
        widest = wide or context
        parts.release_if_large(widest)
        slopes = partial(self._run, checks=SLOPES)
        exact = self._run(context, EXACT, may_refuse=True)
        if wide is not None:
            context.problem.release_graph()
        found = [*exact, *something_compared(widest, parts.compared_on_smooth_piece(self.frontend, widest, slopes))]
        if not self.options.explains and any(finding.verdict is Verdict.FAIL for finding in found):
            return found
        return [*found, *self._precision(context, wide)]

    def _precision(self, context: Context, wide: Context | None) -> list[Finding]:
        """The gradient in the given precision against that of the wider version, if there is one."""
        if wide is None or PRECISION not in self.settings.selection or not context.problem.codomain.size:
            return []

        def same_branches() -> BranchPair | None:
            found = self.frontend.on_same_branches(context.problem, wide.problem, self.options.seed)
            if found is None:
                return None
            return context.for_problem(found[0]), wide.for_problem(found[1]), found[2]

        rounded = partial(self.frontend.rounded, context.problem)
        modes = [check.name for check in SLOPES if check.name in self.settings.selection] or MODES
        findings = run_checks(context, {PRECISION: precision_against(wide, same_branches, rounded, modes)})
        if not context.out_of_budget:
            context.record.note(CHECKED_IN.format(wide.precision))
        return findings

    def _against_reference(self, context: Context) -> Iterator[Finding]:
        """The kernel against the reference that the user gave, and the reference against differences in float64."""
        if REFERENCE not in self.settings.selection:
            return
        if context.reads_captured:
            yield Finding(REFERENCE, Verdict.INCONCLUSIVE, "the kernel reads captured tensors: pass them as inputs")
            return
        if not context.problem.codomain.size and not context.problem.nondifferentiable.size:
            yield Finding(REFERENCE, Verdict.INCONCLUSIVE, "there is no entry to compare")
            return
        plain, request = self.frontend.plain_problem(context.problem, self.request, self.options.seed)
        pair = (plain, plain) if context.is_double else self.frontend.wider_version(plain, request, self.options.seed)
        if pair is None:
            words = "the reference cannot be run in float64, or returns other values there, so there is no truth"
            advice = "Give a reference of plain torch operations, without random numbers."
            yield Finding(REFERENCE, Verdict.INCONCLUSIVE, words, advice=advice)
            return
        plain, truth = pair
        if plain.eps < context.problem.eps:
            context.record.note(REFERENCE_IN_FLOAT32)
        frontend, precision = self.frontend, self.settings.precision
        tf32 = frontend.tf32_products(context.problem)
        reference = Reference(context.problem, plain, truth, frontend.formats, precision, tf32)
        found = run_checks(context, {REFERENCE: compared_with(reference)})
        reverse = [check for check in SLOPES if check.name == "reverse"]
        # The accuracy that the user grants the kernel does not hold for the reference.
        exact = context.for_problem(truth, precision=FLOAT64, options=replace(self.options, accuracy=0.0))
        of_reference = [about_reference(finding) for finding in self._run(exact, reverse)]
        is_wrong = any(finding.verdict is Verdict.FAIL for finding in of_reference)
        yield from [*of_reference, *map(undecided, found)] if is_wrong else [*found, *of_reference]

    def _second_order(self, context: Context) -> Iterator[Finding]:
        """Second derivatives in each combination of the modes, their symmetry, and derivatives of higher order."""
        problem, selection = context.problem, self.settings.selection
        if self.settings.order < 2 or not problem.codomain.size:
            return

        def derivative(of: Context, modes: str, label: str) -> Context:
            found = self.frontend.second_order(of.problem, modes, self.options.seed)
            record = replace(context.record, about="second order" if label in SECOND_ORDER else label)
            return of.for_problem(found, precision=f"{context.precision}, {label}", record=record)

        derived = cache(lambda name: derivative(context, name, name))
        second = partial(derived, SECOND_ORDER[0])
        checks = {name: composition(name, partial(derived, name)) for name in SECOND_ORDER}
        checks[SYMMETRY] = symmetry(second, len(problem.domain.leaves))
        chosen = {name: check for name, check in checks.items() if name in selection}
        found = something_compared(context, run_checks(context, chosen), "Pass order=1 if there is none by design.")
        yield from found
        if self.settings.order == 2 or HIGHER_ORDER not in selection:
            return
        if any(finding.verdict is Verdict.FAIL for finding in found):
            yield Finding(HIGHER_ORDER, Verdict.SKIPPED, "the second derivative is wrong")
            return
        check = higher_orders(
            self.settings.order, second, lambda of, order: derivative(of, SECOND_ORDER[0], f"order {order}")
        )
        yield from run_checks(context, {HIGHER_ORDER: check})

    def _generated_points(self, context: Context, here: Sequence[Finding]) -> Iterator[Finding]:
        """Other points and shapes, unless the derivative at the given point is wrong or undecided already."""
        selection, settings = self.settings.selection, self.settings.points
        chosen = [name for name in POINT_CHECKS if name in selection]
        if settings is None or not chosen or not context.problem.codomain.size:
            return
        verdicts = {found.verdict for found in here if found.check in ("reverse", "forward")}
        if Verdict.FAIL in verdicts:
            why = "the derivative is wrong at the point given"
        elif Verdict.INCONCLUSIVE in verdicts:
            why = "the point given could not be decided either"
        elif not context.is_double:
            why = "they need float64, which the function refuses"
        elif len(parts.parts_of(context.problem.domain)) > 1:
            why = "the inputs are too large to try others"
        elif context.reads_captured:
            why = "the function reads captured tensors"
        else:
            announce = self.settings.announce
            yield from PointSearch(self.frontend, context, self.request, settings, selection, announce).findings()
            return
        yield from (Finding(name, Verdict.SKIPPED, why) for name in chosen)

    def _in_child(self, context: Context, here: Sequence[Finding]) -> Iterator[Finding]:
        """Other shapes and alignments, in a process of their own where kernels on a device could end this one."""
        problem, selection = context.problem, self.settings.selection
        chosen = [name for name in ("input_layout", "shapes") if name in selection]
        if not chosen or not problem.rules.may_crash:
            return
        if not self._is_thorough:
            if "input_layout" in chosen:
                yield Finding("input_layout", Verdict.SKIPPED, f"inputs that begin elsewhere in memory: {FRAGILE}")
            return
        if any(found.verdict is Verdict.FAIL for found in here):
            yield from (Finding(name, Verdict.SKIPPED, "another check failed") for name in chosen)
            return
        request = replace(self.request, safe_devices=None)
        settings = PipelineSettings(1, frozenset([*chosen, "reverse"]), self.settings.points)
        seconds = context.deadline - time.monotonic()
        yield from findings_of_child((run_pipeline, self.frontend, request, settings, self.options), chosen, seconds)

    def _tools(self, context: Context) -> Iterator[Finding]:
        """The registration of a custom operator, and torch.compile, as far as they are selected and apply."""
        selection = self.settings.selection
        complaints = self.frontend.registration_complaints(self.request) if REGISTRATION in selection else None
        if complaints is not None:
            yield from registered(complaints)
        if COMPILE not in selection or not context.problem.codomain.size or not context.problem.domain.size:
            return
        if context.problem.variants.draws_random_numbers():
            yield Finding(COMPILE, Verdict.SKIPPED, "the function draws random numbers, and compiled code draws others")
            return
        try:
            compiled = self.frontend.compiled(context.problem, self.request)
        except Exception as error:
            words = f"torch.compile fails: {type(error).__name__}: {first_line(error)}"
            yield Finding(COMPILE, Verdict.INCONCLUSIVE, words)
            return
        yield from run_checks(context, {COMPILE: compiled_against(compiled)})


def _notes_on_values(problem: Problem) -> Iterator[str]:
    rows = problem.codomain.size
    if not all_finite(values := problem.value[:rows]):
        xp = namespace(values)
        lost = rows - int(xp.count_nonzero(xp.isfinite(values)))
        yield f"{lost} of {rows} numbers that the function returns are not finite: their derivatives were not compared"
