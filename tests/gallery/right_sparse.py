"""Right functions of sparse inputs, in the unmasked sense that the drop-in functions take by default."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.gallery.case import Inputs, right
from tests.gallery.inputs import at, indices, normal

PLACES = indices([[0, 0, 1, 2, 2], [0, 2, 1, 0, 1]])
REPEATED = indices([[0, 0, 2, 2, 2], [1, 1, 0, 0, 1]])
PATTERN = torch.tensor([[1, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 1]], dtype=torch.float64)


def stored(convert: Callable[[Tensor], Tensor]) -> Callable[[], Inputs]:
    def inputs() -> Inputs:
        return (convert(normal((4, 4))[0].detach() * PATTERN).requires_grad_(),)

    return inputs


def stored_with_dense(convert: Callable[[Tensor], Tensor]) -> Callable[[], Inputs]:
    return lambda: (*stored(convert)(), *normal((4, 2), seed=1))


def total(a: Tensor) -> Tensor:
    return a.sum()


def made_dense(a: Tensor) -> Tensor:
    return torch.sin(a.to_dense(masked_grad=False))


def assembled(values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(PLACES, values, (3, 3)).to_dense() ** 2


def assembled_with_repeats(values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(REPEATED, values, (3, 3)).coalesce().to_dense() ** 2


def assembled_product(values: Tensor, x: Tensor) -> Tensor:
    return torch.sparse.mm(torch.sparse_coo_tensor(PLACES, values, (3, 3)), x)


def fixed_matrix_product(x: Tensor) -> Tensor:
    return PATTERN.to_sparse_csr() @ x


def embedded(weight: Tensor) -> Tensor:
    return torch.nn.functional.embedding(indices([0, 2, 2]), weight)


CASES = (
    right("coo_sum", "Unspecified entries count as zeros and have a slope, too.", at(total, stored(Tensor.to_sparse))),
    right("csr_sum", "Compressed rows.", at(total, stored(Tensor.to_sparse_csr))),
    right("csc_sum", "Compressed columns.", at(total, stored(Tensor.to_sparse_csc))),
    right("bsr_sum", "Blocks in rows.", at(total, stored(lambda a: a.to_sparse_bsr((2, 2))))),
    right("bsc_sum", "Blocks in columns.", at(total, stored(lambda a: a.to_sparse_bsc((2, 2))))),
    right("coo_made_dense", "A dense gradient for a sparse input.", at(made_dense, stored(Tensor.to_sparse))),
    right("csr_made_dense", "The same from compressed rows.", at(made_dense, stored(Tensor.to_sparse_csr))),
    right("coo_times_dense", "Both operands.", at(torch.mm, stored_with_dense(Tensor.to_sparse))),
    right("csr_times_dense", "Both operands.", at(torch.mm, stored_with_dense(Tensor.to_sparse_csr))),
    right("assembled_from_values", "Sparse inside, dense outside.", at(assembled, normal, (5,))),
    right("assembled_with_repeats", "Values at one place add up.", at(assembled_with_repeats, normal, (5,))),
    right(
        "assembled_product", "A matrix by its values, times a dense one.", at(assembled_product, normal, (5,), (3, 2))
    ),
    right("fixed_sparse_matrix", "The sparse operand is a constant.", at(fixed_matrix_product, normal, (4, 2))),
    right("embedding_lookup", "A row that is read twice.", at(embedded, normal, (3, 2)), order=2),
)
