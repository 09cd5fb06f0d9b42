"""The table of faults names tests that exist, and docs/reliability.md shows it."""

from __future__ import annotations

from pathlib import Path

from tests.faults.table import FAULTS, IN_PROCESS, OF_A_RUN, markdown

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "reliability.md"


def test_every_row_names_a_test() -> None:
    for fault in FAULTS:
        file, name = fault.test.split("::")
        assert f"\ndef {name}(" in (TESTS / file).read_text(encoding="utf-8"), fault.test


def test_page_shows_the_table() -> None:
    for faults in (IN_PROCESS, OF_A_RUN):
        assert markdown(faults) in PAGE.read_text(encoding="utf-8")
