"""F17: the first derivative is right, a derivative of the derivative is not.

`jvp` and `backward` of these rules agree with the function to first order; each hides one input from the second.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.gallery import witnesses
from tests.gallery.case import Case, Function
from tests.gallery.inputs import at, normal, uniform
from tests.gallery.mutants import rule

REVERSE = frozenset({"reverse-over-reverse", "forward-over-reverse", "symmetry"})
FORWARD = frozenset({"reverse-over-forward", "forward-over-forward", "symmetry"})
OVER_REVERSE = witnesses.second_order("reverse-over-reverse")


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


def sine_with_second_rule(backward: Function, jvp: Function | None = None) -> Function:
    """sin with its first derivative right and a hand-written derivative of that derivative."""
    return rule(sine, rule(sine_gradient, backward, jvp), lambda t, x: t * torch.cos(x))


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


def _second(name: str, why: str, function: Function, twin: Function, *shapes: tuple[int, ...]) -> Case:
    """A case that double backward shows at random inputs."""
    build = at(function, normal, *shapes)
    return Case(name, "F17", build, why, twin=twin, order=2, findings=REVERSE, witness=OVER_REVERSE)


CASES = (
    _second(
        "cube_with_detached_slope",
        "A slope cut from the graph is a constant to the second derivative.",
        rule(cube, cube_with_detached_slope),
        cube,
        (4,),
    ),
    _second(
        "cube_backward_without_graph",
        "Under no_grad the gradient is right and has no derivative of its own.",
        rule(cube, cube_without_graph),
        cube,
        (4,),
    ),
    _second(
        "swish_with_saved_sigmoid",
        "An intermediate result that is saved has no graph; inputs and outputs have one.",
        SwishWithSavedSigmoid.apply,
        swish,
        (4,),
    ),
    _second(
        "sine_with_halved_curvature",
        "A hand-written double backward has coefficients of its own to get wrong.",
        sine_with_second_rule(halved_curvature),
        sine,
        (4,),
    ),
    _second(
        "sine_with_curvature_for_positive_only",
        "The second derivative is wrong on one side only.",
        sine_with_second_rule(curvature_for_positive),
        sine,
        (6,),
    ),
    _second(
        "product_with_detached_factor",
        "One of two mixed derivatives is lost, so that the Hessian is not symmetric.",
        rule(product_with_square, product_with_detached_factor),
        product_with_square,
        (3,),
        (3,),
    ),
    _second(
        "length_with_detached_norm",
        "A gradient penalty trains on the second derivative of a norm, which is cut here.",
        rule(length, length_with_detached_norm),
        length,
        (2, 3),
    ),
    Case(
        "cube_with_detached_cotangent",
        "F17",
        at(rule(cube, cube_with_detached_cotangent), normal, (4,)),
        "The gradient is linear in its cotangent, and that is a derivative, too.",
        twin=cube,
        order=2,
        findings=frozenset({"reverse-over-reverse", "forward-over-reverse"}),
        witness=witnesses.derivative_in_cotangent,
    ),
    Case(
        "sine_gradient_with_partial_tangent",
        "F17",
        at(sine_with_second_rule(right_curvature, tangent_of_cotangent_only), normal, (4,)),
        "Double backward is right; forward mode over reverse mode forgets the input's tangent.",
        twin=sine,
        order=2,
        findings=frozenset({"forward-over-reverse", "symmetry"}),
        drop_in=False,
        special="forward mode over reverse mode",
        witness=witnesses.second_order("forward-over-reverse"),
    ),
    Case(
        "cube_tangent_detached_in_reverse",
        "F17",
        at(rule(cube, cube_backward, cube_tangent_with_detached_slope), normal, (4,)),
        "A tangent that is cut from the graph cannot be differentiated in reverse.",
        twin=cube,
        order=2,
        findings=FORWARD,
        drop_in=False,
        special="reverse mode over forward mode",
        witness=witnesses.second_order("reverse-over-forward"),
    ),
    Case(
        "cube_tangent_detached_in_forward",
        "F17",
        at(rule(cube, cube_backward, cube_tangent_with_detached_slope), uniform, 0.5, 2.0, (3,)),
        "The same tangent, pushed forward once more.",
        twin=cube,
        order=2,
        findings=FORWARD,
        drop_in=False,
        special="forward mode over forward mode",
        witness=witnesses.second_order("forward-over-forward"),
    ),
)
