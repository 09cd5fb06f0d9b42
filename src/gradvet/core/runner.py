"""Runs checks one after the other and gathers their findings into a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from gradvet.core.context import Context
from gradvet.core.results import Finding, Report, Verdict
from gradvet.errors import DerivativeError, InvalidProblemError, first_line

CheckFunction = Callable[[Context], Iterable[Finding]]


def run_checks(context: Context, checks: Mapping[str, CheckFunction], *, may_refuse: bool = False) -> list[Finding]:
    """The findings of all checks; an exception of a check becomes its finding.

    With `may_refuse` any exception is a refusal of the conditions into which a check puts the function. What a check of
    a large problem computed is forgotten after it: it costs less to compute again than to keep.
    """
    findings: list[Finding] = []
    is_large = context.is_large
    for name, check in checks.items():
        if context.out_of_budget:
            findings.append(Finding(name, Verdict.SKIPPED, "the time budget was spent"))
            continue
        try:
            for finding in check(context):
                findings.append(finding if finding.check == name else replace(finding, check=name))
        except (InvalidProblemError, NameError):
            raise
        except DerivativeError as error:
            findings.append(Finding(name, Verdict.FAIL, str(error), facts={"raised": str(error)}))
        except Exception as error:
            findings.append(_of_exception(context, name, error, may_refuse))
        if is_large:
            context.release()
    return findings


def run_until_failure(context: Context, checks: Iterable[CheckFunction]) -> list[Finding]:
    """The findings of the drop-in functions, up to the first failure."""
    findings: list[Finding] = []
    for finding in (finding for check in checks for finding in check(context)):
        findings.append(finding)
        if finding.verdict is Verdict.FAIL:
            break
    return findings


def _of_exception(context: Context, name: str, error: Exception, may_refuse: bool) -> Finding:
    rules, text = context.problem.rules, f"{type(error).__name__}: {first_line(error, 300)}"
    is_unsupported, meaning = rules.is_unsupported(error), rules.meaning(error)
    if meaning and is_unsupported:
        return Finding(name, Verdict.SKIPPED, meaning)
    if meaning:
        return Finding(name, Verdict.FAIL, meaning, facts={"raised": text})
    if is_unsupported or may_refuse:
        return Finding(name, Verdict.SKIPPED, f"not supported by the function's operators ({text[:200]})")
    return Finding(name, Verdict.INCONCLUSIVE, f"the check raised {text[:300]}", facts={"raised": text})


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
    ledger = tuple(context.record.ledger.rows())
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
