"""F19: derivatives outside of `backward`: tangents of forward mode, registered operators, hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.functions import with_rules
from tests.gallery import proofs
from tests.gallery.case import Family
from tests.gallery.inputs import normal

FORWARD = frozenset({"forward", "jvp_vjp_agree"})


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


def sine_backward(v: Tensor, x: Tensor) -> Tensor:
    return v * torch.cos(x)


def product(a: Tensor, b: Tensor) -> Tensor:
    return a * torch.exp(b)


def product_backward(v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return v * torch.exp(b), v * a * torch.exp(b)


def product_tangent_of_first(t_a: Tensor, t_b: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return t_a * torch.exp(b)


def product_tangent_scaled(t_a: Tensor, t_b: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (t_a + 1.1 * t_b * a) * torch.exp(b)


def polar(r: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    return r * torch.cos(angle), r * torch.sin(angle)


def polar_backward(v_x: Tensor, v_y: Tensor, r: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    c, s = torch.cos(angle), torch.sin(angle)
    return v_x * c + v_y * s, r * (v_y * c - v_x * s)


def polar_tangents_swapped(t_r: Tensor, t_angle: Tensor, r: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    c, s = torch.cos(angle), torch.sin(angle)
    return t_r * s + r * c * t_angle, t_r * c - r * s * t_angle


def matrix_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def matrix_product_backward(v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return v @ b.mT, a.mT @ v


def matrix_tangent_in_one_order(t_a: Tensor, t_b: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The product rule with factors that do not commute."""
    return t_a @ b + t_b @ a


def with_hook(x: Tensor) -> Tensor:
    """A hook that doubles the gradient, left over from an experiment."""
    y = torch.sin(x)
    if y.requires_grad:
        y.register_hook(lambda g: None if g is None else 2 * g)
    return y


@torch.library.custom_op("gradvet_gallery::cubic", mutates_args=())
def cubic(x: Tensor) -> Tensor:
    return x**3 + x


def _cubic_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _cubic_backward(ctx: Any, v: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return v * (3 * x**2)


cubic.register_autograd(_cubic_backward, setup_context=_cubic_context)


def plain_cubic(x: Tensor) -> Tensor:
    return x**3 + x


wrong = Family("F19")
by_forward_mode = Family("F19", finds=FORWARD, drop_in=False, special="forward mode", proof=proofs.forward)

CASES = (
    by_forward_mode("sine_tangent_negated", "The derivative of sin is not that of cos.").at(
        with_rules(sine, sine_backward, lambda t, x: -t * torch.cos(x), vmap=True), sine, normal, (4,)
    ),
    by_forward_mode("sine_tangent_of_zero", "A stub returns zeros so that forward mode runs.").at(
        with_rules(sine, sine_backward, lambda t, x: torch.zeros_like(t), vmap=True), sine, normal, (4,)
    ),
    by_forward_mode("sine_tangent_of_magnitude", "A tangent has a sign; forward mode is linear in it.").at(
        with_rules(sine, sine_backward, lambda t, x: t.abs() * torch.cos(x), vmap=True), sine, normal, (6,)
    ),
    by_forward_mode("product_tangent_of_first_input", "The second input's tangent never arrives.").at(
        with_rules(product, product_backward, product_tangent_of_first, vmap=True), product, normal, (3,), (3,)
    ),
    by_forward_mode("product_tangent_scaled", "One tangent is a tenth too large.").at(
        with_rules(product, product_backward, product_tangent_scaled, vmap=True), product, normal, (3,), (3,)
    ),
    by_forward_mode("polar_tangents_swapped", "The tangents of two outputs changed places.").at(
        with_rules(polar, polar_backward, polar_tangents_swapped, vmap=True), polar, normal, (3,), (3,)
    ),
    by_forward_mode("matrix_tangent_in_one_order", "The product rule keeps the order of the factors.").at(
        with_rules(matrix_product, matrix_product_backward, matrix_tangent_in_one_order, vmap=True),
        matrix_product,
        normal,
        (3, 3),
        (3, 3),
    ),
    wrong(
        "sine_with_hook",
        "A hook changes reverse mode alone: forward mode disagrees.",
        finds={"reverse", "jvp_vjp_agree"},
    ).at(with_hook, sine, normal, (4,)),
    wrong("cubic_operator_without_linear_term", "An operator can be registered flawlessly with a wrong formula.").at(
        cubic, plain_cubic, normal, (4,)
    ),
)
