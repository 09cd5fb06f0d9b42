"""F17: the first derivative is right, a derivative of the derivative is not.

`jvp` and `backward` of these rules agree with the function to first order; each hides one input from the second.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.functions import with_rules, with_vjp
from tests.gallery import proofs
from tests.gallery.case import Family, Function
from tests.gallery.inputs import normal, uniform

REVERSE = frozenset({"reverse-over-reverse", "forward-over-reverse", "symmetry"})
FORWARD = frozenset({"reverse-over-forward", "forward-over-forward", "symmetry"})
OVER_REVERSE = proofs.second_order("reverse-over-reverse")


def cube(x: Tensor) -> Tensor:
    return x**3


def cube_with_detached_slope(v: Tensor, x: Tensor) -> Tensor:
    return v * 3 * x.detach() ** 2


def cube_with_detached_cotangent(v: Tensor, x: Tensor) -> Tensor:
    return v.detach() * 3 * x**2


def cube_without_graph(v: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        return v * 3 * x**2


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class SwishWithSavedSigmoid(torch.autograd.Function):
    """Saves an intermediate result, which has no graph: the second derivative takes it for a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        x, s = ctx.saved_tensors
        return v * (s + x * s * (1 - s))


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


def sine_gradient(v: Tensor, x: Tensor) -> Tensor:
    return v * torch.cos(x)


def sine_with_second_rule(gradient: Function) -> Function:
    """sin with its first derivative right; `gradient` is the VJP with a hand-written derivative of its own."""
    return with_rules(sine, gradient, lambda t, x: t * torch.cos(x), vmap=True)


def halved_curvature(w: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return w * torch.cos(x), -0.5 * w * v * torch.sin(x)


def curvature_for_positive(w: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return w * torch.cos(x), -w * v * torch.sin(x) * (x > 0)


def right_curvature(w: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return w * torch.cos(x), -w * v * torch.sin(x)


def tangent_of_cotangent_only(t_v: Tensor, t_x: Tensor, v: Tensor, x: Tensor) -> Tensor:
    return t_v * torch.cos(x)


def product_with_square(a: Tensor, b: Tensor) -> Tensor:
    return a * b**2


def product_with_detached_factor(v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return v * b**2, 2 * v * a.detach() * b


def length(x: Tensor) -> Tensor:
    return torch.sqrt((x**2).sum(-1))


def length_with_detached_norm(v: Tensor, x: Tensor) -> Tensor:
    return v[:, None] * x / length(x).detach()[:, None]


def cube_backward(v: Tensor, x: Tensor) -> Tensor:
    return v * 3 * x**2


def cube_tangent_with_detached_slope(t: Tensor, x: Tensor) -> Tensor:
    return t * 3 * x.detach() ** 2


wrong = Family("F17", finds=REVERSE, order=2, proof=OVER_REVERSE)
by_forward_mode = Family("F17", finds=FORWARD, order=2, drop_in=False)

CASES = (
    wrong("cube_with_detached_slope", "A slope cut from the graph is a constant to the second derivative.").at(
        with_vjp(cube, cube_with_detached_slope), cube, normal, (4,)
    ),
    wrong("cube_backward_without_graph", "Under no_grad the gradient is right and has no derivative of its own.").at(
        with_vjp(cube, cube_without_graph), cube, normal, (4,)
    ),
    wrong(
        "swish_with_saved_sigmoid", "An intermediate result that is saved has no graph; inputs and outputs have one."
    ).at(SwishWithSavedSigmoid.apply, swish, normal, (4,)),
    wrong("sine_with_halved_curvature", "A hand-written double backward has coefficients of its own to get wrong.").at(
        sine_with_second_rule(with_vjp(sine_gradient, halved_curvature)), sine, normal, (4,)
    ),
    wrong("sine_with_curvature_for_positive_only", "The second derivative is wrong on one side only.").at(
        sine_with_second_rule(with_vjp(sine_gradient, curvature_for_positive)), sine, normal, (6,)
    ),
    wrong(
        "product_with_detached_factor", "One of two mixed derivatives is lost, so that the Hessian is not symmetric."
    ).at(with_vjp(product_with_square, product_with_detached_factor), product_with_square, normal, (3,), (3,)),
    wrong(
        "length_with_detached_norm", "A gradient penalty trains on the second derivative of a norm, which is cut here."
    ).at(with_vjp(length, length_with_detached_norm), length, normal, (2, 3)),
    wrong(
        "cube_with_detached_cotangent",
        "The gradient is linear in its cotangent, and that is a derivative, too.",
        finds={"reverse-over-reverse", "forward-over-reverse"},
        proof=proofs.derivative_in_cotangent,
    ).at(with_vjp(cube, cube_with_detached_cotangent), cube, normal, (4,)),
    by_forward_mode(
        "sine_gradient_with_partial_tangent",
        "Double backward is right; forward mode over reverse mode forgets the input's tangent.",
        finds={"forward-over-reverse", "symmetry"},
        special="forward mode over reverse mode",
        proof=proofs.second_order("forward-over-reverse"),
    ).at(
        sine_with_second_rule(with_rules(sine_gradient, right_curvature, tangent_of_cotangent_only, vmap=True)),
        sine,
        normal,
        (4,),
    ),
    by_forward_mode(
        "cube_tangent_detached_in_reverse",
        "A tangent that is cut from the graph cannot be differentiated in reverse.",
        special="reverse mode over forward mode",
        proof=proofs.second_order("reverse-over-forward"),
    ).at(with_rules(cube, cube_backward, cube_tangent_with_detached_slope, vmap=True), cube, normal, (4,)),
    by_forward_mode(
        "cube_tangent_detached_in_forward",
        "The same tangent, pushed forward once more.",
        special="forward mode over forward mode",
        proof=proofs.second_order("forward-over-forward"),
    ).at(with_rules(cube, cube_backward, cube_tangent_with_detached_slope, vmap=True), cube, uniform, 0.5, 2.0, (3,)),
)
