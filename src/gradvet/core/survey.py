"""Runs the checks of a trial one after the other and gathers what they find. It raises nothing of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from gradvet.core.results import Finding, Report, Verdict
from gradvet.core.trial import Trial
from gradvet.errors import DerivativeError, InvalidProblemError

TrialCheck = Callable[[Trial], Iterable[Finding]]
Unsupported = Callable[[BaseException], bool]
"""Whether an exception says that the framework does not offer this, rather than that it went wrong."""


def survey(trial: Trial, checks: Mapping[str, TrialCheck], unsupported: Unsupported) -> Iterator[Finding]:
    """The findings of all checks; one that cannot be carried out says so. `unsupported` tells refusals from mistakes.

    Exact checks put the function into circumstances that it may refuse; there, give what answers always True.
    """
    for name, check in checks.items():
        if trial.late:
            yield Finding(name, Verdict.SKIPPED, "the time that was given is spent")
            continue
        try:
            for finding in check(trial):
                yield finding if finding.check == name else replace(finding, check=name)
        except (InvalidProblemError, NameError):
            raise
        except DerivativeError as error:
            yield Finding(name, Verdict.FAIL, str(error), facts={"raised": str(error)})
        except Exception as error:
            yield _trouble(name, error, unsupported)


def _trouble(name: str, error: Exception, unsupported: Unsupported) -> Finding:
    words = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {words[0] if words else ''}"
    if unsupported(error):
        return Finding(name, Verdict.SKIPPED, f"not offered by the function's operators ({text[:200]})")
    return Finding(name, Verdict.INCONCLUSIVE, f"could not be carried out: {text[:300]}", facts={"raised": text})


def report_of(title: str, trial: Trial, findings: Iterable[Finding], replay: str, coverage: Iterable[str]) -> Report:
    """All findings of a trial, with how sharp it was and what it cost; who asked for it knows how long that took."""
    gathered = tuple(findings)
    record = trial.record
    known = [value for name, value in record.resolution.items() if math.isfinite(value) and name not in record.faint]
    misses = [finding.facts["miss"] for finding in gathered if "miss" in finding.facts]
    return Report(
        title=title,
        findings=gathered,
        cost=trial.subject.cost,
        seconds=0.0,
        seed=trial.options.seed,
        miss=max(misses, default=0.0),
        resolution=max(known, default=None),
        coverage=(*coverage, *_exercised(gathered)),
        notes=tuple(trial.record.notes),
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
