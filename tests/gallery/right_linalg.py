"""Right linear algebra: decompositions through outputs that do not depend on a choice of sign, phase or basis."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery.case import Case, Function, right
from tests.gallery.inputs import at, normal


def symmetric(a: Tensor) -> Tensor:
    return (a + a.mH) / 2


def positive(a: Tensor) -> Tensor:
    return a @ a.mH + 0.5 * torch.eye(a.shape[-1], dtype=a.dtype)


def spectrum(a: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(symmetric(a))


def projector(a: Tensor) -> Tensor:
    vector = torch.linalg.eigh(symmetric(a)).eigenvectors[:, -1]
    return torch.outer(vector, vector.conj())


def squared_components(a: Tensor) -> Tensor:
    return torch.linalg.eigh(symmetric(a)).eigenvectors.abs() ** 2


def matrix_root(a: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(positive(a))
    return (vectors * values.sqrt()) @ vectors.mH


def low_rank(a: Tensor) -> Tensor:
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    return s[0] * torch.outer(u[:, 0], vh[0])


def polar_factor(a: Tensor) -> Tensor:
    u, _, vh = torch.linalg.svd(a, full_matrices=False)
    return u @ vh


def cholesky_factor(a: Tensor) -> Tensor:
    return torch.linalg.cholesky(positive(a))


def triangular(a: Tensor) -> Tensor:
    return torch.linalg.qr(a).R


def projection_on_range(a: Tensor) -> Tensor:
    q = torch.linalg.qr(a).Q
    return q @ q.mT


def log_volume(a: Tensor) -> Tensor:
    return torch.linalg.slogdet(positive(a)).logabsdet


def gaussian_density(a: Tensor, x: Tensor) -> Tensor:
    factor = torch.linalg.cholesky(positive(a))
    whitened = torch.linalg.solve_triangular(factor, x[:, None], upper=False)
    return -0.5 * (whitened**2).sum() - torch.log(torch.diagonal(factor)).sum()


def least_squares(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.lstsq(a, b).solution


def sylvester(a: Tensor, b: Tensor) -> Tensor:
    """X with A X + X A = B, by Kronecker products."""
    eye = torch.eye(len(a), dtype=a.dtype)
    return torch.linalg.solve(torch.kron(a, eye) + torch.kron(eye, a.mT.contiguous()), b.reshape(-1)).reshape(b.shape)


def eigenvalues(a: Tensor) -> Tensor:
    """Of a matrix that is not symmetric: through symmetric functions, free of their order."""
    values = torch.linalg.eigvals(a)
    return torch.stack([(values**k).sum().real for k in (1, 2, 3)])


def condition(a: Tensor) -> Tensor:
    s = torch.linalg.svdvals(a)
    return s[0] / s[-1]


def von_neumann_entropy(a: Tensor) -> Tensor:
    density = positive(a)
    values = torch.linalg.eigvalsh(density / torch.trace(density).real)
    return -(values * torch.log(values)).sum()


def _case(name: str, why: str, function: Function, *shapes: tuple[int, ...], order: int = 1) -> Case:
    return right(name, why, at(function, normal, *shapes), order=order)


CASES = (
    _case("eigenvalues_of_symmetric", "Distinct eigenvalues are smooth.", spectrum, (4, 4), order=2),
    _case("projector_of_largest_eigenvalue", "An eigenvector without its sign.", projector, (3, 3)),
    _case("squared_components_of_eigenvectors", "Probabilities do not know the sign.", squared_components, (3, 3)),
    _case("matrix_root_by_eigenvectors", "Basis and order drop out of V f(Λ) Vᵀ.", matrix_root, (3, 3)),
    _case("singular_values", "Of a matrix that is not square.", torch.linalg.svdvals, (4, 3), order=2),
    _case("best_rank_one_matrix", "The signs of u and v cancel.", low_rank, (3, 4)),
    _case("polar_factor", "U Vᵀ is free of the choice that U and V have.", polar_factor, (4, 3)),
    _case("nuclear_norm", "A sum of singular values.", lambda a: torch.linalg.matrix_norm(a, "nuc"), (3, 4)),
    _case("cholesky_factor", "Positive diagonal: unique.", cholesky_factor, (3, 3), order=2),
    _case("triangular_factor_of_qr", "Unique where the sign of the diagonal is kept.", triangular, (4, 3)),
    _case("projection_on_range", "Q Qᵀ depends on the range alone.", projection_on_range, (4, 2)),
    _case("solution_of_system", "Both operands are differentiated.", torch.linalg.solve, (3, 3), (3, 2), order=2),
    _case("inverse", "Its gradient is a product of two inverses.", torch.linalg.inv, (3, 3), order=2),
    _case("pseudo_inverse", "Of full rank.", torch.linalg.pinv, (4, 3)),
    _case("least_squares", "More equations than unknowns.", least_squares, (4, 2), (4, 1)),
    _case("determinant", "A product of all.", torch.linalg.det, (3, 3), order=2),
    _case("log_volume", "A log-likelihood's determinant.", log_volume, (3, 3), order=2),
    _case("gaussian_density", "Cholesky, triangular solve and log in one.", gaussian_density, (3, 3), (3,), order=2),
    _case("matrix_exponential", "An integral in its derivative.", torch.linalg.matrix_exp, (3, 3), order=2),
    _case(
        "matrix_power",
        "Three factors that do not commute with a tangent.",
        lambda a: torch.linalg.matrix_power(a, 3),
        (3, 3),
        order=2,
    ),
    _case("sylvester_equation", "A large system behind a small one.", sylvester, (2, 2), (2, 2)),
    _case("power_sums_of_eigenvalues", "Complex eigenvalues in conjugate pairs.", eigenvalues, (3, 3)),
    _case("condition_number", "Steep near singular matrices.", condition, (3, 3)),
    _case("von_neumann_entropy", "A function of the spectrum.", von_neumann_entropy, (3, 3)),
    _case("batched_solution", "A batch of systems.", torch.linalg.solve, (2, 3, 3), (2, 3, 1)),
)
