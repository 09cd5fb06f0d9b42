"""One request from what the user passed to the report: bind, look in the precision given, look in double precision."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from gradvet.api.points import PointSettings, generated_points
from gradvet.api.replay_command import replay
from gradvet.checks.catalogue import (
    COMPILE,
    ELSEWHERE,
    EXACT,
    FORWARD,
    REGISTRATION,
    SECOND_ORDER,
    SLOPES,
    SUBSTITUTING,
    VALUES,
    Selection,
)
from gradvet.checks.precision import precision_against
from gradvet.checks.second_order import composition, symmetry
from gradvet.checks.toolchain import compiled_against, registered
from gradvet.core.context import Context
from gradvet.core.provenance import environment, source_of
from gradvet.core.results import Finding, Report, Verdict
from gradvet.core.runner import CheckFunction, make_report, run_checks
from gradvet.core.vectors import all_finite
from gradvet.errors import DerivativeError, InvalidProblemError, OutputsChangedError
from gradvet.frontends.torch.binding import Binding, Request, bind
from gradvet.frontends.torch.bound_problem import BoundProblem, require_output
from gradvet.frontends.torch.compilation import compiled_twin, draws_random_numbers
from gradvet.frontends.torch.compositions import second_order_problem
from gradvet.frontends.torch.preservation import preserved_state
from gradvet.frontends.torch.randomness import preserved_rng
from gradvet.frontends.torch.reference import reference_of
from gradvet.frontends.torch.registration import registration
from gradvet.frontends.torch.semantics import add_sparse_note, remarks, with_other_semantics_tried
from gradvet.frontends.torch.support import is_unsupported_error
from gradvet.options import Options

VECTORS = 16
"""About so many vectors of the size of the inputs exist at a time."""


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What is to be examined."""

    order: int
    selection: Selection
    generated_points: PointSettings | None = None
    bytes: int | None = None


def run_pipeline(request: Request, wanted: PipelineSettings, options: Options) -> Report:
    """The report about one function at one point."""
    if wanted.order not in (1, 2):
        raise InvalidProblemError(f"order is 1 or 2, found {wanted.order!r}")
    started = time.perf_counter()
    with preserved_rng():
        binding, left_out = _within(bind(request), wanted.bytes)

        def examined(masked: bool) -> Report:
            settings = replace(options, masked=masked)
            with preserved_state(request.func, binding.arguments):
                return _examined(request, binding, wanted, settings, left_out)

        try:
            report = examined(options.masked)
        except (RuntimeError, OutputsChangedError) as error:
            add_sparse_note(error, binding.arguments, options.masked)
            raise
        if report.failures:
            report = with_other_semantics_tried(report, binding.arguments, options.masked, examined)
    return replace(
        report,
        seconds=time.perf_counter() - started,
        source=source_of(request.func),
        environment=environment(),
    )


def _examined(
    request: Request, binding: Binding, wanted: PipelineSettings, options: Options, left_out: Sequence[str]
) -> Report:
    problem = BoundProblem(binding, options.seed, options.masked)
    require_output(problem)
    context = Context(problem, options)
    for note in (*binding.notes, *remarks(problem), *_undefined_values(problem)):
        context.record.note(note)
    findings = tuple(_preflight(context, wanted.selection))
    if not findings:
        reference = _reference(context, problem, request, options)
        sharp = reference or context
        findings = (
            *_exact(context, wanted),
            *_something(_slopes(sharp, wanted)),
            *_precision(context, reference, wanted),
            *_second_order(sharp, wanted),
        )
        findings = (
            *findings,
            *_elsewhere(sharp, request, wanted, findings),
            *toolchain(context, request, wanted.selection),
        )
    points = {"points": "None"} if wanted.generated_points is None else wanted.generated_points.settings
    again = replay(request, wanted.order, wanted.selection, wanted.bytes, options, points)
    return make_report(binding.title, context, findings, again, left_out)


def _undefined_values(problem: BoundProblem) -> Iterator[str]:
    rows = problem.codomain.size
    if not all_finite(values := problem.value[:rows]):
        lost = rows - int(values.isfinite().sum())
        yield f"{lost} of {rows} numbers that the function returns are not finite: their derivatives were not compared"


def _preflight(context: Context, selection: Selection) -> Iterator[Finding]:
    """One plain backward pass: where the user's derivative raises, that is the finding, and there is no other.

    Without a reverse mode, or with one that nobody asked about and that raises, the rest goes on without.
    """
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
    try:
        _ = context.random_vjp
    except DerivativeError as error:
        if "reverse" not in selection:
            context.reversible = False
            return
        advice = "Nothing else was checked: first let backward run on a plain cotangent."
        yield Finding("reverse", Verdict.FAIL, str(error), facts={"raised": str(error)}, advice=advice)
    except Exception as error:
        if not is_unsupported_error(error):
            raise
        context.reversible = False


def _something(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, and a word where not one of them compared anything."""
    gathered = tuple(findings)
    yield from gathered
    if gathered and all(finding.verdict is Verdict.SKIPPED for finding in gathered):
        yield Finding(
            gathered[0].check,
            Verdict.INCONCLUSIVE,
            f"no derivative could be compared with the function: {gathered[0].headline}",
            advice="The operators have no derivative for such inputs: this says nothing about the gradient.",
        )


def _within(binding: Binding, limit: int | None) -> tuple[Binding, list[str]]:
    """The inputs whose vectors fit into the memory given, the smallest first, and a word about the others."""
    lengths = {place: binding.arguments[place].numel() for place in binding.checked}
    kept: list[int] = []
    for place in sorted(lengths, key=lambda place: lengths[place]):
        if limit is None or VECTORS * 8 * (sum(lengths[k] for k in kept) + lengths[place]) <= limit:
            kept.append(place)
    if not kept:
        smallest = VECTORS * 8 * min(lengths.values())
        raise InvalidProblemError(f"no input fits into {limit} bytes; the smallest one needs about {smallest}")
    if len(kept) == len(lengths):
        return binding, []
    names = ", ".join(binding.names[place] for place in lengths if place not in kept)
    share = 100.0 * sum(lengths[place] for place in kept) / sum(lengths.values())
    line = f"not exercised: {names}: no memory; {share:.2g} % of the elements of the inputs were checked"
    return binding.restricted(kept), [line]


def _exact(context: Context, wanted: PipelineSettings) -> Iterator[Finding]:
    # A circumstance that the function refuses is not a mistake in its derivative.
    yield from run_checks(context, _fitting(context, wanted.selection.of_these(EXACT)), lambda error: True)


def _slopes(context: Context, wanted: PipelineSettings) -> Iterator[Finding]:
    if context.problem.codomain.leaves:
        yield from run_checks(context, _fitting(context, wanted.selection.of_these(SLOPES)), is_unsupported_error)


def _fitting(context: Context, checks: dict[str, CheckFunction]) -> dict[str, CheckFunction]:
    """Without the checks that make no sense where a surrogate gives the values, or where captured tensors are read."""
    if not context.reversible:
        checks = {name: check for name, check in checks.items() if name in VALUES | FORWARD}
    if isinstance(context.problem, BoundProblem) and context.problem.binding.surrogate is not None:
        checks = {name: check for name, check in checks.items() if name not in VALUES}
    if "interleaving" in checks:
        with suppress(Exception):
            _ = context.interleaved  # what is called in between shows as a rule that the function reads its arguments
    if not SUBSTITUTING.intersection(checks) or not _reads_captured(context):
        return checks
    context.record.note(
        "the function reads tensors that it captured instead of its arguments: they were moved in place"
    )
    return {name: check for name, check in checks.items() if name not in SUBSTITUTING}


def _reads_captured(context: Context) -> bool:
    if context.captured is None:
        try:
            context.captured = bool(context.problem.codomain.size) and context.problem.variants.reads_captured()
        except Exception:  # the function refuses to be moved that far
            context.captured = False
    return context.captured


def _precision(context: Context, reference: Context | None, wanted: PipelineSettings) -> Iterator[Finding]:
    if reference is not None and "precision" in wanted.selection and context.problem.codomain.size:
        yield from run_checks(context, {"precision": precision_against(reference)}, is_unsupported_error)


def _second_order(context: Context, wanted: PipelineSettings) -> Iterator[Finding]:
    problem = context.problem
    if wanted.order < 2 or not problem.codomain.size or not isinstance(problem, BoundProblem):
        return
    derived: dict[str, Context] = {}

    def derive(name: str) -> Context:
        if name not in derived:
            inner = second_order_problem(problem, name, context.options.seed)
            inner.cost = problem.cost
            derived[name] = Context(inner, context.options)
            derived[name].deadline = context.deadline
        return derived[name]

    for name in SECOND_ORDER:
        if name in wanted.selection:
            check = composition(name.split("-")[0], partial(derive, name))
            yield from run_checks(context, {name: check}, is_unsupported_error)
    if "symmetry" in wanted.selection:
        check = symmetry(partial(derive, SECOND_ORDER[0]), len(problem.domain.leaves))
        yield from run_checks(context, {"symmetry": check}, is_unsupported_error)


def _elsewhere(
    context: Context, request: Request, wanted: PipelineSettings, here: Sequence[Finding]
) -> Iterator[Finding]:
    """Other points and shapes, unless the slopes at the user's own point are wrong already."""
    chosen = [name for name in ELSEWHERE if name in wanted.selection]
    if wanted.generated_points is None or not chosen or not context.problem.codomain.size:
        return
    verdicts = {found.verdict for found in here if found.check in SLOPES}
    if Verdict.FAIL in verdicts:
        why = "the derivative is wrong at the point given"
    elif Verdict.INCONCLUSIVE in verdicts:
        why = "the point given could not be decided either"
    elif not context.is_double:
        why = "they need float64, which the function refuses"
    elif _reads_captured(context):
        why = "the function reads captured tensors"
    else:
        yield from generated_points(context, request, wanted.generated_points, wanted.selection)
        return
    yield from (Finding(name, Verdict.SKIPPED, why) for name in chosen)


def _reference(context: Context, problem: BoundProblem, request: Request, options: Options) -> Context | None:
    """The same in double precision where the precision given is lower; it shares what is known and spent."""
    if context.is_double or not problem.codomain.leaves:
        return None
    twin = reference_of(problem, request, options.seed)
    if twin is None:
        context.record.note(
            "the function refuses float64 or gives other values there: its slopes are judged in its own precision"
        )
        return None
    twin.cost = problem.cost
    reference = Context(twin, options)
    reference.record, reference.deadline, reference.reversible = context.record, context.deadline, context.reversible
    context.record.note("the formula was checked in float64, and the gradient in low precision against it")
    return reference


def toolchain(context: Context, request: Request, selection: Selection) -> Iterator[Finding]:
    """Both, as far as they are asked for and apply."""
    if REGISTRATION in selection and (complaints := registration(request)) is not None:
        yield from registered(complaints)
    if COMPILE in selection and context.problem.codomain.size and context.problem.domain.size:
        yield from _compiled(context, request)


def _compiled(context: Context, request: Request) -> Iterator[Finding]:
    assert isinstance(context.problem, BoundProblem)
    if draws_random_numbers(request):
        yield Finding(COMPILE, Verdict.SKIPPED, "the function draws random numbers, and compiled code draws others")
        return
    try:
        twin = compiled_twin(context.problem, request)
    except Exception as error:
        words = (str(error).strip().splitlines() or [""])[0][:200]
        yield Finding(COMPILE, Verdict.INCONCLUSIVE, f"torch.compile fails: {type(error).__name__}: {words}")
        return
    yield from run_checks(context, {COMPILE: compiled_against(twin)}, is_unsupported_error)
