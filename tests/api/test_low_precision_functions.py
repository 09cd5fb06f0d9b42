"""Functions in low precision whose values hide what happens inside: cancelled terms, zero rows, faint inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gradvet
from gradvet import Verdict
from gradvet.frontends.torch import private
from tests.functions import with_gradients_changed, with_vjp
from tests.gallery.inputs import leaf, normal

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

Change = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Another gradient, from the right one, the input and the cotangent."""


def kernel(function: Callable[[Tensor], Tensor], dtype: torch.dtype, change: Change | None = None) -> Any:
    """The function as one operation that accepts this dtype alone."""

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            if x.dtype != dtype:
                raise TypeError(f"only {dtype} is supported")
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(function(x), x, cotangents[0])
            return gradient if change is None else change(gradient, x, cotangents[0])

    return Kernel.apply


def verdict(function: Callable[..., Any], *inputs: Tensor) -> Verdict:
    return gradvet.check(function, inputs, seed=1, points=None).verdict


def padded(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """The second half of the rows is zero."""
    x = normal((rows, columns))[0].detach()
    x[rows // 2 :] = 0.0
    return leaf(x, dtype)


def square_root_minus_one(x: Tensor) -> Tensor:
    return torch.sqrt(1 + x) - 1


def small(dtype: torch.dtype) -> Tensor:
    return leaf(1e-2 * normal((40,))[0].detach(), dtype)


def confident_losses(x: Tensor) -> Tensor:
    return F.cross_entropy(x, torch.arange(8) % 4, reduction="none")


def confident(dtype: torch.dtype, margin: float = 14.0) -> Tensor:
    return leaf(margin * F.one_hot(torch.arange(8) % 4, 4) + normal((8, 4))[0].detach(), dtype)


def normalised(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


def steep_and_faint(x: Tensor) -> Tensor:
    """A slope of 1e5 at zero, over less than a billionth: the value stays below the spacing of bfloat16."""
    return 1 + 1e-3 * torch.tanh(1e8 * x.float()).to(x.dtype)


def curved_loss(x: Tensor) -> Tensor:
    """Curved over steps that change it by a few spacings of bfloat16."""
    wide = x.float()
    return (torch.exp(torch.tanh((wide - 0.4375).square())) * 0.860822).sum().to(x.dtype)


def fine_teeth(x: Tensor) -> Tensor:
    """Slopes of 0 and 2, which alternate 4096 times in an interval of length one: all but the smallest steps show 1."""
    teeth = 4096 * x + 0.2
    return x + (teeth - torch.floor(teeth + 0.5)).abs() / 4096


def teeth(x: Tensor) -> Tensor:
    """Slopes of 0 and 2, which alternate 50 times in an interval of length one: the steps of bfloat16 show 1."""
    wide = x.float()
    return (wide + 0.02 * (50.0 * wide - torch.floor(50.0 * wide) - 0.5).abs()).to(x.dtype)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_wider_version_is_found_although_few_digits_of_the_values_are_left(dtype: torch.dtype) -> None:
    report = gradvet.check(square_root_minus_one, (small(dtype),), seed=1, points=None)
    assert report.verdict is Verdict.PASS
    assert "float64" in {row.precision for row in report.ledger}


def test_factor_fails_although_few_digits_of_the_values_are_left() -> None:
    function = with_gradients_changed(square_root_minus_one, lambda gradients, _: [0.8 * gradients[0]])
    assert verdict(function, small(BF16)) is Verdict.FAIL


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_confident_losses_do_not_fail(dtype: torch.dtype) -> None:
    assert verdict(confident_losses, confident(dtype)) is not Verdict.FAIL


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_wrong_gradient_of_confident_losses_fails(dtype: torch.dtype) -> None:
    function = with_gradients_changed(confident_losses, lambda gradients, _: [0.5 * gradients[0]])
    assert verdict(function, confident(dtype)) is Verdict.FAIL


@pytest.mark.parametrize(
    ("function", "inputs", "dtypes"),
    [
        (confident_losses, confident, (F32, BF16)),
        (lambda x: confident_losses(x).mean(), lambda dtype: confident(dtype, 40.0), (F32, BF16)),
        (square_root_minus_one, small, (F32, BF16, F16)),
        (lambda x: 1 - torch.cos(10 * x), small, (F32, BF16, F16)),
        (lambda x: torch.exp(x) - 1, small, (F32, BF16, F16)),
        (normalised, lambda dtype: padded(8, 5, dtype), (F32, BF16)),
        (lambda x: x / (x.abs().sum(-1, keepdim=True) + 1e-3), lambda dtype: padded(8, 5, dtype), (F32, BF16)),
        (steep_and_faint, lambda dtype: torch.zeros((), dtype=dtype, requires_grad=True), (F32, BF16)),
        (curved_loss, lambda dtype: leaf(torch.tensor([-1.3438]), dtype), (F32, BF16)),
        (fine_teeth, lambda dtype: leaf(normal((5,))[0].detach(), dtype), (F32,)),
        (teeth, lambda dtype: leaf(torch.tensor([-0.3945]), dtype), (BF16,)),
    ],
    ids=[
        "confident losses",
        "very confident loss",
        "square root minus one",
        "one minus cosine",
        "exponential minus one",
        "zero rows normalised",
        "zero rows",
        "steep and faint",
        "curved loss",
        "fine teeth",
        "teeth",
    ],
)
def test_right_kernel_of_one_dtype_does_not_fail(
    function: Callable[[Tensor], Tensor], inputs: Callable[[torch.dtype], Tensor], dtypes: tuple[torch.dtype, ...]
) -> None:
    for dtype in dtypes:
        assert verdict(kernel(function, dtype), inputs(dtype)) is not Verdict.FAIL


def test_largest_numbers_of_a_kernel_do_not_fail_in_float16() -> None:
    x = torch.randn(4, 60, generator=torch.Generator().manual_seed(1007), dtype=torch.float64)
    assert verdict(kernel(lambda x: x.topk(5, -1).values, F16), leaf(x, F16)) is not Verdict.FAIL


def test_norm_before_an_activation_passes_in_bfloat16() -> None:
    def activated(x: Tensor) -> Tensor:
        return F.gelu(3.0 * F.layer_norm(x.float(), x.shape[-1:])).to(x.dtype)

    for seed in (1, 3):
        x = torch.randn(12, 16, generator=torch.Generator().manual_seed(seed))
        assert verdict(kernel(activated, BF16), leaf(x, BF16)) is Verdict.PASS


def unit_length(x: Tensor) -> Tensor:
    x = x.float()
    return (x / x.norm()).half()


TINY = torch.tensor([6e-7, 4e-7, -1.2e-7, 3e-7], dtype=F16)
"""A few spacings of float16 next to zero."""


def test_gradient_beyond_the_largest_number_of_float16_is_not_compared() -> None:
    report = gradvet.check(kernel(unit_length, F16), TINY, seed=1, points=None)
    assert report.verdict is Verdict.INCONCLUSIVE, report
    assert any("is too large for this precision" in note for note in report.notes)


def test_gradient_that_is_not_finite_fails_at_tiny_numbers_where_the_slope_is_moderate() -> None:
    wrong = kernel(lambda x: 3.0 * x, F16, lambda gradient, x, dy: gradient * (x * x) / (x * x))
    (finding,) = [one for one in gradvet.check(wrong, TINY, seed=1, points=None).failures if one.check == "reverse"]
    assert finding.mismatches[0].numerical == pytest.approx(3.0, rel=0.01)


def test_rows_without_a_gradient_are_named_although_roundoff_hides_entries() -> None:
    def without_last_rows(gradient: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
        return torch.cat([gradient[:-8], torch.zeros_like(gradient[-8:])])

    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator).to(BF16) for shape in ((20, 24), (40, 24)))
    wrong = kernel(lambda weight: F.gelu(x @ weight.mT), BF16, without_last_rows)
    report = gradvet.check(wrong, weight, seed=1, points=None)
    assert report.failures[0].advice.startswith("The gradient of input 0 is zero in [32:, :]"), report


def test_constant_loss_of_a_kernel_passes() -> None:
    assert verdict(kernel(lambda x: confident_losses(x).mean(), F32), confident(F32, 40.0)) is Verdict.PASS


def test_gradient_of_a_loss_that_shows_no_slope_is_named() -> None:
    def dice(x: Tensor) -> Tensor:
        p, on = x.float().sigmoid(), torch.arange(180).reshape(6, 30) % 5 < 2
        return (1 - (2 * (p * on).sum(-1) + 1) / (p.sum(-1) + on.sum(-1) + 1)).mean().to(x.dtype)

    summed = kernel(dice, BF16, lambda gradient, x, _: 6.0 * gradient)
    torch.manual_seed(0)
    for seed in range(3):
        report = gradvet.check(summed, leaf(torch.randn(6, 30), BF16), seed=seed, checks=("reverse",))
        assert report.failures, report
        assert "the derivative is" in report.failures[0].headline


def test_wrong_gradient_of_a_tiny_input_fails_in_a_float32_kernel() -> None:
    def shifted(x: Tensor, shift: Tensor) -> Tensor:
        if x.dtype != F32:
            raise TypeError("only float32 is supported")
        return x + shift

    inputs = torch.tensor([1.9, 0.34, 0.0093], requires_grad=True), torch.tensor(1e-6, requires_grad=True)
    wrong = with_gradients_changed(shifted, lambda gradients, _: [gradients[0], -gradients[1]])
    assert verdict(shifted, *inputs) is Verdict.PASS
    assert verdict(wrong, *inputs) is Verdict.FAIL


def test_gradients_next_to_the_smallest_number_are_linear_in_float16() -> None:
    x, y = (leaf(scale * normal((5,), seed=seed)[0].detach(), F16) for seed, scale in enumerate((1.0, 1e-6)))
    for seed in range(3):
        report = gradvet.check(lambda x, y: F.gelu(torch.atan(y) * x), (x, y), seed=seed, points=None)
        assert [finding for finding in report.failures if finding.check == "linearity"] == []


def test_gradient_at_padding_beyond_both_slopes_does_not_pass() -> None:
    change: Change = lambda gradient, x, v: torch.where(x == 0, 3 * v, gradient)  # noqa: E731
    x = padded(6, 8, BF16)
    assert verdict(kernel(torch.relu, BF16), x) is Verdict.PASS
    assert verdict(kernel(torch.relu, BF16, change), x) is not Verdict.PASS


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_zero_rows_pass_where_double_precision_shows_their_slope(dtype: torch.dtype) -> None:
    assert verdict(normalised, padded(8, 5, dtype)) is Verdict.PASS


@pytest.mark.parametrize(
    ("function", "size", "expected"),
    [
        (normalised, 1e3, Verdict.PASS),
        (lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5), 0.0, Verdict.INCONCLUSIVE),
    ],
    ids=["forward mode", "reverse mode"],
)
def test_rules_of_the_framework_that_overflow_do_not_fail(
    function: Callable[[Tensor], Tensor], size: float, expected: Verdict
) -> None:
    report = gradvet.check(function, (leaf(size * normal((6, 10))[0].detach(), F16),), seed=1, points=None)
    assert report.verdict is expected
    assert any("overflows" in finding.headline for finding in report.findings)


def test_forward_mode_that_overflows_does_not_fail() -> None:
    report = gradvet.check(lambda x: F.layer_norm(x, (6,)), (leaf(torch.full((3, 6), 1e4), F16),), seed=1, points=None)
    assert report.verdict is not Verdict.FAIL


def test_forward_mode_that_raises_under_autocast_counts_as_none() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 3))

    def function(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=BF16):
            return layers(x).float().square().mean()

    report = gradvet.check(function, (leaf(normal((5, 4))[0].detach(), F32),), seed=1, points=None)
    assert report.verdict is Verdict.PASS
    assert "forward mode raises" in report.text(verbose=True)


def test_gradient_that_consists_of_the_roundoff_of_each_operator_does_not_fail() -> None:
    def function(x: Tensor) -> Tensor:
        level = torch.logsumexp(F.mish(x), -1)
        return F.layer_norm(level - level.roll(1, -1), (5,))

    assert verdict(function, leaf(1e-6 * normal((5, 8))[0].detach(), BF16)) is not Verdict.FAIL


def test_long_sums_pass_in_bfloat16() -> None:
    assert verdict(lambda x: torch.tanh(x.cumsum(0)), leaf(normal((500,))[0].detach(), BF16)) is Verdict.PASS


def test_gradient_that_is_even_in_the_cotangent_fails_beside_a_large_input() -> None:
    positive = with_vjp(torch.clone, lambda v, y: v.abs())

    x, y = leaf(1e4 * normal((16, 8))[0].detach(), BF16), leaf(torch.tensor(0.97), BF16)
    assert verdict(lambda x, y: (x - y).square().mean(), x, y) is Verdict.PASS
    report = gradvet.check(lambda x, y: (x - positive(y)).square().mean(), (x, y), seed=1, points=None)
    assert "linearity" in {finding.check for finding in report.failures}


def faint(x: Tensor, y: Tensor) -> Tensor:
    return F.logsigmoid(torch.atan(y / (1 + x * x)))


class FaintByNumpy(torch.autograd.Function):
    """The same where no operator of torch shows how it is computed; the gradients are multiplied by `factor`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        a, b = x.detach().double().numpy(), y.detach().double().numpy()
        return torch.from_numpy(-np.log1p(np.exp(-np.arctan(b / (1 + a * a))))[None]).to(x.dtype).reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, y = (tensor.detach().double().requires_grad_() for tensor in ctx.saved_tensors)
        with torch.enable_grad():
            found = torch.autograd.grad(faint(x, y), (x, y), ctx.factor * grad_outputs[0].double())
        return (*(gradient.to(grad_outputs[0].dtype) for gradient in found), None)


def test_doubled_gradient_of_a_faint_scalar_fails_in_bfloat16() -> None:
    x, y = leaf(torch.tensor(-9216.0), BF16), leaf(torch.tensor(2.0), BF16)
    doubled = with_gradients_changed(faint, lambda gradients, _: [2 * g for g in gradients])
    assert verdict(faint, x, y) is Verdict.PASS
    assert verdict(doubled, x, y) is Verdict.FAIL
    assert verdict(lambda x, y: FaintByNumpy.apply(x, y, 1.0), x, y) is Verdict.PASS  # type: ignore[no-untyped-call]
    assert verdict(lambda x, y: FaintByNumpy.apply(x, y, 2.0), x, y) is Verdict.FAIL  # type: ignore[no-untyped-call]


def test_ties_of_sums_broken_by_the_layout_pass() -> None:
    """Rows of the same integers in other orders: how their sums are rounded depends on the layout in memory."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.tensor([-1.0, 1.0, -2.0, 2.0, 3.0])
    x = leaf(torch.stack([rows[torch.randperm(5, generator=generator)] for _ in range(50)]), F32)
    weights = torch.linspace(-1, 1, 50) ** 3
    report = gradvet.check(lambda x: torch.logsumexp(x, -1).sort().values * weights.to(x), (x,), seed=1, points=None)
    assert "input_layout" not in {finding.check for finding in report.failures}


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_right_loss_whose_values_do_not_change_does_not_fail_in_half_precision(dtype: torch.dtype) -> None:
    def nearly_constant(x: Tensor) -> Tensor:
        return (1.4 + 1e-6 * torch.sin(x.float()).sum()).to(x.dtype)

    for seed in range(3):
        x = torch.randn(16, generator=torch.Generator().manual_seed(seed))
        report = gradvet.check(kernel(nearly_constant, dtype), leaf(x, dtype), seed=seed, points=None)
        assert report.verdict is gradvet.Verdict.INCONCLUSIVE


def test_branch_on_the_precision_whose_rounded_values_overflow_does_not_fail() -> None:
    def steep(x: Tensor) -> Tensor:
        factor = torch.ones_like(x)
        factor[0] = 1e3 if x.dtype is torch.float16 else 1e5
        return factor * torch.sin(x)

    too_large = with_gradients_changed(steep, lambda gradients, _: [1.2 * gradients[0]])
    x = torch.linspace(-1.4, 1.3, 20).to(torch.float16)
    assert not gradvet.check(steep, x, seed=1).failures
    assert gradvet.check(too_large, x, seed=1).failures


def test_row_that_roundoff_hides_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "operator_mode", lambda handle: None)

    def factors(x: Tensor) -> Tensor:
        factor = torch.ones_like(x)
        factor[0] = 1e5
        return factor

    steep = with_vjp(lambda x: factors(x) * torch.sin(x), lambda v, x: v * factors(x) * torch.cos(x))
    x = torch.linspace(-1.0, 1.0, 20).to(BF16)
    x[0] = 1.6094  # the steepest slope is nearly zero
    report = gradvet.check(steep, x, seed=1)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert [row.reasons for row in report.open_rows] == [("roundoff would hide an error as large as the derivative",)]
