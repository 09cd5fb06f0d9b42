"""The arithmetic of random directions, held against simulation with the directions that are really drawn.

Also tests `frontends/torch/state.py`.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradvet.core.probe_plans import FINEST, MOST, SPREAD, Plan, miss_probability, plans, resolving_ratio, stages
from gradvet.core.problem import Distribution
from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.problem import TorchProblem

from .wrong_jacobians import numbers

SAMPLES = 100_000
SMALL_MISSES = (1e-12, 1e-9, 1e-6, 1e-3, 1e-2)
SAMPLED = [Plan(1, 1), Plan(2, 2), Plan(3, 3), Plan(1, 2), Plan(2, 3), Plan(1, 3), Plan(3, 1)]
SEEN_HALF = [Plan(1, None), Plan(2, None), Plan(None, 1), Plan(None, 3)]

# Errors whose largest entry is one. The two rank-one matrices cancel where two entries of a direction are alike.
ERRORS = {
    "single": torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    "pair in a row": torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]),
    "pair in a column": torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]),
    "pair on a diagonal": torch.tensor([[1.0, 0.0, 0.0], [0.0, -1.0, 0.0]]),
    "rank one": torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]]),
    "rank one, uneven": torch.tensor([[1.0, -0.6, -0.4], [-0.9, 0.54, 0.36]]),
}


DRAWS = {"with a gap": Distribution.OFF_ZERO, "even": Distribution.UNIFORM}


def drawn(*shape: int, draw: str = "with a gap") -> Tensor:
    """Directions as a problem draws them."""
    # Shapes with the same sum are drawn together, and must not be the same numbers.
    problem = TorchProblem(drop_in_binding(torch.sin, [numbers((2,), 0).requires_grad_()]), seed=hash(shape) % 2**32)
    return problem.random(math.prod(shape), DRAWS[draw]).reshape(shape)


def products(error: Tensor, plan: Plan, draw: str = "with a gap") -> Tensor:
    """The largest |v·Δu| of each sample; a side that is seen whole stands for itself."""
    seen = error.double()
    if plan.directions is not None:
        seen = torch.einsum("mn,skn->smk", seen, drawn(SAMPLES, plan.directions, error.shape[1], draw=draw))
        if plan.cotangents is not None:
            seen = torch.einsum("smk,scm->sck", seen, drawn(SAMPLES, plan.cotangents, error.shape[0], draw=draw))
    elif plan.cotangents is not None:
        seen = torch.einsum("mn,scm->scn", seen, drawn(SAMPLES, plan.cotangents, error.shape[0], draw=draw))
    return seen.abs().flatten(1).max(1).values


def miss_rate(error: Tensor, plan: Plan, ratio: float) -> float:
    return float((products(error, plan) <= ratio).double().mean())


def test_direction_has_magnitudes_between_a_quarter_and_one_and_three_quarters_and_either_sign() -> None:
    u = drawn(SAMPLES)
    assert float(u.abs().min()) >= 0.25
    assert float(u.abs().max()) <= 0.25 + SPREAD
    assert abs(float(u.sign().mean())) < 4.0 / math.sqrt(SAMPLES)
    # Uniform magnitudes: mean 1, variance L²/12, and a density of 1/2L on either side.
    assert abs(float(u.abs().mean()) - 1.0) < 4.0 * SPREAD / math.sqrt(12.0 * SAMPLES)
    assert torch.histc(u.abs(), 10, 0.25, 0.25 + SPREAD).min() > SAMPLES / 10 * 0.95


@pytest.mark.parametrize("size", [5, 5_000])
def test_even_direction_is_spread_over_the_same_length_without_a_gap(size: int) -> None:
    problem = TorchProblem(drop_in_binding(torch.sin, [numbers((2,), 0).requires_grad_()]), seed=size)
    u = torch.cat([problem.random(size, Distribution.UNIFORM, 0.5) for _ in range(SAMPLES // size)]) / 0.5
    assert float(u.abs().max()) <= SPREAD
    assert torch.histc(u, 10, -SPREAD, SPREAD).min() > SAMPLES / 10 * 0.95
    # The least that a density of 1/2L allows.
    assert float(u.square().mean()) == pytest.approx(SPREAD**2 / 3.0, rel=0.02)


def test_numbers_with_a_gap_and_without_do_not_mix() -> None:
    problem = TorchProblem(drop_in_binding(torch.sin, [numbers((2,), 0).requires_grad_()]), seed=1)
    for _ in range(SAMPLES // 1000):
        assert float(problem.random(100, Distribution.OFF_ZERO).abs().min()) >= 0.25
        problem.random(100, Distribution.UNIFORM)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("error", ERRORS)
def test_error_is_missed_at_most_as_often_as_the_bound_says(error: str, draw: str) -> None:
    for plan in SAMPLED + SEEN_HALF:
        found = products(ERRORS[error], plan, draw)
        for ratio in (0.5, 0.2, 0.05, 0.01):
            bound = miss_probability(ratio, plan)
            slack = 4.0 * math.sqrt(bound * max(0.0, 1.0 - bound) / SAMPLES)
            assert float((found <= ratio).double().mean()) <= bound + slack, (plan, ratio)


@pytest.mark.parametrize(("plan", "error"), [(Plan(1, None), "pair in a row"), (Plan(None, 1), "pair in a column")])
def test_bound_is_reached_where_one_side_is_seen_whole(plan: Plan, error: str) -> None:
    assert miss_rate(ERRORS[error], plan, 0.1) > 0.9 * miss_probability(0.1, plan)


def test_bound_is_of_the_right_size_where_both_sides_are_sampled() -> None:
    for ratio in (0.1, 0.01):
        assert miss_rate(ERRORS["rank one"], Plan(1, 1), ratio) > 0.3 * miss_probability(ratio, Plan(1, 1))


@pytest.mark.parametrize(("few", "many"), [(1, 2), (1, 3), (2, 3), (2, 5)])
def test_more_probes_on_one_side_than_on_the_other_leave_no_logarithm_in_the_bound(few: int, many: int) -> None:
    kappa = 1e-4
    bound = many / (many - few) * kappa**few + kappa**many
    for plan in (Plan(few, many), Plan(many, few)):
        assert miss_probability(kappa * SPREAD**2, plan) == pytest.approx(bound)
    assert miss_probability(kappa * SPREAD**2, Plan(few, few)) > bound


def test_single_entry_cannot_hide_below_a_sixteenth() -> None:
    assert float(products(ERRORS["single"], Plan(1, 1)).min()) >= 1.0 / 16.0


@pytest.mark.parametrize("plan", SAMPLED + SEEN_HALF, ids=str)
def test_resolving_ratio_is_the_inverse_of_the_miss_probability(plan: Plan) -> None:
    for miss in SMALL_MISSES:
        ratio = resolving_ratio(miss, plan)
        assert 0.0 < ratio < 1.0
        assert miss_probability(ratio, plan) == pytest.approx(miss, rel=1e-6)
        assert miss_probability(ratio * 1.01, plan) > miss


@pytest.mark.parametrize("plan", SAMPLED + SEEN_HALF, ids=str)
def test_more_may_be_left_where_a_miss_matters_less(plan: Plan) -> None:
    ratios = [resolving_ratio(miss, plan) for miss in SMALL_MISSES]
    assert ratios == sorted(ratios)
    assert len(set(ratios)) == len(ratios)


@pytest.mark.parametrize("rows_seen", [True, False])
@pytest.mark.parametrize("columns_seen", [True, False])
def test_more_probes_resolve_more(columns_seen: bool, rows_seen: bool) -> None:
    known = plans(columns_seen=columns_seen, rows_seen=rows_seen)
    if columns_seen and rows_seen:
        assert known == (Plan(None, None),)
        return
    for miss in SMALL_MISSES:
        ratios = [resolving_ratio(miss, plan) for plan in known]
        assert ratios == sorted(ratios)
    assert all((plan.directions is None) == columns_seen for plan in known)
    assert all((plan.cotangents is None) == rows_seen for plan in known)
    assert max(plan.directions or 0 for plan in known) <= MOST


@pytest.mark.parametrize("miss", SMALL_MISSES)
@pytest.mark.parametrize(("columns_seen", "rows_seen"), [(True, False), (False, True), (False, False)])
def test_all_stages_together_miss_no_more_than_asked_for(columns_seen: bool, rows_seen: bool, miss: float) -> None:
    found = stages(miss, columns_seen=columns_seen, rows_seen=rows_seen)
    known = plans(columns_seen=columns_seen, rows_seen=rows_seen)
    assert tuple(plan for plan in (Plan(*stage[:2]) for stage in found) if plan in known) == known
    assert sum(miss_probability(stage.ratio, stage) for stage in found) <= miss
    assert [stage.ratio for stage in found] == sorted(stage.ratio for stage in found)


def test_stage_that_exact_numbers_could_not_pass_is_never_enough() -> None:
    first, second, *_ = stages(1e-9, columns_seen=False, rows_seen=False)
    assert first == Plan(1, 1, 0.0)
    assert second.ratio >= FINEST


@pytest.mark.parametrize("miss", [*SMALL_MISSES, 5e-2])
def test_another_codirection_is_tried_before_another_direction(miss: float) -> None:
    able = [stage for stage in stages(miss, columns_seen=False, rows_seen=False) if stage.ratio]
    fewest = able[0].directions
    assert fewest is not None
    numbers = [(fewest, fewest), (fewest, fewest + 1), (fewest + 1, fewest + 1)]
    assert [(stage.directions, stage.cotangents) for stage in able[:3]] == numbers


def test_miss_probability_is_a_probability_at_the_ends() -> None:
    for plan in SAMPLED + SEEN_HALF:
        assert miss_probability(0.0, plan) == 0.0
        assert miss_probability(SPREAD**2, plan) == 1.0
        assert miss_probability(3.0, plan) == 1.0
        assert miss_probability(math.nan, plan) == 1.0
        assert 0.0 < miss_probability(0.999, plan) <= 1.0
