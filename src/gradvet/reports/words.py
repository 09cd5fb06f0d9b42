"""Numbers and sentences that every way of showing a report shares."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from gradvet.core.results import Finding, Mismatch, Report, Verdict

CALLS = {"forwards": "forward", "pulls": "backward", "pushes": "forward-mode"}

ORDER = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.SKIPPED)
"""What people look for first stands first."""


def number(value: float) -> str:
    return f"{value + 0.0:.7g}"  # + 0.0: no negative zero


def bar(mismatch: Mismatch) -> str:
    """The numerical value with its error bar."""
    error = f"{mismatch.error:.1g}" if math.isfinite(mismatch.error) else "unknown"
    return f"{number(mismatch.numerical)} ± {error}"


def ratio(mismatch: Mismatch) -> str:
    """Derivative over numerical value; a dash where it has no meaning, as by a value that may as well be zero."""
    meant = math.isfinite(mismatch.ratio) and not abs(mismatch.numerical) <= mismatch.error
    return f"{mismatch.ratio + 0.0:.4g}" if meant else "-"


def cost(report: Report) -> str:
    """Calls of the function and of its derivatives, and the time."""
    calls = [f"{getattr(report.cost, kind)} {name}" for kind, name in CALLS.items() if getattr(report.cost, kind)]
    return f"{', '.join(calls) or 'no'} calls, {seconds(report.seconds)}"


def seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1.0 else f"{value:.3g} s"


def power(report: Report) -> str:
    """How small an error would have been seen, and how surely."""
    if report.resolution is None:
        return ""
    return f"resolution {report.resolution:.1g}, miss probability {report.miss:.1g}"


EXERCISED, LEFT_OUT = "exercised: ", "not exercised: "
"""How the lines of a report's coverage begin."""


def left_out(report: Report) -> dict[str, list[str]]:
    """What was not exercised, by the reason why."""
    found: dict[str, list[str]] = {}
    for line in report.coverage:
        if line.startswith(LEFT_OUT):
            name, _, reason = line.removeprefix(LEFT_OUT).partition(": ")
            found.setdefault(reason, []).append(name)
    return found


def exercised(report: Report) -> str:
    """The checks that were carried out."""
    return ", ".join(line.removeprefix(EXERCISED) for line in report.coverage if line.startswith(EXERCISED))


def tried(report: Report) -> list[tuple[str, str]]:
    """What else the coverage tells, such as at which points: a name and what belongs to it."""
    others = [line for line in report.coverage if not line.startswith((EXERCISED, LEFT_OUT))]
    return [(name, rest) if rest else ("coverage", name) for name, _, rest in (o.partition(": ") for o in others)]


def gaps(report: Report) -> str:
    """The checks that were not carried out, or not in all of their parts: their names alone."""
    lists = [line.removeprefix(EXERCISED) for line in report.coverage if line.startswith(EXERCISED)]
    done = [name for line in lists for name in line.split(", ")]
    names = dict.fromkeys(name for names in left_out(report).values() for name in names)
    return ", ".join(f"{name} (in part)" if name in done else name for name in names)


def environment(report: Report) -> str:
    """What the check ran on."""
    return " · ".join(f"{name} {version}" for name, version in report.environment.items())


def telling(report: Report) -> list[Finding]:
    """The findings that are not well, the worst first."""
    return [f for verdict in ORDER[:2] for f in report.findings if f.verdict is verdict]


def tally(reports: Iterable[Report]) -> str:
    """`12 checks: 1 fail, 11 pass`"""
    return counted(report.verdict for report in reports)


def counted(verdicts: Iterable[Verdict]) -> str:
    """`12 checks: 1 fail, 11 pass`"""
    counts = Counter(verdicts)
    total = counts.total()
    parts = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in ORDER if counts[verdict])
    return f"{total} check{'' if total == 1 else 's'}: {parts}" if total else "no checks"
