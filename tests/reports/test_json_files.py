"""Reports as JSON files."""

from __future__ import annotations

import errno
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gradvet
from gradvet.core.results import FORMAT, Finding, Report, Verdict
from gradvet.reports.json_files import ReportFileError, load, save
from tests.reports.samples import doubtful, failed, passed, report, worst


def test_reports_of_a_run_come_back(tmp_path: Path) -> None:
    reports = [passed(), failed(), doubtful()]
    save(reports, tmp_path / "run.json")
    assert [one.to_dict() for one in load(tmp_path / "run.json")] == [one.to_dict() for one in reports]


def test_single_report_comes_back(tmp_path: Path) -> None:
    failed().save(tmp_path / "one.json")
    (found,) = load(tmp_path / "one.json")
    assert found.to_dict() == failed().to_dict()
    assert str(found) == str(failed())


def test_values_that_are_not_finite_come_back(tmp_path: Path) -> None:
    entry = replace(worst(), derivative=math.nan, error=math.inf)
    save([report("f", Finding("reverse", Verdict.FAIL, "not finite", (entry,)))], tmp_path / "run.json")
    (found,) = load(tmp_path / "run.json")[0].findings[0].mismatches
    assert math.isnan(found.derivative)
    assert found.error == math.inf


def test_document_says_the_version_of_its_format(tmp_path: Path) -> None:
    save([passed()], tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["format"] == FORMAT
    assert document["reports"][0]["format"] == FORMAT


def test_format_number_is_unchanged() -> None:
    # Raise the number only for a change that older versions cannot read.
    assert FORMAT == 1


def test_other_format_is_refused() -> None:
    with pytest.raises(ValueError, match=f"format {FORMAT} was expected, found format 99"):
        Report.from_dict({**passed().to_dict(), "format": 99})


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"format": 1}', '{"reports": [{}]}', "not json"])
def test_file_that_holds_no_reports_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ReportFileError, match=r"other\.json is not a gradvet report"):
        load(tmp_path / "other.json")


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportFileError, match=r"none\.json cannot be read"):
        load(tmp_path / "none.json")


def test_damaged_report_among_others_is_an_error_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    save([passed("good"), failed("bad")], path)
    document = json.loads(path.read_text())
    document["reports"][1]["findings"] = []  # its verdict is still fail
    path.write_text(json.dumps(document))
    found = [(report.title, report.verdict) for report in load(path)]
    assert found == [("good", Verdict.PASS), ("bad", Verdict.ERROR)]


def test_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"format": 99, "reports": []}))
    with pytest.raises(ReportFileError, match="found format 99"):
        load(path)


def test_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    save([passed("old")], path)

    def fail(file: Path, text: str, encoding: str) -> None:
        with file.open("w") as stream:
            stream.write(text[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fail)
        with pytest.raises(ReportFileError, match="was not written \\(No space left on device\\)"):
            save([passed("new")], path)
        with pytest.raises(OSError, match="No space left"):
            passed("new").save(path)
    assert [report.title for report in load(path)] == ["old"]
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("name", ["report.json", "report.html"])
def test_file_in_a_folder_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError) as error:
        passed().save(tmp_path / "nowhere" / name)
    assert error.value.filename == str(tmp_path / "nowhere" / name)


def test_report_about_a_model_is_named_as_one(tmp_path: Path) -> None:
    path = tmp_path / "blame.json"
    gradvet.blame(torch.nn.Linear(2, 2), torch.ones(1, 2), seed=0).save(path)
    with pytest.raises(ReportFileError, match="save it as"):
        load(path)
