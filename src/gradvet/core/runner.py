"""Runs checks one after the other and gathers their findings into a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from gradvet.core.context import Context
from gradvet.core.results import Finding, Report, Verdict
from gradvet.errors import DerivativeError, InvalidProblemError, first_line

CheckFunction = Callable[[Context], Iterable[Finding]]

IsUnsupported = Callable[[BaseException], bool]
"""Whether an exception says that the framework does not offer this, rather than that it went wrong."""


def run_checks(context: Context, checks: Mapping[str, CheckFunction], is_unsupported: IsUnsupported) -> list[Finding]:
    """The findings of all checks; an exception of a check becomes its finding.

    What a check of a large problem computed is forgotten after it: it costs less to compute again than to keep.
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
            findings.append(_of_exception(name, error, is_unsupported))
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


REFUSALS = {
    "implement the jvp": "the autograd.Function has no jvp, which forward mode needs",
    "override the setup_context": "the autograd.Function has no setup_context, which vmap needs",
}
"""Parts of torch's messages about what an autograd.Function lacks, and what they mean."""


FAULTS = {
    "jvp is not returning a view": "forward mode cannot call the jvp: forward returns an input or a view of one, and "
    "jvp must return a view of its tangent then, such as tangent.view_as(tangent)",
}
"""Parts of torch's messages about a rule that cannot be called, and what they mean."""


def known_refusal(error: Exception) -> str:
    """What an autograd.Function lacks, if torch's message says so."""
    return next((meaning for part, meaning in REFUSALS.items() if part in str(error)), "")


def _of_exception(name: str, error: Exception, is_unsupported: IsUnsupported) -> Finding:
    text = f"{type(error).__name__}: {first_line(error, 300)}"
    if refusal := known_refusal(error):
        return Finding(name, Verdict.SKIPPED, refusal)
    if fault := next((meaning for part, meaning in FAULTS.items() if part in str(error)), ""):
        return Finding(name, Verdict.FAIL, fault, facts={"raised": text})
    if is_unsupported(error):
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
