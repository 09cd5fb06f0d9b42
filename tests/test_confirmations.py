"""Every mistake that the audit of torch names can be shown with torch alone; the page has the programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.audit import PAGE, body
from benchmarks.confirmations import CONFIRMED, Confirmed


@pytest.mark.parametrize("confirmed", CONFIRMED, ids=lambda confirmed: confirmed.name)
def test_program_needs_torch_alone(confirmed: Confirmed) -> None:
    lines = [line.split() for line in confirmed.code().splitlines() if line.startswith(("import ", "from "))]
    assert {words[1].split(".")[0] for words in lines} <= {"torch", "warnings"}


@pytest.mark.parametrize("confirmed", CONFIRMED, ids=lambda confirmed: confirmed.name)
def test_page_shows_the_program_that_was_judged(confirmed: Confirmed) -> None:
    assert body(confirmed.code()) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("confirmed", CONFIRMED, ids=lambda confirmed: confirmed.name)
def test_program_fails_if_the_mistake_is_mended(confirmed: Confirmed) -> None:
    assert any(line.strip().startswith("assert ") for line in confirmed.code().splitlines())


def test_every_program_is_named() -> None:
    folder = Path(CONFIRMED[0].path).parent
    assert {path.stem for path in folder.glob("[a-z]*.py")} == {confirmed.name for confirmed in CONFIRMED}
