"""The certificate is honest: what it stands for holds, at least as often as it says.

Errors are planted in derivatives whose Jacobian is known, so that the right verdict follows from the size of the worst
entry compared with atol + rtol · |entry|. All seeds are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from gradvet.checks.drop_in import drop_in_forward, drop_in_reverse
from gradvet.compat.gradcheck import FAST_MISS, SLOW_MISS, gradcheck
from gradvet.core.certificate import CertificateSearch, certify, is_true_to_step
from gradvet.core.context import Context
from gradvet.core.events import listening
from gradvet.core.fast_mode import ProjectionTest
from gradvet.core.modes import FORWARD, REVERSE
from gradvet.core.probe_plans import stages
from gradvet.core.projections import NEAR_SCHEME, SHORT, WITHIN
from gradvet.core.results import Verdict
from gradvet.core.runner import CheckFunction
from tests.functions import with_vjp

from .wrong_jacobians import FAULTS, Draw, context_at, curved, linear, numbers, pair_in_a_row, planted, rectangle

MODES = {"reverse": drop_in_reverse, "forward": drop_in_forward}

SHAPES = ((3, 5), (5, 3), (9, 4), (4, 13), (2, 7), (7, 2), (1, 6), (6, 1), (11, 12))
"""Outputs and inputs: few of either are seen whole, more of them through random combinations."""

ABOVE = (1.01, 1.3, 5.0, 1e3)
BELOW = (0.99, 0.5, 0.02)

Fault = Callable[[Draw], Tensor]


def faulty(fault: Fault, shape: tuple[int, int], factor: float, seed: int, miss: float) -> Context:
    """A function, in turn linear, curved and complex, with a fault of the size `factor` times the tolerance."""
    kind = (linear, curved, linear)[seed % 3]
    dtype = torch.complex128 if seed % 3 == 2 else torch.float64
    # Entries of all sizes: under some the absolute part of the tolerance dominates, under others the relative one.
    A = numbers(shape, seed, dtype) * 10.0 ** numbers(shape, seed + 1).clamp(-3.0, 1.0)
    x = numbers(shape[1:], seed + 2, dtype)
    J = A * x.cos() if kind is curved else A
    return context_at(kind(A, planted(fault, J, factor, seed)), x, seed=seed, miss=miss)


def misjudged(
    check: CheckFunction, factors: tuple[float, ...], miss: float, wanted: Verdict, rounds: int
) -> Iterator[str]:
    """The contexts, of rounds × faults × shapes, whose verdict is not the one wanted."""
    seed = 0
    for _ in range(rounds):
        for fault in FAULTS:
            for shape in SHAPES:
                seed += 1
                factor = factors[seed % len(factors)]
                (finding,) = check(faulty(fault, shape, factor, seed, miss))
                if finding.verdict is not wanted:
                    yield f"{fault.__name__} {shape} {factor} seed {seed}"


def at_most(rate: float, trials: int) -> float:
    """As many events of that probability as chance may give, short of four standard deviations."""
    return trials * rate + 4.0 * math.sqrt(trials * rate * (1.0 - rate))


@pytest.mark.parametrize("mode", MODES)
def test_slow_mode_sees_every_error_above_the_tolerance(mode: str) -> None:
    assert list(misjudged(MODES[mode], ABOVE, SLOW_MISS, Verdict.FAIL, rounds=1)) == []


@pytest.mark.parametrize("mode", MODES)
def test_fast_mode_misses_errors_above_the_tolerance_at_most_as_often_as_stated(mode: str) -> None:
    rounds = 1
    missed = list(misjudged(MODES[mode], ABOVE[:1], FAST_MISS, Verdict.FAIL, rounds))
    assert len(missed) <= at_most(FAST_MISS, rounds * len(FAULTS) * len(SHAPES))


@pytest.mark.parametrize("miss", [SLOW_MISS, FAST_MISS])
@pytest.mark.parametrize("mode", MODES)
def test_no_error_below_the_tolerance_is_reported(mode: str, miss: float) -> None:
    assert list(misjudged(MODES[mode], BELOW, miss, Verdict.PASS, rounds=1)) == []


@pytest.mark.parametrize("shape", [(4, 5), (12, 15)])
@pytest.mark.parametrize("mode", MODES)
def test_certificate_is_given_to_wrong_derivatives_at_most_as_often_as_it_says(
    mode: str, shape: tuple[int, int]
) -> None:
    # A large miss probability, so that misses can be counted, and the errors that come closest to the bound.
    miss, trials = 0.05, 150
    tested, fault = (REVERSE, rectangle) if mode == "reverse" else (FORWARD, pair_in_a_row)
    nothing = torch.zeros(shape, dtype=torch.float64)
    given = 0
    for seed in range(trials):
        error = planted(fault, nothing, 1.001, seed)
        given += (
            certify(
                context_at(linear(nothing, error), numbers(shape[1:], seed), seed=seed, miss=miss).projections, tested
            )
            is not None
        )
    assert 0 < given <= at_most(miss, trials)


@pytest.mark.parametrize("shape", [(12, 15), (30, 4)])
def test_whole_check_accepts_wrong_derivatives_at_most_as_often_as_it_says(shape: tuple[int, int]) -> None:
    miss, trials = 0.1, 60
    nothing = torch.zeros(shape, dtype=torch.float64)
    accepted = 0
    for seed in range(trials):
        error = planted(rectangle, nothing, 1.001, seed)
        (finding,) = drop_in_reverse(context_at(linear(nothing, error), numbers(shape[1:], seed), seed=seed, miss=miss))
        accepted += finding.verdict is Verdict.PASS
    assert 0 < accepted <= at_most(miss, trials)


def test_certificate_states_the_miss_probability_that_was_asked_for() -> None:
    A = numbers((5, 4), 0)
    for miss in (SLOW_MISS, FAST_MISS):
        (finding,) = drop_in_reverse(context_at(linear(A, torch.zeros_like(A)), numbers((4,), 1), miss=miss))
        assert finding.verdict is Verdict.PASS
        assert finding.facts["miss"] <= miss


def test_no_certificate_is_given_where_an_entry_is_off_by_the_tolerance() -> None:
    A = numbers((5, 4), 0)
    for seed in range(50):
        error = planted(FAULTS[seed % len(FAULTS)], torch.zeros_like(A), 1.0, seed)
        wrong = context_at(linear(A, error), numbers((4,), seed), seed=seed)
        assert certify(wrong.projections, REVERSE) is None
        assert certify(wrong.projections, FORWARD) is None


def test_no_certificate_is_given_without_an_absolute_tolerance() -> None:
    A = numbers((5, 4), 0)
    right = context_at(linear(A, torch.zeros_like(A)), numbers((4,), 1), tolerance=(0.0, 1e-3))
    assert certify(right.projections, REVERSE) is None
    (finding,) = drop_in_reverse(right)
    assert finding.verdict is Verdict.PASS


def test_no_certificate_is_given_where_the_step_is_lost_to_rounding() -> None:
    x = torch.tensor([1e9, 1e9 + 0.3, -1e9, 3.0], dtype=torch.float64)
    assert certify(context_at(lambda x: x * 2.0, x).projections, REVERSE) is None


def test_no_certificate_is_given_where_residuals_are_not_numbers() -> None:
    def vjp(cotangent: Tensor, x: Tensor) -> Tensor:
        return torch.where(torch.arange(len(cotangent)) == 1, torch.nan, cotangent)

    wrong = context_at(with_vjp(torch.clone, vjp), numbers((4,), 0))
    assert certify(wrong.projections, REVERSE) is None
    (finding,) = drop_in_reverse(wrong)
    assert finding.verdict is Verdict.FAIL


def test_right_function_of_any_size_is_certified_with_few_evaluations() -> None:
    for size in (3, 100, 10_000):
        context = context_at(torch.sin, numbers((size,), size))
        assert certify(context.projections, REVERSE) == SLOW_MISS
        assert context.problem.cost.forwards <= 13
        assert context.problem.cost.vjps <= 6


@pytest.mark.parametrize(
    ("size", "dtype", "true"), [(1e-4, torch.float32, True), (1e-3, torch.float32, False), (1.0, torch.float64, True)]
)
def test_step_must_survive_rounding_to_a_tenth_of_the_relative_tolerance(
    size: float, dtype: torch.dtype, true: bool
) -> None:
    x = torch.linspace(size, 2.0 * size, 20, dtype=dtype)
    assert is_true_to_step(context_at(torch.sin, x).projections) is true


@pytest.mark.parametrize(("size", "true"), [(1.0, True), (4e3, True), (4e4, False)])
def test_step_must_survive_rounding_to_a_tenth_of_the_absolute_tolerance_if_the_relative_one_is_zero(
    size: float, true: bool
) -> None:
    x = torch.linspace(size, 2.0 * size, 20, dtype=torch.float64)
    assert is_true_to_step(context_at(torch.sin, x, tolerance=(1e-5, 0.0)).projections) is true


@pytest.mark.parametrize(("values", "number"), [(1e-2, 30), (1.0, 100), (1e2, 2_000)])
def test_roundoff_of_the_outputs_is_overcome_by_larger_steps(values: float, number: int) -> None:
    right = context_at(lambda x: values + 1e-3 * x, numbers((number,), 0), miss=SLOW_MISS)
    assert certify(right.projections, REVERSE) == SLOW_MISS
    assert right.problem.cost.forwards < 60


def test_roundoff_of_a_sum_of_a_million_squares_is_overcome() -> None:
    """Without a certificate, each of its entries takes two sums of a million numbers."""
    right = context_at(lambda x: (x * x).sum(), numbers((1_000_000,), 0), miss=SLOW_MISS)
    assert certify(right.projections, REVERSE, evaluations=100) == SLOW_MISS


def test_function_of_many_inputs_and_few_outputs_is_assumed_to_be_curved() -> None:
    def function(x: Tensor) -> Tensor:
        return x.sin().reshape(10, -1).sum(1)

    slow = context_at(function, numbers((1_000,), 0), miss=SLOW_MISS)
    assert CertificateSearch(slow.projections, REVERSE).first_scheme() == NEAR_SCHEME
    fast = context_at(function, numbers((1_000,), 0), miss=FAST_MISS)
    assert ProjectionTest(fast.projections, REVERSE).scheme == WITHIN


@pytest.mark.parametrize("number", [3, 1_000])
def test_values_that_are_not_finite_do_not_choose_the_scheme(number: int) -> None:
    broken = context_at(lambda x: x / 0.0, numbers((number,), 0))
    assert CertificateSearch(broken.projections, REVERSE).first_scheme() == SHORT


def _flipped_but_one(g: Tensor, x: Tensor) -> Tensor:
    """The derivative of `flip` without the first entry."""
    return torch.cat([torch.zeros(1, dtype=g.dtype), g.flip(0)[1:]])


flipped_but_one = with_vjp(lambda x: x.flip(0), _flipped_but_one)


@pytest.mark.parametrize("seed", [2189, 5289, 14086, 14447, 14999, 15852, 18022, 20786])
def test_inputs_so_large_that_a_displacement_is_rounded_away_hide_nothing(seed: int) -> None:
    # With these seeds the first entry is not moved along the first direction: an exact function leaves exactly nothing.
    x = torch.linspace(6.0e7, 7.0e7, 10, dtype=torch.float64).requires_grad_()
    with listening(lambda report: None, seed=seed):
        assert not gradcheck(flipped_but_one, x, rtol=0.1, raise_exception=False)


@pytest.mark.parametrize(("size", "fine"), [(1e3, True), (1e5, False)])
def test_direction_must_be_finer_than_what_it_is_to_resolve(size: float, fine: bool) -> None:
    right = context_at(torch.sin, size * numbers((20,), 0))
    (ratio, *_) = [stage.ratio for stage in stages(SLOW_MISS, columns_seen=False, rows_seen=False) if stage.ratio]
    search = CertificateSearch(right.projections, REVERSE)
    assert search._is_fine(SHORT, ratio) is fine
    assert not search._is_fine(SHORT, 0.0)
    assert search._is_fine(SHORT, 0.1)
