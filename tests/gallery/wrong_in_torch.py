"""Operators of torch 2.13 whose own derivatives are wrong.

A later torch may repair them. Then the proof that they are wrong fails, and the case has to go.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery import conditions, proofs
from tests.gallery.case import Case, Function
from tests.gallery.inputs import at, indices, normal

PLACES = indices([[0, 0, 1, 2, 2], [0, 2, 1, 0, 1]])
FORWARD = frozenset({"reverse-over-forward", "forward-over-forward", "symmetry"})


def determinant(a: Tensor) -> Tensor:
    return (a[0] * torch.linalg.cross(a[1], a[2])).sum()


def log_determinant(a: Tensor) -> Tensor:
    return determinant(a).abs().log()


def torch_log_determinant(a: Tensor) -> Tensor:
    return torch.linalg.slogdet(a).logabsdet


def solution(a: Tensor, b: Tensor) -> Tensor:
    """By cofactors."""
    cofactors = torch.stack([torch.linalg.cross(a[i - 2], a[i - 1]) for i in range(3)])
    return cofactors.mT @ b / determinant(a)


def layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-5)


def torch_layer_norm(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def batch_norm(x: Tensor) -> Tensor:
    return layer_norm(x.mT).mT


def torch_batch_norm(x: Tensor) -> Tensor:
    return torch.nn.functional.batch_norm(x, None, None, training=True)


def torch_instance_norm(x: Tensor) -> Tensor:
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


def torch_scattered(x: Tensor, y: Tensor) -> Tensor:
    return torch.as_strided_scatter(x, y, (2,), (2,), 1)


def patched(y: Tensor) -> Tensor:
    return scattered(torch.zeros(6, dtype=y.dtype), y)


def torch_patched(y: Tensor) -> Tensor:
    return torch_scattered(torch.zeros(6, dtype=y.dtype), y)


def assembled(values: Tensor) -> Tensor:
    return torch.zeros(3, 3, dtype=values.dtype).index_put(tuple(PLACES), values) ** 2


def torch_assembled(values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(PLACES, values, (3, 3)).to_dense() ** 2


def _in_torch(name: str, function: Function, reference: Function, composition: str, *shapes: tuple[int, ...]) -> Case:
    return Case.wrong(
        f"{name}_{composition.replace('-', '_')}",
        "F17",
        at(function, normal, *shapes),
        reference,
        "Forward mode reads a tensor that its own derivative takes for a constant; torch 2.13.",
        finds=FORWARD,
        order=2,
        drop_in=False,
        special=composition.replace("-", " "),
        proof=proofs.second_order(composition),
    )


SOLVES_WRONGLY = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)
"""Second derivatives of determinants and linear systems are wrong in torch 2.13 and right in 2.15."""

LINEAR_SYSTEMS = (
    _in_torch("torch_det", torch.linalg.det, determinant, "reverse-over-forward", (3, 3)),
    _in_torch("torch_det", torch.linalg.det, determinant, "forward-over-forward", (3, 3)),
    _in_torch("torch_slogdet", torch_log_determinant, log_determinant, "forward-over-forward", (3, 3)),
    _in_torch("torch_solve", torch.linalg.solve, solution, "reverse-over-forward", (3, 3), (3, 2)),
)

CASES = (
    *(LINEAR_SYSTEMS if SOLVES_WRONGLY else ()),
    _in_torch("torch_layer_norm", torch_layer_norm, layer_norm, "forward-over-forward", (3, 4)),
    _in_torch("torch_batch_norm", torch_batch_norm, batch_norm, "reverse-over-forward", (4, 3)),
    _in_torch("torch_instance_norm", torch_instance_norm, layer_norm, "forward-over-forward", (2, 3, 4)),
    _in_torch("torch_householder", torch.linalg.householder_product, reflections, "forward-over-forward", (4, 2), (2,)),
    Case.wrong(
        "torch_sparse_constructor",
        "F17",
        at(torch_assembled, normal, (5,)),
        assembled,
        "The gradient of a sparse tensor's values is right and has no graph of its own; torch 2.13.",
        finds={"reverse-over-reverse", "symmetry"},
        order=2,
        proof=proofs.second_order("reverse-over-reverse"),
    ),
    Case.wrong(
        "torch_as_strided_scatter",
        "F2",
        at(torch_scattered, normal, (6,), (2,)),
        scattered,
        "What is replaced gets the gradient, what is kept gets none: the wrong way round in torch 2.13.",
    ),
    Case.wrong(
        "torch_as_strided_scatter_of_offset_cotangent",
        "F5",
        at(torch_patched, normal, (2,)),
        patched,
        "The backward counts its offset from the start of the cotangent's storage; torch 2.13.",
        finds={"grad_output_layout"},
        drop_in=False,
        special="a cotangent with an offset into its storage",
        proof=conditions.offset_cotangent,
    ),
)
