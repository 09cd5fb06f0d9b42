"""A wrong gradient that `check` finds comes with what its figures are made of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Finding
from gradvet.reports.figures import figures


class OneWrong(torch.autograd.Function):
    """y = x³ with a gradient that is wrong for the element 4."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        dx: Tensor = 3 * x**2 * dy
        dx[4] *= 1.5
        return dx


@pytest.fixture(scope="module")
def finding() -> Finding:
    (failure,) = gradvet.check(OneWrong, torch.linspace(0.5, 2.0, 6, dtype=torch.float64), checks=["reverse"]).failures
    return failure


def test_block_shows_the_wrong_entry_in_both_versions(finding: Finding) -> None:
    facts = finding.facts
    assert facts["rows"] == [f"output [{i}]" for i in range(6)]
    assert facts["columns"] == [f"input 0 [{i}]" for i in range(6)]
    gaps = [
        [abs(d - n) for d, n in zip(*rows, strict=True)]
        for rows in zip(facts["derivative"], facts["numerical"], strict=True)
    ]
    assert max((gap, (i, j)) for i, row in enumerate(gaps) for j, gap in enumerate(row))[1] == (4, 4)


def test_sweep_falls_far_below_the_error_of_the_derivative(finding: Finding) -> None:
    sweep = finding.facts["sweep"]
    entry = finding.mismatches[0]
    assert sweep["gap"] == pytest.approx(abs(entry.derivative - entry.numerical))
    assert min(sweep["errors"]) < 1e-6 * sweep["gap"]
    assert sweep["chosen"] in sweep["steps"]
    assert len(sweep["steps"]) == len(sweep["errors"]) == len(sweep["floor"])


def test_both_figures_can_be_drawn(finding: Finding) -> None:
    assert [kind for kind, _ in figures(finding)] == ["heatmap", "sweep"]
