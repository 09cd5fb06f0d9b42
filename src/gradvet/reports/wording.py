"""Numbers, counts and sentences shared by all renderers of a report. This module decides no layout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from gradvet.core.results import WORST_FIRST, Finding, Mismatch, Report, Verdict, escape_controls

CALL_KINDS = {"forwards": "forward", "vjps": "backward", "jvps": "forward-mode"}
"""Counters of `Cost`, and the names under which they are printed."""

MODE_NAMES = {"reverse": "reverse mode", "forward": "forward mode"}

MAX_OTHER_FINDINGS = 5
"""Number of findings after the first that are shown with their headlines."""

MAX_MESSAGE_LENGTH = 300
"""Length in characters to which the message of an exception is cut."""


def number(value: float) -> str:
    return f"{value + 0.0:.7g}"  # adding 0.0 turns -0.0 into 0.0


def numerical(mismatch: Mismatch) -> str:
    """The finite-difference value with its error bar."""
    error = f"{mismatch.error:.1g}" if math.isfinite(mismatch.error) else "unknown"
    return f"{number(mismatch.numerical)} ± {error}"


def ratio(mismatch: Mismatch) -> str:
    """Derivative divided by numerical value, or a dash if the numerical value is zero within its error bar."""
    is_meaningful = math.isfinite(mismatch.ratio) and not abs(mismatch.numerical) <= mismatch.error
    return f"{mismatch.ratio + 0.0:.4g}" if is_meaningful else "-"


def cost(report: Report) -> str:
    """Calls of the function and of its derivatives, and the time."""
    counts = {name: getattr(report.cost, kind) for kind, name in CALL_KINDS.items()}
    calls = [f"{count} {name}" for name, count in counts.items() if count]
    noun = "call" if [*filter(None, counts.values())][-1:] == [1] else "calls"
    return f"{', '.join(calls) or 'no'} {noun}, {seconds(report.seconds)}"


def seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1.0 else f"{value:.3g} s"


def resolution(report: Report) -> str:
    """The smallest error that the check resolves, and the probability that it misses one.

    Empty beside a wrong derivative, or beside elements that were not compared: it would not hold for the whole
    function.
    """
    is_partial = any(row.compared < row.elements for row in report.ledger)
    if report.resolution is None or report.failures or is_partial:
        return ""
    # Without a passing comparison there is no probability.
    is_known = report.verdict is Verdict.PASS or report.miss > 0.0
    return f"resolution {report.resolution:.1g}{f', miss probability {report.miss:.1g}' if is_known else ''}"


def not_exercised_names(report: Report) -> str:
    """The names alone of the checks that did not run, or ran in part."""
    names = dict.fromkeys(name for names in report.not_exercised.values() for name in names)
    return ", ".join(f"{name} (in part)" if name in report.exercised else name for name in names)


def coverage(report: Report) -> list[tuple[str, str]]:
    """Labels and texts: the checks that ran, the parts of those that have parts, what did not run and why, and how
    accurate a kernel is beside its reference."""
    accuracy = [
        (finding.check, finding.headline)
        for finding in report.findings
        if finding.check == "reference" and finding.verdict is Verdict.PASS
    ]
    ran = [("exercised", ", ".join(report.exercised))] if report.exercised else []
    reasons = report.not_exercised.items()
    not_run = [("not exercised", f"{', '.join(dict.fromkeys(names))}: {why}") for why, names in reasons]
    return [*accuracy, *ran, *report.exercised_parts.items(), *not_run]


def environment(report: Report) -> str:
    """Versions of the libraries with which the check ran."""
    return " · ".join(f"{name} {version}" for name, version in report.environment.items())


def notable_findings(report: Report) -> list[Finding]:
    """The findings that fail, then errors and inconclusive ones; of the same kind first those that name entries.

    Before these come a culprit, and that the derivative is random, which explains wrong entries.
    """

    def rank(finding: Finding) -> tuple[int, bool, bool]:
        is_cause = finding.check in ("blame", "determinism")
        return WORST_FIRST.index(finding.verdict), not is_cause, not finding.mismatches

    return sorted((one for one in report.findings if one.verdict in WORST_FIRST[:3]), key=rank)


CONSEQUENCES = (
    *("jvp_vjp_agree", "precision", "reverse-over-reverse", "forward-over-reverse", "reverse-over-forward"),
    *("forward-over-forward", "symmetry", "points", "shapes", "compile", "higher-order"),
)
"""Checks that fail as well where the derivative itself is wrong."""

OF_RANDOM_GRADIENTS = (
    *("linearity", "grad_output_layout", "input_layout", "reentrancy", "partial_requires_grad"),
    *("batched", "accumulation", "checkpoint"),
)
"""Checks that compare two gradients, and so fail as well where no two backward passes give the same."""


def other_findings(report: Report) -> list[tuple[str, str]]:
    """The notable findings after the first, in few lines: those that follow from a wrong derivative by name alone."""
    findings = notable_findings(report)
    first, others = findings[:1], findings[1:]
    cause = first[0].check if first and first[0].verdict is Verdict.FAIL else ""
    # Where a piece of a module is to blame, the module itself fails too.
    of_cause = dict.fromkeys(MODE_NAMES, CONSEQUENCES) | {"blame": (*MODE_NAMES, *CONSEQUENCES)}
    of_cause["determinism"] = of_cause["blame"]
    is_random = any(one.check == "determinism" and one.verdict is Verdict.FAIL for one in findings)
    expected = (*of_cause.get(cause, ()), *(OF_RANDOM_GRADIENTS if is_random else ()))
    consequences = [one.check for one in others if one.check in expected]
    lines = [(one.check, one.headline) for one in others if one.check not in consequences]
    if len(lines) > MAX_OTHER_FINDINGS:
        more = ", ".join(dict.fromkeys(check for check, _ in lines[MAX_OTHER_FINDINGS:]))
        lines = [*lines[:MAX_OTHER_FINDINGS], ("also", more)]
    return [*lines, *([("probably consequences", ", ".join(dict.fromkeys(consequences)))] if consequences else [])]


def illustrated_findings(report: Report) -> list[Finding]:
    """The notable findings, and passing ones that have a figure: the comparisons with a reference."""
    passing = [one for one in report.findings if one.verdict is Verdict.PASS and one.facts.get("errors")]
    return [*notable_findings(report), *passing]


def tally(verdicts: Iterable[Verdict]) -> str:
    """`12 checks: 1 fail, 11 pass`"""
    counts = Counter(verdicts)
    total = counts.total()
    parts = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in WORST_FIRST if counts[verdict])
    return f"{counted(total, 'check')}: {parts}" if total else "no checks"


def counted(number: int, noun: str) -> str:
    """`1 check`, `2 checks`"""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: Iterable[str], limit: int) -> str:
    """`a, b and 3 more`: each name once, the first ones by name."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - limit} more" if len(known) > limit else ""
    return f"{', '.join(known[:limit])}{more}"


def one_line(error: BaseException, limit: int | None = MAX_MESSAGE_LENGTH) -> str:
    """The message of an exception without line breaks."""
    try:
        text = str(error)
    except Exception:  # raised by its own code
        text = "its message cannot be read"
    return escape_controls(" ".join(text.split())[:limit])


def describe(finding: Finding) -> str:
    """A finding as plain text: headline, worst entry with both values and the error bar, advice."""
    lines = [finding.headline]
    for mismatch in finding.mismatches[:1]:
        name = MODE_NAMES.get(finding.check, finding.check)
        width = max(len(name), len("finite differences"))
        lines += [
            f"  worst: {mismatch}",
            f"    {name:<{width}}  {mismatch.derivative + 0.0:#.10g}",
            f"    {'finite differences':<{width}}  {mismatch.numerical + 0.0:#.10g} ± {mismatch.error:.1g}",
            f"    {'allowed difference':<{width}}  {mismatch.allowed:.3g}",
        ]
    if finding.advice:
        lines.append(f"  {finding.advice}")
    return "\n".join(lines)


def matrix(rows: list[list[float]]) -> str:
    """A Jacobian with one line per input element, the layout of `torch.autograd.gradcheck`."""
    return "\n".join(
        "  [" + ", ".join(f"{entry + 0.0:.6g}" for entry in column) + "]" for column in zip(*rows, strict=True)
    )
