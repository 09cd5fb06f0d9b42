"""Laws of the comparison with a reference: rounding is accepted in every format and size, and faults are found.

Also tests `core/reference_errors.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet.core.reference_comparison import Samples, TensorDecision, decide_tensor
from gradvet.core.reference_errors import MAP_CELLS, Format, error_map, factor_there, region
from gradvet.core.results import Verdict
from tests.reference_kernels import FAULTS, changed, lost_row, lost_tail, times

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((8,), (3, 5), (7, 40), (10, 6, 32), (2_500,), (125, 80))
SEEDS = range(2)


def form_of(shape: tuple[int, ...], dtype: torch.dtype) -> Format:
    info = torch.finfo(dtype)
    return Format(shape, info.eps, info.smallest_normal * info.eps, info.max)


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Computed in float32 with a few roundings inside, and rounded once."""
    inside = values * (1.0 + 3e-7 * torch.randn(values.shape, dtype=torch.float64))
    return inside.to(dtype).double()


def samples_of(shape: tuple[int, ...], dtype: torch.dtype, seed: int, draws: int = 2) -> Samples:
    """A kernel that is as good as plain torch."""
    torch.manual_seed(seed)
    truth = torch.randn(draws, *shape, dtype=torch.float64)
    if seed % 3 == 1:
        truth = truth * torch.exp(2.0 * torch.randn(shape[0], *[1] * (len(shape) - 1), dtype=torch.float64))
    errors = []
    for _ in range(4):
        near = truth * (1.0 + torch.finfo(dtype).eps * torch.randn(truth.shape, dtype=torch.float64))
        errors.append((rounded(near, dtype) - near).abs())
    return with_plain(rounded(truth, dtype), truth, torch.stack(errors))


def with_plain(found: Tensor, truth: Tensor, errors: Tensor) -> Samples:
    return Samples(found, truth, errors.amax(0), errors.square().mean(0).sqrt(), torch.zeros_like(truth))


def judged(samples: Samples, dtype: torch.dtype) -> TensorDecision:
    return decide_tensor(samples, form_of(tuple(samples.truth.shape[1:]), dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rounding_is_as_accurate_as_plain_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for seed in SEEDS:
        found = judged(samples_of(shape, dtype, seed), dtype)
        assert found.verdict is Verdict.PASS, (seed, found)
        assert found.evidence == ""
        assert found.left_out == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fault_is_wrong_in_every_size_and_format(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for seed in SEEDS:
        right = samples_of(shape, dtype, 3 * seed)
        for name, fault in FAULTS.items():
            if name not in ("factor 1.01", "factor 1.03"):
                found = judged(replace(right, found=torch.stack([fault(one) for one in right.found])), dtype)
                assert found.verdict is Verdict.FAIL, (name, seed, found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_common_factor_beyond_the_stated_resolution_is_wrong(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for seed in SEEDS:
        right = samples_of(shape, dtype, seed)
        resolution = judged(right, dtype).resolution
        for factor in (1.01, 0.99, 1.03):
            beyond = abs(factor - 1.0) > 1.5 * max(resolution, torch.finfo(dtype).eps)
            assert beyond or math.prod(shape) < 256 or dtype is torch.bfloat16
            if beyond:
                found = judged(replace(right, found=times(factor)(right.found).to(dtype).double()), dtype)
                assert found.verdict is Verdict.FAIL, (factor, seed, resolution, found)


def test_factor_of_one_percent_is_named_in_bfloat16() -> None:
    right = samples_of((125, 80), torch.bfloat16, 0)
    found = judged(replace(right, found=(1.01 * right.truth).bfloat16().double()), torch.bfloat16)
    assert found.verdict is Verdict.FAIL
    assert found.evidence == "1.01 times the reference"
    assert found.scale == pytest.approx(0.01, abs=1e-3)


def test_lost_tail_is_named_with_its_place_and_factor() -> None:
    right = samples_of((12, 64), torch.bfloat16, 0)
    found = judged(replace(right, found=lost_tail(right.found)), torch.bfloat16)
    assert found.evidence.startswith("wrong in 4")  # entries near zero are within their error bars
    assert found.evidence.endswith(" of 768 entries, all in [:, 60:64]: there it is 0 times the reference")


def test_lost_row_is_named() -> None:
    right = samples_of((12, 64), torch.float16, 0)
    found = judged(replace(right, found=torch.stack([lost_row(one) for one in right.found])), torch.float16)
    assert "all in [6, :]" in found.evidence


def test_doubled_entry_is_named_with_both_values() -> None:
    right = samples_of((9, 30), torch.float32, 0, draws=1)
    wrong = changed(right.found, (0, 4, 7), 2.0)
    found = judged(replace(right, found=wrong), torch.float32)
    assert found.index == 4 * 30 + 7
    assert found.found == float(wrong[0, 4, 7])
    assert found.expected == float(right.truth[0, 4, 7])
    assert found.evidence == "wrong in 1 of 270 entries"


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_gradient_of_equal_entries_may_have_the_rounding_error_of_one(dtype: torch.dtype) -> None:
    """Such as that of a mean: a third is rounded alike everywhere, before and after it is multiplied."""
    eps = torch.finfo(dtype).eps
    truth = torch.stack([torch.full((7, 40), number / 3.0, dtype=torch.float64) for number in (1.0, 0.9, 1.3, 0.7)])
    plain = rounded(truth, dtype) - truth
    right = with_plain(truth.to(dtype).double() * (1.0 + 0.4 * eps), truth, plain.abs()[None])
    assert judged(right, dtype).verdict is Verdict.PASS
    assert judged(replace(right, found=right.found * (1.0 + 4.0 * eps)), dtype).verdict is Verdict.FAIL


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_entry_next_to_a_kink_does_not_hide_a_wrong_one_in_its_row(dtype: torch.dtype) -> None:
    right = samples_of((7, 40), dtype, 0)
    right.response[:, 2, 5] = 2.0 * right.truth.abs().max()
    right.found[:, 2, 5] *= -1.0
    assert judged(right, dtype).verdict is Verdict.PASS
    right.found[:, 2, 30] *= 2.0
    found = judged(right, dtype)
    assert (found.verdict, found.index) == (Verdict.FAIL, 2 * 40 + 30)


@pytest.mark.parametrize(
    ("first", "verdict"),
    [(29.5, Verdict.PASS), (29.53, Verdict.INCONCLUSIVE), (29.7, Verdict.FAIL)],
    ids=["5 spacings", "7 spacings", "18 spacings"],
)
def test_error_of_few_bars_is_accepted_or_doubtful_in_a_tensor_of_few_entries(first: float, verdict: Verdict) -> None:
    """Such as a bias whose gradient is a sum of partial sums in float16."""
    truth = torch.tensor([[29.4258, 31.2, 28.7, 30.1, 33.3, 27.9]], dtype=torch.float64)
    plain = torch.full_like(truth, 0.0157)
    found = truth.clone()
    found[0, 0] = first
    sample = Samples(found, truth, plain, plain, torch.zeros_like(truth))
    assert judged(sample, torch.float16).verdict is verdict


def test_row_with_small_errors_of_one_sign_is_wrong() -> None:
    right = samples_of((40, 256), torch.bfloat16, 0)
    wrong = right.found.clone()
    wrong[:, 11] = (1.05 * right.truth[:, 11]).bfloat16().double()
    found = judged(replace(right, found=wrong), torch.bfloat16)
    assert found.verdict is Verdict.FAIL
    assert "in [11, " in found.evidence


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_coarser_rounding_everywhere_is_less_accurate_and_says_by_how_much(dtype: torch.dtype) -> None:
    right = samples_of((50, 40), dtype, 0)
    step = 300.0 if dtype is torch.float32 else 4.0
    noise = step * torch.finfo(dtype).eps * right.truth.abs() * (torch.rand_like(right.truth) - 0.5)
    found = judged(replace(right, found=right.truth + noise), dtype)
    assert found.verdict is Verdict.INCONCLUSIVE, found
    assert "times less accurate than plain torch" in found.evidence
    assert found.loss > 2.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wrong_part_of_more_than_half_of_a_tensor_is_wrong(dtype: torch.dtype) -> None:
    right = samples_of((50, 40), dtype, 0)
    wrong = right.found.clone()
    wrong[:, :30] = 1.06 * right.truth[:, :30]
    found = judged(replace(right, found=wrong), dtype)
    assert found.verdict is Verdict.FAIL, found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_another_function_is_wrong_in_its_entries_rather_than_less_accurate(dtype: torch.dtype) -> None:
    right = samples_of((50, 40), dtype, 0)
    found = judged(replace(right, found=right.truth * (1.0 + 0.5 * torch.randn_like(right.truth))), dtype)
    assert found.verdict is Verdict.FAIL
    assert found.evidence.startswith("wrong in "), found.evidence


def test_products_in_tf32_are_less_accurate_but_not_wrong() -> None:
    right = samples_of((50, 40), torch.float32, 0)
    noise = 2.0**-11 * right.truth.abs() * torch.randn_like(right.truth)
    found = judged(replace(right, found=right.truth + noise), torch.float32)
    assert found.verdict is Verdict.INCONCLUSIVE, found


def test_products_that_are_cut_off_to_tf32_are_less_accurate_but_not_wrong() -> None:
    """Cutting off makes every number smaller, so that the entries share a factor."""
    right = samples_of((50, 40), torch.float32, 0)
    lost = 2.0**-10 * (torch.rand_like(right.truth) + torch.rand_like(right.truth) + torch.rand_like(right.truth))
    found = judged(replace(right, found=right.truth * (1.0 - lost)), torch.float32)
    assert found.verdict is Verdict.INCONCLUSIVE, found
    assert judged(replace(right, found=right.truth * (0.995 - lost)), torch.float32).verdict is Verdict.FAIL


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_with_products_cut_off_to_tf32_is_as_accurate_as_plain_torch(dtype: torch.dtype) -> None:
    right = samples_of((50, 40), dtype, 0)
    lost = 2.0**-10 * torch.rand_like(right.truth)
    found = judged(replace(right, found=rounded(right.truth * (1.0 - lost), dtype)), dtype)
    assert found.verdict is Verdict.PASS, found
    beyond = rounded(right.truth * (0.98 - lost), dtype)
    assert judged(replace(right, found=beyond), dtype).verdict is Verdict.FAIL


def test_error_within_the_accuracy_by_design_passes() -> None:
    right = samples_of((50, 40), torch.float32, 0)
    noise = 2.0**-11 * right.truth.abs() * (torch.rand_like(right.truth) - 0.5)
    form = form_of((50, 40), torch.float32)
    assert decide_tensor(replace(right, found=right.truth + noise), form, accuracy=1e-3).verdict is Verdict.PASS
    assert decide_tensor(replace(right, found=right.truth * 1.01), form, accuracy=1e-3).verdict is Verdict.FAIL


def test_entry_that_is_not_finite_is_wrong_unless_plain_torch_overflows_too() -> None:
    right = samples_of((6, 20), torch.float16, 0, draws=1)
    broken = right.found.clone()
    broken[0, 2, 3] = math.inf
    found = judged(replace(right, found=broken), torch.float16)
    assert found.verdict is Verdict.FAIL
    assert found.evidence == "not finite in 1 of 120 entries"
    plain = right.plain.clone()
    plain[0, 2, 3] = math.inf
    excused = judged(replace(right, found=broken, plain=plain), torch.float16)
    assert excused.verdict is Verdict.PASS
    assert excused.left_out == 1


def test_equal_infinities_agree() -> None:
    right = samples_of((6, 20), torch.float32, 0, draws=1)
    truth, found = right.truth.clone(), right.found.clone()
    truth[0, 1], found[0, 1] = -math.inf, -math.inf
    same = judged(replace(right, truth=truth, found=found), torch.float32)
    assert same.verdict is Verdict.PASS
    assert same.left_out == 0


def test_gradient_that_is_zero_up_to_rounding_is_compared_with_the_noise_of_plain_torch() -> None:
    torch.manual_seed(0)
    truth = 1e-18 * torch.randn(1, 30, dtype=torch.float64)
    plain = 1e-3 * torch.rand(1, 30, dtype=torch.float64)
    quiet = with_plain(1e-3 * torch.randn(1, 30, dtype=torch.float64), truth, plain[None])
    found = judged(quiet, torch.bfloat16)
    assert found.verdict is Verdict.PASS
    assert found.resolution == torch.finfo(torch.bfloat16).eps
    assert judged(replace(quiet, found=quiet.found + 1.0), torch.bfloat16).verdict is Verdict.FAIL


def test_noise_that_hides_a_lost_entry_is_no_comparison() -> None:
    right = samples_of((40,), torch.bfloat16, 0)
    found = judged(replace(right, plain=0.5 * right.truth.abs().amax().expand(right.truth.shape)), torch.bfloat16)
    assert found.resolution == math.inf


def test_tensor_without_elements_has_nothing_wrong() -> None:
    empty = torch.zeros(1, 0, 4, dtype=torch.float64)
    assert judged(with_plain(empty, empty, empty[None]), torch.float32).verdict is Verdict.PASS


def test_error_map_keeps_the_place_of_a_large_error_in_few_cells() -> None:
    right = samples_of((100, 200), torch.float32, 0, draws=1)
    cells: Any = error_map(changed(right.found[0], (99, 0), 2.0), right.truth[0], right.plain[0])
    assert len(cells["kernel"]) == len(cells["kernel"][0]) == MAP_CELLS
    assert cells["kernel"][-1][0] == max(max(row) for row in cells["kernel"])
    assert max(max(row) for row in cells["plain"]) < 1e-5
    assert (cells["rows"][-1], cells["columns"][0]) == ("95:100", "0:8")
    one = torch.zeros((), dtype=torch.float64)
    assert error_map(one + 2.0, one, one) == {"kernel": [[2.0]], "plain": [[0.0]], "rows": ["0"], "columns": ["0"]}


def test_region_is_the_box_around_what_is_marked() -> None:
    marked = torch.zeros(6, 8, dtype=torch.bool)
    assert region(marked) == ""
    marked[1:3, 5] = True
    assert region(marked) == ", all in [1:3, 5]"
    assert region(torch.ones(3, 4, dtype=torch.bool)) == ""


def test_factor_is_named_only_if_the_entries_share_it() -> None:
    truth = torch.randn(40, dtype=torch.float64)
    every = torch.ones(40, dtype=torch.bool)
    assert factor_there(0.5 * truth, truth, every) == ": there it is 0.5 times the reference"
    assert factor_there(torch.randn(40, dtype=torch.float64), truth, every) == ""
