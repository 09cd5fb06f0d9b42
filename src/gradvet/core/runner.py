"""Runs the checks of a trial one after the other and gathers what they find. It raises nothing of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from gradvet.core.context import Context
from gradvet.core.results import Finding, Report, Verdict
from gradvet.errors import DerivativeError, InvalidProblemError

CheckFunction = Callable[[Context], Iterable[Finding]]
Unsupported = Callable[[BaseException], bool]
"""Whether an exception says that the framework does not offer this, rather than that it went wrong."""


def run_checks(
    context: Context, checks: Mapping[str, CheckFunction], is_unsupported_error: Unsupported
) -> Iterator[Finding]:
    """The findings of all checks; one that cannot be carried out says so. `unsupported` tells refusals from mistakes.

    Exact checks put the function into circumstances that it may refuse; there, give what answers always True.
    """
    for name, check in checks.items():
        if context.out_of_time:
            yield Finding(name, Verdict.SKIPPED, "the time that was given is spent")
            continue
        try:
            for finding in check(context):
                yield finding if finding.check == name else replace(finding, check=name)
        except (InvalidProblemError, NameError):
            raise
        except DerivativeError as error:
            yield Finding(name, Verdict.FAIL, str(error), facts={"raised": str(error)})
        except Exception as error:
            yield _trouble(name, error, is_unsupported_error)


def _trouble(name: str, error: Exception, is_unsupported_error: Unsupported) -> Finding:
    words = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {words[0] if words else ''}"
    if is_unsupported_error(error):
        return Finding(name, Verdict.SKIPPED, f"not offered by the function's operators ({text[:200]})")
    return Finding(name, Verdict.INCONCLUSIVE, f"could not be carried out: {text[:300]}", facts={"raised": text})


def make_report(
    title: str, context: Context, findings: Iterable[Finding], replay: str, coverage: Iterable[str]
) -> Report:
    """All findings of a trial, with how sharp it was and what it cost; who asked for it knows how long that took."""
    gathered = tuple(findings)
    record = context.record
    known = [value for name, value in record.resolution.items() if math.isfinite(value) and name not in record.faint]
    misses = [finding.facts["miss"] for finding in gathered if "miss" in finding.facts]
    return Report(
        title=title,
        findings=gathered,
        cost=context.problem.cost,
        seconds=0.0,
        seed=context.options.seed,
        miss=max(misses, default=0.0),
        resolution=max(known, default=None),
        coverage=(*coverage, *_exercised(gathered)),
        notes=tuple(context.record.notes),
        replay=replay,
    )


def _exercised(findings: Iterable[Finding]) -> Iterator[str]:
    """One line of what was exercised, one for each check that lists its parts, one for each that was left out."""
    by_verdict: dict[bool, list[str]] = {True: [], False: []}
    for finding in findings:
        names = by_verdict[finding.verdict is not Verdict.SKIPPED]
        if finding.check not in names:
            names.append(finding.check)
    if by_verdict[True]:
        yield f"exercised: {', '.join(by_verdict[True])}"
    brief = {f.check: " (are gradients finite?)" for f in findings if f.facts.get("finiteness alone")}
    parts: dict[str, dict[str, list[str]]] = {}
    for finding in findings:
        for key in ("exercised", "skipped"):
            if key in finding.facts:
                parts.setdefault(finding.check, {})[key] = finding.facts[key]
    for check, listed in parts.items():
        skipped = f"; skipped: {', '.join(listed['skipped'])}" if "skipped" in listed else ""
        yield f"{check}: {', '.join(listed.get('exercised', ())) or 'none'}{skipped}{brief.get(check, '')}"
    for finding in findings:
        if finding.verdict is Verdict.SKIPPED and "skipped" not in finding.facts:
            yield f"not exercised: {finding.check}: {finding.headline}"


Check = Callable[[Context], Iterable[Finding]]


def run(title: str, context: Context, checks: Iterable[Check]) -> Report:
    """The findings of the checks in their order, up to the first failure."""
    started = time.perf_counter()
    findings = tuple(_until_failure(context, checks))
    misses = [finding.facts["miss"] for finding in findings if "miss" in finding.facts]
    return Report(
        title=title,
        findings=findings,
        cost=context.problem.cost,
        seconds=time.perf_counter() - started,
        seed=context.options.seed,
        miss=max(misses, default=0.0),
    )


def _until_failure(context: Context, checks: Iterable[Check]) -> Iterator[Finding]:
    for check in checks:
        for finding in check(context):
            yield finding
            if finding.verdict is Verdict.FAIL:
                return
