"""`gradvet ops`: the operators of PyTorch's own database, one line each."""

from __future__ import annotations

import pytest

from gradvet.frontends.torch.opdb import group_named
from gradvet.reports.json_files import load
from tests.cli.command import exit_code


def test_operators_are_listed_with_their_verdicts_and_upstream_marks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # With --debug in this process: another one would load torch and its database again, as an example of the docs does.
    options = ("--samples", "1", "--seed", "1", "--json", "ops.json", "--debug")
    assert exit_code("ops", "--op", "co[vs]", *options) == 0
    out = capsys.readouterr().out
    names = [line.split()[0] for line in out.splitlines() if "  pass  " in line]
    assert names == ["cos/float64", "cos/inplace/float64", "cov/float64"]
    assert [report.title.rpartition("/")[0] for report in load("ops.json")] == names
    # torch 2.15 no longer marks it.
    is_marked = bool(group_named("cov/float64", "cpu").marks())
    assert ("cov/float64: PyTorch's own tests: reverse expected to fail" in out) == is_marked
    assert out.splitlines()[-1] == "3 checks: 3 pass"
