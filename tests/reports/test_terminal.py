"""The text of a report on a terminal and in a file."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from gradvet.core.ledger import LedgerRow
from gradvet.core.results import Finding, Report, Verdict
from gradvet.reports.terminal import console_for, plain, show
from tests.reports.samples import doubtful, failed, passed, worst


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def with_findings(report: Report, *findings: Finding) -> Report:
    return replace(report, findings=findings)


def test_pass_is_one_line_that_says_what_was_left_out() -> None:
    assert plain(passed()) == (
        "PASS good  resolution 2e-06, miss probability 0.001; not exercised: batched; "
        "12 forward, 5 backward calls, 250 ms"
    )


def test_pass_that_left_nothing_out_says_nothing_about_it() -> None:
    whole = with_findings(passed(), Finding("reverse", Verdict.PASS, "agrees"))
    assert plain(whole) == "PASS good  resolution 2e-06, miss probability 0.001; 12 forward, 5 backward calls, 250 ms"


def test_pass_is_one_line_in_a_narrow_terminal_too() -> None:
    (line,) = plain(passed(), 60).splitlines()
    assert line.startswith("PASS good  resolution 2e-06")
    assert line.endswith("…")


def test_text_of_a_report_is_the_same() -> None:
    assert str(failed()) == repr(failed()) == plain(failed())


def test_check_that_was_left_out_in_part_is_both() -> None:
    findings = (Finding("batched", Verdict.PASS, "agrees"), Finding("batched", Verdict.SKIPPED, "no rule"))
    partly = with_findings(passed(), *findings)
    assert "not exercised: batched (in part);" in plain(partly)


def test_points_that_were_tried_have_a_line_of_their_own() -> None:
    points = Finding("points", Verdict.PASS, "agrees", facts={"exercised": ["zeros", "ones"]})
    found = lines(plain(with_findings(failed(), *failed().findings, points), verbose=True))
    assert {"exercised: values, reverse, points", "points: zeros, ones"} <= set(found)


def test_checks_left_out_for_one_reason_share_a_line() -> None:
    lacking = {"jvp_vjp_agree": "no jvp", "input_layout": "a view", "forward": "no jvp"}
    findings = [Finding(check, Verdict.SKIPPED, reason) for check, reason in lacking.items()]
    found = lines(plain(with_findings(failed(), *findings), verbose=True))
    assert [line for line in found if line.startswith("not exercised")] == [
        "not exercised: jvp_vjp_agree, forward: no jvp",
        "not exercised: input_layout: a view",
    ]


def test_table_fits_into_eighty_columns() -> None:
    rows = [line for line in plain(failed(), 80).splitlines() if "weight [2]" in line]
    assert len(rows) == 1


def test_pass_with_a_kink_says_so() -> None:
    assert lines(plain(passed(notes=("kink at input 0 [2]",))))[1:] == ["note: kink at input 0 [2]"]


def test_failure_shows_the_worst_entry_with_both_values_error_bar_and_ratio() -> None:
    entry = worst()
    row = next(line for line in lines(plain(failed())) if line.startswith("output [1]"))
    cells = [cell for cell in row.split("  ") if cell]
    assert [cell.strip() for cell in cells] == [
        "output [1]",
        "weight [2]",
        f"{entry.derivative:.7g}",
        f"{entry.numerical:.7g} ± 2e-11",
        "1.5",
    ]


def test_failure_shows_diagnosis_coverage_code_and_replay() -> None:
    found = lines(plain(failed()))
    assert "The ratio is 1.5: look for a wrong constant factor." in found
    assert "not exercised: batched" in found
    assert "exercised: values, reverse" not in found
    assert {"exercised: values, reverse", "not exercised: batched: no rule"} <= set(lines(failed().text(verbose=True)))
    assert "code: ops.py:17" in found
    assert "reproduce: gradvet.check(bad, inputs, seed=7)" in found


def test_passing_findings_are_not_shown_in_a_failure() -> None:
    assert "the value is the same" not in plain(failed())


def test_inconclusive_says_why() -> None:
    assert "reverse: the function jumps at the point" in lines(plain(doubtful()))


def test_file_gets_no_control_sequences_and_no_trailing_spaces() -> None:
    stream = io.StringIO()
    show([failed(), passed()], console_for(stream))
    assert "\x1b" not in stream.getvalue()
    assert all(line == line.rstrip() for line in stream.getvalue().splitlines())


def test_terminal_gets_colours() -> None:
    stream = io.StringIO()
    show([failed()], Console(file=stream, force_terminal=True, width=100, color_system="standard"))
    assert "\x1b[1;31mFAIL" in stream.getvalue()


def test_stream_without_unicode_gets_ascii_error_bars() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    show([failed()], console_for(stream))
    stream.seek(0)
    assert "+/- 2e-11" in stream.read()


def test_findings_after_the_first_take_a_line_each_and_consequences_one_together() -> None:
    more = [Finding(name, Verdict.FAIL, f"{name} is wrong") for name in ("symmetry", "input_layout", "points")]
    report = replace(failed(), findings=(*failed().findings, *more))
    found = lines(plain(report))
    assert "input_layout: input_layout is wrong" in found
    assert "probably consequences: symmetry, points" in found
    piece = replace(report, findings=(Finding("blame", Verdict.FAIL, "0: autograd.Function Swish"), *report.findings))
    assert "probably consequences: reverse, " in str(piece)
    random = replace(report, findings=(Finding("determinism", Verdict.FAIL, "two passes differ"), *report.findings))
    assert "probably consequences: reverse, symmetry, input_layout, points" in lines(plain(random))
    assert "symmetry: symmetry is wrong" in lines(plain(report, verbose=True))


def test_failure_with_much_to_say_fits_one_screen() -> None:
    rows = tuple(LedgerRow(f"layer.{number}.weight", "reverse", "given", 64, 0, None, 0.01) for number in range(40))
    more = tuple(Finding(f"check {number}", Verdict.FAIL, "wrong", (worst(),) * 9) for number in range(30))
    notes = tuple(f"note {number}" for number in range(30))
    more += tuple(Finding(f"check {number}", Verdict.SKIPPED, f"reason {number}") for number in range(30))
    report = replace(failed(), findings=(*failed().findings, *more), ledger=rows, notes=notes)
    assert len(plain(report, 100).splitlines()) <= 50
    assert len(plain(report, 100, verbose=True).splitlines()) > 200
