"""F10: edges of shape and rank: a short tail, a size of 1, nothing at all, an odd length, an extra axis, the border.

The cases with the finding "shapes" are right at the inputs of `build`; their functions accept any length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery.case import Family
from tests.gallery.inputs import normal
from tests.gallery.mutants import wrong_entries, wrong_where

TILE = 4


def squares(x: Tensor) -> Tensor:
    return (x**2).sum()


def squares_by_whole_tiles(v: Tensor, x: Tensor) -> Tensor:
    gradient = torch.zeros_like(x)
    for start in range(0, len(x) - TILE + 1, TILE):
        gradient[start : start + TILE] = 2 * v * x[start : start + TILE]
    return gradient


def affine(x: Tensor, bias: Tensor) -> Tensor:
    return torch.tanh(x) + bias


def affine_with_squeeze(v: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A batch of one loses its batch axis, and the sum runs over the features."""
    return v * (1 - torch.tanh(x) ** 2), v.squeeze().sum(0).expand_as(bias)


def deviations(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def deviations_of_pairs(v: Tensor, x: Tensor) -> Tensor:
    """The pairwise form divides by n as an even number of halves."""
    return v - v.sum(-1, keepdim=True) / (2 * max(x.shape[-1] // 2, 1))


def power_spectrum(x: Tensor) -> Tensor:
    return torch.fft.rfft(x).abs() ** 2


def power_spectrum_of_even_length(v: Tensor, x: Tensor) -> Tensor:
    """The last bin is its own mirror image for even lengths alone."""
    weighted = v * torch.fft.rfft(x)
    mirrored = weighted.clone()
    mirrored[1:-1] /= 2
    return 2 * torch.fft.irfft(mirrored, n=len(x)) * len(x)


def pooled(x: Tensor) -> Tensor:
    """Means of windows of 3; the last one may be shorter."""
    return torch.stack([part.mean() for part in torch.split(x**2, 3)])


def pooled_with_full_windows(v: Tensor, x: Tensor) -> Tensor:
    return 2 * x * v.repeat_interleave(3)[: len(x)] / 3


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def linear_of_first_batch(v: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Written for a matrix; an extra leading axis is indexed away."""
    flat_v, flat_x = (v, x) if x.dim() == 2 else (v[0], x[0])
    return v @ weight.mT, flat_x.mT @ flat_v


def heat_step(u: Tensor) -> Tensor:
    """One explicit step of the heat equation with insulated ends."""
    padded = torch.cat([u[:1], u, u[-1:]])
    return u + 0.2 * (padded[2:] - 2 * u + padded[:-2])


def heat_step_with_zero_ends(v: Tensor, u: Tensor) -> Tensor:
    zero = torch.zeros_like(v[:1])
    padded = torch.cat([zero, v, zero])
    return v + 0.2 * (padded[2:] - 2 * v + padded[:-2])


def warp_sum(x: Tensor) -> Tensor:
    return torch.sin(x).sum()


def soft_running_maximum(x: Tensor) -> Tensor:
    return torch.logcumsumexp(x, 0)


def stencil(u: Tensor) -> Tensor:
    return (u[1:] - u[:-1]) ** 2


def doubled_tail(x: Tensor) -> Tensor:
    return torch.exp(0.5 * x)


def two_blocks(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def two_blocks_without_rest(v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The inner dimension is cut into blocks of 2; a last odd column is dropped."""
    inner = a.shape[1] - a.shape[1] % 2
    gradient = torch.zeros_like(a)
    gradient[:, :inner] = v @ b[:inner].mT
    return gradient, a.mT @ v


wrong = Family("F10")
by_shapes = Family("F10", finds={"shapes"}, drop_in=False)

CASES = (
    wrong(
        "squares_by_whole_tiles_with_tail",
        "The last tile is not full and gets no gradient.",
        finds={"reverse", "shapes"},
    ).at(with_vjp(squares, squares_by_whole_tiles), squares, normal, (10,)),
    by_shapes(
        "squares_by_whole_tiles",
        "Tests like powers of two, and so does this bug.",
        special="a length that is no multiple of the tile",
        shown_at=lambda: normal((7,)),
    ).at(with_vjp(squares, squares_by_whole_tiles), squares, normal, (8,)),
    by_shapes(
        "affine_with_squeezed_batch",
        "A batch of one is where `squeeze` takes the wrong axis.",
        special="a batch of one",
        shown_at=lambda: normal((1, 3), (3,)),
    ).at(with_vjp(affine, affine_with_squeeze), affine, normal, (4, 3), (3,)),
    by_shapes(
        "deviations_of_an_even_length",
        "Integer halves are exact for even lengths alone.",
        special="an odd length",
        shown_at=lambda: normal((5,)),
    ).at(with_vjp(deviations, deviations_of_pairs), deviations, normal, (6,)),
    wrong(
        "power_spectrum_of_odd_length", "The real transform of an odd length has no bin at half the sampling rate."
    ).at(with_vjp(power_spectrum, power_spectrum_of_even_length), power_spectrum, normal, (7,)),
    by_shapes(
        "power_spectrum_of_unseen_odd_length",
        "The same for an input of even length, where the formula is right.",
        special="an odd length",
        shown_at=lambda: normal((7,)),
    ).at(with_vjp(power_spectrum, power_spectrum_of_even_length), power_spectrum, normal, (8,)),
    wrong(
        "pooled_with_full_windows", "The mean of a short last window has another count.", finds={"reverse", "shapes"}
    ).at(with_vjp(pooled, pooled_with_full_windows), pooled, normal, (8,)),
    wrong(
        "linear_of_first_batch", "An extra leading axis is accepted by the forward and lost by the weight's gradient."
    ).at(with_vjp(linear, linear_of_first_batch), linear, normal, (2, 3, 4), (4, 2)),
    wrong(
        "heat_step_with_zero_ends",
        "The boundary condition of the forward is not the one of its adjoint: only two entries are wrong.",
    ).at(with_vjp(heat_step, heat_step_with_zero_ends), heat_step, normal, (7,)),
    wrong("warp_sum_beyond_32", "One more element than a warp has lanes.").at(
        wrong_entries(warp_sum, slice(32, None)), warp_sum, normal, (33,)
    ),
    wrong(
        "soft_running_maximum_wrong_at_first", "The first element of a scan has no predecessor and is easily forgotten."
    ).at(wrong_entries(soft_running_maximum, slice(0, 1), 0.5), soft_running_maximum, normal, (6,)),
    wrong("stencil_wrong_in_last_row", "The border row of a grid is not updated.").at(
        wrong_where(stencil, lambda x: torch.arange(len(x))[:, None] == len(x) - 1), stencil, normal, (4, 3)
    ),
    wrong(
        "doubled_tail_of_one_in_800",
        "One wrong entry of 800 is seen entry by entry and drowns in an unsigned random projection.",
    ).at(wrong_entries(doubled_tail, slice(799, None), 2.0), doubled_tail, normal, (800,)),
    wrong("two_blocks_without_rest", "A blocked product drops the rest of the inner dimension.").at(
        with_vjp(two_blocks, two_blocks_without_rest), two_blocks, normal, (3, 5), (5, 2)
    ),
)
