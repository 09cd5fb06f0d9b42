"""Right complex functions, holomorphic and not."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery.case import Case, Function, right
from tests.gallery.inputs import at, normal

C = torch.complex128


def hermitian_spectrum(a: Tensor) -> Tensor:
    return torch.linalg.eigvalsh((a + a.mH) / 2)


def hermitian_projector(a: Tensor) -> Tensor:
    """Free of the phase that a complex eigenvector may have."""
    vector = torch.linalg.eigh((a + a.mH) / 2).eigenvectors[:, 0]
    return torch.outer(vector, vector.conj())


def real_loss(z: Tensor) -> Tensor:
    return (torch.tanh(z).abs() ** 2).sum()


def filtered(x: Tensor) -> Tensor:
    """Real to real through a complex spectrum."""
    spectrum = torch.fft.rfft(x)
    return torch.fft.irfft(spectrum * torch.exp(-0.3 * torch.arange(spectrum.shape[-1])), n=x.shape[-1])


def split(z: Tensor) -> tuple[Tensor, Tensor]:
    return z.real, z.imag


def assembled(a: Tensor, b: Tensor) -> Tensor:
    return torch.view_as_complex(torch.stack([a * b, a - b], -1))


def mixed_outputs(z: Tensor) -> tuple[Tensor, Tensor]:
    return z**2, z.abs()


def conjugate_gradient_step(a: Tensor, x: Tensor) -> Tensor:
    return x - 0.1 * (a.mH @ (a @ x))


def quantum_expectation(state: Tensor) -> Tensor:
    operator = torch.tensor([[0, 1j, 0], [-1j, 0.5, 1], [0, 1, -0.3]], dtype=state.dtype)
    normed = state / state.norm()
    return torch.vdot(normed, operator @ normed).real


def _case(name: str, why: str, function: Function, *shapes: tuple[int, ...], order: int = 1) -> Case:
    return right(name, why, at(function, normal, *shapes, dtype=C), dtype=C, order=order)


CASES = (
    _case("complex_square", "Holomorphic.", torch.square, (4,), order=2),
    _case("complex_exponential", "Holomorphic.", torch.exp, (4,), order=2),
    _case("complex_square_root", "Holomorphic away from its cut.", torch.sqrt, (4,)),
    _case("complex_quotient", "Two holomorphic arguments.", torch.div, (3,), (3,)),
    _case("complex_modulus", "Not holomorphic, real output.", torch.abs, (4,)),
    _case("complex_phase", "Not holomorphic, away from its cut.", torch.angle, (4,)),
    _case("complex_conjugate", "Antiholomorphic, and a lazy bit.", torch.conj, (4,)),
    _case("real_and_imaginary_part", "Two views of one tensor.", split, (4,)),
    _case("complex_outputs_of_two_kinds", "One complex and one real output.", mixed_outputs, (4,)),
    _case("complex_matrix_product", "Two complex operands.", torch.matmul, (2, 3), (3, 2), order=2),
    _case("complex_fourier_transform", "A complex linear map.", torch.fft.fft, (5,)),
    _case("complex_loss", "A real loss of complex parameters.", real_loss, (4,)),
    _case("hermitian_spectrum", "Real eigenvalues of a complex matrix.", hermitian_spectrum, (3, 3)),
    _case("hermitian_projector", "An eigenvector without its phase.", hermitian_projector, (3, 3)),
    _case("complex_gradient_step", "A matrix and its adjoint in one function.", conjugate_gradient_step, (3, 2), (2,)),
    _case("quantum_expectation", "Invariant under phase and scale of its input.", quantum_expectation, (3,)),
    right(
        "real_filter_through_spectrum",
        "Real input and output, complex in between.",
        at(filtered, normal, (2, 7)),
        order=2,
    ),
    right("complex_number_from_two_real", "Complex output of real inputs.", at(assembled, normal, (3,), (3,))),
)
