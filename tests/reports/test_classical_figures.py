"""A wrong gradient that the drop-in functions find comes with what its figures are made of, where somebody listens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.events import listening
from gradvet.core.results import Finding, Report
from gradvet.reports.figures import figures


class Cubed(torch.autograd.Function):
    """y = x³, with a gradient and a tangent that are wrong for the element 4."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return _spoiled(3.0 * ctx.saved_tensors[0] ** 2 * dy)

    @staticmethod
    def jvp(ctx: Any, dx: Tensor) -> Tensor:
        return _spoiled(3.0 * ctx.saved_tensors[0] ** 2 * dx)


def _spoiled(values: Tensor) -> Tensor:
    factors = torch.ones_like(values)
    factors[4] = 1.5
    return values * factors


def finding_of(size: int, *, forward: bool = False) -> Finding:
    reports: list[Report] = []
    point = torch.linspace(0.5, 2.0, size, dtype=torch.float64).requires_grad_()
    with listening(reports.append):
        gradvet.gradcheck(
            Cubed.apply, point, raise_exception=False, check_forward_ad=forward, check_backward_ad=not forward
        )
    return reports[0].failures[0]


def gaps(finding: Finding) -> dict[tuple[str, str], float]:
    block = finding.facts["block"]
    return {
        (row, column): abs(block["derivative"][i][j] - block["numerical"][i][j])
        for i, row in enumerate(block["rows"])
        for j, column in enumerate(block["columns"])
    }


@pytest.mark.parametrize("forward", [False, True], ids=["reverse", "forward"])
@pytest.mark.parametrize("size", [6, 60, 300], ids=["whole", "window", "computed"])
def test_block_shows_the_wrong_entry_at_every_size(size: int, forward: bool) -> None:
    found = gaps(finding_of(size, forward=forward))
    assert max(found, key=found.__getitem__) == ("output 0 [4]", "input 0 [4]")
    assert sum(gap > 1e-3 for gap in found.values()) == 1


def test_sweep_falls_far_below_the_error_of_the_derivative_and_rises_again() -> None:
    sweep = finding_of(6).facts["sweep"]
    assert sweep["chosen"] == 1e-6
    assert sweep["chosen"] in sweep["steps"]
    assert min(sweep["errors"]) < 1e-6 * sweep["gap"]
    assert sweep["errors"][0] > 1e-7 < sweep["errors"][-1]
    assert len(sweep["steps"]) == len(sweep["errors"]) == len(sweep["floor"])


def test_both_figures_can_be_drawn() -> None:
    assert [kind for kind, _ in figures(finding_of(300))] == ["heatmap", "sweep"]


def test_nothing_is_spent_on_figures_where_nobody_listens() -> None:
    point = torch.linspace(0.5, 2.0, 6, dtype=torch.float64).requires_grad_()
    with pytest.raises(gradvet.GradcheckError) as caught:
        gradvet.gradcheck(Cubed.apply, point)
    assert caught.value.report is not None
    assert "sweep" not in caught.value.report.failures[0].facts


def test_function_that_ends_nearby_has_a_shorter_sweep() -> None:
    def rooted(x: Tensor) -> Tensor:
        if bool((x < 0.0).any()):
            raise ValueError("negative")
        return Cubed.apply(x)  # type: ignore[no-any-return, no-untyped-call]

    reports: list[Report] = []
    with listening(reports.append):
        gradvet.gradcheck(
            rooted, torch.full((6,), 1e-2, dtype=torch.float64).requires_grad_(), atol=0.0, raise_exception=False
        )
    sweep = reports[0].failures[0].facts["sweep"]
    assert max(sweep["steps"]) <= 1e-2
