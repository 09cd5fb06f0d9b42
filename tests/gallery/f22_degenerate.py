"""F22: linear algebra that is degenerate or has conventions. The functions are smooth, intermediate results are not."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery.case import Family
from tests.gallery.inputs import normal, point


def symmetric(a: Tensor) -> Tensor:
    return (a + a.mT) / 2


def root_by_eigenvectors(a: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(symmetric(a))
    return vectors @ torch.diag(values.sqrt()) @ vectors.mT


def root_by_iteration(a: Tensor) -> Tensor:
    """Denman and Beavers: products and inverses only."""
    y, z = symmetric(a), torch.eye(len(a), dtype=a.dtype)
    for _ in range(12):
        y, z = (y + torch.linalg.inv(z)) / 2, (z + torch.linalg.inv(y)) / 2
    return y


def exponential_by_eigenvectors(a: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(symmetric(a))
    return vectors @ torch.diag(values.exp()) @ vectors.mT


def exponential(a: Tensor) -> Tensor:
    return torch.matrix_exp(symmetric(a))


def orthogonal_by_svd(a: Tensor) -> Tensor:
    u, _, vh = torch.linalg.svd(a)
    return u @ vh


def orthogonal_by_iteration(a: Tensor) -> Tensor:
    """Newton's iteration for the nearest orthogonal matrix."""
    for _ in range(20):
        a = (a + torch.linalg.inv(a).mT) / 2
    return a


def largest_projector(a: Tensor) -> Tensor:
    """The projector on the eigenvector of the largest eigenvalue: free of the eigenvector's sign."""
    vector = torch.linalg.eigh(symmetric(a)).eigenvectors[:, -1]
    return torch.outer(vector, vector)


def largest_projector_with_damped_gaps(v: Tensor, a: Tensor) -> Tensor:
    """Adds 0.1 to every gap between eigenvalues so that it cannot be zero."""
    values, vectors = torch.linalg.eigh(symmetric(a))
    top, others = vectors[:, -1], vectors[:, :-1]
    weights = (others.mT @ (v + v.mT) @ top) / (values[-1] - values[:-1] + 0.1)
    return symmetric(torch.outer(others @ weights, top))


def spectrum_of_one_triangle(a: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(a)


def spectrum_of_lower_triangle(a: Tensor) -> Tensor:
    lower = torch.tril(a, -1)
    return torch.linalg.eigvalsh(lower + lower.mT + torch.diag(torch.diagonal(a)))


def log_volume(a: Tensor) -> Tensor:
    """log det(A Aᵀ) of a wide matrix."""
    return torch.linalg.slogdet(a @ a.mT).logabsdet


def log_volume_by_damped_inverse(v: Tensor, a: Tensor) -> Tensor:
    gram = a @ a.mT + 0.1 * torch.eye(len(a), dtype=a.dtype)
    return 2 * v * torch.linalg.solve(gram, a)


TWICE_IDENTITY = [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]

wrong = Family("F22")

CASES = (
    wrong(
        "root_by_eigenvectors_of_equal_eigenvalues",
        "The matrix root is smooth at 2 I; its eigenvectors are not, and autograd divides by the gaps.",
        special="equal eigenvalues",
    ).at(root_by_eigenvectors, root_by_iteration, point, TWICE_IDENTITY),
    wrong(
        "exponential_by_eigenvectors_of_zero",
        "The exponential of the zero matrix is as smooth as any.",
        special="equal eigenvalues",
    ).at(exponential_by_eigenvectors, exponential, point, [[0.0, 0.0], [0.0, 0.0]]),
    wrong(
        "orthogonal_by_svd_of_equal_singular_values",
        "The nearest rotation is smooth at every regular matrix; the singular vectors are not.",
        special="equal singular values",
    ).at(orthogonal_by_svd, orthogonal_by_iteration, point, TWICE_IDENTITY),
    wrong(
        "exponential_by_eigenvectors_of_unseen_zero",
        "Random matrices have no equal eigenvalues; a zero or a unit matrix at the start of training has.",
        finds={"points"},
        drop_in=False,
        special="equal eigenvalues",
        shown_at=lambda: point([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    ).at(exponential_by_eigenvectors, exponential, normal, (3, 3)),
    wrong("largest_projector_with_damped_gaps", "A guard against division by zero that is always on is a bias.").at(
        with_vjp(largest_projector, largest_projector_with_damped_gaps), largest_projector, normal, (3, 3)
    ),
    wrong(
        "spectrum_of_one_triangle",
        "The forward reads one triangle, the gradient is spread over both: symmetrise before.",
    ).at(
        spectrum_of_one_triangle,
        spectrum_of_lower_triangle,
        lambda: (symmetric(normal((3, 3))[0].detach()).requires_grad_(),),
    ),
    wrong("log_volume_by_damped_inverse", "A jitter added to the Gram matrix in the backward alone.").at(
        with_vjp(log_volume, log_volume_by_damped_inverse), log_volume, normal, (2, 4)
    ),
)
