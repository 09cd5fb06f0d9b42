"""Checks run in order, up to the first failure; what a report says was exercised, and what was not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import gradvet
from gradvet import checks
from gradvet.api import pipeline
from gradvet.checks import jacobian
from gradvet.core.context import Context
from gradvet.core.results import Finding, Report, Verdict
from gradvet.core.runner import UNSEEN, CheckFunction, make_report, run_checks, run_until_failure
from gradvet.errors import DerivativeError, GradientError, InvalidProblemError, first_line
from tests.core.contexts import context_of, point
from tests.functions import with_vjp

from .wrong_jacobians import context_at, numbers


def check(name: str, *verdicts: Verdict, miss: float | None = None) -> CheckFunction:
    def found(context: Context) -> Iterator[Finding]:
        for verdict in verdicts:
            yield Finding(name, verdict, name, facts={} if miss is None else {"miss": miss})

    return found


def report(*checks: CheckFunction) -> Report:
    context = context_at(torch.sin, numbers((3,), 0), seed=7)
    return make_report("sin", context, run_until_failure(context, checks))


def test_findings_come_in_the_order_of_the_checks() -> None:
    found = report(check("a", Verdict.PASS, Verdict.PASS), check("nothing"), check("b", Verdict.PASS))
    assert [finding.check for finding in found.findings] == ["a", "a", "b"]
    assert found.verdict is Verdict.PASS
    assert found.failures == ()
    found.raise_if_failed()


def test_nothing_runs_after_a_failure() -> None:
    found = report(check("a", Verdict.PASS), check("b", Verdict.FAIL, Verdict.PASS), check("c", Verdict.FAIL))
    assert [finding.check for finding in found.findings] == ["a", "b"]
    assert found.verdict is Verdict.FAIL
    assert [finding.check for finding in found.failures] == ["b"]
    with pytest.raises(GradientError) as caught:
        found.raise_if_failed()
    assert caught.value.report is found


def test_miss_probability_of_a_report_is_that_of_its_weakest_finding() -> None:
    assert report(check("a", Verdict.PASS, miss=1e-9), check("b", Verdict.PASS, miss=1e-3)).miss == 1e-3
    assert report(check("a", Verdict.PASS)).miss == 0.0


def test_report_has_seed_and_cost() -> None:
    found = report(check("a", Verdict.PASS))
    assert found.seed == 7
    assert found.cost.forwards == 1


def coverage(*findings: Finding) -> tuple[str, ...]:
    return make_report("sin", context_of(torch.sin, point(1.0)), findings).coverage


def test_checks_that_were_carried_out_are_listed_once_and_the_others_with_their_reason() -> None:
    assert coverage(
        Finding("values", Verdict.PASS, "right"),
        Finding("values", Verdict.FAIL, "wrong"),
        Finding("batched", Verdict.SKIPPED, "not offered"),
    ) == ("exercised: values", "not exercised: batched: not offered")


def test_parts_of_a_check_are_listed_with_those_that_were_left_out() -> None:
    assert coverage(
        Finding("points", Verdict.PASS, "right", facts={"exercised": ["zeros", "ones"], "finiteness alone": True}),
        Finding("points", Verdict.SKIPPED, "huge (too far)", facts={"skipped": ["huge (too far)"]}),
    ) == (
        "exercised: points",
        "points: zeros, ones; skipped: huge (too far); compared for NaN and infinity only",
    )


def test_resolution_is_the_worst_of_the_inputs_that_were_compared_and_miss_the_largest() -> None:
    context = context_of(torch.sin, point(1.0))
    ledger = context.record
    for name, elements in {"a": 1, "b": 2, "empty": 0, "not compared": 1}.items():
        ledger.open(name, "reverse", context.precision, elements, 1e-2)
    for name, resolution in {"a": 1e-6, "b": 1e-3, "empty": 0.5}.items():
        ledger.compared(name, "reverse", context.precision, resolution)
    findings = [Finding(name, Verdict.PASS, "", facts={"miss": miss}) for name, miss in (("x", 1e-9), ("y", 1e-6))]
    report = make_report("sin", context, findings)
    assert (report.resolution, report.miss) == (1e-3, 1e-6)
    assert report.ledger[:3] == tuple(ledger.rows())[:3]
    assert report.ledger[3].reasons == (UNSEEN,)
    assert [row.input for row in report.ledger] == ["a", "b", "empty", "not compared"]
    assert [row.input for row in report.open_rows] == ["not compared"]
    assert report.verdict is Verdict.PASS
    assert make_report("sin", context, findings, expects_ledger=True).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("error", "verdict", "words"),
    [
        (DerivativeError("it broke"), Verdict.FAIL, "it broke"),
        (KeyError("why"), Verdict.INCONCLUSIVE, "the check raised KeyError: 'why'"),
        (NotImplementedError("no\nmore"), Verdict.SKIPPED, "not supported by the function's operators"),
    ],
)
def test_exception_of_a_check_becomes_its_finding(error: Exception, verdict: Verdict, words: str) -> None:
    def check(context: object) -> list[Finding]:
        raise error

    context = context_of(torch.sin, point(1.0))
    (finding,) = run_checks(context, {"values": check})
    assert (finding.check, finding.verdict) == ("values", verdict)
    assert finding.headline.startswith(words)


def test_invalid_problem_is_raised_and_a_spent_budget_is_reported() -> None:
    def check(context: object) -> list[Finding]:
        raise InvalidProblemError("no")

    context = context_of(torch.sin, point(1.0))
    with pytest.raises(InvalidProblemError):
        list(run_checks(context, {"values": check}, may_refuse=True))
    spent = replace(context, deadline=0.0)
    (finding,) = run_checks(spent, {"values": check}, may_refuse=True)
    assert (finding.check, finding.verdict) == ("values", Verdict.SKIPPED)
    assert finding.headline == "the time budget was spent"
    (finding,) = run_checks(spent, {"precision": check})  # a comparison of the derivative
    assert (finding.check, finding.verdict) == ("precision", Verdict.INCONCLUSIVE)


def test_gradient_that_was_not_compared_in_the_given_precision_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def backward(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return dy * x.cos() * (2.0 if x.dtype is torch.float32 else 1.0)

    wrong_in_float32 = with_vjp(torch.sin, backward)
    x = torch.linspace(0.1, 0.9, 5)
    assert gradvet.check(wrong_in_float32, x, seed=1).verdict is Verdict.FAIL
    spent: list[str] = []
    run = jacobian.reverse

    def reverse(context: Context) -> Iterator[Finding]:
        yield from run(context)
        spent.append("reverse")

    records = [replace(one, run=reverse) if one.name == "reverse" else one for one in checks.SLOPES]
    monkeypatch.setattr(pipeline, "SLOPES", tuple(records))
    is_spent = property(lambda context: bool(spent))
    monkeypatch.setattr(Context, "out_of_budget", is_spent)
    report = gradvet.check(wrong_in_float32, x, seed=1, budget=60.0)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert ("precision", "the time budget was spent") in {(one.check, one.headline) for one in report.findings}


@pytest.mark.parametrize("check", ["forward", "batched"])
def test_what_an_autograd_function_lacks_is_said_in_few_words(check: str) -> None:
    report = gradvet.check(with_vjp(torch.sin, lambda dy, x: dy * x.cos()), torch.ones(3, dtype=torch.float64), seed=1)
    reasons = {one.headline for one in report.findings if one.check == check and one.verdict is Verdict.SKIPPED}
    assert "the autograd.Function has no jvp, which forward mode needs" in reasons
    assert not any("For more details" in reason for reason in reasons)


def test_long_message_ends_with_a_sentence() -> None:
    words = "The shapes of these two tensors do not match."
    assert first_line(ValueError(f"{words} This happened due to an operator.\nmore"), 60) == words
    assert first_line(ValueError(f"{words} More."), 60) == f"{words} More."
    assert first_line(ValueError("x" * 70), 60) == "x" * 59 + "…"
    assert first_line(ValueError(), 60) == ""
