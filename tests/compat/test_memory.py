"""A check of 10,000 inputs and outputs holds little memory: the Jacobian alone would take 800 MB."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

import gradvet
from benchmarks.functions import point, spoiled
from benchmarks.memory import SIZE, peak_of_a_check
from tests.allocation import allocated

KINDS = pytest.mark.parametrize(
    ("kind", "options"), [("right", ()), ("wrong", ()), ("wrong", ("check_forward_ad",))], ids=str
)


def function(x: Tensor) -> Tensor:
    """The Jacobian is dense below its diagonal."""
    return torch.cumsum(torch.sin(x), dim=0) / SIZE**0.5


@KINDS
def test_tensors_that_a_check_holds_at_a_time_are_small(kind: str, options: tuple[str, ...]) -> None:
    limit = 10_000_000
    assert 50 * limit < 8 * SIZE * SIZE
    right = function, (point(SIZE),)
    chosen, inputs = right if kind == "right" else spoiled(right)

    def run() -> None:
        accepted = gradvet.gradcheck(chosen, inputs, raise_exception=False, **dict.fromkeys(options, True))
        assert accepted is (kind == "right")

    assert allocated(run).peak <= limit


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the largest resident size is not told there")
@KINDS
def test_process_of_a_check_grows_little(kind: str, options: tuple[str, ...]) -> None:
    limit = 100_000_000
    assert 5 * limit < 8 * SIZE * SIZE
    assert peak_of_a_check(kind, *options) <= limit
