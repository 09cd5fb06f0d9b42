"""The ledger of a report as table rows and sentences, shared by all renderers. This module decides no layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gradvet.core.results import (
    ACCEPTED,
    FLOAT64,
    GIVEN,
    NO_MEMORY,
    Finding,
    LedgerRow,
    Report,
    Verdict,
    suggested_resolution,
)
from gradvet.reports.wording import MODE_NAMES, counted, notable_findings, other_findings

HEADINGS = ("tensor", "precision", "mode", "compared", "resolution", "verdict")
MAX_ROWS = 8
"""Number of rows up to which every row is shown; more are summarised by verdict."""

MAX_WORST = 5
"""Number of open rows that are listed one by one if the ledger is summarised, and of sentences about them."""

RIGHT, EMPTY, NOT_COMPARED, WRONG = "right", "no elements", "not compared", "wrong"
AS_WIDER_VERSION = "as in float64"
"""The word for a gradient in low precision that is that of the wider version, whose own was not compared."""
LEAF_WORDS = {"pass": RIGHT, "fail": WRONG, "inconclusive": NOT_COMPARED}
"""Words for the verdicts that a failing finding has about single inputs and outputs."""

ACCEPT = 'To accept an inconclusive result, pass inconclusive="warn" or inconclusive="ignore".'
OTHER_POINT = "Check at a point where the function and its derivative are finite and smooth"
DRAWN_INPUTS_ADVICE = "; --domain LOW,HIGH draws the inputs there"
"""What the command line adds for a callable: the inputs of marked cases are not drawn."""
MORE_TIME = "Allow more time with budget=, or check fewer inputs at a time."
MORE_MEMORY = "Allow more bytes with budget=, or check fewer inputs at a time."
SOME_ELEMENTS = "Give inputs with at least one element, and a function whose outputs depend on them."
STOPPED = "the comparison ended at the failure"
NOTHING_COMPARED = "not compared: no element of any input was compared with finite differences"
NO_VERDICT = "not a pass: inputs were compared with finite differences, but the report does not say with which result"


class LedgerLine(NamedTuple):
    """One line of the table: its cells in the order of `HEADINGS`, and whether something is left open."""

    input: str
    precision: str
    mode: str
    compared: str
    resolution: str
    verdict: str
    is_open: bool

    @property
    def is_wrong(self) -> bool:
        return self.verdict == WRONG


def ledger_lines(report: Report) -> list[LedgerLine]:
    """The rows of the ledger: wrong ones first, then open ones. More than `MAX_ROWS` are counted after the worst."""

    def is_open(row: LedgerRow) -> bool:
        return not row.is_complete or bool(_doubt(report, row))

    rows = sorted(report.ledger, key=lambda row: (_is_wrong(report, row), is_open(row), *_badness(row)), reverse=True)
    worst = [row for row in rows if _is_wrong(report, row) or is_open(row)][:MAX_WORST]
    shown = rows if len(rows) <= MAX_ROWS else worst
    groups: dict[tuple[str, str, str, bool], list[LedgerRow]] = {}
    for row in rows[len(shown) :]:
        verdict = _verdict(report, row, with_number=False)
        groups.setdefault((row.precision, row.mode, verdict, is_open(row)), []).append(row)
    named = {row.input for row in shown}

    def group_name(group: Sequence[LedgerRow]) -> str:
        is_other = named and named.isdisjoint(row.input for row in group)  # not those above in another mode
        return counted(len(group), "more input" if is_other else "input")

    return [
        *(_line([row], row.input, _verdict(report, row)) for row in shown),
        *(_line(group, group_name(group), verdict) for (_, _, verdict, _), group in groups.items()),
        *_output_lines(report),
    ]


def _line(rows: Sequence[LedgerRow], name: str, verdict: str) -> LedgerLine:
    """The line of rows that have precision, mode and verdict in common."""
    first, number = rows[0], sum(row.compared for row in rows)
    # A failure ends the comparison: how many elements it was about is in its finding.
    compared = "-" if verdict == WRONG and not number else f"{number}/{sum(row.elements for row in rows)}"
    worst = max((row.resolution for row in rows if row.resolution is not None), default=None)
    return LedgerLine(name, first.precision, first.mode, compared, _number(worst), verdict, not first.is_complete)


def _output_lines(report: Report) -> list[LedgerLine]:
    """The outputs of a function with several, where a derivative is wrong: which of them have a wrong derivative."""
    inputs = {row.input for row in report.ledger}
    for finding in report.failures:
        verdicts = finding.facts.get("leaves") or {}
        outputs = [name for name in verdicts if name not in inputs]
        if len(outputs) > 1:
            mode = finding.check
            wrong = {str(one.output).partition(" [")[0] for one in finding.mismatches}
            words = {name: WRONG if name in wrong else LEAF_WORDS[verdicts[name]] for name in outputs}
            return [LedgerLine(name, "", mode, "", "", word, word != RIGHT) for name, word in words.items()]
    return []


def why_not_pass(report: Report) -> list[str]:
    """One sentence for each input that was not compared as asked, the worst first. Empty where a finding says why."""
    if report.verdict is Verdict.PASS:
        return []
    if not report.expects_ledger or report.open_rows:
        return _sentences(report)
    if report.is_complete or report.verdict is not Verdict.INCONCLUSIVE:
        return []
    if any(row.mode == one.check for row in report.ledger for one in notable_findings(report)):
        return []
    return [NO_VERDICT if any(row.compared for row in report.ledger) else NOTHING_COMPARED]


def headline(report: Report) -> str:
    """Why the report is not a pass, in one sentence: the worst finding, or the first row that is open."""
    findings = [finding.headline for finding in notable_findings(report)]
    return next(iter((*findings, *why_not_pass(report))), "")


def what_to_do(report: Report) -> str:
    """How what is open could be compared; empty if a finding has advice of its own."""
    is_advised = any(found.advice for found in report.findings if found.verdict is Verdict.INCONCLUSIVE)
    if report.verdict is not Verdict.INCONCLUSIVE or is_advised:
        return ""
    rows = report.open_rows
    other_point = f"{OTHER_POINT}{DRAWN_INPUTS_ADVICE if ' --input ' in report.replay else ''}."
    if not rows:
        is_undecided = any(one.check in MODE_NAMES for one in notable_findings(report))
        return SOME_ELEMENTS if why_not_pass(report) == [NOTHING_COMPARED] else other_point if is_undecided else ""
    if any("time budget" in _reason(report, row) for row in rows):
        return MORE_TIME
    if any(NO_MEMORY in row.reasons for row in rows):
        return MORE_MEMORY
    worst = max((row.resolution or 0.0) for row in rows)
    enough = suggested_resolution(worst)
    if enough is not None and all(row.compared == row.elements for row in rows):
        is_accepted = all(ACCEPTED in row.reasons for row in rows)
        other = "pass a smaller accuracy=" if is_accepted else "check with inputs of moderate size"
        return f"Pass resolution={enough:g} to accept what was compared, or {other}."
    return other_point


def unexplained_rows(report: Report) -> list[LedgerRow]:
    """The open rows of inputs that no failing finding of their mode calls wrong."""
    return [row for row in report.open_rows if not _is_wrong(report, row)]


def _badness(row: LedgerRow) -> tuple[float, float]:
    """Rows with the largest uncompared part come first, then those whose resolution is furthest from the one asked."""
    if row.is_complete:
        return 0.0, 0.0
    excess = 1.0
    if _is_unresolved(row) and row.resolution is not None:
        excess = row.resolution / row.asked if row.asked > 0.0 else math.inf
    return 1.0 - row.compared / max(row.elements, 1), excess


def _verdict(report: Report, row: LedgerRow, *, with_number: bool = True) -> str:
    if _is_wrong(report, row):
        return WRONG
    if row.is_complete:
        if doubt := _doubt(report, row):
            return doubt
        left_open = {(one.input, one.mode, one.precision) for one in report.open_rows}
        if row.precision == GIVEN and (row.input, row.mode, FLOAT64) in left_open:
            return AS_WIDER_VERSION
        return RIGHT if row.elements else EMPTY
    return "; ".join((*row.reasons, *_unresolved(row, with_number))) or NOT_COMPARED


def _is_unresolved(row: LedgerRow) -> bool:
    return row.resolution is not None and not row.resolution <= row.asked


def _unresolved(row: LedgerRow, with_number: bool) -> list[str]:
    seen, asked = _number(row.resolution), _number(row.asked)
    if not _is_unresolved(row):
        return []
    if not with_number:
        return [f"resolution above {asked}"]
    return [f"resolution {f'{row.resolution:.6g}' if seen == asked else seen}, asked {asked}"]


def _is_wrong(report: Report, row: LedgerRow) -> bool:
    """Whether a failing finding names this output or gradient in this precision, or this input in the row's mode.

    A composition of two modes is part of the row's precision. A gradient in low precision is that of the check
    `precision`.
    """
    for finding in report.failures:
        facts, names = finding.facts, [str(mismatch.input) for mismatch in finding.mismatches]
        if facts.get("tensor") == row.input and facts.get("precision") == row.precision:
            return True
        is_composition = row.precision.endswith((f", {finding.check}", f", order {facts.get('order')}"))
        is_precision = (finding.check, row.precision, row.mode) == ("precision", GIVEN, facts.get("mode"))
        if is_composition or is_precision or (finding.check == row.mode and ", " not in row.precision):
            if facts.get("leaves", {}).get(row.input) == Verdict.FAIL.value:
                return True
            if any(name == row.input or name.startswith(f"{row.input} [") for name in names):
                return True
    return False


def _doubt(report: Report, row: LedgerRow) -> str:
    """How accurate this output or gradient of a kernel is, if an inconclusive finding is about it; empty otherwise."""
    for finding in report.findings:
        facts = finding.facts
        is_about = (facts.get("tensor"), facts.get("precision")) == (row.input, row.precision)
        if is_about and finding.verdict is Verdict.INCONCLUSIVE:
            return str(facts.get("status", ""))
    return ""


def _sentences(report: Report) -> list[str]:
    """Sentences about the open rows that no failing finding explains; the modes of an input share one."""
    modes: dict[tuple[str, str, str], list[str]] = {}
    for row in sorted(unexplained_rows(report), key=_badness, reverse=True):
        precision = f" ({row.precision})" if len({other.precision for other in report.ledger}) > 1 else ""
        if row.compared < row.elements:
            label, count = NOT_COMPARED, f" ({row.elements - row.compared} of {row.elements} elements)"
        else:
            label, count = "not compared sharply enough", ""
        reason = _reason(report, row)
        key = (f"{label}: {row.input}", precision, f"{f': {reason}' if reason else ''}{count}")
        modes.setdefault(key, []).append(row.mode)
    sentences = [
        f"{head} in {' and '.join(names)} mode{precision}{tail}" for (head, precision, tail), names in modes.items()
    ]
    more = len(sentences) - MAX_WORST
    if more <= 1:
        return sentences
    return [*sentences[:MAX_WORST], f"{more} more inputs in the ledger were not compared as asked"]


def _reason(report: Report, row: LedgerRow) -> str:
    """The reasons in the row; for a row without any, the headline of the finding about its mode."""
    if row.reasons or _is_unresolved(row):
        return _verdict(report, row)
    has_wider_version = any(other.precision != GIVEN for other in report.ledger)
    check = "precision" if has_wider_version and row.precision == GIVEN else row.mode
    headlines = {one.verdict: one.headline for one in report.findings if one.check == check}
    words = STOPPED if Verdict.FAIL in headlines else headlines.get(Verdict.INCONCLUSIVE, "")
    return words.removesuffix(f" ({row.mode} mode)")


def brief_findings(report: Report) -> tuple[list[Finding], list[tuple[str, str]]]:
    """The first notable finding, and labels and texts of the others, without those whose reason the ledger gives."""
    first, others = notable_findings(report)[:1], other_findings(report)
    return (
        [one for one in first if one.advice or not _is_in_ledger(report, one.check, one.headline)],
        [pair for pair in others if not _is_in_ledger(report, *pair)],
    )


def _is_in_ledger(report: Report, check: str, headline: str) -> bool:
    """Whether the sentences of an inconclusive report about open rows say what this finding about a mode says."""
    rows = [row for row in report.open_rows if row.mode == check and report.verdict is Verdict.INCONCLUSIVE]
    reasons = [reason for row in rows for reason in _reason(report, row).split("; ")]
    return any(reason and headline.startswith(reason) for reason in reasons)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1g}" if value < 1e-3 else f"{value:.2g}"


def shown_in_terminal(report: Report) -> Sequence[LedgerLine]:
    """All rows, unless the report passes, or is inconclusive for another reason."""
    is_shown = report.failures or unexplained_rows(report) or any(_doubt(report, row) for row in report.ledger)
    return ledger_lines(report) if is_shown and report.verdict is not Verdict.PASS else []
