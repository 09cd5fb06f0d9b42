"""A check of 10,000 inputs and outputs holds little memory: the Jacobian alone would take 800 MB."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from benchmarks.functions import point, spoiled
from benchmarks.memory import SIZE, peak_of_a_check
from gradvet.core import certificate, entrywise
from gradvet.core.modes import CentralDifferences, ReverseJacobian
from gradvet.core.projections import Projections
from tests.allocation import allocated
from tests.core.wrong_jacobians import context_at

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


class DoubledEntry(torch.autograd.Function):
    """`exp` with one entry of its gradient doubled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(y := x.exp())
        return y

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        gradient = cotangents[0] * ctx.saved_tensors[0]
        gradient[7] *= 2.0
        return gradient


@pytest.mark.parametrize("fast_mode", [False, True])
def test_vectors_held_while_a_wrong_entry_is_named_are_few(fast_mode: bool) -> None:
    size = 1_000_000

    def run() -> None:
        x = point(size)
        assert not gradvet.gradcheck(DoubledEntry.apply, x, raise_exception=False, fast_mode=fast_mode)

    assert allocated(run).peak <= 16 * 8 * (2 * size)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_few_inputs_and_many_outputs_take_few_vectors(fast_mode: bool) -> None:
    weights = point(1_000_000).detach()

    def wrong(x: Tensor) -> Tensor:
        return weights * (x[0].detach() + x[1])

    def run() -> None:
        assert not gradvet.gradcheck(wrong, point(2), raise_exception=False, fast_mode=fast_mode)

    assert allocated(run).peak <= 16 * 8 * weights.numel()


def test_rows_of_a_comparison_of_all_entries_are_not_held_one_by_one() -> None:
    projections = context_at(lambda x: point(3_000).detach() * x[0] * x[1], point(2)).projections
    assert ReverseJacobian(projections).columns(0, 2).shape == (3_000, 2)
    assert len(projections._rows) <= 1


@pytest.mark.parametrize("limit", [0, certificate.MAX_HELD_NUMBERS])
def test_vectors_of_a_certificate_are_few_where_they_are_long(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(certificate, "MAX_HELD_NUMBERS", limit)
    held, residual = [], Projections.largest_residual

    def recorded(self: Projections, cotangents: Any, directions: Any) -> float:
        held.append(len(cotangents) + len(directions))
        return residual(self, cotangents, directions)

    monkeypatch.setattr(Projections, "largest_residual", recorded)
    # The offset makes roundoff, which seven directions compensate.
    assert gradvet.gradcheck(lambda x: x.sin() + 1e4, point(300))
    assert (max(held) > certificate.MAX_HELD_VECTORS) is (limit > 0)


@pytest.mark.parametrize("limit", [0, certificate.MAX_HELD_NUMBERS])
def test_long_directions_are_released_before_columns_are_compared(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(entrywise, "MAX_HELD_NUMBERS", limit)
    held, compare = [], entrywise.compare_all

    def recorded(projections: Projections, mode: Any) -> Any:
        held.append(projections.evaluated)
        return compare(projections, mode)

    monkeypatch.setattr(entrywise, "compare_all", recorded)
    # The offset makes more roundoff than directions compensate.
    gradvet.gradcheck(lambda x: x.sin() + 1e6, point(60), raise_exception=False)
    assert [number > 0 for number in held] == [limit > 0]


def test_block_of_columns_is_held_once() -> None:
    differences = CentralDifferences(context_at(function, point(10_000)).projections)
    assert allocated(lambda: differences._one_by_one(0, 50)).peak <= 1.3 * 8 * 10_000 * 50


def test_rows_of_a_large_jacobian_are_held_once() -> None:
    """Parts of them, kept between large blocks, made the process grow by 5 GB for 40,000 rows."""
    projections = context_at(torch.exp, point(10_000)).projections
    projections.probe_cotangents(1)
    reverse = ReverseJacobian(projections)
    reverse._faster[0] = True
    assert not reverse.fits
    assert allocated(lambda: reverse.rows_of(0, range(200))).peak <= 1.7 * 8 * 10_000 * 200


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the largest resident size is not told there")
@KINDS
def test_process_of_a_check_grows_little(kind: str, options: tuple[str, ...]) -> None:
    limit = 100_000_000
    assert 5 * limit < 8 * SIZE * SIZE
    assert peak_of_a_check(kind, *options) <= limit
