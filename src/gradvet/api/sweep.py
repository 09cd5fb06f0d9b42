"""A kernel and its reference in several dtypes, as one report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from gradvet.api.pipeline import PipelineSettings, run_pipeline
from gradvet.api.validation import refuse
from gradvet.checks.catalogue import REFERENCE
from gradvet.core.frontend import Frontend, Request
from gradvet.core.problem import Cost
from gradvet.core.results import Finding, Report, Verdict
from gradvet.errors import InvalidProblemError
from gradvet.options import Options


def require_comparable(request: Request, settings: PipelineSettings, dtypes: Any) -> None:
    """Raise if what was asked for cannot be done with a reference, or needs one."""
    if request.reference is None:
        if dtypes is not None:
            raise InvalidProblemError(
                "dtypes compares a kernel with its reference in several precisions, but there is no reference: pass "
                "reference=, or inputs of the dtype that you want checked"
            )
        return
    if not callable(request.reference):
        refuse("reference is a function or a module", request.reference)
    if dtypes is not None and (isinstance(dtypes, str) or not isinstance(dtypes, Iterable)):
        refuse("dtypes has several dtypes, such as (torch.float32, torch.bfloat16)", dtypes)
    if settings.order != 1:
        raise InvalidProblemError(
            "a reference is compared at first order: leave out the order, or check the second order without a reference"
        )
    if REFERENCE not in settings.selection:
        raise InvalidProblemError(
            "a reference is for gradients of backward: modes must contain 'reverse', and checks, if given, 'reference'"
        )


def sweep_dtypes(
    frontend: Frontend, request: Request, settings: PipelineSettings, options: Options, dtypes: Sequence[Any]
) -> Report:
    """One report about all dtypes. The reference is compared with differences once, in the first of them."""
    if not dtypes:
        raise InvalidProblemError("dtypes is empty: name at least one, such as torch.bfloat16")
    reports: dict[str, Report] = {}
    for dtype in dtypes:
        name, cast = frontend.cast(request, dtype)
        if name in reports:
            continue
        wanted = replace(settings, precision=name)
        if reports:
            wanted = replace(wanted, selection=settings.selection - {"reverse"})
        reports[name] = run_pipeline(frontend, cast, wanted, options)
    return _joined(reports)


def _joined(reports: dict[str, Report]) -> Report:
    first = next(iter(reports.values()))
    every = list(reports.values())
    known = [report.resolution for report in every if report.resolution is not None]
    names = "".join(f"torch.{name}, " for name in reports)
    return replace(
        first,
        findings=tuple(_named(name, finding) for name, report in reports.items() for finding in report.findings),
        cost=Cost(*(sum(getattr(report.cost, field.name) for report in every) for field in fields(Cost))),
        seconds=sum(report.seconds for report in every),
        miss=max(report.miss for report in every),
        resolution=max(known, default=None),
        notes=tuple(dict.fromkeys(note for report in every for note in report.notes)),
        replay=first.replay.replace(", seed=", f", dtypes=({names.strip()}), seed="),
        ledger=tuple(row for report in every for row in report.ledger),
    )


def _named(name: str, finding: Finding) -> Finding:
    """The finding with the dtype in front, unless it holds for all: the reference in float64, what did not run."""
    if finding.check == "reverse" or finding.verdict is Verdict.SKIPPED:
        return finding
    return replace(finding, headline=f"{name}: {finding.headline}")
