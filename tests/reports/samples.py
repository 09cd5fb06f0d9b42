"""Reports of every verdict, for the tests of the renderers."""

from __future__ import annotations

import math

from gradvet.core.ledger import Cost
from gradvet.core.results import Finding, Mismatch, Report, SourceCode, Verdict
from gradvet.core.vectors import Location

ROWS, COLUMNS, WRONG = 3, 4, (1, 2)
NUMERICAL = [[math.cos(COLUMNS * i + j) for j in range(COLUMNS)] for i in range(ROWS)]
DERIVATIVE = [[value * (1.5 if (i, j) == WRONG else 1.0) for j, value in enumerate(r)] for i, r in enumerate(NUMERICAL)]
STEPS = [2.0**-k for k in range(4, 30)]


def worst() -> Mismatch:
    i, j = WRONG
    output, place = Location(0, "output", f"[{i}]"), Location(0, "weight", f"[{j}]")
    return Mismatch(output, place, DERIVATIVE[i][j], NUMERICAL[i][j], 2e-11, 3e-11)


def facts() -> dict[str, object]:
    """The facts of both figures."""
    return {
        "numerical": NUMERICAL,
        "derivative": DERIVATIVE,
        "rows": [f"output [{i}]" for i in range(ROWS)],
        "columns": [f"weight [{j}]" for j in range(COLUMNS)],
        "sweep": {
            "steps": STEPS,
            "errors": [step * step + 1e-16 / step for step in STEPS],
            "floor": [1e-16 / step for step in STEPS],
            "chosen": 2.0**-18,
            "gap": abs(worst().derivative - worst().numerical),
        },
    }


def report(title: str, *findings: Finding, notes: tuple[str, ...] = ()) -> Report:
    return Report(
        title=title,
        findings=(*findings, Finding("batched", Verdict.SKIPPED, "no rule")),
        cost=Cost(forwards=12, vjps=5, jvps=0),
        seconds=0.25,
        seed=7,
        miss=1e-3,
        resolution=2e-6,
        notes=notes,
        replay=f"gradvet.check({title}, inputs, seed=7)",
        source=SourceCode("ops.py", 16, "@staticmethod\ndef f(x):\n    return x < 0\n"),
        environment={"python": "3.12", "torch": "2.9"},
    )


def passed(title: str = "good", notes: tuple[str, ...] = ()) -> Report:
    agrees = Finding("reverse", Verdict.PASS, "reverse mode agrees with finite differences")
    return report(title, agrees, notes=notes)


def failed(title: str = "bad") -> Report:
    advice = "The ratio is 1.5: look for a wrong constant factor."
    disagrees = Finding(
        "reverse", Verdict.FAIL, "reverse mode disagrees in 1 of 12 entries", (worst(),), facts(), advice
    )
    return report(title, Finding("values", Verdict.PASS, "the value is the same"), disagrees)


def errored(title: str = "dead", message: str = "was ended by SIGSEGV") -> Report:
    return Report.of_error(title, "died", message)


def doubtful(title: str = "jump") -> Report:
    return report(title, Finding("reverse", Verdict.INCONCLUSIVE, "the function jumps at the point"))
