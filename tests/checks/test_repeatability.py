"""Two backward passes of one graph, and two forward passes, as findings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet.checks.determinism import determinism
from gradvet.core.results import Finding, Verdict
from tests.core.trials import point, trial_of


def restless(noise: float, calls: Iterator[int]) -> Any:
    """3x, whose gradient of the last entry is off by this part of it at every other call."""

    class Restless(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 3.0 * x

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> Tensor:
            factors = torch.full_like(v, 3.0)
            factors[-1] *= 1.0 + noise * (next(calls) % 2)
            return v * factors

    return Restless.apply


def found(noise: float) -> Finding:
    (finding,) = determinism(trial_of(restless(noise, count()), point(1.0, 1.0, 1.0)))
    return finding


@pytest.mark.parametrize(
    ("noise", "verdict"), [(0.0, Verdict.PASS), (2e-14, Verdict.PASS), (2e-12, Verdict.FAIL), (0.1, Verdict.FAIL)]
)
def test_gradients_may_differ_by_a_thousand_roundoffs(noise: float, verdict: Verdict) -> None:
    finding = found(noise)
    assert finding.verdict is verdict
    assert (finding.facts["backward"] > 0.0) is (noise > 0.0)


def test_entry_that_differs_is_named_with_its_difference() -> None:
    finding = found(0.1)
    assert finding.headline.endswith("at input 0 [2]")
    assert 0.05 <= finding.facts["backward"] <= 0.6


def test_function_that_wobbles_is_told_from_one_that_does_not() -> None:
    calls = count()
    context = trial_of(lambda x: x * (1.0 + 1e-9 * next(calls)), point(1.0, 1.0))
    (finding,) = determinism(context)
    assert (finding.verdict, finding.headline) == (Verdict.PASS, "the function is random in itself")
    assert finding.facts["forward"] > 0.0
    assert found(0.0).headline == "forward and backward passes are reproducible"
