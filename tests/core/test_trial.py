"""The probes that all checks of one trial share."""

from __future__ import annotations

import pytest
import torch

from gradvet.checks.jacobian import reverse
from gradvet.core.results import Verdict
from tests.core.trials import point, trial_of, written

DOUBLE = torch.float64


@pytest.mark.parametrize("small", [1.0, 1e-3, 1e-6])
def test_codirections_weigh_outputs_of_small_slope_like_those_of_large(small: float) -> None:
    context = trial_of(lambda x: x * torch.tensor([1.0, small], dtype=DOUBLE), point(1e-3, 1e-3))
    for cotangent in context.cotangents:
        first, second = (cotangent.v * context.first.slope).abs().tolist()
        assert 1 / 10 < first / second < 10


def test_output_whose_slope_is_nothing_beside_another_does_not_drown_it() -> None:
    context = trial_of(lambda x: x * torch.tensor([1.0, 1e-14], dtype=DOUBLE), point(1e-3, 1e-3))
    for cotangent in context.cotangents:
        first, second = (cotangent.v * context.first.slope).abs().tolist()
        assert second < 1e-3 * first


def test_wrong_derivative_of_an_output_of_small_slope_is_found() -> None:
    scale = torch.tensor([1.0, 1e-6], dtype=DOUBLE)
    wrong = torch.tensor([1.0, 1.05e-6], dtype=DOUBLE)
    (finding,) = reverse(trial_of(written(lambda x: x * scale, lambda x: wrong), point(1.0, 2.0)))
    assert finding.verdict is Verdict.FAIL
    assert str(finding.mismatches[0].input) == "input 0 [1]"


def test_sizes_are_those_of_the_numbers_but_at_least_a_quarter_of_the_tensors() -> None:
    x, y = point(3.0, -4.0, 0.0, 0.0), point(0.0, 0.0)
    rms = (25.0 / 4.0) ** 0.5
    lengths = trial_of(lambda x, y: x.sum() + y.sum(), x, y).lengths
    assert lengths.tolist() == pytest.approx([3.0, 4.0, rms / 4.0, rms / 4.0, 1.0, 1.0])


def test_parts_of_a_complex_number_share_its_size() -> None:
    z = torch.tensor([3.0 + 4.0j, 0.0], dtype=torch.complex128)
    lengths = trial_of(torch.abs, z).lengths
    assert lengths.tolist() == pytest.approx([5.0, 5.0, 5.0 / 32**0.5, 5.0 / 32**0.5])


def test_what_is_not_finite_is_not_moved() -> None:
    lengths = trial_of(torch.sin, point(2.0, float("inf"), float("nan"))).lengths
    assert lengths.tolist() == [2.0, 0.0, 0.0]


def test_even_direction_lets_no_column_outweigh_the_others() -> None:
    context = trial_of(torch.sin, point(1.0, 1.0, 1.0, 1.0))
    w = torch.tensor([1.0, 100.0, 1.0, 0.0], dtype=DOUBLE)
    u = context.even_direction(w)
    typical_contributions = (u * w).abs().tolist()
    assert max(typical_contributions[:3]) < 10.0 * min(typical_contributions[:3])
    assert abs(float(u[3])) >= 0.2


def test_noise_of_an_output_is_its_roundoff_or_that_of_the_largest_beside_it() -> None:
    context = trial_of(lambda x: (x * 1.0, x[:1] * 1.0), point(1.0, -8.0))
    eps = 2.0**-52
    assert context.noise.tolist() == [eps, 8 * eps, eps]
    assert context.peak_noise.tolist() == [8 * eps, 8 * eps, eps]


def test_resolution_is_the_sharpest_and_notes_are_told_once() -> None:
    record = trial_of(torch.sin, point(1.0)).record
    for resolution in (1e-3, 1e-6, 1e-2):
        record.sharpen("input 0", resolution)
    assert record.resolution == {"input 0": 1e-6}
    record.note("once")
    record.note("once")
    assert record.notes == ["once"]


def test_pushes_are_remembered_for_the_directions_in_use() -> None:
    context = trial_of(torch.sin, point(1.0, 2.0))
    directions = [context.joint_direction() for _ in range(3)]
    for _ in range(2):
        for u in directions:
            context.cached_jvp(u)
    assert context.problem.cost.pushes == 3


def test_refinement_goes_from_own_sizes_to_one_to_much_less_and_then_ends() -> None:
    context = trial_of(torch.sin, point(100.0, 1e-3))
    assert context.refine()
    assert context.lengths.tolist() == [100.0, 1e-3]
    assert context.refine()
    assert context.lengths.tolist() == [1.0, 1e-3]
    assert context.refine()
    assert context.narrowed
    assert context.lengths.tolist() == [2.0**-10, 1e-3 * 2.0**-10]
    assert not context.refine()


def test_even_direction_moves_half_of_the_columns_fully_and_the_steep_ones_less() -> None:
    context = trial_of(torch.sin, point(*[1.0] * 7))
    w = torch.tensor([1.0, 2.0, 4.0, 8.0, 80.0, 800.0, 1e12], dtype=DOUBLE)
    u = context.even_direction(w).abs().tolist()
    assert all(0.2 <= step <= 2.0 for step in u[:4])
    assert [step * slope / 8.0 for step, slope in zip(u[4:6], w[4:6].tolist(), strict=True)] == pytest.approx(
        [1.0, 1.0], abs=0.8
    )
    assert 0.2e-6 <= u[6] <= 2e-6


def test_function_with_a_coarser_format_inside_is_taken_for_one_of_that_format_once() -> None:
    context = trial_of(lambda x: torch.sin(x.to(torch.float32)).to(DOUBLE), point(1.0, 2.0))
    assert context.coarsen()
    assert context.problem.eps == torch.finfo(torch.float32).eps
    assert not context.is_double
    assert len(context.record.notes) == 1
    assert not context.coarsen()
    assert not trial_of(torch.sin, point(1.0)).coarsen()


def test_coarse_formats_are_not_walked_in_much_narrower_steps() -> None:
    context = trial_of(torch.sin, point(100.0, 1e-3, dtype=torch.float32))
    assert context.refine()
    assert context.refine()
    assert not context.refine()
    assert not context.narrowed
