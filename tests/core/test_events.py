"""A run hears of all checks inside it, and settles their seeds."""

from __future__ import annotations

import pytest
import torch

import gradvet
from gradvet.core.events import listening
from gradvet.core.results import Report, Verdict


def point() -> torch.Tensor:
    return torch.linspace(0.1, 0.9, 3, dtype=torch.float64).requires_grad_()


def test_every_kind_of_check_is_heard() -> None:
    reports: list[Report] = []
    with listening(reports.append):
        gradvet.gradcheck(torch.sin, point())
        gradvet.gradgradcheck(torch.cos, point())
        gradvet.check(torch.tan, point(), checks=["reverse"])
    assert [report.title for report in reports] == ["sin", "gradient of cos", "tan"]


def test_seed_of_the_innermost_run_holds() -> None:
    reports: list[Report] = []
    with listening(reports.append, seed=7):
        with listening(lambda report: None, seed=5):
            with listening(lambda report: None, seed=7):
                pass
            gradvet.gradcheck(torch.sin, point())
        gradvet.gradcheck(torch.sin, point())
    assert [report.seed for report in reports] == [5, 7]


def test_refusal_without_an_exception_is_heard_with_the_code() -> None:
    reports: list[Report] = []
    with listening(reports.append), torch.no_grad():
        gradvet.gradcheck(lambda x: x.detach() * 2.0, point(), raise_exception=False)
    assert reports[0].verdict is Verdict.FAIL
    assert reports[0].source is not None
    assert "torch" in reports[0].environment


def test_nothing_is_heard_afterwards_even_if_a_check_raised() -> None:
    reports: list[Report] = []
    with pytest.raises(gradvet.GradcheckError), listening(reports.append):
        gradvet.gradcheck(lambda x: x.detach() * 2.0, point())
    gradvet.gradcheck(torch.sin, point())
    assert len(reports) == 1


def test_innermost_seed_holds_where_none_is_named() -> None:
    reports: list[Report] = []
    with listening(reports.append, seed=3):
        gradvet.gradcheck(torch.sin, point())
        with listening(lambda report: None, seed=4):
            gradvet.check(torch.sin, point(), checks=["reverse"])
        gradvet.check(torch.sin, point(), checks=["reverse"], seed=5)
    assert [report.seed for report in reports] == [3, 4, 5]
