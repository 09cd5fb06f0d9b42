"""What a report says was exercised, and what was not."""

from __future__ import annotations

import pytest
import torch

from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import make_report, run_checks
from gradvet.errors import DerivativeError, InvalidProblemError
from tests.core.trials import point, trial_of


def coverage(*findings: Finding) -> tuple[str, ...]:
    return make_report("sin", trial_of(torch.sin, point(1.0)), findings, "", ["first"]).coverage


def test_checks_that_were_carried_out_are_listed_once_and_the_others_with_their_reason() -> None:
    assert coverage(
        Finding("values", Verdict.PASS, "right"),
        Finding("values", Verdict.FAIL, "wrong"),
        Finding("batched", Verdict.SKIPPED, "not offered"),
    ) == ("first", "exercised: values", "not exercised: batched: not offered")


def test_parts_of_a_check_are_listed_with_those_that_were_left_out() -> None:
    assert coverage(
        Finding("points", Verdict.PASS, "right", facts={"exercised": ["zeros", "ones"], "finiteness alone": True}),
        Finding("points", Verdict.SKIPPED, "huge (too far)", facts={"skipped": ["huge (too far)"]}),
    ) == (
        "first",
        "exercised: points",
        "points: zeros, ones; skipped: huge (too far) (are gradients finite?)",
    )


def test_resolution_is_the_worst_of_the_inputs_that_can_be_resolved_and_miss_the_largest() -> None:
    context = trial_of(torch.sin, point(1.0))
    context.record.resolution |= {"a": 1e-6, "b": 1e-3, "c": 0.5, "d": float("inf")}
    context.record.faint.add("c")
    findings = [Finding(name, Verdict.PASS, "", facts={"miss": miss}) for name, miss in (("x", 1e-9), ("y", 1e-6))]
    report = make_report("sin", context, findings, "", [])
    assert (report.resolution, report.miss) == (1e-3, 1e-6)


@pytest.mark.parametrize(
    ("error", "verdict", "words"),
    [
        (DerivativeError("it broke"), Verdict.FAIL, "it broke"),
        (KeyError("why"), Verdict.INCONCLUSIVE, "could not be carried out: KeyError: 'why'"),
        (NotImplementedError("no\nmore"), Verdict.SKIPPED, "not offered by the function's operators"),
    ],
)
def test_check_that_raises_says_so(error: Exception, verdict: Verdict, words: str) -> None:
    def check(context: object) -> list[Finding]:
        raise error

    context = trial_of(torch.sin, point(1.0))
    (finding,) = run_checks(context, {"values": check}, lambda error: isinstance(error, NotImplementedError))
    assert (finding.check, finding.verdict) == ("values", verdict)
    assert finding.headline.startswith(words)


def test_invalid_problem_is_not_swallowed_and_spent_time_is_said() -> None:
    def check(context: object) -> list[Finding]:
        raise InvalidProblemError("no")

    context = trial_of(torch.sin, point(1.0))
    with pytest.raises(InvalidProblemError):
        list(run_checks(context, {"values": check}, lambda error: True))
    context.deadline = 0.0
    (finding,) = run_checks(context, {"values": check}, lambda error: True)
    assert finding.verdict is Verdict.SKIPPED
