"""F28: right for a dense cotangent, wrong for one with rows of zeros.

A masked loss hands down such a cotangent; so does every check by unit vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery import conditions
from tests.gallery.case import Family
from tests.gallery.inputs import indices, normal

TOKENS = indices([3, 0, 4, 1, 2])


def active(v: Tensor) -> Tensor:
    """Which rows of the cotangent are not zero."""
    return v.flatten(1).abs().amax(1) > 0


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


def sine_compacted(v: Tensor, x: Tensor) -> Tensor:
    """Computes the active rows and leaves them at the top."""
    rows = active(v)
    found = v[rows] * torch.cos(x[rows])
    gradient = torch.zeros_like(x)
    gradient[: len(found)] = found
    return gradient


def sine_of_active_columns(v: Tensor, x: Tensor) -> Tensor:
    return sine_compacted(v.mT, x.mT).mT


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def linear_compacted(v: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The active rows of the cotangent meet the first rows of the input."""
    some = v[active(v)]
    return v @ weight.mT, x[: len(some)].mT @ some


def linear_averaged(v: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Makes up for the rows that are masked."""
    share = active(v).to(v).mean().clamp(min=1e-3)
    return v @ weight.mT, x.mT @ v / share


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def softmax_by_unit_rows(v: Tensor, x: Tensor) -> Tensor:
    """Each row of the cotangent is divided by its norm and multiplied by it in the end: 0/0 for a row of zeros."""
    size = v.norm(dim=-1, keepdim=True)
    y, unit = torch.softmax(x, -1), v / size
    return size * y * (unit - (unit * y).sum(-1, keepdim=True))


def growth(x: Tensor) -> Tensor:
    return torch.exp(0.5 * x)


def growth_with_row_scales(v: Tensor, x: Tensor) -> Tensor:
    """The scales of the active rows stand in a list of their own, which is read by the number of the row."""
    peak = v.abs().amax(-1)
    scales = torch.ones_like(peak)
    found = peak[peak > 0]
    scales[: len(found)] = found
    unit = v / peak.clamp(min=1e-300)[:, None]
    return 0.5 * scales[:, None] * unit * torch.exp(0.5 * x)


def embedding(table: Tensor) -> Tensor:
    return torch.sin(table)[TOKENS]


def embedding_of_first_active(v: Tensor, table: Tensor) -> Tensor:
    """The tokens are shortened like the cotangent, by length and not by mask."""
    some = v[active(v)]
    return torch.zeros_like(table).index_add(0, TOKENS[: len(some)], some) * torch.cos(table)


def squash_stopping_early(v: Tensor, x: Tensor) -> Tensor:
    """Takes the first row of zeros for the end of the sequence."""
    rows = active(v).to(torch.int64).cumprod(0).to(v)
    return v * rows[:, None] * (1 - torch.tanh(x) ** 2)


def length(x: Tensor) -> Tensor:
    return (x**2).sum(-1).sqrt()


def length_by_ratio(v: Tensor, x: Tensor) -> Tensor:
    """Weights are the cotangent over its first number, which is multiplied back."""
    return (v / v[0] * v[0])[:, None] * x / length(x)[:, None]


wrong = Family(
    "F28",
    finds={"grad_output_layout", "reverse"},
    special="a cotangent with rows of zeros",
    proof=conditions.alternate_rows_of_cotangent,
)

CASES = (
    wrong("sine_of_active_rows_not_scattered_back", "Rows without a cotangent are skipped and the others move up.").at(
        with_vjp(sine, sine_compacted), sine, normal, (5, 3)
    ),
    wrong(
        "sine_of_active_columns_not_scattered_back",
        "The same with columns, as the channels of an image.",
        finds={"linearity", "reverse"},
        special="a cotangent with columns of zeros",
        proof=conditions.last_column_of_cotangent,
    ).at(with_vjp(sine, sine_of_active_columns), sine, normal, (4, 3)),
    wrong(
        "linear_of_active_rows_against_first_rows", "The cotangent is shortened by a mask, the input by its length."
    ).at(with_vjp(linear, linear_compacted), linear, normal, (5, 3), (3, 2)),
    wrong("linear_weight_averaged_over_active_rows", "A mask scales the gradient of those that it leaves.").at(
        with_vjp(linear, linear_averaged), linear, normal, (4, 3), (3, 2)
    ),
    wrong(
        "softmax_over_norm_of_cotangent",
        "The cotangent is divided by its own norm, which is zero for a masked row.",
    ).at(with_vjp(softmax, softmax_by_unit_rows), softmax, normal, (4, 3)),
    wrong(
        "growth_with_scales_of_active_rows",
        "A list of scales without the empty rows is read by row number; unit cotangents have a scale of 1 everywhere.",
        drop_in=False,
        special="a cotangent with rows of zeros and rows of several scales",
    ).at(with_vjp(growth, growth_with_row_scales), growth, normal, (5, 3)),
    wrong("embedding_of_first_active_tokens", "Masked tokens pass their place on to their successors.").at(
        with_vjp(embedding, embedding_of_first_active), embedding, normal, (5, 2)
    ),
    wrong(
        "squash_stops_at_first_empty_row",
        "A masked row in the middle is taken for the end.",
        proof=conditions.last_row_of_cotangent,
    ).at(with_vjp(torch.tanh, squash_stopping_early), torch.tanh, normal, (4, 3)),
    wrong(
        "length_by_ratio_of_cotangents",
        "Cotangents relative to that of the first row: NaN where that is masked.",
    ).at(with_vjp(length, length_by_ratio), length, normal, (4, 3)),
)
