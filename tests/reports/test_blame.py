"""The report about a model: text, notebook, page and JSON. Tests `core/blame.py` too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gradvet.core.blame import FUNCTION, BlameReport, Culprit, Piece, Stop, TreeNode
from gradvet.core.results import Finding, Mismatch, Report, SourceCode, Verdict
from gradvet.core.vectors import Location
from gradvet.errors import GradientError
from gradvet.reports.blame import fragment, grouped, page, text

PLACE = SourceCode("rope.py", 145, "def backward(ctx, g):")
CALLED = SourceCode("model.py", 31, "q = Rope.apply(q)")


def node(path: str, verdict: Verdict, *children: TreeNode, pieces: tuple[Piece, ...] = ()) -> TreeNode:
    return TreeNode(path, "Block", verdict, "", children, pieces)


def report(**changes: object) -> BlameReport:
    entry = Mismatch(Location(0, "output", "[1]"), Location(0, "input 0", "[3]"), 1.5, -1.5, 1e-9, 1e-9)
    finding = Finding("reverse", Verdict.FAIL, "reverse mode disagrees", (entry,), advice="The sign is wrong.")
    culprit = Culprit(
        "blocks.3.rope",
        "autograd.Function Rope",
        PLACE,
        "the sign of the second half is wrong",
        "input 0",
        CALLED,
        ("blocks.4.rope", "blocks.5.rope"),
        (),
        finding,
    )
    failed = Piece("blocks.3.rope", FUNCTION, "Rope", Verdict.FAIL, PLACE, CALLED)
    lost = Piece("blocks.0", FUNCTION, "Noise", Verdict.SKIPPED, reason="could not be replayed: other <values>")
    quiet = [node(f"blocks.{n}", Verdict.PASS) for n in range(3)]
    guilty = node("blocks.3", Verdict.FAIL, node("blocks.3.rope", Verdict.FAIL, pieces=(failed,)))
    tree = node("", Verdict.FAIL, *quiet, guilty)
    settings = {"culprits": (culprit,), "pieces": (failed, lost), "tree": tree, **changes}
    return BlameReport("GPT", seconds=1.5, seed=1, notes=("a note",), **settings)  # type: ignore[arg-type]


def test_headline_names_path_function_line_input_and_cause() -> None:
    line = "blocks.3.rope: autograd.Function Rope, rope.py:145, input 0: the sign of the second half is wrong"
    assert str(report().culprit) == line
    assert text(report()).splitlines()[1].strip() == line


def test_text_shows_call_entries_tree_and_what_was_not_replayed() -> None:
    shown = text(report())
    assert "called in model.py:31  q = Rope.apply(q)" in shown
    assert "the same in blocks.4.rope, blocks.5.rope" in shown
    assert "output [1]" in shown
    assert "-1.5" in shown
    assert "blocks.0 … blocks.2 PASS" in shown
    assert "autograd.Function Rope FAIL" in shown
    assert "could not be replayed: other <values>" in shown


def test_failure_fits_one_screen() -> None:
    assert len(text(report()).splitlines()) <= 24


def test_pass_is_one_line_and_notes() -> None:
    passed = report(culprits=(), pieces=(), is_complete=True)
    assert passed.verdict is Verdict.PASS
    assert len(text(passed).splitlines()) == 2


def test_piece_without_verdict_prevents_a_pass() -> None:
    lost = Piece("", FUNCTION, "Noise", Verdict.SKIPPED, reason="could not be replayed")
    assert report(culprits=(), pieces=(lost,), is_complete=True).verdict is Verdict.INCONCLUSIVE


def test_incomplete_report_without_culprit_is_inconclusive() -> None:
    assert report(culprits=(), pieces=()).verdict is Verdict.INCONCLUSIVE


def test_page_folds_the_tree_and_escapes_text() -> None:
    shown = page(report())
    assert shown.count("<details") >= 2
    assert "other &lt;values&gt;" in shown
    assert "<values>" not in shown
    assert "rope.py:145" in shown


def test_notebook_gets_the_fragment() -> None:
    assert report()._repr_html_() == fragment(report())


def test_json_has_headlines_tree_and_verdict(tmp_path: Path) -> None:
    report().save(tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["verdict"] == "fail"
    assert found["headlines"] == [str(report().culprit)]
    assert [child["verdict"] for child in found["tree"]["children"]] == ["pass", "pass", "pass", "fail"]


def test_report_is_saved_as_a_page(tmp_path: Path) -> None:
    report().save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    with pytest.raises(ValueError, match=r"\.json or \.html"):
        report().save(tmp_path / "report.txt")


def test_neighbours_with_the_same_verdict_are_grouped() -> None:
    groups = grouped(report().tree.children)  # type: ignore[union-attr]
    assert [len(group) for group in groups] == [3, 1]


def test_stop_that_explains_takes_the_place_of_the_advice() -> None:
    stop = Stop(PLACE, "no gradient flows through detach() here", explains=True)
    culprit = Culprit("a", "detach", PLACE, stop.what, "", None, (), (stop,), report().culprits[0].finding)
    for found in (culprit, replace(culprit, stops=(replace(stop, can_hold=True),))):
        for shown in (text(report(culprits=(found,))), page(report(culprits=(found,)))):
            assert "The sign is wrong." not in shown
            assert ("If it is meant so, pass stops=" in shown) == found.stops[0].can_hold


def test_report_with_a_culprit_raises() -> None:
    with pytest.raises(GradientError, match=r"blocks\.3\.rope"):
        report().raise_if_failed()
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(report())


def test_warning_and_accepted_stop_are_shown() -> None:
    warning = Culprit("a", "attribute scale", PLACE, "is no registered parameter")
    shown = text(report(warnings=(warning,), accepted=(Stop(PLACE, ""),)))
    assert "warning: a: attribute scale" in shown
    assert "held constant: rope.py:145" in shown


def test_undecided_piece_says_why() -> None:
    finding = Finding("reverse", Verdict.INCONCLUSIVE, "too noisy")
    inner = Report("f", (finding,), cost=None, seconds=0.0, seed=0, miss=0.0)  # type: ignore[arg-type]
    piece = Piece("a", FUNCTION, "F", Verdict.INCONCLUSIVE, report=inner)
    assert "undecided: a: autograd.Function F: too noisy" in text(report(pieces=(piece,)))
