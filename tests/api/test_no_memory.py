"""A check does the same evaluations and gives the same verdict whatever was checked before in the process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Report


def inputs(*shape: int) -> Tensor:
    return torch.linspace(0.5, 2.0, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def content(report: Report) -> dict[str, Any]:
    data = report.to_dict()
    return {key: data[key] for key in data if key != "seconds"}


def test_repeated_check_costs_and_reports_the_same() -> None:
    first, second = (gradvet.check(torch.sin, inputs(5), seed=0) for _ in range(2))
    assert content(first) == content(second)


def test_other_checks_in_between_change_nothing() -> None:
    first = gradvet.check(lambda x: x.sin() * x, inputs(4), seed=0)
    gradvet.check(torch.cos, inputs(5), seed=1)
    gradvet.gradcheck(torch.exp, inputs(3).requires_grad_())
    second = gradvet.check(lambda x: x.sin() * x, inputs(4), seed=0)
    assert first.cost == second.cost
    assert [f.headline for f in first.findings] == [f.headline for f in second.findings]


class Switched:
    """A function whose backward depends on an attribute."""

    def __init__(self) -> None:
        self.is_wrong = False

    def __call__(self, x: Tensor) -> Tensor:
        y = x * 1.0
        if self.is_wrong:
            y.register_hook(lambda gradient: gradient if any(gradient.stride()) else torch.ones_like(gradient))  # type: ignore[no-untyped-call]
        return y


def test_function_that_turns_wrong_between_two_checks_is_reported() -> None:
    function = Switched()
    assert gradvet.check(function, inputs(5), seed=0).failures == ()
    function.is_wrong = True
    assert "grad_output_layout" in [finding.check for finding in gradvet.check(function, inputs(5), seed=0).failures]


def test_seed_of_a_check_is_the_same_in_every_run_of_a_test() -> None:
    """The fixture replaces the source of fresh seeds; without it this number would differ from run to run."""
    assert gradvet.check(torch.sin, inputs(3)).seed == 3303005466
