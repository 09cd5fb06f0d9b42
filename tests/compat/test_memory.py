"""A whole check of 10,000 inputs and outputs: its Jacobian alone would take 800 MB."""

from __future__ import annotations

import sys

import pytest

from benchmarks.memory import SIZE, peak_of_a_check

LIMIT = 100_000_000

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the largest resident size is not told there")


@pytest.mark.parametrize(("kind", "options"), [("right", ()), ("wrong", ()), ("wrong", ("check_forward_ad",))], ids=str)
def test_check_takes_little_memory_above_the_functions_own(kind: str, options: tuple[str, ...]) -> None:
    assert 8 * SIZE * SIZE > 5 * LIMIT
    assert peak_of_a_check(kind, *options) <= LIMIT
