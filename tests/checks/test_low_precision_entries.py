"""Gradients in float32 against those in float64 where roundoff puts elements on the other side of a kink."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradvet
from gradvet.core.results import Verdict
from tests.functions import with_vjp
from tests.gallery import RIGHT
from tests.gallery.right_precision import capped, with_tiny_cap


class NearKinks(nn.Module):
    """ReLUs, some of whose arguments are zero up to roundoff: float32 and float64 are on different sides."""

    def __init__(self, x: Tensor, spoiled: float = 1.0) -> None:
        super().__init__()
        self.spoiled = spoiled
        self.hidden, self.out = nn.Linear(8, 600), nn.Linear(600, 5)
        with torch.no_grad():
            values = nn.functional.linear(x.double(), self.hidden.weight.double())[0]
            self.hidden.bias[::150] = -values[::150].float()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.relu(self.hidden(x)))
        # In float32 alone, the gradient of one output is wrong.
        return torch.cat([out[:, :4], scaled(out[:, 4:], self.spoiled if x.dtype is torch.float32 else 1.0)], dim=1)


scaled = with_vjp(lambda x, factor: x.clone(), lambda v, x, factor: factor * v)
"""The identity with a gradient that is multiplied by a factor."""


@pytest.mark.parametrize("seed", range(1))
def test_roundoff_on_the_other_side_of_a_kink_is_no_failure(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(1, 8)
    report = gradvet.check(NearKinks(x), x, seed=seed, checks=["precision"])
    assert not report.failures, report


def test_wrong_gradient_in_float32_alone_fails_beside_kinks() -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 8)
    report = gradvet.check(NearKinks(x, spoiled=0.5), x, seed=1, checks=["precision"], blame=False)
    assert [finding.check for finding in report.failures] == ["precision"]


FEW_ENTRIES = ("minimum_with_a_tiny_number_in_float32", "chain_of_scalar_activations_in_bfloat16")


@pytest.mark.parametrize("case", [case for case in RIGHT if case.name in FEW_ENTRIES], ids=str)
def test_few_entries_with_much_roundoff_around_them_pass(case: Any) -> None:
    assert gradvet.check(*case.build(), seed=20).verdict is Verdict.PASS


def test_lost_gradient_of_a_tiny_input_in_float32_alone_does_not_pass() -> None:
    def lost(x: Tensor, cap: Tensor) -> Tensor:
        return capped(x, scaled(cap, 0.0 if cap.dtype is torch.float32 else 1.0))

    assert gradvet.check(lost, with_tiny_cap(), seed=20).verdict is not Verdict.PASS


def test_entry_whose_terms_cancel_for_some_cotangents_passes() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 50, generator=generator).to(torch.bfloat16).requires_grad_()
    shift = torch.tensor(0.25, dtype=torch.bfloat16, requires_grad=True)
    for seed in range(5):
        assert gradvet.check(lambda x, shift: torch.tanh(x - shift), (x, shift), seed=seed).verdict is Verdict.PASS
