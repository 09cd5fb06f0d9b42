"""The ledger in the terminal, in a notebook and on the page."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gradvet.core.ledger import LedgerRow
from gradvet.core.results import Finding, Report, Verdict
from gradvet.reports import html
from gradvet.reports.ledger_table import MAX_ROWS, headline, ledger_lines, what_to_do, why_not_pass
from gradvet.reports.terminal import plain
from tests.cli.test_summary import summary_of
from tests.reports.samples import failed, passed

FULL = LedgerRow("input 0", "reverse", "given", 5, 5, 2e-6, 0.01)
PARTLY = LedgerRow("input 1", "reverse", "given", 12, 9, 3e-6, 0.01, ("the derivative is not finite",))
COARSE = LedgerRow("weight", "reverse", "given", 4, 4, 0.05, 0.01)
MISSING = LedgerRow("bias", "reverse", "given", 4, 0, None, 0.01)


def with_rows(*rows: LedgerRow, report: Report | None = None) -> Report:
    return replace(passed("f") if report is None else report, ledger=rows, expects_ledger=True)


def stripped(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def test_pass_stays_one_line() -> None:
    (line,) = plain(with_rows(FULL)).splitlines()
    assert line.startswith("PASS f  resolution 2e-06")


def test_inconclusive_begins_with_what_was_not_compared() -> None:
    lines = stripped(plain(with_rows(FULL, PARTLY, COARSE)))
    assert lines[0].startswith("INCONCLUSIVE f")
    assert lines[1:3] == [
        "not compared: input 1 in reverse mode: the derivative is not finite (3 of 12 elements)",
        "not compared sharply enough: weight in reverse mode: resolution 0.05, asked 0.01",
    ]
    assert [cells(line) for line in (lines[3], *lines[5:8])] == [
        ["tensor", "precision", "mode", "compared", "resolution", "verdict"],
        ["input 1", "given", "reverse", "9/12", "3e-06", "the derivative is not finite"],
        ["weight", "given", "reverse", "4/4", "0.05", "resolution 0.05, asked 0.01"],
        ["input 0", "given", "reverse", "5/5", "2e-06", "right"],
    ]


def test_row_without_a_reason_has_that_of_the_finding() -> None:
    jump = Finding("reverse", Verdict.INCONCLUSIVE, "the function jumps at the point (reverse mode)")
    report = replace(with_rows(MISSING), findings=(jump,))
    assert why_not_pass(report) == [
        "not compared: bias in reverse mode: the function jumps at the point (4 of 4 elements)"
    ]
    assert headline(report) == jump.headline
    # Its reason is in the sentence, so that the finding is left out.
    assert (why_not_pass(report)[0] in plain(report), jump.headline in plain(report)) == (True, False)
    assert jump.headline in plain(report, verbose=True)


def test_finding_with_another_reason_than_the_row_is_shown() -> None:
    noise = Finding("reverse", Verdict.INCONCLUSIVE, "the differences are too noisy to decide (reverse mode)")
    lines = stripped(plain(replace(with_rows(PARTLY), findings=(noise,))))
    assert lines.index(f"reverse: {noise.headline}") > 0


def test_modes_of_an_input_share_a_sentence() -> None:
    report = with_rows(PARTLY, replace(PARTLY, mode="forward"))
    assert why_not_pass(report) == [
        "not compared: input 1 in reverse and forward mode: the derivative is not finite (3 of 12 elements)"
    ]


def test_precision_is_named_where_there_are_two() -> None:
    report = with_rows(replace(FULL, precision="float64"), COARSE)
    assert why_not_pass(report) == [
        "not compared sharply enough: weight in reverse mode (given): resolution 0.05, asked 0.01"
    ]


def test_numbers_that_round_to_the_same_are_told_apart() -> None:
    (line,) = ledger_lines(with_rows(replace(COARSE, resolution=0.010003)))
    assert line.verdict == "resolution 0.010003, asked 0.01"


def test_failure_shows_open_rows_after_its_findings() -> None:
    lines = stripped(plain(with_rows(FULL, PARTLY, report=failed()), verbose=True))
    finding = next(i for i, line in enumerate(lines) if line.startswith("reverse: reverse mode disagrees"))
    sentence = next(i for i, line in enumerate(lines) if line.startswith("not compared: input 1"))
    assert finding < sentence
    assert any(cells(line)[:1] == ["input 1"] for line in lines)
    assert next(cells(line)[-1] for line in lines if cells(line)[:1] == ["input 0"]) == "right"


def test_input_that_a_failure_left_uncompared_is_named() -> None:
    report = with_rows(replace(MISSING, input="weight"), MISSING, report=failed())
    assert why_not_pass(report) == [
        "not compared: bias in reverse mode: the comparison ended at the failure (4 of 4 elements)"
    ]
    assert [line.verdict for line in ledger_lines(report)] == ["wrong", "not compared"]


def test_failure_says_of_each_input_whether_it_is_right() -> None:
    wrong = replace(MISSING, input="weight")
    lines = [cells(line) for line in stripped(plain(with_rows(FULL, wrong, report=failed())))]
    assert [(line[0], line[-1]) for line in lines if line[1:2] == ["given"]] == [
        ("weight", "wrong"),
        ("input 0", "right"),
    ]
    assert [line.verdict for line in ledger_lines(with_rows(FULL, wrong, report=failed()))] == ["wrong", "right"]


def many(count: int, row: LedgerRow) -> tuple[LedgerRow, ...]:
    return tuple(replace(row, input=f"{row.input}.{number}") for number in range(count))


def test_many_rows_are_counted_by_verdict_after_the_worst_ones() -> None:
    worst = replace(COARSE, input="worst", resolution=0.4)
    report = with_rows(
        *many(20, FULL), *many(10, COARSE), worst, *many(7, replace(FULL, mode="forward")), *many(2, MISSING)
    )
    assert [line[:6] for line in ledger_lines(report)] == [
        ("bias.0", "given", "reverse", "0/4", "-", "not compared"),
        ("bias.1", "given", "reverse", "0/4", "-", "not compared"),
        ("worst", "given", "reverse", "4/4", "0.4", "resolution 0.4, asked 0.01"),
        ("weight.0", "given", "reverse", "4/4", "0.05", "resolution 0.05, asked 0.01"),
        ("weight.1", "given", "reverse", "4/4", "0.05", "resolution 0.05, asked 0.01"),
        ("8 more inputs", "given", "reverse", "32/32", "0.05", "resolution above 0.01"),
        ("20 more inputs", "given", "reverse", "100/100", "2e-06", "right"),
        ("7 more inputs", "given", "forward", "35/35", "2e-06", "right"),
    ]
    sentences = why_not_pass(report)
    assert len(sentences) == 6
    assert sentences[-1] == "8 more inputs in the ledger were not compared as asked"


def test_gradient_is_not_called_right_where_its_wider_version_was_not_compared() -> None:
    """A failure ends the comparison in float64; the gradient in low precision is compared with that in float64."""
    wide = replace(MISSING, input=FULL.input, elements=FULL.elements, precision="float64")
    lines = ledger_lines(with_rows(wide, FULL, report=failed()))
    assert [(line.precision, line.verdict) for line in lines] == [
        ("float64", "not compared"),
        ("given", "as in float64"),
    ]
    proved = replace(FULL, precision="float64")
    assert {line.verdict for line in ledger_lines(with_rows(proved, FULL, report=failed()))} == {"right"}


def test_wrong_rows_are_named_before_those_that_were_not_compared() -> None:
    wrong = replace(FULL, input="weight")
    lines = ledger_lines(with_rows(*many(20, FULL), *many(6, MISSING), wrong, report=failed()))
    assert [(line.input, line.verdict) for line in lines] == [
        ("weight", "wrong"),
        *((f"bias.{number}", "not compared") for number in range(4)),
        ("2 more inputs", "not compared"),
        ("20 more inputs", "right"),
    ]


def test_inputs_that_are_named_above_are_not_counted_as_more() -> None:
    wrong = replace(FULL, input="weight")
    forward = [replace(row, mode="forward") for row in (wrong, *many(3, FULL))]
    lines = ledger_lines(with_rows(*many(8, FULL), wrong, *forward, report=failed()))
    assert [(line.input, line.mode, line.verdict) for line in lines] == [
        ("weight", "reverse", "wrong"),
        ("8 more inputs", "reverse", "right"),
        ("4 inputs", "forward", "right"),
    ]


@pytest.mark.parametrize(("count", "lines"), [(MAX_ROWS, MAX_ROWS), (MAX_ROWS + 1, 1)])
def test_few_rows_are_shown_one_by_one(count: int, lines: int) -> None:
    assert len(ledger_lines(with_rows(*many(count, FULL)))) == lines


def test_input_without_elements_is_called_so() -> None:
    (line,) = ledger_lines(with_rows(LedgerRow("mask", "reverse", "given", 0, 0, None, 0.01)))
    assert (line.compared, line.resolution, line.verdict, line.is_open) == ("0/0", "-", "no elements", False)


def test_report_that_compared_nothing_says_so() -> None:
    report = with_rows()
    assert report.verdict is Verdict.INCONCLUSIVE
    assert why_not_pass(report) == ["not compared: no element of any input was compared with finite differences"]
    assert headline(report) == why_not_pass(report)[0]
    assert "at least one element" in what_to_do(report)


def test_report_that_is_inconclusive_otherwise_shows_no_ledger() -> None:
    compiled = Finding("compile", Verdict.INCONCLUSIVE, "torch.compile fails")
    report = replace(with_rows(FULL), findings=(*passed().findings, compiled))
    assert (report.verdict, why_not_pass(report), what_to_do(report)) == (Verdict.INCONCLUSIVE, [], "")
    assert "precision" not in plain(report)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ((COARSE,), "Pass resolution=0.06 to accept"),
        ((replace(COARSE, resolution=0.9),), "Check at a point where"),
        ((COARSE, PARTLY), "Check at a point where"),
        ((replace(PARTLY, reasons=("the time budget was spent",)),), "Allow more time with budget="),
    ],
    ids=["coarse", "too coarse to accept", "not finite", "out of time"],
)
def test_what_to_do_fits_the_rows(rows: tuple[LedgerRow, ...], text: str) -> None:
    assert what_to_do(with_rows(*rows)).startswith(text)
    assert text in plain(with_rows(*rows))


def test_advice_of_a_finding_is_not_repeated() -> None:
    noisy = Finding("reverse", Verdict.INCONCLUSIVE, "too noisy", advice="Try float64 inputs.")
    assert what_to_do(replace(with_rows(COARSE), findings=(noisy,))) == ""


def test_jump_beside_a_complete_ledger_gets_advice() -> None:
    jump = Finding("forward", Verdict.INCONCLUSIVE, "the function jumps at the point")
    assert what_to_do(replace(with_rows(FULL), findings=(jump,))).startswith("Check at a point where")


# Notebook and page.


def table_rows(text: str) -> list[list[str]]:
    (table,) = re.findall(r'<table class="ledger">(.*?)</table>', text, re.DOTALL)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table)][1:]


def test_notebook_and_page_show_the_table_of_a_pass_too() -> None:
    expected = [["input 0", "given", "reverse", "5/5", "2e-06", "right"]]
    assert table_rows(with_rows(FULL)._repr_html_()) == expected
    assert table_rows(html.page([with_rows(FULL)])) == expected


def test_notebook_and_page_show_what_was_not_compared() -> None:
    for text in (with_rows(FULL, PARTLY)._repr_html_(), html.page([with_rows(FULL, PARTLY)])):
        assert "not compared: input 1 in reverse mode: the derivative is not finite (3 of 12 elements)" in text
        assert [row[0] for row in table_rows(text)] == ["input 1", "input 0"]
        assert '<tr class="open"><td>input 1</td>' in text


def test_report_without_a_ledger_has_no_table() -> None:
    assert '<table class="ledger">' not in passed()._repr_html_() + html.page([passed()])


def test_page_is_brief_about_a_report_whose_findings_all_pass() -> None:
    brief = re.search(r'<span class="brief">(.*?)</span>', html.page([with_rows(PARTLY)]))
    assert brief is not None
    assert brief[1].startswith("not compared: input 1 in reverse mode")


def test_names_of_inputs_are_escaped() -> None:
    report = with_rows(replace(PARTLY, input="<b>&"))
    for text in (report._repr_html_(), html.page([report])):
        assert "<td>&lt;b&gt;&amp;</td>" in text
        assert "<b>&<" not in text


# Summaries of many reports.


def test_summary_does_not_pass_beside_the_ledger() -> None:
    assert summary_of("op", [with_rows(FULL)]).verdict is Verdict.PASS
    assert summary_of("op", [with_rows(FULL), with_rows(PARTLY)]).verdicts["reverse"] is Verdict.INCONCLUSIVE
    assert summary_of("op", [with_rows()]).verdict is Verdict.INCONCLUSIVE
