"""The catalogue is covered: every entry has a test that carries its number."""

from __future__ import annotations

import re
from pathlib import Path

ENTRIES = range(1, 134)


def test_every_entry_of_the_catalogue_has_a_test() -> None:
    sources = [path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py"))]
    numbers = {int(number) for source in sources for number in re.findall(r"^def test_(\d{3})_", source, re.MULTILINE)}
    assert numbers == set(ENTRIES)
