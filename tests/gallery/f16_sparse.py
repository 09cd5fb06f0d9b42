"""F16: sparse layouts. Every case is wrong inside the pattern, so in the masked and in the unmasked sense."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery import proofs
from tests.gallery.case import Family, Inputs
from tests.gallery.inputs import indices, normal

ROWS = indices([0, 0, 1, 2, 2])
COLUMNS = indices([0, 2, 1, 0, 1])
REPEATED = indices([0, 2, 2, 1, 2])


def sparse_times(values: Tensor, x: Tensor) -> Tensor:
    """A 3 × 3 matrix, given by the values at fixed places, times a vector."""
    return torch.zeros_like(x).index_add(0, ROWS, values * x[COLUMNS])


def sparse_times_with_transposed_places(v: Tensor, values: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return v[COLUMNS] * x[ROWS], torch.zeros_like(x).index_add(0, COLUMNS, values * v[ROWS])


def sparse_times_without_transpose(v: Tensor, values: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return v[ROWS] * x[COLUMNS], sparse_times(values, v)


def uncoalesced(values: Tensor) -> Tensor:
    """Values at repeated places add up before they are squared."""
    return torch.zeros(3, dtype=values.dtype).index_add(0, REPEATED, values) ** 2


def uncoalesced_to_the_last(v: Tensor, values: Tensor) -> Tensor:
    summed = torch.zeros(3, dtype=values.dtype).index_add(0, REPEATED, values)
    last = torch.tensor([True, False, False, True, True])
    return (2 * v * summed)[REPEATED] * last


def row_softmax(values: Tensor) -> Tensor:
    """A softmax over the stored entries of each row."""
    lifted = torch.exp(values)
    return lifted / torch.zeros(3, dtype=values.dtype).index_add(0, ROWS, lifted)[ROWS]


def row_softmax_without_inner_sum(v: Tensor, values: Tensor) -> Tensor:
    y = row_softmax(values)
    return y * v * (1 - y)


def row_energy(a: Tensor) -> Tensor:
    return (a.to_dense() ** 2).sum(1)


def dense_row_energy(a: Tensor) -> Tensor:
    return (a**2).sum(1)


def row_energy_without_last_value(v: Tensor, a: Tensor) -> Tensor:
    coalesced = a.coalesce()
    values = 2 * v[coalesced.indices()[0]] * coalesced.values()
    values[-1] = 0
    return torch.sparse_coo_tensor(coalesced.indices(), values, a.shape, is_coalesced=True)


def row_energy_one_row_late(v: Tensor, a: Tensor) -> Tensor:
    """Row pointers are read one place too early: each value takes the cotangent of the row before."""
    counts = a.crow_indices()[1:] - a.crow_indices()[:-1]
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
    values = 2 * v[(rows - 1).clamp(min=0)] * a.values()
    return torch.sparse_csr_tensor(a.crow_indices(), a.col_indices(), values, a.shape)


def row_energy_with_columns_for_rows(v: Tensor, a: Tensor) -> Tensor:
    """A compressed-column matrix is read as a compressed-row one."""
    counts = a.ccol_indices()[1:] - a.ccol_indices()[:-1]
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
    return torch.sparse_csc_tensor(a.ccol_indices(), a.row_indices(), 2 * v[rows] * a.values(), a.shape)


def row_energy_with_transposed_blocks(v: Tensor, a: Tensor) -> Tensor:
    full = (2 * v[:, None] * a.to_dense()).to_sparse_bsr((2, 2))
    return torch.sparse_bsr_tensor(full.crow_indices(), full.col_indices(), full.values().mT, a.shape)


def stored(convert: Callable[[Tensor], Tensor]) -> Callable[[], Inputs]:
    """A sparse 4 × 4 leaf with one empty corner of 2 × 2."""

    def inputs() -> Inputs:
        (full,) = normal((4, 4), seed=2)
        holes = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]], dtype=torch.float64)
        return (convert(full.detach() * holes).requires_grad_(),)

    return inputs


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


def sine_with_sparse_gradient(v: Tensor, x: Tensor) -> Tensor:
    return (v * torch.cos(x)).to_sparse()


wrong = Family("F16")

CASES = (
    wrong("sparse_times_with_transposed_places", "Rows and columns changed places in the gradient of the values.").at(
        with_vjp(sparse_times, sparse_times_with_transposed_places), sparse_times, normal, (5,), (3,)
    ),
    wrong("sparse_times_without_transpose", "The dense operand's gradient needs the transposed sparse matrix.").at(
        with_vjp(sparse_times, sparse_times_without_transpose), sparse_times, normal, (5,), (3,)
    ),
    wrong("uncoalesced_to_the_last", "Each of several values at one place gets the whole gradient of that place.").at(
        with_vjp(uncoalesced, uncoalesced_to_the_last), uncoalesced, normal, (5,)
    ),
    wrong("sparse_row_softmax_without_inner_sum", "The entries of a row are coupled even where the row is sparse.").at(
        with_vjp(row_softmax, row_softmax_without_inner_sum), row_softmax, normal, (5,)
    ),
    wrong("coo_row_energy_without_last_value", "The last stored value gets no gradient.").at(
        with_vjp(row_energy, row_energy_without_last_value), dense_row_energy, stored(lambda a: a.to_sparse())
    ),
    wrong(
        "csr_row_energy_one_row_late",
        "Row pointers have one entry more than there are rows; off by one they still fit.",
    ).at(with_vjp(row_energy, row_energy_one_row_late), dense_row_energy, stored(lambda a: a.to_sparse_csr())),
    wrong(
        "csc_row_energy_with_columns_for_rows", "For a square matrix the two compressed layouts have the same arrays."
    ).at(with_vjp(row_energy, row_energy_with_columns_for_rows), dense_row_energy, stored(lambda a: a.to_sparse_csc())),
    wrong("bsr_row_energy_with_transposed_blocks", "The blocks are in place, their insides are transposed.").at(
        with_vjp(row_energy, row_energy_with_transposed_blocks),
        dense_row_energy,
        stored(lambda a: a.to_sparse_bsr((2, 2))),
    ),
    wrong(
        "sine_with_sparse_gradient",
        "The numbers are right, the layout is not: an optimiser for dense parameters fails on it.",
        finds={"metadata"},
        proof=proofs.layout_of_gradient,
    ).at(with_vjp(sine, sine_with_sparse_gradient), sine, normal, (2, 3)),
)
