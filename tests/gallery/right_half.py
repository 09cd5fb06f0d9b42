"""Right kernels for low precision, with and without a float64 version, and with both modes of differentiation.

They look like the wrong ones of F24, F25 and F29: rounded once from float32, computed in the dtype of the data,
refusing all other dtypes, with a workspace, with strides, with gradients for those inputs alone that need them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from tests.functions import true_vjp, with_rules, with_vjp
from tests.gallery import conditions, f24_low_precision, f29_forward_mode, kernels, proofs
from tests.gallery.case import Build, Case, Function, right
from tests.gallery.inputs import normal
from tests.gallery.kernels import kernel

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def in_reverse(name: str, why: str, function: Function, reference: Function, *shapes: Any, dtype: torch.dtype) -> Case:
    return right(
        name, why, _at(function, shapes, dtype), reference=reference, dtype=dtype, drop_in=False, proof=REVERSE
    )


def in_each_entry(
    name: str, why: str, function: Function, reference: Function, *shapes: Any, dtype: torch.dtype
) -> Case:
    return right(name, why, _at(function, shapes, dtype), reference=reference, dtype=dtype, drop_in=False, proof=EACH)


def in_forward(name: str, why: str, function: Function, reference: Function, *shapes: Any, dtype: torch.dtype) -> Case:
    return right(
        name, why, _at(function, shapes, dtype), reference=reference, dtype=dtype, drop_in=False, proof=FORWARD
    )


def under(proof: proofs.Proof, name: str, why: str, build: Build, reference: Function, dtype: torch.dtype) -> Case:
    """Right under the condition of `proof` too."""
    return right(name, why, build, reference=reference, dtype=dtype, drop_in=False, proof=proof)


def _at(function: Function, shapes: tuple[Any, ...], dtype: torch.dtype) -> Build:
    return lambda: (function, normal(*shapes, dtype=dtype))


def compiled(f: Function, dtype: torch.dtype) -> Function:
    """A kernel of one dtype with torch's own derivative of `f`."""

    def vjp(v: Tensor, x: Tensor) -> Any:
        return true_vjp(f, (x.detach().requires_grad_(),), (v,))

    return kernel(f, vjp, only=dtype)


def running_sum_in_logarithms(x: Tensor) -> Tensor:
    return torch.logcumsumexp(x, -1)


def median(x: Tensor) -> Tensor:
    return x.median(-1).values


def largest_five(x: Tensor) -> Tensor:
    return x.topk(5, -1).values


def counts(dtype: torch.dtype) -> tuple[Tensor]:
    """Integers between -3 and 3."""
    values = torch.randint(-3, 4, (6, 40), generator=torch.Generator().manual_seed(7))
    return (values.to(dtype).requires_grad_(),)


REVERSE = proofs.precision
EACH = proofs.by_entry(proofs.precision)
FORWARD = proofs.forward_precision


class LinearOnDemand(torch.autograd.Function):
    """Computes the gradients that are needed and no others."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return kernels.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        found = kernels.linear_vjp(v, *ctx.saved_tensors)
        return tuple(g if needed else None for g, needed in zip(found, ctx.needs_input_grad, strict=True))


class SquashWithScratch(torch.autograd.Function):
    """A workspace that all calls share, read within the call that wrote it."""

    scratch: ClassVar[dict[Any, Tensor]] = {}

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        scratch = SquashWithScratch.scratch.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y)
        return v * (1 - scratch * scratch)


def squash_by_copy(v: Tensor, x: Tensor) -> Tensor:
    """Makes contiguous copies before it reads memory."""
    return kernels.squash_vjp(v.contiguous(), x.contiguous())


CASES = (
    in_reverse(
        "running_sum_in_logarithms_by_autograd",
        "Backward takes the logarithm of grad_output: of a small one it has another roundoff.",
        with_vjp(running_sum_in_logarithms, lambda v, x: true_vjp(running_sum_in_logarithms, (x,), (v,))),
        running_sum_in_logarithms,
        (4, 7),
        dtype=BF16,
    ),
    right(
        "pendulum_by_its_own_rule_in_bfloat16",
        "Later steps enlarge the roundoff of earlier ones; the wider version has the same if its operators round.",
        _at(kernel(kernels.pendulum, kernels.pendulum_vjp), ((32,), (32,)), BF16),
        reference=kernels.pendulum,
        dtype=BF16,
        drop_in=False,
        proof=REVERSE,
        resolution=0.05,
    ),
    right(
        "median_of_counts_in_float16",
        "Many equal numbers have no derivative, though the median is smooth along most lines.",
        lambda: (compiled(median, F16), counts(F16)),
        reference=median,
        dtype=F16,
        drop_in=False,
        proof=REVERSE,
    ),
    right(
        "largest_five_in_float16",
        "Numbers change places over the wide steps of half precision.",
        lambda: (compiled(largest_five, F16), normal((4, 60), dtype=F16, seed=7)),
        reference=largest_five,
        dtype=F16,
        drop_in=False,
        proof=REVERSE,
    ),
    in_reverse(
        "swish_kernel_in_bfloat16",
        "Widened, computed, rounded once.",
        kernel(kernels.swish, kernels.swish_vjp, only=BF16),
        kernels.swish,
        (100, 128),
        dtype=BF16,
    ),
    in_reverse(
        "swish_kernel_in_float16",
        "The same with a float64 version, at 100,000 entries.",
        kernel(kernels.swish, kernels.swish_vjp),
        kernels.swish,
        (100_000,),
        dtype=F16,
    ),
    in_reverse(
        "squash_kernel_in_bfloat16",
        "1 - y² in the dtype of the data: half of the digits of a small slope are lost.",
        kernel(kernels.squash, kernels.squash_vjp),
        kernels.squash,
        (1000,),
        dtype=BF16,
    ),
    in_reverse(
        "squash_kernel_in_float32",
        "One dtype alone; float64 is refused.",
        kernel(kernels.squash, kernels.squash_vjp, only=F32),
        kernels.squash,
        (1000,),
        dtype=F32,
    ),
    in_reverse(
        "rms_norm_kernel_in_bfloat16",
        "Statistics in float32; float64 is refused.",
        kernel(kernels.rms_norm, kernels.rms_norm_vjp, only=BF16),
        kernels.rms_norm,
        (100, 128),
        (128,),
        dtype=BF16,
    ),
    in_reverse(
        "rms_norm_kernel_in_float16",
        "The same with a float64 version.",
        kernel(kernels.rms_norm, kernels.rms_norm_vjp),
        kernels.rms_norm,
        (20, 33),
        (33,),
        dtype=F16,
    ),
    in_reverse(
        "softmax_kernel_in_bfloat16",
        "Rows that add up to one within roundoff.",
        kernel(kernels.softmax, kernels.softmax_vjp),
        kernels.softmax,
        (100, 128),
        dtype=BF16,
    ),
    in_reverse(
        "linear_kernel_in_float16",
        "Products accumulated in float32; float64 is refused.",
        kernel(kernels.linear, kernels.linear_vjp, only=F16),
        kernels.linear,
        (32, 100),
        (100, 64),
        dtype=F16,
    ),
    in_each_entry(
        "one_steep_entry_in_float32",
        "One gradient is a million times as large as the others, and all are right.",
        kernel(f24_low_precision.STEEP_SINGLE, f24_low_precision.STEEP_SINGLE_VJP),
        f24_low_precision.STEEP_SINGLE,
        (1000,),
        dtype=F32,
    ),
    in_each_entry(
        "one_steep_entry_in_bfloat16",
        "300 times as large; float64 is refused.",
        kernel(f24_low_precision.STEEP_HALF, f24_low_precision.STEEP_HALF_VJP, only=BF16),
        f24_low_precision.STEEP_HALF,
        (1000,),
        dtype=BF16,
    ),
    under(
        conditions.transposed_cotangent,
        "squash_by_contiguous_copy_in_bfloat16",
        "Reads memory, after a copy that puts it in order.",
        lambda: (kernel(kernels.squash, squash_by_copy), normal((100, 128), dtype=BF16)),
        kernels.squash,
        BF16,
    ),
    under(
        conditions.transposed_inputs,
        "linear_of_any_strides_in_float16",
        "The strides of the inputs do not matter.",
        lambda: (kernel(kernels.linear, kernels.linear_vjp), normal((30, 41), (41, 7), dtype=F16)),
        kernels.linear,
        F16,
    ),
    under(
        conditions.interleaved,
        "squash_with_scratch_in_bfloat16",
        "A workspace that is written and read in one call may be shared.",
        lambda: (SquashWithScratch.apply, normal((100, 128), dtype=BF16)),
        kernels.squash,
        BF16,
    ),
    under(
        conditions.frozen(0),
        "linear_on_demand_in_bfloat16",
        "What is not needed is not computed, and nothing else changes.",
        lambda: (LinearOnDemand.apply, normal((6, 40), (40, 9), dtype=BF16)),
        kernels.linear,
        BF16,
    ),
    in_forward(
        "softmax_tangent_in_bfloat16",
        "Both modes, with sums in float32.",
        with_rules(kernels.softmax, kernels.softmax_vjp, f29_forward_mode.softmax_jvp),
        kernels.softmax,
        (3, 4),
        dtype=BF16,
    ),
    in_forward(
        "linear_tangent_in_float16",
        "The product rule in forward mode.",
        with_rules(kernels.linear, kernels.linear_vjp, f29_forward_mode.linear_jvp),
        kernels.linear,
        (4, 10),
        (10, 3),
        dtype=F16,
    ),
    in_forward(
        "log_total_tangent_in_float32",
        "A reduction in forward mode; float64 is refused.",
        f29_forward_mode.below_double(
            kernels.log_total,
            kernels.log_total_vjp,
            f29_forward_mode.log_total_jvp,
            f29_forward_mode.log_total_jvp,
            refuses=True,
        ),
        kernels.log_total,
        (6, 100),
        dtype=F32,
    ),
)
