"""What the terminal says."""

from __future__ import annotations

import io

from rich.console import Console

from gradvet.reports.terminal import console_for, plain, show
from tests.reports.samples import doubtful, failed, passed, worst


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def test_pass_is_one_line() -> None:
    text = plain(passed())
    assert text == "PASS good  resolution 2e-06, miss probability 0.001; 12 forward, 5 backward calls, 250 ms"


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
    assert "exercised: reverse" in found
    assert "not exercised: forward: no formula" in found
    assert "code: ops.py:17" in found
    assert "again: gradvet.check(bad, inputs, seed=7)" in found


def test_findings_that_are_well_are_not_shown_in_a_failure() -> None:
    assert "the value is the same" not in plain(failed())


def test_inconclusive_says_why() -> None:
    assert "reverse: the function jumps at the point" in lines(plain(doubtful()))


def test_what_is_not_a_terminal_gets_no_control_sequences_and_no_trailing_spaces() -> None:
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
