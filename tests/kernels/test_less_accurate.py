"""Kernels that lose digits by design, and formulas that are slightly wrong everywhere, against a reference.

Tests `checks/reference_passes.py` and `core/reference_errors.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.checks.reference import FORMULA_ADVICE, STEADY, STEADY_FACTOR, TF32_NOTE
from gradvet.core.results import Report, Verdict
from gradvet.frontends.torch import wider_version
from tests.kernels import emulated
from tests.kernels.emulated import Gradients, Spoil, unspoiled
from tests.kernels.faults import FAULTS, RIGHT


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_report(spoil: Spoil = unspoiled, seed: int = 0, **options: Any) -> Report:
    generator = torch.Generator().manual_seed(seed)
    inputs = tuple(torch.randn(2, 12, 8, generator=generator) for _ in range(3))
    return gradvet.check(emulated.tf32_attention(spoil), inputs, seed=seed, reference=attention, **options)


@pytest.fixture
def multiplies_in_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wider_version, "TF32_DEVICES", ("cpu",))


@pytest.mark.usefixtures("multiplies_in_tf32")
def test_kernel_with_products_in_tf32_is_compared_with_plain_torch_in_tf32() -> None:
    report = attention_report(seed=0)
    assert report.verdict is Verdict.PASS, report
    assert TF32_NOTE in report.notes


def test_tf32_is_no_excuse_on_a_device_that_does_not_have_it() -> None:
    report = attention_report(checks=("reference", "reverse"))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert TF32_NOTE not in report.notes


@pytest.mark.usefixtures("multiplies_in_tf32")
@pytest.mark.parametrize(
    ("fault", "slot"), [(fault, number % 3) for number, fault in enumerate(FAULTS) if fault != RIGHT]
)
def test_wrong_kernel_with_products_in_tf32_fails(fault: str, slot: int) -> None:
    def spoil(gradients: Gradients) -> Gradients:
        gradient = gradients[slot]
        assert gradient is not None
        FAULTS[fault](gradient)
        return gradients

    failures = attention_report(spoil).failures
    assert [finding.facts["tensor"] for finding in failures] == [f"grad of input {slot}"]


def recurrence_report(spoil: Spoil = unspoiled) -> Report:
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(2, 12, 8, generator=generator) for _ in range(3))
    kernel = emulated.tf32_linear_attention(spoil)
    return gradvet.check(kernel, inputs, seed=0, reference=emulated.recurrent_linear_attention)


@pytest.mark.usefixtures("multiplies_in_tf32")
def test_reference_may_write_products_as_elementwise_ones() -> None:
    report = recurrence_report()
    assert report.verdict is Verdict.PASS, report
    assert TF32_NOTE in report.notes


@pytest.mark.usefixtures("multiplies_in_tf32")
def test_wrong_recurrence_with_products_in_tf32_fails() -> None:
    def lose_half_a_row(gradients: Gradients) -> Gradients:
        assert gradients[1] is not None
        gradients[1][0, 3, :4] = 0.0
        return gradients

    (failure,) = recurrence_report(lose_half_a_row).failures
    assert failure.facts["tensor"] == "grad of input 1"


@pytest.mark.usefixtures("multiplies_in_tf32")
def test_kernel_in_full_precision_is_not_said_to_round_to_tf32() -> None:
    inputs = torch.randn(6, 10, generator=torch.Generator().manual_seed(0)), torch.rand(10) + 0.5
    report = gradvet.check(
        emulated.rms_norm(), inputs, seed=0, reference=lambda x, w: torch.nn.functional.rms_norm(x, (10,), w, 1e-6)
    )
    assert report.verdict is Verdict.PASS
    assert TF32_NOTE not in report.notes


def penalty_report(dtype: torch.dtype, seed: int, *, forgets_penalty: bool) -> Report:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(12, 40, generator=generator).to(dtype)
    kernel = emulated.loss_with_penalty(forgets_penalty=forgets_penalty)
    target = torch.arange(12) * 7 % 40
    return gradvet.check(kernel, (logits, target), seed=seed, reference=emulated.eager_loss_with_penalty)


@pytest.mark.parametrize("dtype", emulated.TYPES, ids=str)
def test_formula_that_is_slightly_wrong_everywhere_is_not_taken_for_rounding(dtype: torch.dtype) -> None:
    assert penalty_report(dtype, 0, forgets_penalty=False).verdict is Verdict.PASS
    report = penalty_report(dtype, 0, forgets_penalty=True)
    assert [finding.check for finding in report.failures] == ["reference"]
    if dtype is not torch.float32:
        assert STEADY in report.failures[0].headline
        assert report.failures[0].advice == FORMULA_ADVICE


@pytest.mark.parametrize("dtype", emulated.TYPES, ids=str)
def test_mean_over_a_power_of_two_of_columns_is_wrong(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(16, 100, generator=generator).to(dtype), (torch.rand(100, generator=generator) + 0.5).to(dtype)
    options: dict[str, Any] = {"reference": lambda x, w: torch.nn.functional.rms_norm(x, (100,), w, 1e-6), "seed": 4}
    report = gradvet.check(emulated.rms_norm(count=128), inputs, checks=("reference", "reverse"), **options)
    assert [finding.facts["tensor"] for finding in report.failures] == ["grad of input 0"]


def test_kernel_that_computes_float64_in_float32_is_compared_in_that_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(16, 100, generator=generator).double(), torch.rand(100, generator=generator).double() + 0.5
    options: dict[str, Any] = {"reference": lambda x, w: torch.nn.functional.rms_norm(x, (100,), w, 1e-6), "seed": 0}
    report = gradvet.check(emulated.rms_norm(), inputs, checks=("reference", "reverse"), **options)
    assert report.verdict is Verdict.PASS
    assert any("rounded to 1e-07" in note for note in report.notes)
    wrong = gradvet.check(emulated.rms_norm(count=128), inputs, checks=("reference", "reverse"), **options)
    assert wrong.verdict is Verdict.FAIL


def test_tables_in_bfloat16_are_not_called_wrong() -> None:
    angles = torch.outer(torch.arange(12.0), 10.0 ** -torch.arange(4))
    rounded = emulated.rope(angles.cos().bfloat16(), angles.sin().bfloat16(), dtype=torch.float32)
    exact = emulated.rope(angles.cos(), angles.sin(), dtype=torch.float32)
    x = torch.randn(3, 12, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    report = gradvet.check(rounded, x, seed=0, reference=exact, checks=("reference", "reverse"))
    assert not [finding for finding in report.failures if finding.check == "reference"]


def eager_entropy(logits: Tensor) -> Tensor:
    """Not finite in float16, where small probabilities are zero and their logarithms are infinite."""
    p = torch.softmax(logits, -1)
    return (p * torch.log(p)).sum(-1)


def entropy_report(factor: float) -> Report:
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.save_for_backward(logits)
        return eager_entropy(logits.float()).to(logits.dtype)

    def backward(ctx: Any, g: Tensor) -> Tensor:
        (logits,) = ctx.saved_tensors
        p = torch.softmax(logits.float(), -1)
        slope = p * (torch.log(p) - (p * torch.log(p)).sum(-1, keepdim=True))
        return (factor * slope * g.float()[:, None]).to(logits.dtype)

    logits = (8.0 * torch.randn(6, 20, generator=torch.Generator().manual_seed(1))).half()
    assert not eager_entropy(logits).isfinite().all()
    return gradvet.check(emulated.opaque_function(forward, backward), logits, seed=0, reference=eager_entropy)


def test_reference_that_is_not_finite_in_half_precision_has_the_errors_of_float32() -> None:
    assert entropy_report(1.0).verdict is Verdict.PASS
    assert [finding.check for finding in entropy_report(1.03).failures] == ["reference"]


def sum_report(spoil: Spoil, dtype: torch.dtype, seed: int, rows: int = 40) -> Report:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 32, generator=generator).to(dtype), torch.randn(32, generator=generator).to(dtype)
    kernel = emulated.sum_of_rows(spoil)
    return gradvet.check(kernel, inputs, seed=seed, reference=torch.add, checks=("reference", "reverse"))


@pytest.mark.parametrize("seed", [7, 10, 21])
def test_sum_in_low_precision_is_not_doubted_for_one_entry(seed: int) -> None:
    """With other seeds no entry is off by as much."""
    assert sum_report(unspoiled, torch.bfloat16, seed).verdict is Verdict.PASS


def test_sum_in_low_precision_with_one_wrong_entry_fails() -> None:
    def spoil(gradients: Gradients) -> Gradients:
        assert gradients[1] is not None
        gradients[1][7] *= 1.1
        return gradients

    report = sum_report(spoil, torch.bfloat16, 0)
    assert [finding.facts.get("tensor") for finding in report.failures] == ["grad of input 1"]


def test_sum_of_many_rows_in_bfloat16_is_less_accurate_and_not_wrong() -> None:
    for rows in (64, 128):
        assert not sum_report(unspoiled, torch.bfloat16, 0, rows).failures
    report = sum_report(unspoiled, torch.bfloat16, 0, 192)
    (finding,) = [finding for finding in report.findings if finding.check == "reference"]
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert "times less accurate than plain torch" in finding.headline


def test_sum_that_ends_at_256_in_bfloat16_is_wrong() -> None:
    """From 256 on, adding one changes nothing: the sum of 512 ones is half of what it should be."""
    (finding,) = sum_report(unspoiled, torch.bfloat16, 0, 512).failures
    assert (finding.facts["found"], finding.facts["expected"]) == (256.0, 512.0)


@pytest.mark.parametrize("rows", [64, 192])
def test_wrong_entry_of_an_inaccurate_sum_fails(rows: int) -> None:
    def spoil(gradients: Gradients) -> Gradients:
        assert gradients[1] is not None
        gradients[1][7] *= 1.2
        return gradients

    report = sum_report(spoil, torch.bfloat16, 0, rows)
    assert [finding.facts.get("tensor") for finding in report.failures] == ["grad of input 1"]


def softmax_report(spoil: Spoil, seed: int = 0) -> Report:
    """In plain bfloat16 the errors of exp(x) for large x are ten times those of a kernel that computes in float32."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        p = torch.softmax(x.float(), -1)
        ctx.save_for_backward(p)
        return p.to(x.dtype)

    def backward(ctx: Any, g: Tensor) -> Gradients:
        (p,) = ctx.saved_tensors
        return ((p * (g.float() - (p * g.float()).sum(-1, keepdim=True))).to(g.dtype),)

    x = 20.0 * torch.randn(7, 9, generator=torch.Generator().manual_seed(seed)).bfloat16()
    return gradvet.check(
        emulated.opaque_function(forward, backward, spoil),
        x,
        seed=seed,
        reference=lambda x: x.softmax(-1),
        checks=("reference",),
    )


def test_error_that_plain_torch_hides_is_seen_by_its_constant_factor() -> None:
    def spoil(gradients: Gradients) -> Gradients:
        assert gradients[0] is not None
        FAULTS["factor 1.03"](gradients[0])
        return gradients

    assert softmax_report(unspoiled).verdict is Verdict.PASS
    (finding,) = softmax_report(spoil).failures
    assert STEADY_FACTOR in finding.headline


def test_loss_that_sums_in_bfloat16_is_not_wrong() -> None:
    """All grad_outputs of a loss give the same rounding errors: only other points show that they are of either sign."""

    def forward(ctx: Any, x: Tensor, w: Tensor, target: Tensor) -> Tensor:
        loss, dx, dw = x.new_zeros(()), torch.zeros_like(x), torch.zeros_like(w)
        for rows in (slice(i, i + 4) for i in range(0, len(x), 4)):
            logits = x[rows] @ w.mT
            p = torch.softmax(logits, -1)
            loss += torch.nn.functional.cross_entropy(logits, target[rows], reduction="sum") / len(x)
            slope = (p - torch.nn.functional.one_hot(target[rows], len(w))) / len(x)
            dx[rows] = slope @ w
            dw += slope.mT @ x[rows]
        ctx.gradients = dx, dw
        return loss

    def backward(ctx: Any, g: Tensor) -> Gradients:
        return (*(gradient * g for gradient in ctx.gradients), None)

    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x, w = (torch.randn(rows, 8, generator=generator).bfloat16() for rows in (10, 13))
        target = torch.randint(13, (10,), generator=generator)
        kernel = emulated.opaque_function(forward, backward)
        report = gradvet.check(kernel, (x, w, target), seed=seed, reference=linear_loss, checks=("reference",))
        assert not report.failures, report


def linear_loss(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(x @ w.mT, target)
