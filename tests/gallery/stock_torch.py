"""Operators of torch 2.13 whose own derivatives are wrong.

A later torch may repair them. Then the proof that they are wrong fails, and the case has to go.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery import conditions, witnesses
from tests.gallery.case import Case, Function
from tests.gallery.inputs import at, indices, normal

PLACES = indices([[0, 0, 1, 2, 2], [0, 2, 1, 0, 1]])
FORWARD = frozenset({"reverse-over-forward", "forward-over-forward", "symmetry"})


def determinant(a: Tensor) -> Tensor:
    return (a[0] * torch.linalg.cross(a[1], a[2])).sum()


def log_determinant(a: Tensor) -> Tensor:
    return determinant(a).abs().log()


def stock_log_determinant(a: Tensor) -> Tensor:
    return torch.linalg.slogdet(a).logabsdet


def solution(a: Tensor, b: Tensor) -> Tensor:
    """By cofactors."""
    cofactors = torch.stack([torch.linalg.cross(a[i - 2], a[i - 1]) for i in range(3)])
    return cofactors.mT @ b / determinant(a)


def layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-5)


def stock_layer_norm(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def batch_norm(x: Tensor) -> Tensor:
    return layer_norm(x.mT).mT


def stock_batch_norm(x: Tensor) -> Tensor:
    return torch.nn.functional.batch_norm(x, None, None, training=True)


def stock_instance_norm(x: Tensor) -> Tensor:
    return torch.nn.functional.instance_norm(x)


def reflections(a: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of I - τ v vᵀ, v having zeros above a leading one."""
    product = torch.eye(a.shape[0], dtype=a.dtype)
    for column in range(a.shape[1]):
        below = torch.arange(a.shape[0]) > column
        unit = (torch.arange(a.shape[0]) == column).to(a)
        v = torch.where(below, a[:, column], unit)
        product = product - tau[column] * torch.outer(product @ v, v)
    return product[:, : a.shape[1]]


def scattered(x: Tensor, y: Tensor) -> Tensor:
    """x with its entries 1 and 3 replaced by y."""
    return torch.stack([x[0], y[0], x[2], y[1], *x[4:]])


def stock_scattered(x: Tensor, y: Tensor) -> Tensor:
    return torch.as_strided_scatter(x, y, (2,), (2,), 1)


def patched(y: Tensor) -> Tensor:
    return scattered(torch.zeros(6, dtype=y.dtype), y)


def stock_patched(y: Tensor) -> Tensor:
    return stock_scattered(torch.zeros(6, dtype=y.dtype), y)


def assembled(values: Tensor) -> Tensor:
    return torch.zeros(3, 3, dtype=values.dtype).index_put(tuple(PLACES), values) ** 2


def stock_assembled(values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(PLACES, values, (3, 3)).to_dense() ** 2


def _stock(name: str, function: Function, twin: Function, composition: str, *shapes: tuple[int, ...]) -> Case:
    return Case.wrong(
        f"{name}_{composition.replace('-', '_')}",
        "F17",
        at(function, normal, *shapes),
        twin,
        "Forward mode reads a tensor that its own derivative takes for a constant; stock torch 2.13.",
        finds=FORWARD,
        order=2,
        drop_in=False,
        special=composition.replace("-", " "),
        witness=witnesses.second_order(composition),
    )


SOLVES_WRONGLY = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)
"""Second derivatives of determinants and linear systems are wrong in torch 2.13 and right in 2.15."""

LINEAR_SYSTEMS = (
    _stock("torch_det", torch.linalg.det, determinant, "reverse-over-forward", (3, 3)),
    _stock("torch_det", torch.linalg.det, determinant, "forward-over-forward", (3, 3)),
    _stock("torch_slogdet", stock_log_determinant, log_determinant, "forward-over-forward", (3, 3)),
    _stock("torch_solve", torch.linalg.solve, solution, "reverse-over-forward", (3, 3), (3, 2)),
)

CASES = (
    *(LINEAR_SYSTEMS if SOLVES_WRONGLY else ()),
    _stock("torch_layer_norm", stock_layer_norm, layer_norm, "forward-over-forward", (3, 4)),
    _stock("torch_batch_norm", stock_batch_norm, batch_norm, "reverse-over-forward", (4, 3)),
    _stock("torch_instance_norm", stock_instance_norm, layer_norm, "forward-over-forward", (2, 3, 4)),
    _stock("torch_householder", torch.linalg.householder_product, reflections, "forward-over-forward", (4, 2), (2,)),
    Case.wrong(
        "torch_sparse_constructor",
        "F17",
        at(stock_assembled, normal, (5,)),
        assembled,
        "The gradient of a sparse tensor's values is right and has no graph of its own; stock torch 2.13.",
        finds={"reverse-over-reverse", "symmetry"},
        order=2,
        witness=witnesses.second_order("reverse-over-reverse"),
    ),
    Case.wrong(
        "torch_as_strided_scatter",
        "F2",
        at(stock_scattered, normal, (6,), (2,)),
        scattered,
        "What is replaced gets the gradient, what is kept gets none: the wrong way round in stock torch 2.13.",
    ),
    Case.wrong(
        "torch_as_strided_scatter_of_offset_cotangent",
        "F5",
        at(stock_patched, normal, (2,)),
        patched,
        "The backward counts its offset from the start of the cotangent's storage; stock torch 2.13.",
        finds={"grad_output_layout"},
        drop_in=False,
        special="a cotangent with an offset into its storage",
        witness=conditions.offset_cotangent,
    ),
)
