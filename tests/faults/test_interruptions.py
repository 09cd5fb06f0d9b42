"""A check that is interrupted at any line leaves nothing changed. `make fuzz` tries more lines."""

from __future__ import annotations

import pytest

from gradvet.frontends.torch import private
from tests.faults.interruptions import CASES, Interruptions

POINTS = 25
"""Interruptions of each case."""


@pytest.mark.skipif(private.PUBLIC_ONLY, reason="open modes cannot be closed without private names")
@pytest.mark.parametrize("case", CASES)
def test_interrupted_check_leaves_everything_as_it_was(case: object) -> None:
    interruptions = Interruptions(case)  # type: ignore[arg-type]
    assert len(interruptions.places) > 500
    for point in interruptions.points(POINTS, seed=0):
        assert interruptions.failure(point) == ""
