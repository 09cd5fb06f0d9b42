"""`--gradvet-seed=N`."""

from __future__ import annotations

import pytest

from gradvet.reports.json_files import load
from tests.plugin.suites import WRONG

pytest_plugins = ("pytester",)

SUITE = (
    WRONG
    + """
    def test_default(gradient_checker):
        gradient_checker(torch.sin, POINT)

    def test_own(gradient_checker):
        gradient_checker(torch.cos, POINT, seed=5)

    def test_classical():
        assert torch.autograd.gradcheck(torch.tan, POINT.clone().requires_grad_())
"""
)


def seeds(pytester: pytest.Pytester, *options: str) -> dict[str, int]:
    pytester.makepyfile(SUITE)
    pytester.runpytest_inprocess("--gradvet-json=run.json", *options).assert_outcomes(passed=3)
    return {report.title.split()[-1]: report.seed for report in load(pytester.path / "run.json")}


def test_seed_holds_for_every_check_that_has_none_of_its_own(pytester: pytest.Pytester) -> None:
    assert seeds(pytester, "--gradvet-seed=123") == {"sin": 123, "cos": 5}


@pytest.mark.parametrize("seed", [123, -1, 2**64 - 1])
def test_seed_holds_for_replaced_functions_of_torch(pytester: pytest.Pytester, seed: int) -> None:
    found = seeds(pytester, f"--gradvet-seed={seed}", "--gradvet-replace-torch")
    assert found == {"sin": seed, "cos": 5, "tan": seed}


@pytest.mark.parametrize("text", ["many", "1.5", str(2**64)])
def test_other_seeds_are_a_usage_error(pytester: pytest.Pytester, text: str) -> None:
    result = pytester.runpytest_inprocess(f"--gradvet-seed={text}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*an integer of at most 64 bits was expected, found '{text}'*"])


def test_without_the_option_seeds_are_fresh(pytester: pytest.Pytester) -> None:
    first, second = seeds(pytester), seeds(pytester)
    assert first["sin"] != second["sin"]
    assert first["cos"] == second["cos"] == 5
