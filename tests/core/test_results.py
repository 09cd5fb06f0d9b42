"""The verdict of a report: no way to PASS leads past the ledger, however the report was made."""

from __future__ import annotations

import ast
import copy
import itertools
import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gradvet
from gradvet.core.ledger import Cost, LedgerRow
from gradvet.core.results import Finding, Report, Verdict
from gradvet.pytest_plugin import WatchedReport
from tests.sources import SOURCES, nodes_of, parsed

COMPLETE = LedgerRow("input 0", "reverse", "given", 5, 5, 1e-5, 0.01)
OPEN_ROWS = {
    "nothing compared": replace(COMPLETE, compared=0, resolution=None),
    "one element missing": replace(COMPLETE, compared=4, reasons=("the derivative is not finite",)),
    "too coarse": replace(COMPLETE, resolution=0.05),
    "resolution is no number": replace(COMPLETE, resolution=float("nan")),
    "compared without a resolution": replace(COMPLETE, resolution=None),
}
EMPTY = replace(COMPLETE, elements=0, compared=0, resolution=None)
LEDGERS: dict[str, tuple[LedgerRow, ...]] = {
    "no rows": (),
    "no elements": (EMPTY,),
    "complete": (COMPLETE, EMPTY),
    **{name: (COMPLETE, row) for name, row in OPEN_ROWS.items()},
}
AGREES = Finding("reverse", Verdict.PASS, "reverse mode agrees")
FINDINGS: dict[str, tuple[Finding, ...]] = {
    "none": (),
    "agrees": (AGREES,),
    "agrees in another mode": (replace(AGREES, check="forward"),),
    "another check passes": (replace(AGREES, check="values"),),
    "skipped": (replace(AGREES, verdict=Verdict.SKIPPED),),
    "inconclusive": (AGREES, replace(AGREES, check="forward", verdict=Verdict.INCONCLUSIVE)),
    "fails": (AGREES, replace(AGREES, check="forward", verdict=Verdict.FAIL)),
}


def report(findings: tuple[Finding, ...] = (AGREES,), ledger: tuple[LedgerRow, ...] = (COMPLETE,)) -> Report:
    return Report("f", findings, Cost(), 0.1, seed=0, miss=0.0, ledger=ledger, expects_ledger=True)


def constructed(findings: tuple[Finding, ...], ledger: tuple[LedgerRow, ...]) -> Report:
    return report(findings, ledger)


def read(findings: tuple[Finding, ...], ledger: tuple[LedgerRow, ...]) -> Report:
    return Report.from_dict(json.loads(json.dumps(report(findings, ledger).to_dict())))


def read_with_another_verdict(findings: tuple[Finding, ...], ledger: tuple[LedgerRow, ...]) -> Report:
    return Report.from_dict({**report(findings, ledger).to_dict(), "verdict": "pass"})


def edited(findings: tuple[Finding, ...], ledger: tuple[LedgerRow, ...]) -> Report:
    """A document of a pass whose findings and ledger were exchanged afterwards."""
    other = report(findings, ledger).to_dict()
    return Report.from_dict({**report().to_dict(), "findings": other["findings"], "ledger": other["ledger"]})


def replaced(findings: tuple[Finding, ...], ledger: tuple[LedgerRow, ...]) -> Report:
    return replace(report(), findings=findings, ledger=ledger)


def copied(findings: tuple[Finding, ...], ledger: tuple[LedgerRow, ...]) -> Report:
    return copy.copy(report(findings, ledger))


def unpickled(findings: tuple[Finding, ...], ledger: tuple[LedgerRow, ...]) -> Report:
    found: Report = pickle.loads(pickle.dumps(report(findings, ledger)))
    return found


WAYS = (constructed, read, read_with_another_verdict, edited, replaced, copied, unpickled)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_pass_needs_a_complete_ledger_and_a_finding_behind_it(way: Callable[..., Report]) -> None:
    passing = [
        (findings, ledger)
        for findings, ledger in itertools.product(FINDINGS, LEDGERS)
        if way(FINDINGS[findings], LEDGERS[ledger]).verdict is Verdict.PASS
    ]
    assert passing == [("agrees", "complete")]


@pytest.mark.parametrize("findings", FINDINGS)
@pytest.mark.parametrize("ledger", LEDGERS)
def test_failure_stays_one_whatever_the_ledger_says(findings: str, ledger: str) -> None:
    is_failure = report(FINDINGS[findings], LEDGERS[ledger]).verdict is Verdict.FAIL
    assert is_failure == (findings == "fails")


def test_report_of_checks_that_compare_nothing_needs_no_ledger() -> None:
    other = replace(report(), ledger=(), expects_ledger=False)
    assert other.verdict is Verdict.PASS
    assert replace(other, expects_ledger=True).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("findings", FINDINGS)
@pytest.mark.parametrize("ledger", LEDGERS)
def test_watched_report_has_the_verdict_of_the_report(findings: str, ledger: str) -> None:
    made = report(FINDINGS[findings], LEDGERS[ledger])
    watched = WatchedReport.of(made)
    assert not watched.is_read
    assert (watched.verdict, watched.to_dict()) == (made.verdict, made.to_dict())
    assert watched.is_read


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_check_expects_a_ledger(dtype: torch.dtype, order: int) -> None:
    found = gradvet.check(torch.sin, torch.linspace(0.1, 1.0, 4, dtype=dtype), seed=0, order=order, points=None)
    assert found.expects_ledger
    assert found.ledger
    assert replace(found, ledger=()).verdict is Verdict.INCONCLUSIVE
    assert replace(found, findings=()).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("name", ["verdict", "passed", "is_complete", "open_rows", "expects_ledger", "ledger"])
def test_what_decides_the_verdict_cannot_be_set(name: str) -> None:
    made = report(ledger=LEDGERS["too coarse"])
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):  # TypeError: frozen with slots
        setattr(made, name, True)
    assert made.verdict is Verdict.INCONCLUSIVE


# The source: nothing in it gives a report a verdict.

REPORT_MAKERS = {"Report", "make_report", "replace", "cls"}
READ_MARK = "WatchedReport"
"""The one class derived from Report: it notes that something was read of it, and changes nothing."""

DECIDING = {"verdict", "passed", "is_complete", "open_rows", "_has_agreement"}


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement assigns to, with tuples taken apart."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        waiting = list(node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.comprehension)):
        waiting = [node.target]
    else:
        return
    while waiting:
        target = waiting.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            waiting += target.elts
        else:
            yield target.value if isinstance(target, ast.Starred) else target


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


OTHER_REPORTS = ("core/runner.py", "frontends/torch/blame/investigation.py", "frontends/torch/blame/module_tree.py")
"""The first makes reports, and joins the findings and ledgers of several ones. The others are about pieces of a model,
whose verdicts are those of the checks of each piece; they make no `Report`."""


def breaches(sources: Mapping[str, str]) -> list[str]:
    """Places that set a verdict on an object, hand one to a report, or derive a class from Report."""
    found = []
    for path, text in sources.items():
        for node in nodes_of(text):
            is_breach = (
                any(isinstance(target, ast.Attribute) and target.attr in DECIDING for target in targets(node))
                or (isinstance(node, ast.ClassDef) and "Report" in map(name_of, node.bases) and node.name != READ_MARK)
                or (isinstance(node, ast.Call) and _hands_over(node))
            )
            if is_breach and path not in OTHER_REPORTS:
                found.append(f"{path}:{getattr(node, 'lineno', 0)}")
    return found


def _hands_over(call: ast.Call) -> bool:
    name = name_of(call.func)
    if name in ("setattr", "__setattr__"):
        return any(isinstance(given, ast.Constant) and given.value in DECIDING for given in call.args)
    if name == "replace" and any(keyword.arg in ("expects_ledger", "ledger") for keyword in call.keywords):
        return True
    of_report = name in REPORT_MAKERS and not _is_about_findings(call)
    return of_report and any(keyword.arg in DECIDING for keyword in call.keywords)


def _is_about_findings(call: ast.Call) -> bool:
    """`replace(finding, verdict=...)`: a finding has a verdict of its own, and alone it makes no report pass."""
    return (
        name_of(call.func) == "replace" and bool(call.args) and name_of(call.args[0]) in ("finding", "decision", "self")
    )


def test_no_source_sets_the_verdict_of_a_report() -> None:
    assert len(SOURCES) > 100
    assert breaches(SOURCES) == []


@pytest.mark.parametrize(
    "text",
    [
        "report.verdict = Verdict.PASS",
        "report.verdict: Verdict = Verdict.PASS",
        "a, report.verdict = 1, Verdict.PASS",
        "for report.verdict in (Verdict.PASS,):\n    pass",
        "object.__setattr__(report, 'verdict', Verdict.PASS)",
        "setattr(report, 'is_complete', True)",
        "Report(title, findings, verdict=Verdict.PASS)",
        "results.Report(title, verdict=Verdict.PASS)",
        "make_report(title, context, findings, verdict=Verdict.PASS)",
        "replace(report, verdict=Verdict.PASS)",
        "replace(report, expects_ledger=False)",
        "dataclasses.replace(report, ledger=())",
        "class Lenient(Report):\n    verdict = Verdict.PASS",
    ],
)
def test_source_that_sets_the_verdict_is_found(text: str) -> None:
    assert breaches({"planted.py": text})


@pytest.mark.parametrize(
    "text",
    [
        "Finding('reverse', Verdict.PASS, 'agrees')",
        "replace(finding, verdict=Verdict.FAIL)",
        "if report.verdict is Verdict.PASS:\n    pass",
        "counts[report.verdict] += 1",
        "make_report(title, context, findings, expects_ledger=True)",
    ],
)
def test_other_source_is_not(text: str) -> None:
    assert not breaches({"planted.py": text})


def functions_returning_pass(text: str) -> list[str]:
    """Qualified names of functions that return a bare `Verdict.PASS`, perhaps in a conditional expression."""
    found = []

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = (*names, child.name) if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else names
            if isinstance(child, ast.Return) and child.value is not None:
                values = [child.value]
                if isinstance(child.value, ast.IfExp):
                    values = [child.value.body, child.value.orelse]
                if any(ast.unparse(value) == "Verdict.PASS" for value in values):
                    found.append(".".join(names))
            visit(child, inner)

    visit(parsed(text), ())
    return found


def test_verdict_of_a_report_is_decided_in_one_place() -> None:
    found = [
        f"{path}: {name}"
        for path, text in SOURCES.items()
        for name in functions_returning_pass(text)
        if path.startswith(("api/", "cli/", "compat/", "reports/", "suite/", "core/results", "core/runner"))
    ]
    assert found == ["core/results.py: Report.verdict"]


# Documents.


def document(**changes: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(report().to_dict())), **changes}


def test_ledger_comes_back() -> None:
    rows = (COMPLETE, OPEN_ROWS["one element missing"], OPEN_ROWS["nothing compared"], OPEN_ROWS["too coarse"])
    assert read((AGREES,), rows).ledger == rows
    assert report(ledger=rows).to_dict()["ledger"][1] == {
        "input": "input 0",
        "mode": "reverse",
        "precision": "given",
        "elements": 5,
        "compared": 4,
        "resolution": 1e-5,
        "asked": 0.01,
        "reasons": ["the derivative is not finite"],
    }


@pytest.mark.parametrize(("verdict", "expected"), [("pass", Verdict.PASS), ("fail", Verdict.FAIL)])
def test_older_document_without_a_ledger_is_read(verdict: str, expected: Verdict) -> None:
    older = document()
    del older["ledger"], older["expects_ledger"]
    older["findings"][0]["verdict"] = verdict
    found = Report.from_dict(older)
    assert (found.ledger, found.expects_ledger, found.verdict) == ((), False, expected)
    assert str(found).startswith(f"{expected} f")


def test_oldest_document_has_the_required_keys_alone() -> None:
    needed = ("format", "title", "findings", "cost", "seconds", "seed", "miss")
    assert Report.from_dict({key: document()[key] for key in needed}).verdict is Verdict.PASS


def test_document_whose_findings_were_emptied_does_not_pass() -> None:
    assert Report.from_dict(document()).verdict is Verdict.PASS
    emptied = Report.from_dict(document(findings=[]))
    assert emptied.verdict is Verdict.INCONCLUSIVE
    assert "the report does not say with which result" in str(emptied)


def test_undecided_direction_is_explained_by_its_finding_alone() -> None:
    noisy = Finding("reverse", Verdict.INCONCLUSIVE, "the differences are too noisy to decide (reverse mode)")
    text = str(report((noisy,)))
    assert "too noisy to decide" in text
    assert "not a pass" not in text


# What a report offers.


@pytest.mark.parametrize(("findings", "passed"), [("agrees", True), ("fails", False), ("inconclusive", False)])
def test_passed_is_a_truth_value(findings: str, passed: bool) -> None:
    assert report(FINDINGS[findings]).passed is passed


@pytest.mark.parametrize("verdict", Verdict)
def test_verdict_reads_as_its_name(verdict: Verdict) -> None:
    assert f"{verdict}" == str(verdict) == f"{verdict!s}" == verdict.name
    assert f"{verdict:>14}" == verdict.name.rjust(14)
    assert (json.dumps(verdict), verdict == verdict.value) == (f'"{verdict.value}"', True)


def test_suffix_decides_how_a_report_is_saved(tmp_path: Path) -> None:
    for name in ("x.json", "x.html", "X.HTM"):
        report().save(tmp_path / name)
    assert json.loads((tmp_path / "x.json").read_text("utf-8")) == report().to_dict()
    assert (tmp_path / "x.html").read_text("utf-8").lstrip().startswith("<!doctype html>")
    assert (tmp_path / "X.HTM").read_text("utf-8").lstrip().startswith("<!doctype html>")


@pytest.mark.parametrize("name", ["x.txt", "x", "x.html.gz"])
def test_other_suffix_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^a report is saved as \.json or \.html, found the file name '{name}'$"):
        report().save(str(tmp_path / name))
    assert not list(tmp_path.iterdir())
