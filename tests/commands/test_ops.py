"""`gradvet ops`: the operators of PyTorch's own database, one line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradvet.cli import main
from gradvet.reports.documents import load


def test_operators_are_listed_with_their_verdicts_and_what_pytorch_says_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["ops", "--op", "co[vs]", "--samples", "1", "--seed", "1", "--json", "ops.json"])
    assert not left.value.code
    said = capsys.readouterr().out
    names = [line.split()[0] for line in said.splitlines() if "  pass  " in line]
    assert names == ["cos/float64", "cos/inplace/float64", "cov/float64"]
    assert [report.title.rpartition("/")[0] for report in load("ops.json")] == names
    assert "cov/float64: PyTorch's own tests: reverse expected to fail" in said
    assert said.splitlines()[-1] == "3 checks: 3 pass"
