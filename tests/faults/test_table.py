"""The table of faults names tests that exist, and docs/reliability.md shows it."""

from __future__ import annotations

from pathlib import Path

from tests.faults.table import FAULTS, markdown

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "reliability.md"


def test_every_row_names_a_test() -> None:
    for fault in FAULTS:
        file, name = fault.test.split("::")
        assert f"\ndef {name}(" in (HERE / file).read_text(encoding="utf-8"), fault.test


def test_page_shows_the_table() -> None:
    assert markdown() in PAGE.read_text(encoding="utf-8")
