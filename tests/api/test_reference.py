"""`check(kernel, inputs, reference=...)`: right kernels pass in every precision, wrong ones fail with what is wrong.

Also tests `checks/reference.py` and `frontends/torch/user_reference.py`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradvet
from gradvet.core.results import Finding, Report, Verdict
from gradvet.errors import InvalidProblemError
from tests.functions import with_vjp
from tests.reference_kernels import FAULTS, KERNELS, OVERWRITING, VALUE, Kernel, times

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
COMPARISON = ("reference", "reverse")


def inputs_of(kernel: Kernel) -> Any:
    torch.manual_seed(0)
    return kernel.inputs()


def compared(kernel: Kernel, fault: str = "", slot: int = 0, **options: Any) -> Report:
    function = kernel.fused(FAULTS[fault] if fault else None, slot)
    settings = {"dtypes": DTYPES, "seed": 0, "checks": COMPARISON, **options}
    return gradvet.check(function, inputs_of(kernel), reference=kernel.eager, **settings)


def about(report: Report, verdict: Verdict) -> list[Finding]:
    return [one for one in report.findings if one.check == "reference" and one.verdict is verdict]


# Right and wrong kernels.


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_right_kernel_passes_all_checks_in_every_precision(kernel: Kernel) -> None:
    report = compared(kernel, checks=None)
    assert report.verdict is Verdict.PASS, report
    assert [one.headline.partition(":")[0] for one in about(report, Verdict.PASS)] == ["float32", "bfloat16", "float16"]
    assert all("as accurate as plain torch" in one.headline for one in about(report, Verdict.PASS))


def test_wrong_formula_is_not_called_a_common_factor() -> None:
    swish = with_vjp(F.silu, lambda v, x: v * x.sigmoid() * (1 + x * x.sigmoid()))

    x = torch.randn(64, 50, generator=torch.Generator().manual_seed(0))
    report = gradvet.check(swish, x, reference=F.silu, dtypes=DTYPES, seed=0, checks=COMPARISON)
    failures = about(report, Verdict.FAIL)
    assert len(failures) == len(DTYPES)
    assert all("is wrong in" in one.headline and "factor" not in one.advice for one in failures)


@pytest.mark.parametrize("kernel", OVERWRITING, ids=lambda kernel: kernel.name)
def test_kernel_that_overwrites_what_it_is_given_is_compared_on_copies(kernel: Kernel) -> None:
    assert compared(kernel).verdict is Verdict.PASS
    wrong = compared(kernel, "sign")
    assert [one.facts["tensor"] for one in about(wrong, Verdict.FAIL)] == ["grad of input 0"] * len(DTYPES)


LOCAL_FAULTS = ("factor 1.03", "lost row", "lost tile", "doubled entry")


# Two faults for each kernel: which faults are seen in which shapes is tested in core/test_reference_comparison.py.
@pytest.mark.parametrize(
    ("kernel", "fault"),
    [(kernel, LOCAL_FAULTS[(number + more) % 4]) for number, kernel in enumerate(KERNELS) for more in (0, 1)],
    ids=lambda value: getattr(value, "name", value),
)
def test_wrong_kernel_fails_with_the_tensor_that_is_wrong(kernel: Kernel, fault: str) -> None:
    slots = (*kernel.slots, VALUE)
    slot = slots[list(FAULTS).index(fault) % len(slots)]
    report = compared(kernel, fault, slot)
    failing = {(one.facts["tensor"], one.facts["precision"]) for one in about(report, Verdict.FAIL)}
    assert {precision for _, precision in failing} == {"float32", "bfloat16", "float16"}
    if slot != VALUE:
        assert {tensor for tensor, _ in failing} == {f"grad of input {slot}"}
    else:
        assert "output" in {tensor for tensor, _ in failing}


def test_finding_names_gradient_entry_and_both_values() -> None:
    (finding,) = about(compared(KERNELS[0], "doubled entry", dtypes=(torch.bfloat16,)), Verdict.FAIL)
    facts = finding.facts
    assert finding.headline.startswith(
        "bfloat16: grad of input 0 is wrong in 1 of 480 entries; worst: grad of input 0 ["
    )
    assert facts["found"] == pytest.approx(2.0 * facts["expected"], rel=0.02)
    assert facts["entry"] in finding.headline
    assert facts["status"] == "wrong"


def test_finding_names_the_common_factor() -> None:
    (finding,) = about(compared(KERNELS[1], "factor 0.9", 1, dtypes=(torch.float16,)), Verdict.FAIL)
    assert "grad of input 1 is 0.9 times the reference" in finding.headline
    assert finding.facts["factor"] == pytest.approx(0.9, abs=1e-3)


def test_kernel_that_sums_in_low_precision_is_less_accurate_not_wrong() -> None:
    def summed(x: Tensor) -> Tensor:
        total = torch.zeros(x.shape[0], dtype=x.dtype)
        for column in x.unbind(-1):
            total = total + column
        return total

    torch.manual_seed(0)
    x = torch.randn(900, 100).abs().bfloat16()
    report = gradvet.check(summed, x, reference=lambda x: x.sum(-1), seed=0, checks=COMPARISON)
    (finding,) = about(report, Verdict.INCONCLUSIVE)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "times less accurate than plain torch" in finding.headline


class OtherSide(torch.autograd.Function):
    """The relu whose derivative at zero is one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0.0)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy * (ctx.saved_tensors[0] >= 0.0)


class OutsideBoth(OtherSide):
    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where(x == 0.0, 2.0 * dy, dy * (x > 0.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_derivative_of_the_other_side_of_a_kink_is_not_wrong(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(20, 30) * (torch.rand(20, 30) < 0.5)).to(dtype)
    report = gradvet.check(OtherSide.apply, x, reference=F.relu, seed=0)
    assert report.verdict is Verdict.PASS, report
    assert any("has a kink at" in note for note in report.notes)
    assert gradvet.check(OutsideBoth.apply, x, reference=F.relu, seed=0).verdict is Verdict.FAIL


@pytest.mark.parametrize("error", [0.0, 3e-9], ids=str)
def test_smooth_function_in_float64_has_no_kinks(error: float) -> None:
    x = torch.randn(6, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kernel = with_vjp(torch.sin, lambda v, x: v * (x.cos() + error))
    report = gradvet.check(kernel, x, reference=torch.sin, seed=0, checks=("reference",))
    assert report.verdict is (Verdict.FAIL if error else Verdict.PASS)
    assert not any("kink" in note for note in report.notes)


def test_last_of_equal_maxima_is_not_wrong() -> None:
    class LastMaximum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.index = x.shape[1] - 1 - x.flip(1).argmax(1, keepdim=True)
            ctx.shape = x.shape
            return x.amax(1)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            return torch.zeros(ctx.shape, dtype=dy.dtype).scatter_(1, ctx.index, dy[:, None])

    torch.manual_seed(0)
    x = torch.randint(0, 6, (20, 9)).bfloat16()
    report = gradvet.check(LastMaximum.apply, x, reference=lambda x: x.max(-1).values, seed=0, checks=COMPARISON)
    assert not about(report, Verdict.FAIL), report


# The chain down to differences, and the ledger.


wrong_square = with_vjp(torch.square, lambda v, x: 3.0 * x * v)


def test_reference_that_is_wrong_itself_is_named() -> None:
    x = torch.randn(40).bfloat16()
    report = gradvet.check(wrong_square, x, reference=wrong_square, seed=0)
    assert report.verdict is Verdict.FAIL
    (finding,) = report.failures
    assert finding.headline.startswith("the reference itself is wrong: ")
    assert [one.verdict for one in report.findings if one.check == "reference"] == [Verdict.PASS]


def test_report_says_that_the_reference_is_right() -> None:
    report = gradvet.check(torch.tanh, torch.randn(40).bfloat16(), reference=torch.tanh, seed=0)
    (finding,) = [one for one in report.findings if one.check == "reverse"]
    assert finding.headline == "the reference is right: its gradients agree with finite differences in float64"


def test_reference_that_could_not_be_decided_leaves_the_report_open() -> None:
    def jumping(x: Tensor) -> Tensor:
        return torch.floor(x) + x

    x = torch.tensor([0.3, 1.0, 2.6, 4.1])
    report = gradvet.check(jumping, x, reference=jumping, seed=0)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert any(
        "the reference could not be decided" in one.headline for one in report.findings if one.check == "reverse"
    )


def rounded_by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.double().numpy().astype("float16").astype("float64")).to(x.dtype)


def test_function_that_float64_does_not_follow_has_no_truth() -> None:
    rounded = with_vjp(rounded_by_numpy, lambda v, x: v)
    report = gradvet.check(rounded, torch.rand(20) + 0.5, reference=rounded, seed=0)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert any("the reference cannot be run in float64" in one.headline for one in about(report, Verdict.INCONCLUSIVE))


def test_reference_whose_stairs_may_be_rounding_leaves_the_report_open() -> None:
    def rounded(x: Tensor) -> Tensor:
        return torch.round(x * 1e4) / 1e4 + 0.0 * x

    report = gradvet.check(rounded, torch.rand(20) + 0.5, reference=rounded, seed=0)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert any("staircase" in one.headline for one in report.findings if one.check == "reverse")


def test_ledger_has_a_row_for_every_output_gradient_and_precision() -> None:
    report = compared(KERNELS[1], dtypes=("float32", "bfloat16"))
    rows = {(row.input, row.precision) for row in report.ledger if row.mode == "reference"}
    names = ("output", "grad of input 0", "grad of input 1", "grad of input 2")
    assert rows == {(name, dtype) for name in names for dtype in ("float32", "bfloat16")}
    assert {row.input for row in report.ledger if row.mode == "reverse"} == {"input 0", "input 1", "input 2"}
    assert all(row.is_complete for row in report.ledger)


def test_values_that_overflow_in_plain_torch_too_are_left_out() -> None:
    def cube(x: Tensor) -> Tensor:
        return x * x * x

    x = torch.linspace(-80.0, 80.0, 33).half()
    report = gradvet.check(cube, x, reference=lambda x: x**3, seed=0, checks=COMPARISON)
    assert report.verdict is Verdict.INCONCLUSIVE
    (row,) = [row for row in report.ledger if row.input == "output"]
    assert 0 < row.compared < row.elements
    assert row.reasons == ("not finite in plain torch either",)


# What can be given.


def test_several_outputs_integer_and_other_arguments() -> None:
    def kernel(x: Tensor, index: Tensor, *, scale: float) -> Any:
        y = (x.float() * scale).to(x.dtype)
        return [y[index], index, y.float().sum()]

    def eager(x: Tensor, index: Tensor, *, scale: float) -> Any:
        y = x * scale
        return y[index], y.float().sum()

    given = (torch.randn(12, 7).bfloat16(), torch.tensor([3, 1, 1]))
    report = gradvet.check(kernel, given, kwargs={"scale": 1.5}, reference=eager, seed=0)
    assert report.verdict is Verdict.PASS, report
    assert {row.input for row in report.ledger} >= {"output 0", "output 2", "grad of input 0"}


def test_modules_share_the_kernels_parameters() -> None:
    class Fused(nn.Module):
        def __init__(self, factor: float = 1.0) -> None:
            super().__init__()
            self.weight, self.factor = nn.Parameter(torch.randn(5, 8)), factor
            self.register_buffer("shift", torch.full((5,), 3.0))

        def forward(self, x: Tensor) -> Tensor:
            y = F.linear(x.float(), self.weight.float() * self.factor) + self.shift.float()
            return y.to(x.dtype)

    class Plain(Fused):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight) + self.shift

    x = torch.randn(9, 8)
    report = gradvet.check(Fused(), x, reference=Plain(), dtypes=DTYPES, seed=0)
    assert report.verdict is Verdict.PASS, report
    assert {row.input for row in report.ledger if row.mode == "reference"} == {
        *("output", "grad of input 0", "grad of weight")
    }
    assert gradvet.check(Fused(1.03), x, reference=Plain(), dtypes=DTYPES, seed=0).verdict is Verdict.FAIL
    with pytest.raises(InvalidProblemError, match="weight was expected, found none"):
        gradvet.check(Fused(), x, reference=torch.sin)


def test_float64_kernel_is_compared_too() -> None:
    def kernel(x: Tensor) -> Tensor:
        return torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)

    x = torch.randn(6, 10, dtype=torch.float64)
    softmax = KERNELS[0].eager
    assert gradvet.check(kernel, x, reference=softmax, seed=0).verdict is Verdict.PASS
    wrong = gradvet.check(lambda x: kernel(x) * 1.0001, x, reference=softmax, seed=0)
    assert {one.facts["tensor"] for one in wrong.failures} == {"output", "grad of input 0"}


def test_output_in_another_dtype_is_compared_in_its_own() -> None:
    def loss(x: Tensor) -> Tensor:
        return x.float().square().mean()

    x = torch.randn(30, 20).bfloat16()
    assert gradvet.check(loss, x, reference=loss, seed=0).verdict is Verdict.PASS
    wrong = gradvet.check(lambda x: loss(x) * 1.002, x, reference=loss, seed=0)
    assert "output" in {one.facts["tensor"] for one in wrong.failures}


def test_kernel_that_refuses_float64_is_compared_in_its_own_precision() -> None:
    def kernel(x: Tensor) -> Tensor:
        if x.dtype is torch.float64:
            raise KeyError(x.dtype)
        return torch.tanh(x)

    report = gradvet.check(kernel, torch.randn(50).bfloat16(), reference=torch.tanh, seed=0)
    assert report.verdict is Verdict.PASS, report


def test_kernel_without_elements_has_nothing_to_compare() -> None:
    report = gradvet.check(torch.sin, torch.randn(0, 3), reference=torch.sin)
    found = [finding.headline for finding in report.findings if finding.check == "reference"]
    assert found == ["there is no entry to compare"]


def test_different_outputs_are_one_finding() -> None:
    x = torch.randn(4, 6)
    report = gradvet.check(lambda x: (x, x * 2), x, reference=lambda x: x, seed=0)
    assert [one.headline for one in report.failures] == [
        "the kernel returns 2 floating-point tensors, and the reference 1 floating-point tensor"
    ]
    report = gradvet.check(lambda x: x.sum(0), x, reference=lambda x: x.sum(1), seed=0)
    assert [one.headline for one in report.failures] == [
        "output has the shape [6] in the kernel and [4] in the reference"
    ]


def test_kernels_that_draw_the_same_numbers_are_compared() -> None:
    def dropped(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)

    x = torch.randn(20, 30).bfloat16()
    assert gradvet.check(dropped, x, reference=dropped, seed=0, checks=COMPARISON).verdict is Verdict.PASS


def test_kernels_that_draw_other_numbers_are_not_called_wrong() -> None:
    def dropped(x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape).flip(0) < 0.5)

    x = torch.randn(20, 30).bfloat16()
    report = gradvet.check(dropped, x, reference=lambda x: F.dropout(x, 0.5), seed=0, checks=COMPARISON)
    assert report.verdict is Verdict.INCONCLUSIVE
    (finding,) = about(report, Verdict.INCONCLUSIVE)
    assert "draw them differently from the same seed" in finding.headline


def test_accuracy_by_design_is_allowed() -> None:
    torch.manual_seed(0)
    x = torch.rand(30, 20) + 0.5
    noise = 1.0 + 5e-4 * torch.randn(30, 20)

    def kernel(x: Tensor) -> Tensor:
        return x * noise

    def eager(x: Tensor) -> Tensor:
        return x * 1.0

    assert gradvet.check(kernel, x, reference=eager, seed=0).verdict is Verdict.INCONCLUSIVE
    assert gradvet.check(kernel, x, reference=eager, seed=0, accuracy=5e-3).verdict is Verdict.PASS


def test_numbers_of_a_less_accurate_kernel_fit_and_the_accuracy_named_accepts_it() -> None:
    torch.manual_seed(1)
    x = torch.randn(40, 24).bfloat16()
    off = torch.zeros(40, 24)
    off[3, 5] = 0.04 * torch.randn(1).sign().item()

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        # Of either sign for other inputs, as rounding errors are.
        sign = torch.where((v.float().sum() * 1e4).long() % 2 == 0, 1.0, -1.0)
        return (v.float() * (1.0 + sign * off)).to(x.dtype)

    kernel = with_vjp(torch.clone, vjp)
    report = gradvet.check(kernel, x, reference=torch.clone, seed=0, checks=COMPARISON)
    (finding,) = about(report, Verdict.INCONCLUSIVE)
    numbers = r"is ([\d.]+) times less .*\] is (\S+) instead of (\S+), and plain torch is off by (\S+) at most"
    found = re.search(numbers, finding.headline)
    assert found, finding.headline
    times, value, truth, loss = map(float, found.groups())
    assert times == pytest.approx(abs(value - truth) / loss, rel=0.1)
    assert re.search(r"grad of input 0 .* less accurate than plain torch$", str(report), re.MULTILINE)
    named = re.search(r"accuracy=(\S+)(?: with resolution=(\S+))? accepts", finding.advice)
    assert named, finding.advice
    options = {name: float(text) for name, text in zip(("accuracy", "resolution"), named.groups(), strict=True) if text}
    again = gradvet.check(kernel, x, reference=torch.clone, seed=0, checks=COMPARISON, **options)
    assert again.verdict is Verdict.PASS, again


def only_in(*dtypes: torch.dtype) -> Any:
    def forward(x: Tensor) -> Tensor:
        if x.dtype not in dtypes:
            raise RuntimeError(f"no kernel for {x.dtype}")
        return torch.tanh(x)

    return with_vjp(forward, lambda v, x: v * (1.0 - torch.tanh(x.float()) ** 2).to(x.dtype))


def test_dtype_that_the_kernel_refuses_is_named_and_the_others_are_compared() -> None:
    x, options = torch.randn(30, 20), {"reference": torch.tanh, "seed": 0, "checks": COMPARISON}
    report = gradvet.check(only_in(torch.bfloat16), x, dtypes=(torch.float32, torch.bfloat16), **options)
    assert report.verdict is Verdict.INCONCLUSIVE
    (refusal,) = about(report, Verdict.INCONCLUSIVE)
    assert refusal.headline == "float32: the kernel raises RuntimeError: no kernel for torch.float32"
    (right,) = about(report, Verdict.PASS)
    assert right.headline.startswith("bfloat16: ")
    assert "dtypes=(torch.float32, torch.bfloat16), seed=0" in report.replay
    with pytest.raises(InvalidProblemError, match="in float16, the kernel raises RuntimeError: no kernel for"):
        gradvet.check(only_in(torch.bfloat16), x, dtypes="float16", **options)


def scaled_tanh(factor: float) -> Any:
    return with_vjp(torch.tanh, lambda v, x: v * (1.0 - torch.tanh(x.float()) ** 2).to(x.dtype) * factor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_accuracy_limits_the_resolution(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 20).to(dtype)
    report = gradvet.check(scaled_tanh(1.04), x, reference=torch.tanh, seed=0, accuracy=0.05)
    assert report.verdict is Verdict.INCONCLUSIVE, report
    assert report.resolution == 0.05
    assert "accuracy= hides smaller errors; resolution 0.05" in str(report)
    assert "Pass resolution=0.06 to accept what was compared, or pass a smaller accuracy=." in str(report)
    accepted = gradvet.check(scaled_tanh(1.04), x, reference=torch.tanh, seed=0, accuracy=0.05, resolution=0.06)
    assert (accepted.verdict, accepted.resolution) == (Verdict.PASS, 0.05)


@pytest.mark.parametrize("accuracy", [0.01, 0.03])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_error_beyond_the_accuracy_is_described_as_a_whole(dtype: torch.dtype, accuracy: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 20).to(dtype)
    report = gradvet.check(scaled_tanh(1.04), x, reference=torch.tanh, seed=0, accuracy=accuracy)
    (finding,) = report.failures
    assert finding.headline.startswith("grad of input 0 is 1.04 times the reference")
    assert finding.facts["factor"] == pytest.approx(1.04, abs=1e-3)


def test_reference_that_is_exact_for_ones_is_not_taken_for_accurate() -> None:
    # As torch 2.6: the sum is rounded to bfloat16, and that of a softmax is 1.
    def backward(dy: Tensor, x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        return y * (dy - (dy * y).sum(-1, keepdim=True).to(x.dtype))

    reference = with_vjp(KERNELS[0].eager, backward)
    torch.manual_seed(1)
    x = 2.0 * torch.randn(12, 40, dtype=torch.bfloat16)
    for seed in range(3):
        report = gradvet.check(KERNELS[0].fused(), x, reference=reference, seed=seed, checks=COMPARISON)
        assert report.verdict is Verdict.PASS, report
        wrong = gradvet.check(KERNELS[0].fused(times(1.03)), x, reference=reference, seed=seed, checks=COMPARISON)
        assert wrong.verdict is Verdict.FAIL


def test_factors_that_differ_are_not_called_one_factor() -> None:
    wrong = with_vjp(F.silu, lambda dy, x: dy * (torch.sigmoid(x) + x * torch.sigmoid(x)))
    x = torch.tensor([0.4, 1.1, 1.9])
    report = gradvet.check(wrong, x, reference=F.silu, dtypes=DTYPES, seed=0, checks=COMPARISON)
    for one in about(report, Verdict.FAIL):
        assert "times the reference" not in one.headline, one
        assert "The factor is common" not in one.advice


# The interface.


def test_verbose_text_says_how_accurate_a_right_kernel_is() -> None:
    report = compared(KERNELS[1], dtypes=("float32", "bfloat16"))
    for name in ("float32", "bfloat16"):
        words = f"reference: {name}: values and gradients are as accurate as plain torch; the largest error is "
        assert words in report.text(verbose=True)
        assert words not in str(report)


def test_reference_that_refuses_half_precision_is_run_in_float32() -> None:
    """Plain torch has no inverse in half precision; kernels compute it in float32 and round."""

    def inverse(spoil: float) -> Any:
        def backward(dy: Tensor, x: Tensor) -> Tensor:
            y = torch.linalg.inv(x.float()).mT
            return (-spoil * (y @ dy.float() @ y)).to(x.dtype)

        return with_vjp(lambda x: torch.linalg.inv(x.float()).to(x.dtype), backward)

    torch.manual_seed(0)
    x = 0.3 * torch.randn(10, 4, 4) + 2.0 * torch.eye(4)
    right, wrong = (
        gradvet.check(inverse(spoil), x, reference=torch.linalg.inv, dtypes=DTYPES, seed=0) for spoil in (1.0, 1.03)
    )
    assert right.verdict is Verdict.PASS, right
    assert any("the reference does not run in this precision" in note for note in right.notes)
    assert len(about(wrong, Verdict.FAIL)) == len(DTYPES)


def test_backward_that_raises_in_one_dtype_is_said_to_raise_in_that_one() -> None:
    def backward(dy: Tensor, x: Tensor) -> Tensor:
        return dy * {torch.float32: x, torch.float16: x}[x.dtype].cos()

    for dtypes in (DTYPES, DTYPES[1:]):
        report = gradvet.check(with_vjp(torch.sin, backward), torch.randn(6), reference=torch.sin, dtypes=dtypes)
        assert [failure.headline for failure in report.failures] == [
            "bfloat16: the backward pass raises KeyError: torch.bfloat16"
        ]


def test_reference_that_raises_gets_one_sentence() -> None:
    def refuses(x: Tensor) -> Tensor:
        raise RuntimeError("not today")

    x = torch.randn(6)
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        with pytest.raises(InvalidProblemError, match=rf"kernel \({name}\) and raised RuntimeError: not today"):
            gradvet.check(torch.sin, x.to(dtype), reference=refuses)
    with pytest.raises(InvalidProblemError, match=r"\(float32\) and raised TypeError: .*takes 1 positional argument"):
        gradvet.check(torch.mul, (x, x), reference=lambda x: x * x)


def test_inputs_and_parameters_are_left_as_they_were() -> None:
    kernel = KERNELS[2]
    given = inputs_of(kernel)
    before = [tensor.clone() for tensor in given]
    gradvet.check(kernel.fused(), given, reference=kernel.eager, dtypes=DTYPES, seed=0)
    assert all(torch.equal(one, other) for one, other in zip(given, before, strict=True))
    assert not any(tensor.requires_grad for tensor in given)


def test_same_seed_gives_the_same_report() -> None:
    reports = [compared(KERNELS[3], "lost tail", 1) for _ in range(2)]
    first, second = ([one.headline for one in report.findings] for report in reports)
    assert first == second


def test_report_survives_json_and_names_the_call() -> None:
    report = compared(KERNELS[0], "lost row")
    again = Report.from_dict(json.loads(json.dumps(report.to_dict())))
    assert again.verdict is Verdict.FAIL
    assert [one.facts["tensor"] for one in again.failures] == ["grad of input 0"] * 3
    assert again.failures[0].facts["errors"] == report.failures[0].facts["errors"]
    assert "reference=softmax" in report.replay
    assert "dtypes=(torch.float32, torch.bfloat16, torch.float16)" in report.replay


def test_assert_gradients_raises_for_a_wrong_kernel() -> None:
    kernel, given = KERNELS[0], inputs_of(KERNELS[0])
    gradvet.assert_gradients(kernel.fused(), given, reference=kernel.eager, dtypes=DTYPES, seed=0)
    with pytest.raises(gradvet.GradientError, match=r"grad of input 0 is 0\.9 times"):
        gradvet.assert_gradients(kernel.fused(times(0.9)), given, reference=kernel.eager, dtypes=DTYPES, seed=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtypes": (torch.float16,)}, "there is no reference"),
        ({"reference": torch.sin, "order": 2}, "compared at first order"),
        ({"reference": torch.sin, "modes": "forward"}, "must contain 'reverse'"),
        ({"reference": 3}, "a function or a module, found 3"),
        ({"reference": torch.sin, "dtypes": ()}, "dtypes is empty"),
        ({"reference": torch.sin, "dtypes": (torch.int32,)}, r"floating-point dtypes .*, found torch\.int32"),
        ({"reference": torch.sin, "dtypes": (torch.float32, "bf16")}, r"floating-point dtypes .*, found 'bf16'"),
        ({"reference": torch.sin, "dtypes": 3}, "floating-point dtypes .*, found 3"),
    ],
)
def test_request_that_cannot_be_met_is_refused(options: Any, words: str) -> None:
    with pytest.raises(InvalidProblemError, match=words):
        gradvet.check(torch.sin, torch.randn(3), **options)


@pytest.mark.parametrize(
    ("dtypes", "names"),
    [
        (torch.bfloat16, ["bfloat16"]),
        ("bfloat16", ["bfloat16"]),
        ("float32, torch.float16", ["float32", "float16"]),
        (["float32", torch.float32], ["float32"]),
    ],
    ids=str,
)
def test_dtypes_are_one_or_several_and_may_be_names(dtypes: Any, names: list[str]) -> None:
    report = gradvet.check(torch.sin, torch.randn(3), reference=torch.sin, dtypes=dtypes, checks=("reference",), seed=0)
    assert list(dict.fromkeys(row.precision for row in report.ledger)) == names


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_expanded_input_is_compared(factor: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 8, generator=generator).bfloat16().expand(6, 8)
    w = torch.randn(8, generator=generator).bfloat16()

    def vjp(v: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return factor * v * w, (v.float() * x.float()).sum(0).to(w.dtype)

    report = gradvet.check(
        with_vjp(torch.mul, vjp), (x, w), seed=0, reference=torch.mul, checks=("reference", "reverse")
    )
    assert report.verdict is (Verdict.PASS if factor == 1.0 else Verdict.FAIL), report
    names = {row.input: row.compared for row in report.ledger if row.mode == "reference"}
    assert names == {"output": 48, "grad of input 0": 8, "grad of input 1": 8}


def test_right_kernel_is_not_accused_beside_a_wrong_reference() -> None:
    half = with_vjp(torch.sin, lambda v, x: 0.5 * v * x.cos())
    report = gradvet.check(torch.sin, torch.linspace(0.1, 0.9, 6), reference=half, seed=1)
    (wrong,) = report.failures
    assert wrong.headline.startswith("the reference itself is wrong")
    (kernel,) = [finding for finding in report.findings if finding.check == "reference"]
    assert kernel.verdict is Verdict.INCONCLUSIVE
    assert kernel.headline.startswith("the reference is wrong, so this says nothing about the kernel")
