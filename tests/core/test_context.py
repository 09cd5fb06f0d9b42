"""The probes that all checks of one problem share.

Also tests `core/finite_differences.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradvet.checks.jacobian import reverse
from gradvet.core.results import Verdict
from tests.core.contexts import context_of, point
from tests.functions import with_derivative

DOUBLE = torch.float64


@pytest.mark.parametrize("small", [1.0, 1e-3, 1e-6])
def test_cotangents_weigh_outputs_of_small_slope_like_those_of_large(small: float) -> None:
    context = context_of(lambda x: x * torch.tensor([1.0, small], dtype=DOUBLE), point(1e-3, 1e-3))
    for cotangent in context.cotangents:
        first, second = (cotangent.v * context.slope_of(context.first)).abs().tolist()
        assert 1 / 10 < first / second < 10


def test_output_of_negligible_slope_gets_a_small_weight() -> None:
    context = context_of(lambda x: x * torch.tensor([1.0, 1e-14], dtype=DOUBLE), point(1e-3, 1e-3))
    for cotangent in context.cotangents:
        first, second = (cotangent.v * context.slope_of(context.first)).abs().tolist()
        assert second < 1e-3 * first


def test_cotangents_of_slopes_below_the_normal_numbers_are_finite() -> None:
    context = replace(context_of(lambda x: x * point(1.0, 0.0), point(1e-3, 0.0)), is_generated=True)
    (cotangent,) = context.cotangents_for(point(5e-320, 0.0).detach(), 1)
    assert cotangent.v.isfinite().all()


def test_wrong_derivative_of_an_output_of_small_slope_is_found() -> None:
    scale = torch.tensor([1.0, 1e-6], dtype=DOUBLE)
    wrong = torch.tensor([1.0, 1.05e-6], dtype=DOUBLE)
    (finding,) = reverse(context_of(with_derivative(lambda x: x * scale, lambda x: wrong), point(1.0, 2.0)))
    assert finding.verdict is Verdict.FAIL
    assert str(finding.mismatches[0].input) == "input 0 [1]"


def test_step_lengths_are_the_absolute_values_but_at_least_a_quarter_of_the_tensors_rms() -> None:
    x, y = point(3.0, -4.0, 0.0, 0.0), point(0.0, 0.0)
    rms = (25.0 / 4.0) ** 0.5
    lengths = context_of(lambda x, y: x.sum() + y.sum(), x, y).lengths
    assert lengths.tolist() == pytest.approx([3.0, 4.0, rms / 4.0, rms / 4.0, 1.0, 1.0])


def test_parts_of_a_complex_number_share_a_step_length() -> None:
    z = torch.tensor([3.0 + 4.0j, 0.0], dtype=torch.complex128)
    lengths = context_of(torch.abs, z).lengths
    assert lengths.tolist() == pytest.approx([5.0, 5.0, 5.0 / 32**0.5, 5.0 / 32**0.5])


def test_nonfinite_inputs_have_no_step_length() -> None:
    lengths = context_of(torch.sin, point(2.0, float("inf"), float("nan"))).lengths
    assert lengths.tolist() == [2.0, 0.0, 0.0]


def test_balanced_direction_lets_no_column_outweigh_the_others() -> None:
    context = context_of(torch.sin, point(1.0, 1.0, 1.0, 1.0))
    w = torch.tensor([1.0, 100.0, 1.0, 0.0], dtype=DOUBLE)
    u = context.balanced_direction(w)
    contributions = (u * w).abs().tolist()
    assert max(contributions[:3]) < 10.0 * min(contributions[:3])
    assert abs(float(u[3])) >= 0.2


def test_noise_of_an_output_is_its_roundoff_or_that_of_the_largest_beside_it() -> None:
    context = context_of(lambda x: (x * 1.0, x[:1] * 1.0), point(1.0, -8.0))
    eps = 2.0**-52
    assert context.value_noise.tolist() == [eps, 8 * eps, eps]
    assert context.peak_noise.tolist() == [8 * eps, 8 * eps, eps]


def test_notes_are_recorded_once() -> None:
    record = context_of(torch.sin, point(1.0)).record
    record.note("once")
    record.note("once")
    assert record.notes == ["once"]


def test_jvps_of_the_latest_directions_are_cached() -> None:
    context = context_of(torch.sin, point(1.0, 2.0))
    directions = [context.joint_direction() for _ in range(3)]
    for _ in range(2):
        for u in directions:
            context.cached_jvp(u)
    assert context.problem.cost.jvps == 3


def test_balanced_direction_moves_half_of_the_columns_fully_and_the_steep_ones_less() -> None:
    context = context_of(torch.sin, point(*[1.0] * 7))
    w = torch.tensor([1.0, 2.0, 4.0, 8.0, 80.0, 800.0, 1e12], dtype=DOUBLE)
    u = context.balanced_direction(w).abs().tolist()
    assert all(0.2 <= step <= 2.0 for step in u[:4])
    assert [step * slope / 8.0 for step, slope in zip(u[4:6], w[4:6].tolist(), strict=True)] == pytest.approx(
        [1.0, 1.0], abs=0.8
    )
    assert u[6] * w[6].item() / 8.0 == pytest.approx(1.0, abs=0.8)


def test_function_with_a_coarser_format_inside_is_treated_as_one_of_that_format_once() -> None:
    context = context_of(lambda x: torch.sin(x.to(torch.float32)).to(DOUBLE), point(1.0, 2.0))
    coarser = context.in_internal_format()
    assert coarser is not None
    assert coarser.eps == torch.finfo(torch.float32).eps
    assert not coarser.is_double
    assert len(coarser.record.notes) == 1
    assert coarser.in_internal_format() is None
    assert context_of(torch.sin, point(1.0)).in_internal_format() is None


def test_other_contexts_leave_the_original_as_it_is_and_share_its_record_and_deadline() -> None:
    context = context_of(torch.sin, point(100.0, 1e-3), seconds=60.0)
    lengths, first = context.lengths.tolist(), context.first
    finer = context.rescaled(replace(context.scaling, lengths=context.lengths / 2.0))
    others = (finer, context.excluding(torch.tensor([True, False])), context.for_problem(context.problem))
    for other in others:
        assert other.record is context.record
        assert other.deadline == context.deadline
        assert other.options is context.options
    assert context.lengths.tolist() == lengths
    assert context.scaling.excluded is None
    assert context.first is first


def test_excluded_columns_accumulate_and_do_not_move() -> None:
    context = context_of(torch.sin, point(1.0, 2.0, 3.0))
    u = context.first.u
    first, second = torch.tensor([True, False, False]), torch.tensor([False, False, True])
    assert not context.is_excluded(first)
    some = context.excluding(first)
    assert some.is_excluded(first)
    assert not some.is_excluded(first | second)
    assert some.first.u.tolist() == [0.0, *u[1:].tolist()]
    more = some.excluding(second)
    assert more.is_excluded(first | second)
    assert more.first.u.tolist() == [0.0, float(u[1]), 0.0]
    assert more.lengths.tolist() == context.lengths.tolist()


def test_context_for_another_problem_begins_with_its_own_step_lengths() -> None:
    context = context_of(torch.sin, point(1.0, 2.0)).excluding(torch.tensor([True, False]))
    other = context.for_problem(context_of(torch.sin, point(5.0)).problem, is_generated=True)
    assert other.is_generated
    assert not context.is_generated
    assert other.lengths.tolist() == [5.0]
    assert other.scaling.excluded is None


def test_budget_begins_with_the_context() -> None:
    assert not context_of(torch.sin, point(1.0)).out_of_budget
    assert not context_of(torch.sin, point(1.0), seconds=60.0).out_of_budget
    assert replace(context_of(torch.sin, point(1.0)), deadline=0.0).out_of_budget


def test_columns_without_a_finite_gradient_are_marked_and_set_to_zero() -> None:
    broken = with_derivative(torch.sin, lambda x: torch.tensor([1.0, float("nan")], dtype=x.dtype))
    (first, *_) = context_of(broken, point(1.0, 2.0)).cotangents
    assert first.nonfinite is not None
    assert first.nonfinite.tolist() == [False, True]
    assert first.vjp.tolist() == [float(first.v[0]), 0.0]
    assert all(cotangent.nonfinite is None for cotangent in context_of(torch.sin, point(1.0, 2.0)).cotangents)
