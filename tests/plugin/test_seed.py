"""`--gradvet-seed=N`."""

from __future__ import annotations

import pytest

from gradvet.reports.documents import load
from tests.plugin.suites import WRONG

pytest_plugins = ("pytester",)

SUITE = (
    WRONG
    + """
    def test_default(gradvet):
        gradvet.check(torch.sin, POINT)

    def test_own(gradvet):
        gradvet.check(torch.cos, POINT, seed=5)
"""
)


def seeds(pytester: pytest.Pytester, *options: str) -> dict[str, int]:
    pytester.makepyfile(SUITE)
    pytester.runpytest_inprocess("--gradvet-json=run.json", *options).assert_outcomes(passed=2)
    return {report.title.split()[-1]: report.seed for report in load(pytester.path / "run.json")}


def test_seed_holds_for_every_check_that_has_none_of_its_own(pytester: pytest.Pytester) -> None:
    assert seeds(pytester, "--gradvet-seed=123") == {"sin": 123, "cos": 5}


def test_without_the_option_seeds_are_fresh(pytester: pytest.Pytester) -> None:
    first, second = seeds(pytester), seeds(pytester)
    assert first["sin"] != second["sin"]
    assert first["cos"] == second["cos"] == 5
