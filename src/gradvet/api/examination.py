"""One request from what the user passed to the report: bind, look in the precision given, look in double precision."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from gradvet.api.catalogue import (
    ELSEWHERE,
    EXACT,
    FORWARD,
    SECOND_ORDER,
    SLOPES,
    SUBSTITUTING,
    VALUES,
    Selection,
)
from gradvet.api.elsewhere import Elsewhere, elsewhere
from gradvet.api.replay import replay
from gradvet.api.toolchain import toolchain
from gradvet.checks.precision import precision_against
from gradvet.checks.second_order import composition, symmetry
from gradvet.core.arithmetic import all_finite
from gradvet.core.provenance import environment, source_of
from gradvet.core.results import Finding, Report, Verdict
from gradvet.core.survey import TrialCheck, report_of, survey
from gradvet.core.trial import Trial
from gradvet.errors import DerivativeError, InvalidProblemError, OutputsChangedError
from gradvet.frontends.torch.binding import Binding, Request, bind
from gradvet.frontends.torch.compositions import second_order_subject
from gradvet.frontends.torch.preservation import undisturbed
from gradvet.frontends.torch.randomness import forked
from gradvet.frontends.torch.semantics import explain, remarks, told_apart
from gradvet.frontends.torch.shadow import shadow_of
from gradvet.frontends.torch.subject import TorchSubject, require_output
from gradvet.frontends.torch.support import unsupported
from gradvet.options import Options

VECTORS = 16
"""About so many vectors of the size of the inputs exist at a time."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be examined."""

    order: int
    selection: Selection
    elsewhere: Elsewhere | None = None
    bytes: int | None = None


def examine(request: Request, wanted: Wanted, options: Options) -> Report:
    """The report about one function at one point."""
    if wanted.order not in (1, 2):
        raise InvalidProblemError(f"order is 1 or 2, found {wanted.order!r}")
    started = time.perf_counter()
    with forked():
        binding, left_out = _within(bind(request), wanted.bytes)

        def examined(masked: bool) -> Report:
            settings = replace(options, masked=masked)
            with undisturbed(request.func, binding.arguments):
                return _examined(request, binding, wanted, settings, left_out)

        try:
            report = examined(options.masked)
        except (RuntimeError, OutputsChangedError) as error:
            explain(error, binding.arguments, options.masked)
            raise
        if report.failures:
            report = told_apart(report, binding.arguments, options.masked, examined)
    return replace(
        report,
        seconds=time.perf_counter() - started,
        source=source_of(request.func),
        environment=environment(),
    )


def _examined(request: Request, binding: Binding, wanted: Wanted, options: Options, left_out: Sequence[str]) -> Report:
    subject = TorchSubject(binding, options.seed, options.masked)
    require_output(subject)
    trial = Trial(subject, options)
    for note in (*binding.notes, *remarks(subject), *_undefined_values(subject)):
        trial.record.note(note)
    findings = tuple(_preflight(trial, wanted.selection))
    if not findings:
        shadow = _shadow(trial, subject, request, options)
        sharp = shadow or trial
        findings = (
            *_exact(trial, wanted),
            *_something(_slopes(sharp, wanted)),
            *_precision(trial, shadow, wanted),
            *_second_order(sharp, wanted),
        )
        findings = (
            *findings,
            *_elsewhere(sharp, request, wanted, findings),
            *toolchain(trial, request, wanted.selection),
        )
    points = {"points": "None"} if wanted.elsewhere is None else wanted.elsewhere.settings
    again = replay(request, wanted.order, wanted.selection, wanted.bytes, options, points)
    return report_of(binding.title, trial, findings, again, left_out)


def _undefined_values(subject: TorchSubject) -> Iterator[str]:
    rows = subject.codomain.size
    if not all_finite(values := subject.value[:rows]):
        lost = rows - int(values.isfinite().sum())
        yield f"{lost} of {rows} numbers that the function returns are not finite: their derivatives were not compared"


def _preflight(trial: Trial, selection: Selection) -> Iterator[Finding]:
    """One plain backward pass: where the user's derivative raises, that is the finding, and there is no other.

    Without a reverse mode, or with one that nobody asked about and that raises, the rest goes on without.
    """
    subject = trial.subject
    if not subject.codomain.size or not subject.domain.size:
        return
    try:
        _ = trial.pulled
    except DerivativeError as error:
        if "reverse" not in selection:
            trial.reversible = False
            return
        advice = "Nothing else was checked: first let backward run on a plain cotangent."
        yield Finding("reverse", Verdict.FAIL, str(error), facts={"raised": str(error)}, advice=advice)
    except Exception as error:
        if not unsupported(error):
            raise
        trial.reversible = False


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


def _exact(trial: Trial, wanted: Wanted) -> Iterator[Finding]:
    # A circumstance that the function refuses is not a mistake in its derivative.
    yield from survey(trial, _fitting(trial, wanted.selection.of_these(EXACT)), lambda error: True)


def _slopes(trial: Trial, wanted: Wanted) -> Iterator[Finding]:
    if trial.subject.codomain.leaves:
        yield from survey(trial, _fitting(trial, wanted.selection.of_these(SLOPES)), unsupported)


def _fitting(trial: Trial, checks: dict[str, TrialCheck]) -> dict[str, TrialCheck]:
    """Without the checks that make no sense where a surrogate gives the values, or where captured tensors are read."""
    if not trial.reversible:
        checks = {name: check for name, check in checks.items() if name in VALUES | FORWARD}
    if isinstance(trial.subject, TorchSubject) and trial.subject.binding.surrogate is not None:
        checks = {name: check for name, check in checks.items() if name not in VALUES}
    if "interleaving" in checks:
        with suppress(Exception):
            _ = trial.interleaved  # what is called in between shows as a rule that the function reads its arguments
    if not SUBSTITUTING.intersection(checks) or not _reads_captured(trial):
        return checks
    trial.record.note("the function reads tensors that it captured instead of its arguments: they were moved in place")
    return {name: check for name, check in checks.items() if name not in SUBSTITUTING}


def _reads_captured(trial: Trial) -> bool:
    if trial.captured is None:
        try:
            trial.captured = bool(trial.subject.codomain.size) and trial.subject.circumstances.reads_captured()
        except Exception:  # the function refuses to be moved that far
            trial.captured = False
    return trial.captured


def _precision(trial: Trial, shadow: Trial | None, wanted: Wanted) -> Iterator[Finding]:
    if shadow is not None and "precision" in wanted.selection and trial.subject.codomain.size:
        yield from survey(trial, {"precision": precision_against(shadow)}, unsupported)


def _second_order(trial: Trial, wanted: Wanted) -> Iterator[Finding]:
    subject = trial.subject
    if wanted.order < 2 or not subject.codomain.size or not isinstance(subject, TorchSubject):
        return
    derived: dict[str, Trial] = {}

    def derive(name: str) -> Trial:
        if name not in derived:
            inner = second_order_subject(subject, name, trial.options.seed)
            inner.cost = subject.cost
            derived[name] = Trial(inner, trial.options)
            derived[name].deadline = trial.deadline
        return derived[name]

    for name in SECOND_ORDER:
        if name in wanted.selection:
            check = composition(name.split("-")[0], partial(derive, name))
            yield from survey(trial, {name: check}, unsupported)
    if "symmetry" in wanted.selection:
        check = symmetry(partial(derive, SECOND_ORDER[0]), len(subject.domain.leaves))
        yield from survey(trial, {"symmetry": check}, unsupported)


def _elsewhere(trial: Trial, request: Request, wanted: Wanted, here: Sequence[Finding]) -> Iterator[Finding]:
    """Other points and shapes, unless the slopes at the user's own point are wrong already."""
    chosen = [name for name in ELSEWHERE if name in wanted.selection]
    if wanted.elsewhere is None or not chosen or not trial.subject.codomain.size:
        return
    verdicts = {found.verdict for found in here if found.check in SLOPES}
    if Verdict.FAIL in verdicts:
        why = "the derivative is wrong at the point given"
    elif Verdict.INCONCLUSIVE in verdicts:
        why = "the point given could not be decided either"
    elif not trial.is_fine:
        why = "they need float64, which the function refuses"
    elif _reads_captured(trial):
        why = "the function reads captured tensors"
    else:
        yield from elsewhere(trial, request, wanted.elsewhere, wanted.selection)
        return
    yield from (Finding(name, Verdict.SKIPPED, why) for name in chosen)


def _shadow(trial: Trial, subject: TorchSubject, request: Request, options: Options) -> Trial | None:
    """The same in double precision where the precision given is lower; it shares what is known and spent."""
    if trial.is_fine or not subject.codomain.leaves:
        return None
    twin = shadow_of(subject, request, options.seed)
    if twin is None:
        trial.record.note(
            "the function refuses float64 or gives other values there: its slopes are judged in its own precision"
        )
        return None
    twin.cost = subject.cost
    shadow = Trial(twin, options)
    shadow.record, shadow.deadline, shadow.reversible = trial.record, trial.deadline, trial.reversible
    trial.record.note("the formula was checked in float64, and the gradient in low precision against it")
    return shadow
