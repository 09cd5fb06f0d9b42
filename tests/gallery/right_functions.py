"""Right derivatives by hand: custom Functions with their own backward, jvp and vmap, checkpoints, nested autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from tests.functions import with_rules, with_vjp
from tests.gallery import proofs
from tests.gallery.case import right
from tests.gallery.inputs import at, indices, normal, uniform

TOKENS = indices([1, 0, 1, 2])


def sine_rule() -> Any:
    return with_rules(torch.sin, lambda v, x: v * torch.cos(x), lambda t, x: t * torch.cos(x), vmap=True)


def product_rule() -> Any:
    return with_rules(
        torch.matmul, lambda v, a, b: (v @ b.mT, a.mT @ v), lambda t_a, t_b, a, b: t_a @ b + a @ t_b, vmap=True
    )


class Exponential(torch.autograd.Function):
    """Saves its output, which has a graph of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return v * y


class Cube(torch.autograd.Function):
    """With a rule for vmap by hand."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * v * x**2

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * t * x**2

    @staticmethod
    def vmap(info: Any, dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        return Cube.apply(x), dims[0]


class CarefulLinear(torch.autograd.Function):
    """Computes only what is asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        return v @ weight.mT if needs_x else None, x.mT @ v if needs_weight else None


def sine_and_cosine_vjp(v_sin: Tensor | None, v_cos: Tensor | None, x: Tensor) -> Tensor | None:
    """Takes undefined grad_output as they come."""
    terms = []
    if v_sin is not None:
        terms.append(v_sin * torch.cos(x))
    if v_cos is not None:
        terms.append(-v_cos * torch.sin(x))
    return torch.stack(terms).sum(0) if terms else None


class Doubled(torch.autograd.Function):
    """Works in place on its input and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        return 2 * v


class ValuesAndPlaces(torch.autograd.Function):
    """An integer output, declared as not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = torch.sort(x)
        ctx.save_for_backward(places)
        ctx.mark_non_differentiable(places)
        return values, places

    @staticmethod
    def backward(ctx: Any, v: Tensor, _: Tensor) -> Tensor:
        (places,) = ctx.saved_tensors
        return torch.zeros_like(v).scatter(0, places, v)


class OnceOnly(torch.autograd.Function):
    """Raises an error if it is differentiated twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return v * torch.cos(x)


class FixedPoint(torch.autograd.Function):
    """y = cos(a y), found by iteration and differentiated by the implicit function theorem."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        y = torch.ones_like(a)
        for _ in range(200):
            y = torch.cos(a * y)
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        a, y = ctx.saved_tensors
        s = torch.sin(a * y)
        return -v * s * y / (1 + a * s)


def embedding_vjp(v: Tensor, table: Tensor) -> Tensor:
    return torch.zeros_like(table).index_add(0, TOKENS, v)


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(lambda t: torch.sin(torch.exp(t)), x, use_reentrant=False)


def gradient_penalty(x: Tensor, weight: Tensor) -> Tensor:
    """A loss with a gradient in it."""
    z = x if x.requires_grad else x.detach().requires_grad_()
    energy = (torch.tanh(z @ weight) ** 2).sum()
    (slope,) = torch.autograd.grad(energy, z, create_graph=True)
    return (slope**2).sum()


def functional_gradient(x: Tensor) -> Tensor:
    return torch.func.grad(lambda t: (t**3).sum())(x)


def functional_hessian(x: Tensor) -> Tensor:
    return torch.func.hessian(lambda t: (torch.sin(t) * t.sum()).sum())(x)


def mapped(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: row / row.norm())(x)


CASES = (
    right("sine_rule", "Backward, jvp and vmap, all right.", at(sine_rule(), normal, (4,)), order=2),
    right("matrix_product_rule", "Two inputs in both modes.", at(product_rule(), normal, (2, 3), (3, 4)), order=2),
    right(
        "function_saving_its_output",
        "A saved output may be differentiated again.",
        at(Exponential.apply, normal, (4,)),
        order=2,
    ),
    right("function_with_vmap_rule", "A rule for batches by hand.", at(Cube.apply, normal, (4,)), order=2),
    right(
        "function_asking_who_needs", "Gradients on demand.", at(CarefulLinear.apply, normal, (2, 3), (3, 2)), order=2
    ),
    right(
        "function_with_undefined_cotangents",
        "None in, None out.",
        at(with_vjp(lambda x: (torch.sin(x), torch.cos(x)), sine_and_cosine_vjp, materialize=False), normal, (4,)),
    ),
    right(
        "function_in_place",
        "A dirty input, marked as such.",
        at(lambda x: Doubled.apply(x * 1.0) ** 2, normal, (4,)),
        order=2,
    ),
    right("function_with_integer_output", "Places beside values.", at(ValuesAndPlaces.apply, normal, (5,))),
    right("function_differentiable_once", "Right as far as it goes.", at(OnceOnly.apply, normal, (4,))),
    right(
        "implicit_fixed_point",
        "A gradient that does not unroll the iteration.",
        at(FixedPoint.apply, uniform, 0.2, 0.9, (4,)),
    ),
    right(
        "embedding_rule",
        "Repeated tokens add up.",
        at(with_vjp(lambda t: t[TOKENS], embedding_vjp), normal, (3, 2)),
        order=2,
    ),
    right("checkpointed_function", "The forward runs twice.", at(checkpointed, normal, (4,)), order=2),
    right("gradient_penalty", "A gradient inside the function.", at(gradient_penalty, normal, (2, 3), (3, 2))),
    right("gradient_by_transform", "torch.func.grad inside.", at(functional_gradient, normal, (4,)), order=2),
    right("hessian_by_transform", "torch.func.hessian inside.", at(functional_hessian, normal, (3,))),
    right("mapped_by_transform", "torch.func.vmap inside.", at(mapped, normal, (3, 2)), order=2),
    right(
        "sine_rule_in_forward_mode",
        "The same rule seen from the other side.",
        at(sine_rule(), uniform, 0.1, 1.0, (3,)),
        reference=torch.sin,
        proof=proofs.forward,
    ),
)
