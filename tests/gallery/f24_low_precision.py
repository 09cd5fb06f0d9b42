"""F24: kernels that lose much of their gradient, in the precision that they are made for.

What is lost is far above the roundoff of each entry: a row, a tail block, every second number, all of them. It is below
the roundoff of the whole tensor, or small beside one steep entry. Some kernels take float64 as well and are right
there; some refuse it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery import kernels, proofs
from tests.gallery.case import Family, Function
from tests.gallery.inputs import normal
from tests.gallery.kernels import kernel, nothing, times, wide, without, without_row

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
LARGE = 100_000


def first_steep(steep: float) -> tuple[Function, Function]:
    """Every entry by itself, the first one `steep` times as much as the others; and its derivative."""

    def factors(x: Tensor) -> Tensor:
        factor = torch.ones(x.shape, dtype=wide(x).dtype)
        factor[0] = steep
        return factor

    def formula(x: Tensor) -> Tensor:
        return (factors(x) * torch.exp(0.2 * wide(x))).to(x.dtype)

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        return (0.2 * wide(v) * factors(x) * torch.exp(0.2 * wide(x))).to(x.dtype)

    return formula, vjp


def energy(x: Tensor) -> Tensor:
    """One number from all entries."""
    return (wide(x) ** 2).mean().to(x.dtype)


def energy_vjp(v: Tensor, x: Tensor) -> Tensor:
    return (2 * wide(v) * wide(x) / x.numel()).to(x.dtype)


TARGETS = torch.tensor([3, 0, 5, 5, 1, 9, 2, 7])


def mean_loss(x: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(wide(x), TARGETS).to(x.dtype)


def mean_loss_without_targets(v: Tensor, x: Tensor) -> Tensor:
    """The target's part of the gradient, minus one, is forgotten."""
    return (wide(v) * torch.softmax(wide(x), -1) / len(x)).to(x.dtype)


STEEP_SINGLE, STEEP_SINGLE_VJP = first_steep(1e6)
STEEP_HALF, STEEP_HALF_VJP = first_steep(300.0)

wrong = Family("F24", finds={"reverse", "precision"}, drop_in=False, proof=proofs.precision)
each = Family("F24", finds={"reverse", "precision"}, drop_in=False, proof=proofs.by_entry(proofs.precision))

CASES = (
    wrong("swish_all_lost_in_bfloat16", "12,800 zeros in place of 12,800 slopes of about one; float64 is refused.").at(
        kernel(kernels.swish, kernels.swish_vjp, nothing, only=BF16), kernels.swish, normal, (100, 128), dtype=BF16
    ),
    wrong(
        "swish_all_lost_below_float64",
        "The float64 template is right, so a check of that alone says nothing about bfloat16.",
    ).at(kernel(kernels.swish, kernels.swish_vjp, nothing), kernels.swish, normal, (100, 128), dtype=BF16),
    wrong(
        "pendulum_without_a_fifth_in_bfloat16",
        "Its roundoff is large, and the gradient a fifth too small.",
        resolution=0.05,
    ).at(
        kernel(kernels.pendulum, kernels.pendulum_vjp, times(0.8)), kernels.pendulum, normal, (32,), (32,), dtype=BF16
    ),
    wrong("squash_every_second_lost_in_bfloat16", "A vector load of two, of which one is stored.").at(
        kernel(kernels.squash, kernels.squash_vjp, without(slice(1, None, 2))),
        kernels.squash,
        normal,
        (1000,),
        dtype=BF16,
    ),
    wrong("squash_every_second_lost_in_float16", "The same in float16, with 100,000 entries to drown in.").at(
        kernel(kernels.squash, kernels.squash_vjp, without(slice(1, None, 2)), only=F16),
        kernels.squash,
        normal,
        (LARGE,),
        dtype=F16,
    ),
    wrong("swish_second_half_lost_in_float32", "The grid covers half of 100,000 entries.").at(
        kernel(kernels.swish, kernels.swish_vjp, without(slice(LARGE // 2, None)), only=F32),
        kernels.swish,
        normal,
        (LARGE,),
        dtype=F32,
    ),
    wrong("rms_norm_without_one_row_in_bfloat16", "One row of a hundred gets no gradient; float64 is refused.").at(
        kernel(kernels.rms_norm, kernels.rms_norm_vjp, without_row(57), slot=0, only=BF16),
        kernels.rms_norm,
        normal,
        (100, 128),
        (128,),
        dtype=BF16,
    ),
    wrong(
        "rms_norm_gain_lost_in_float16",
        "The sum over the rows is never written back: the gain has a gradient of zero.",
    ).at(
        kernel(kernels.rms_norm, kernels.rms_norm_vjp, nothing, slot=1),
        kernels.rms_norm,
        normal,
        (100, 128),
        (128,),
        dtype=F16,
    ),
    wrong("swish_without_tail_block_in_float16", "The block that is not full is not launched: 672 of 100,000.").at(
        kernel(kernels.swish, kernels.swish_vjp, without(slice(LARGE - LARGE % 1024, None))),
        kernels.swish,
        normal,
        (LARGE,),
        dtype=F16,
    ),
    wrong("growth_without_tail_block_in_bfloat16", "The last 28 of 10,012 entries keep a zero gradient.").at(
        kernel(kernels.growth, kernels.growth_vjp, without(slice(9984, None)), only=BF16),
        kernels.growth,
        normal,
        (10_012,),
        dtype=BF16,
    ),
    wrong("softmax_times_nine_tenths_in_bfloat16", "Ten per cent too small everywhere: 25 units in the last place.").at(
        kernel(kernels.softmax, kernels.softmax_vjp, times(0.9)), kernels.softmax, normal, (100, 128), dtype=BF16
    ),
    wrong("squash_times_nine_tenths_in_float16", "A factor that was meant for another dtype; float64 is refused.").at(
        kernel(kernels.squash, kernels.squash_vjp, times(0.9), only=F16), kernels.squash, normal, (LARGE,), dtype=F16
    ),
    wrong("linear_weight_without_one_row_in_bfloat16", "A row of the weight is left out of a split sum.").at(
        kernel(kernels.linear, kernels.linear_vjp, without_row(33), slot=1),
        kernels.linear,
        normal,
        (32, 100),
        (100, 128),
        dtype=BF16,
    ),
    wrong("linear_weight_times_nine_tenths_in_float32", "One of two gradients is ten per cent too small.").at(
        kernel(kernels.linear, kernels.linear_vjp, times(0.9), slot=1, only=F32),
        kernels.linear,
        normal,
        (32, 100),
        (100, 64),
        dtype=F32,
    ),
    wrong("log_total_without_tail_block_in_bfloat16", "13,000 entries in blocks of 128: the last 72 are lost.").at(
        kernel(kernels.log_total, kernels.log_total_vjp, without(slice(-72, None))),
        kernels.log_total,
        normal,
        (100, 130),
        dtype=BF16,
    ),
    wrong("energy_every_second_lost_in_bfloat16", "A scalar loss of 12,800 entries, half of them without slope.").at(
        kernel(energy, energy_vjp, without(slice(0, None, 2)), only=BF16), energy, normal, (100, 128), dtype=BF16
    ),
    wrong("loss_without_its_target_in_bfloat16", "A scalar loss that is curved over wide steps.").at(
        kernel(mean_loss, mean_loss_without_targets, only=BF16), mean_loss, normal, (8, 10), dtype=BF16
    ),
    each(
        "one_steep_entry_and_the_others_lost_in_float32",
        "999 zeros beside one gradient of a million.",
    ).at(kernel(STEEP_SINGLE, STEEP_SINGLE_VJP, without(slice(1, None))), STEEP_SINGLE, normal, (1000,), dtype=F32),
    each("one_steep_entry_and_the_others_lost_in_bfloat16", "The same beside one entry that is 300 times as steep.").at(
        kernel(STEEP_HALF, STEEP_HALF_VJP, without(slice(1, None)), only=BF16), STEEP_HALF, normal, (1000,), dtype=BF16
    ),
    each("one_steep_entry_and_the_others_scaled_in_float16", "All but the steepest are ten per cent too small.").at(
        kernel(STEEP_HALF, STEEP_HALF_VJP, lambda g: torch.cat([g[:1], 0.9 * g[1:]])),
        STEEP_HALF,
        normal,
        (1000,),
        dtype=F16,
    ),
)
