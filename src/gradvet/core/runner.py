"""Runs checks one after the other and gathers their findings into a report; joins reports about several dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from gradvet.core.context import Context
from gradvet.core.ledger import Cost
from gradvet.core.problem import Problem
from gradvet.core.provenance import source_of
from gradvet.core.results import Finding, LedgerRow, Report, SourceCode, Verdict
from gradvet.core.vectors import all_finite, namespace
from gradvet.errors import DerivativeError, InvalidProblemError, first_line, raise_interruption

CheckFunction = Callable[[Context], Iterable[Finding]]


def run_checks(context: Context, checks: Mapping[str, CheckFunction], *, may_refuse: bool = False) -> list[Finding]:
    """The findings of all checks; an exception of a check becomes its finding.

    With `may_refuse` any exception is a refusal of the conditions into which a check puts the function, and a check
    for which no time is left is skipped; without, it compares the derivative, so the verdict is open. Vectors that a
    check of a large problem computed are forgotten after it: it costs less to compute again than to keep.
    """
    findings: list[Finding] = []
    is_large = context.is_large
    for name, check in checks.items():
        if context.out_of_budget:
            verdict = Verdict.SKIPPED if may_refuse else Verdict.INCONCLUSIVE
            findings.append(Finding(name, verdict, "the time budget was spent", advice="Raise budget=."))
            continue
        try:
            for finding in check(context):
                findings.append(finding if finding.check == name else replace(finding, check=name))
        except Exception as error:
            raise_interruption(error)
            if isinstance(error, (InvalidProblemError, NameError)):
                raise
            findings.append(_of_exception(context, name, error, may_refuse))
        if is_large:
            context.release()
    return findings


def run_until_failure(context: Context, checks: Iterable[CheckFunction]) -> list[Finding]:
    """The findings of the drop-in functions, up to the first failure."""
    findings: list[Finding] = []
    for check in checks:
        for finding in check(context):
            findings.append(finding)
            if finding.verdict is Verdict.FAIL:
                return findings
    return findings


def _of_exception(context: Context, name: str, error: Exception, may_refuse: bool) -> Finding:
    if isinstance(error, DerivativeError):
        return Finding(name, Verdict.FAIL, str(error), facts={"raised": str(error)})
    rules, text = context.problem.rules, f"{type(error).__name__}: {first_line(error, 300)}"
    is_unsupported, meaning = rules.is_unsupported(error), rules.meaning(error)
    if meaning and is_unsupported:
        return Finding(name, Verdict.SKIPPED, meaning)
    if meaning:
        return Finding(name, Verdict.FAIL, meaning, facts={"raised": text})
    if is_unsupported or may_refuse:
        return Finding(name, Verdict.SKIPPED, f"not supported by the function's operators ({text[:200]})")
    return Finding(name, Verdict.INCONCLUSIVE, f"the check raised {text[:300]}", facts={"raised": text})


def by_framework(context: Context, failure: Finding, words: str = "") -> Finding:
    """A failure that is not the user's fault: SKIPPED with a note, which says that torch's own rules are to blame."""
    words = words or f"torch's own rules for these operators: {failure.headline}"
    context.record.note(words)
    return replace(failure, verdict=Verdict.SKIPPED, headline=words, advice="")


UNSEEN = "roundoff would hide an error as large as the derivative"
"""Why a row whose derivatives agree is not compared. Needed by `test_row_that_roundoff_hides_has_a_reason`."""


def make_report(
    title: str,
    context: Context,
    findings: Iterable[Finding],
    *,
    replay: str = "",
    expects_ledger: bool = False,
) -> Report:
    """All findings about one problem, with ledger and cost.

    With `expects_ledger`, the report passes only if its ledger is complete.
    """
    gathered = tuple(findings)
    ledger = tuple(_with_cause(context, row) for row in context.record.rows())
    if not any(finding.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE) for finding in gathered):
        # Where no finding gives a reason.
        ledger = tuple(
            row if row.reasons or row.compared or row.is_complete else replace(row, reasons=(UNSEEN,)) for row in ledger
        )
    known = [row.resolution for row in ledger if row.resolution is not None and row.elements]
    misses = [finding.facts["miss"] for finding in gathered if "miss" in finding.facts]
    return Report(
        title=title,
        findings=gathered,
        cost=context.problem.cost,
        seconds=0.0,  # measured by the caller
        seed=context.options.seed,
        miss=max(misses, default=0.0),
        resolution=max(known, default=None),
        notes=tuple(context.record.notes),
        replay=replay,
        ledger=ledger,
        expects_ledger=expects_ledger,
    )


def code_behind(report: Report, problem: Problem, func: Callable[..., Any]) -> SourceCode | None:
    """The code of the only custom derivative if it failed, otherwise the code of the function."""
    rules = problem.rules.custom() if report.failures else []
    failing = {finding.check for finding in report.failures}
    method = "jvp" if "forward" in failing and "reverse" not in failing else "backward"
    own = getattr(rules[0], method) if len(rules) == 1 and hasattr(rules[0], method) else None
    return (source_of(own) if own else None) or source_of(func)


def _with_cause(context: Context, row: LedgerRow) -> LedgerRow:
    """The row of an input that is not finite has that as its first reason: NaN in outputs and derivatives follows.

    Needed by `test_nan_in_the_input_is_the_first_reason`.
    """
    space = context.problem.domain
    if row.compared == row.elements or row.input not in (names := [leaf.name for leaf in space.leaves]):
        return row
    values = context.problem.point[space.slices[names.index(row.input)]]
    if all_finite(values):
        return row
    cause = f"{'NaN' if bool(namespace(values).any(values != values)) else 'infinity'} in the input"
    return replace(row, reasons=tuple(dict.fromkeys((cause, *row.reasons))))


def undecided_because(report: Report, reason: str) -> Report:
    """The report with this reason in all rows of its ledger that are not complete."""
    rows = tuple(row if row.is_complete else replace(row, reasons=(reason,)) for row in report.ledger)
    return replace(report, ledger=rows)


def joined(reports: Mapping[str, Report], asked: Iterable[str]) -> Report:
    """One report of those about the same function in several dtypes, by name of the dtype; `asked` has all names."""
    first = next(iter(reports.values()))
    every = list(reports.values())
    known = [report.resolution for report in every if report.resolution is not None]
    dtypes = [f"torch.{name}" for name in asked]
    names = f"({', '.join(dtypes)})" if len(dtypes) > 1 else dtypes[0]
    return replace(
        first,
        findings=tuple(_named(name, finding) for name, report in reports.items() for finding in report.findings),
        cost=Cost(*(sum(getattr(report.cost, field.name) for report in every) for field in fields(Cost))),
        seconds=sum(report.seconds for report in every),
        miss=max(report.miss for report in every),
        resolution=max(known, default=None),
        notes=tuple(dict.fromkeys(note for report in every for note in report.notes)),
        replay=first.replay.replace(", seed=", f", dtypes={names}, seed="),
        ledger=tuple(row for report in every for row in report.ledger),
    )


def _named(name: str, finding: Finding) -> Finding:
    """The finding with the dtype in front, unless it holds for all: the reference in float64, what did not run.

    A backward pass of the kernel that raises is reported under `reverse` too, in the dtype in which it does.
    """
    is_about_reference = finding.check == "reverse" and "raised" not in finding.facts
    if is_about_reference or finding.verdict is Verdict.SKIPPED:
        return finding
    return replace(finding, headline=f"{name}: {finding.headline}")


NO_DERIVATIVE = "The operators have no derivative for such inputs: this says nothing about the gradient."
NO_CUSTOM_DERIVATIVE = "Write the derivative that is missing: there is none to check."


def something_compared(context: Context, findings: list[Finding], advice: str = "") -> list[Finding]:
    """The findings, and one more where none of them compared anything; `advice` is for a missing derivative."""
    if not findings or any(finding.verdict is not Verdict.SKIPPED for finding in findings):
        return findings
    words = f"no derivative could be compared with the function: {findings[0].headline}"
    advice = advice or (NO_DERIVATIVE if context.problem.rules.are_builtin else NO_CUSTOM_DERIVATIVE)
    advice = "Raise budget=: nothing was compared within it." if context.out_of_budget else advice
    return [*findings, Finding(findings[0].check, Verdict.INCONCLUSIVE, words, advice=advice)]
