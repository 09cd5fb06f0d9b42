"""F15: complex numbers. torch's gradient of a real loss L is dL/dRe z + i dL/dIm z, so every adjoint conjugates."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_rules, with_vjp
from tests.gallery import proofs
from tests.gallery.case import Family
from tests.gallery.inputs import normal

C = torch.complex128


def product(z: Tensor, w: Tensor) -> Tensor:
    return z * w


def product_without_conjugate(v: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return v * w, v * z


def modulus(z: Tensor) -> Tensor:
    return z.abs()


def modulus_conjugated(v: Tensor, z: Tensor) -> Tensor:
    return v * z.conj() / z.abs()


def matrix_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def matrix_product_with_plain_transpose(v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return v @ b.mT, a.mH @ v


def exponential(z: Tensor) -> Tensor:
    return torch.exp(z)


def exponential_real_part_only(v: Tensor, z: Tensor) -> Tensor:
    return torch.complex((v * torch.exp(z).conj()).real, torch.zeros_like(z.real))


def exponential_conjugated_twice(v: Tensor, z: Tensor) -> Tensor:
    return v * torch.exp(z).conj().conj()


def phase(z: Tensor) -> Tensor:
    return torch.angle(z)


def phase_without_i(v: Tensor, z: Tensor) -> Tensor:
    return v * z / z.abs() ** 2


def spectrum(z: Tensor) -> Tensor:
    return torch.fft.fft(z)


def spectrum_as_its_own_adjoint(v: Tensor, z: Tensor) -> Tensor:
    return torch.fft.fft(v)


def modulation(x: Tensor, carrier: Tensor) -> Tensor:
    """A real signal on a complex carrier."""
    return x * carrier


def modulation_with_modulus(v: Tensor, x: Tensor, carrier: Tensor) -> tuple[Tensor, Tensor]:
    """A real input wants the real part, not the modulus."""
    return (v * carrier.conj()).abs(), v * x


def polar(radius: Tensor, angle: Tensor) -> Tensor:
    return torch.complex(radius * torch.cos(angle), radius * torch.sin(angle))


def polar_turning_back(v: Tensor, radius: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    direction = torch.complex(torch.cos(angle), torch.sin(angle))
    return (v * direction.conj()).real, -(v * (1j * radius * direction).conj()).real


def inner(a: Tensor, b: Tensor) -> Tensor:
    return (a.conj() * b).sum()


def inner_conjugated_on_the_wrong_side(v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return v * b, v * a


def power(z: Tensor) -> Tensor:
    return z.real**2 + z.imag**2


def power_by_half(v: Tensor, z: Tensor) -> Tensor:
    """The Wirtinger derivative z is half of the gradient 2 z."""
    return v * z


def square(z: Tensor) -> Tensor:
    return z * z


def square_backward(v: Tensor, z: Tensor) -> Tensor:
    return v * 2 * z.conj()


def square_along_the_real_axis(t: Tensor, z: Tensor) -> Tensor:
    """Right for real tangents alone."""
    return 2 * z * t.real


def square_with_adjoint_tangent(t: Tensor, z: Tensor) -> Tensor:
    """The formula of the backward, conjugate and all, taken over for the tangent."""
    return 2 * z.conj() * t


wrong = Family("F15")

CASES = (
    wrong("complex_product_without_conjugate", "The adjoint of a multiplication by w multiplies by its conjugate.").at(
        with_vjp(product, product_without_conjugate), product, normal, (4,), (4,), dtype=C
    ),
    wrong("modulus_conjugated", "The modulus grows along z, not along its mirror image.").at(
        with_vjp(modulus, modulus_conjugated), modulus, normal, (4,), dtype=C
    ),
    wrong(
        "matrix_product_with_plain_transpose",
        "The adjoint of a complex matrix is its conjugate transpose; one of two factors forgot.",
    ).at(
        with_vjp(matrix_product, matrix_product_with_plain_transpose), matrix_product, normal, (2, 3), (3, 4), dtype=C
    ),
    wrong("complex_exponential_real_part_only", "The imaginary part of the gradient is lost in a cast.").at(
        with_vjp(exponential, exponential_real_part_only), exponential, normal, (4,), dtype=C
    ),
    wrong("complex_exponential_conjugated_twice", "Two helpers that conjugate undo each other.").at(
        with_vjp(exponential, exponential_conjugated_twice), exponential, normal, (4,), dtype=C
    ),
    wrong("phase_without_i", "The phase changes across z, not along it: a factor i is missing.").at(
        with_vjp(phase, phase_without_i), phase, normal, (4,), dtype=C
    ),
    wrong(
        "spectrum_as_its_own_adjoint",
        "The Fourier matrix is symmetric but not Hermitian: its adjoint is the unscaled inverse transform.",
    ).at(with_vjp(spectrum, spectrum_as_its_own_adjoint), spectrum, normal, (5,), dtype=C),
    wrong("modulation_with_modulus", "The gradient of a real input below a complex output is a real part.").at(
        with_vjp(modulation, modulation_with_modulus),
        modulation,
        lambda: (*normal((4,)), normal((4,), dtype=C)[0].detach()),
    ),
    wrong("polar_turning_back", "The angle's gradient has the wrong sense of rotation.").at(
        with_vjp(polar, polar_turning_back), polar, normal, (4,), (4,)
    ),
    wrong(
        "inner_conjugated_on_the_wrong_side",
        "The argument that is conjugated in the forward conjugates the cotangent in the backward.",
    ).at(with_vjp(inner, inner_conjugated_on_the_wrong_side), inner, normal, (4,), (4,), dtype=C),
    wrong("power_by_half", "A Wirtinger derivative is taken for the gradient: a factor 2.").at(
        with_vjp(power, power_by_half), power, normal, (4,), dtype=C
    ),
    wrong(
        "square_tangent_along_the_real_axis",
        "Tangents have an imaginary part, too.",
        finds={"forward", "jvp_vjp_agree"},
        drop_in=False,
        special="forward mode",
        proof=proofs.forward,
    ).at(with_rules(square, square_backward, square_along_the_real_axis, vmap=True), square, normal, (4,), dtype=C),
    wrong(
        "square_tangent_with_conjugate",
        "The tangent of a holomorphic function has no conjugate.",
        finds={"forward", "jvp_vjp_agree"},
        drop_in=False,
        special="forward mode",
        proof=proofs.forward,
    ).at(with_rules(square, square_backward, square_with_adjoint_tangent, vmap=True), square, normal, (4,), dtype=C),
)
