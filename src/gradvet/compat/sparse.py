"""Checks functions of sparse tensors with a checker that knows only dense ones.

The checker sees the stored numbers of each sparse input, and sparse outputs made dense; the function sees the sparse
tensors that they belong to. First order only: torch's derivative of building a sparse tensor has no derivative itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree
from torch import Tensor

from gradvet.compat.gradcheck import as_tuple, chosen_semantics
from gradvet.compat.gradcheck import gradcheck as own_gradcheck
from gradvet.frontends.torch.layouts import is_sparse, materialised, storage_of

Checker = Callable[..., bool]


def as_sparse_gradcheck(gradcheck: Checker | None = None) -> Checker:
    """A check like `gradcheck` (gradvet's own if None) for functions that take or return sparse tensors.

    As with `torch.sparse.as_sparse_gradcheck`, `masked` says whether only the specified elements count.

    >>> import torch
    >>> x = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=torch.float64).to_sparse().requires_grad_()
    >>> as_sparse_gradcheck()(lambda x: x * x, x, masked=True)
    True
    """
    check = own_gradcheck if gradcheck is None else gradcheck

    def sparse_gradcheck(
        func: Callable[..., Any],
        inputs: Any,
        *args: Any,
        masked: bool | None = None,
        check_sparse_nnz: bool | None = None,
        **options: Any,
    ) -> bool:
        semantics = bool(chosen_semantics(masked, check_sparse_nnz))
        pairs = [_stored(argument, semantics) for argument in as_tuple(inputs)]

        def dense_func(*numbers: Any) -> Any:
            outputs = func(*(rebuilt(stored) for (_, rebuilt), stored in zip(pairs, numbers, strict=True)))
            return optree.tree_map(lambda output: _dense(output, semantics), outputs, none_is_leaf=True)

        return check(dense_func, tuple(stored for stored, _ in pairs), *args, **options)

    return sparse_gradcheck


def _stored(argument: Any, masked: bool) -> tuple[Any, Callable[[Any], Any]]:
    """What the checker is given for an argument, and the way back. Only differentiable sparse tensors change."""
    if not _concerned(argument):
        return argument, lambda value: value
    storage = storage_of(argument if masked else materialised(argument))
    return storage.numbers.requires_grad_(), storage.holding


def _dense(output: Any, masked: bool) -> Any:
    return output.to_dense(masked_grad=masked) if _concerned(output) else output


def _concerned(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and is_sparse(value)
