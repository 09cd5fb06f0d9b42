"""`check` on kernels that overwrite memory, refuse float64 or capture tables, right and wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Report, Verdict
from tests.kernels import emulated
from tests.kernels.emulated import TYPES, Gradients, Kernel, Spoil, unspoiled
from tests.kernels.faults import FAULTS, RIGHT

Build = Callable[[Spoil, torch.dtype], tuple[Kernel, tuple[Tensor, ...]]]

ONCE = "retain_graph=True must not be used with this function"
REUSED = "is returned in the memory of"


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _rope(spoil: Spoil, dtype: torch.dtype) -> tuple[Kernel, tuple[Tensor, ...]]:
    angle = normal(5, 4)
    return emulated.rope(angle.cos().to(dtype), angle.sin().to(dtype), spoil), (normal(2, 5, 8),)


def _cross_entropy(spoil: Spoil, dtype: torch.dtype) -> tuple[Kernel, tuple[Tensor, ...]]:
    kernel, target = emulated.cross_entropy(spoil), torch.arange(6) % 4
    return lambda logits: kernel(logits, target), (normal(6, 10),)


KERNELS: dict[str, Build] = {
    "rms_norm": lambda spoil, _: (emulated.rms_norm(spoil), (normal(6, 10), 1.0 + 0.1 * normal(10))),
    "rms_norm without float64": lambda spoil, _: (
        emulated.rms_norm(spoil, refuses_float64=True),
        (normal(6, 10), 1.0 + 0.1 * normal(10)),
    ),
    "layer_norm": lambda spoil, _: (emulated.layer_norm(spoil), (normal(6, 10), 1.0 + 0.1 * normal(10), normal(10))),
    "swiglu": lambda spoil, _: (emulated.swiglu(spoil), (normal(6, 10), normal(6, 10, seed=2))),
    "gated": lambda spoil, _: (emulated.gated(spoil), (normal(6, 10), normal(6, 10, seed=2))),
    "linear_loss": lambda spoil, _: (emulated.linear_loss(spoil), (normal(6, 10), normal(7, 10, seed=2))),
    "cross_entropy": _cross_entropy,
    "rope": _rope,
}


def report_on(name: str, dtype: torch.dtype, spoil: Spoil = unspoiled, **options: Any) -> Report:
    kernel, inputs = KERNELS[name](spoil, dtype)
    given = tuple(x.to(dtype).requires_grad_() for x in inputs)
    before = [x.detach().clone() for x in given]
    report = gradvet.check(kernel, given, seed=3, **options)
    assert all(map(torch.equal, given, before)), "the user's inputs were left changed"
    return report


@pytest.mark.parametrize("name", KERNELS)
def test_right_kernel_passes_in_float32(name: str) -> None:
    report = report_on(name, torch.float32)
    assert report.verdict is Verdict.PASS, str(report)


@pytest.mark.parametrize("dtype", TYPES[1:], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_right_kernel_is_not_accused_in_half_precision(name: str, dtype: torch.dtype) -> None:
    assert report_on(name, dtype).failures == ()


def _first(change: Callable[[Tensor], object]) -> Spoil:
    """Change the gradient of the first input where it lies."""

    def spoil(gradients: Gradients) -> Gradients:
        assert gradients[0] is not None
        change(gradients[0])
        return gradients

    return spoil


WRONG = [fault for fault in FAULTS if fault != RIGHT]
PAIRS = list(zip([*KERNELS, *KERNELS], itertools.cycle(WRONG), strict=False))
"""Each kernel with two faults; `benchmarks.emulated_kernels` tries all of them."""


@pytest.mark.parametrize(("name", "fault"), PAIRS)
def test_wrong_kernel_fails_in_float32_by_its_slopes_alone(name: str, fault: str) -> None:
    failed = {finding.check for finding in report_on(name, torch.float32, _first(FAULTS[fault])).failures}
    assert "reverse" in failed
    assert failed <= {"reverse", "precision"}


@pytest.mark.parametrize(("name", "words"), [("linear_loss", ONCE), ("swiglu", REUSED), ("cross_entropy", REUSED)])
def test_backward_pass_that_works_once_is_said_once(name: str, words: str) -> None:
    notes = report_on(name, torch.float32).notes
    assert sum(ONCE in note or REUSED in note for note in notes) == 1
    assert any(words in note for note in notes)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "rope"])
def test_backward_pass_that_works_twice_is_not_accused_of_the_contrary(name: str) -> None:
    assert not any(ONCE in note or REUSED in note for note in report_on(name, torch.float32).notes)


@pytest.mark.parametrize("name", ["linear_loss", "swiglu", "cross_entropy"])
def test_second_order_of_a_backward_pass_that_works_once_is_not_accused(name: str) -> None:
    assert report_on(name, torch.float32, order=2).failures == ()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_kernel_that_overwrites_grad_output_is_reported_for_that_alone(dtype: torch.dtype) -> None:
    inputs = (normal(6, 10).to(dtype), (1.0 + 0.1 * normal(10)).to(dtype))
    report = gradvet.check(emulated.rms_norm(in_place=True), inputs, seed=0)
    assert [finding.check for finding in report.failures] == ["mutation"]
    assert report.failures[0].facts["changed"] == ["the grad_output of output"]


def test_input_that_is_overwritten_with_something_else_than_its_gradient_is_a_failure() -> None:
    def halved(gradients: Gradients) -> Gradients:
        copies = tuple(None if gradient is None else gradient.clone() for gradient in gradients)
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(0.5)
        return copies

    report = report_on("swiglu", torch.float32, halved)
    assert [finding.check for finding in report.failures] == ["mutation"]
    assert report.failures[0].facts["changed"] == ["input 0", "input 1"]


def test_second_backward_pass_that_raises_is_a_note() -> None:
    class Consumed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.slope = x.cos()
            return x.sin()

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> Tensor:  # type: ignore[override]
            slope, ctx.slope = ctx.slope, None
            return v * slope

    report = gradvet.check(Consumed, normal(5).double(), seed=0)
    assert report.verdict is Verdict.PASS
    assert sum(ONCE in note for note in report.notes) == 1


def test_derivative_that_is_random_after_a_fresh_forward_pass_too_is_not_taken_for_one_that_works_once() -> None:
    passes = iter(range(10_000))

    def jittered(gradients: Gradients) -> Gradients:
        factor = 1.0 + 1e-3 * (next(passes) * 0.618034 % 1.0)
        return tuple(None if gradient is None else gradient * factor for gradient in gradients)

    report = report_on("layer_norm", torch.float32, jittered)
    assert "determinism" in {finding.check for finding in report.failures}
    assert not any(ONCE in note for note in report.notes)


def test_kernel_that_rounds_one_of_its_inputs_is_checked_in_its_own_precision() -> None:
    report = report_on("gated", torch.float32)
    assert {row.precision for row in report.ledger} == {"given"}
    assert any("checked in the given one" in note for note in report.notes)


def half_turned(sign: float = -1.0) -> Kernel:
    """The first half of each row times a rotation in float32, the second half as it is."""
    angle = normal(7, 4, seed=3)

    def turned(x: Tensor, sign: float) -> Tensor:
        a, b = x[..., :8:2].float(), x[..., 1:8:2].float()
        cosine, sine = angle.cos(), sign * angle.sin()
        pairs = torch.stack([a * cosine - b * sine, a * sine + b * cosine], -1).flatten(-2)
        return torch.cat([pairs.to(x.dtype), x[..., 8:]], -1)

    return emulated.opaque_function(lambda ctx, x: turned(x, 1.0), lambda ctx, v: (turned(v, sign),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_that_rounds_only_some_outputs_is_not_checked_in_float64(dtype: torch.dtype) -> None:
    x = normal(2, 7, 16).to(dtype)
    report = gradvet.check(half_turned(), x, seed=0)
    assert report.verdict is Verdict.PASS, report
    assert "float64" not in {row.precision for row in report.ledger}
    assert gradvet.check(half_turned(1.0), x, seed=0).verdict is Verdict.FAIL


def test_input_that_hardly_counts_does_not_speak_against_float64() -> None:
    def forward(ctx: Any, x: Tensor, faint: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x) + 1e-12 * faint

    def backward(ctx: Any, v: Tensor) -> Gradients:
        return v * torch.cos(ctx.saved_tensors[0]), 1e-12 * v

    kernel = emulated.opaque_function(forward, backward)
    report = gradvet.check(kernel, (normal(6, 10), normal(6, 10, seed=2)), seed=0)
    assert "float64" in {row.precision for row in report.ledger}


def report_on_rope(given: torch.dtype, table: torch.dtype, spoil: Spoil = unspoiled, inside: Any = None) -> Report:
    angle = normal(5, 4)
    kernel = emulated.rope(angle.cos().to(table), angle.sin().to(table), spoil, dtype=inside)
    return gradvet.check(kernel, normal(2, 5, 8, seed=2).to(given), seed=3)


@pytest.mark.parametrize(
    ("given", "table"),
    [(torch.float32, torch.bfloat16), (torch.float32, torch.float16), (torch.float64, torch.float16)],
    ids=str,
)
def test_kernel_that_rounds_to_the_dtype_of_its_tables_is_compared_in_that_precision(
    given: torch.dtype, table: torch.dtype
) -> None:
    report = report_on_rope(given, table)
    assert report.failures == ()
    assert any(note.startswith("values inside the function are rounded") for note in report.notes)


def test_kernel_that_only_reads_tables_of_lower_precision_is_compared_in_its_own() -> None:
    assert report_on_rope(torch.float32, torch.bfloat16, inside=torch.float32).verdict is Verdict.PASS


def test_wrong_kernel_that_only_reads_tables_of_lower_precision_fails() -> None:
    report = report_on_rope(torch.float32, torch.bfloat16, _first(FAULTS["factor 1.03"]), torch.float32)
    assert "reverse" in {finding.check for finding in report.failures}


def test_kernel_that_computes_float64_in_float32_passes() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(16, 100, generator=generator).double(), torch.rand(100, generator=generator).double() + 0.5
    assert gradvet.check(emulated.rms_norm(), (x, w), seed=0).verdict is Verdict.PASS
    wrong = gradvet.check(emulated.rms_norm(count=128), (x, w), seed=0, checks=("reverse",))
    assert wrong.verdict is Verdict.FAIL


def test_float32_sums_without_a_fixed_order_are_no_race_in_float64() -> None:
    calls = itertools.count()

    def backward(ctx: Any, g: Tensor) -> Tensor:
        total = torch.zeros(g.shape)
        for row in ctx.x.float().roll(next(calls), 0):
            total = total + row
        return (g.float() * total).to(g.dtype)

    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.x = x
        return (x.float().sum(0) * w.float()).to(x.dtype)

    kernel = emulated.opaque_function(forward, lambda ctx, g: (None, backward(ctx, g)))
    inputs = normal(200, 6).double(), normal(6).double().requires_grad_()
    report = gradvet.check(kernel, inputs, seed=0, checks=("determinism",))
    assert [finding.verdict for finding in report.findings if finding.check == "determinism"] == [Verdict.PASS]


@pytest.mark.parametrize("seed", [4, 5])
def test_factor_in_float32_is_seen_whatever_the_directions_are(seed: int) -> None:
    """With these seeds the slope along the first direction is a hundredth of what it usually is."""

    def spoil(gradients: Gradients) -> Gradients:
        assert gradients[0] is not None
        return (1.03 * gradients[0],)

    x = normal(16, 24, seed=seed)
    right, wrong = (emulated.opaque_function(*squared_logsumexp(), change) for change in (unspoiled, spoil))
    assert gradvet.check(right, x, seed=seed, checks=("reverse",)).verdict is Verdict.PASS
    assert gradvet.check(wrong, x, seed=seed, checks=("reverse",)).verdict is Verdict.FAIL


def squared_logsumexp() -> tuple[Kernel, Kernel]:
    """The mean of the squared log-sum-exp of rows, in float32 alone."""

    def forward(ctx: Any, x: Tensor) -> Tensor:
        {torch.float32: 0}[x.dtype]
        ctx.save_for_backward(x)
        return torch.logsumexp(x, -1).square().mean()

    def backward(ctx: Any, v: Tensor) -> Gradients:
        (x,) = ctx.saved_tensors
        return (v * 2.0 / len(x) * torch.logsumexp(x, -1, keepdim=True) * torch.softmax(x, -1),)

    return forward, backward


def test_product_with_the_smallest_numbers_does_not_fail() -> None:
    """Outputs and gradients of 1e-7 are rounded to multiples of 6e-8."""

    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        {torch.float16: 0}[x.dtype]
        ctx.save_for_backward(x, y)
        return (x.float() * torch.minimum(y.float(), torch.tensor(0.7))).half()

    def backward(ctx: Any, v: Tensor) -> Gradients:
        x, y = (saved.float() for saved in ctx.saved_tensors)
        dy = (v.float() * x).sum(0) * (y < 0.7)
        return (v.float() * torch.minimum(y, torch.tensor(0.7))).half(), dy.half()

    for seed in range(6):
        x, y = (5e-7 * normal(5, 3, seed=seed)).half(), normal(3, seed=100 + seed).half()
        report = gradvet.check(emulated.opaque_function(forward, backward), (x, y), seed=seed, checks=("reverse",))
        assert not report.failures, report


def test_rounding_that_moves_elements_across_a_kink_does_not_fail() -> None:
    """relu((x + r) w), whose sum is rounded before the product: some products change their sign."""

    def forward(ctx: Any, x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        h = (x + r).to(torch.float32)
        z = h @ w.float()
        ctx.save_for_backward(h, w.float(), z)
        return z.relu().to(x.dtype)

    def backward(ctx: Any, v: Tensor) -> Gradients:
        h, w, z = ctx.saved_tensors
        dz = v.float() * (z > 0)
        dh = (dz @ w.mT).to(v.dtype)
        return dh, dh.clone(), (h.mT @ dz).to(v.dtype)

    inputs = tuple(normal(*shape, seed=12 + n).bfloat16() for n, shape in enumerate(((20, 32), (20, 32), (32, 40))))
    kernel = emulated.opaque_function(forward, backward)
    report = gradvet.check(kernel, inputs, seed=1, checks=("reverse", "precision"))
    assert not report.failures, report
