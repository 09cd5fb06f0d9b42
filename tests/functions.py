"""Functions with derivatives written by hand, right or wrong.

A rule gets the cotangents or tangents first, then the inputs of the function: `vjp(*cotangents, *inputs)`,
`jvp(*tangents, *inputs)`. A VJP may leave out the gradients of the last inputs; they are None then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Function: TypeAlias = Callable[..., Any]
Inputs: TypeAlias = tuple[Any, ...]
Gradients: TypeAlias = Sequence[Tensor | None]
Change: TypeAlias = Callable[[Gradients, Inputs], Gradients]


def with_vjp(f: Function, vjp: Function, *, materialize: bool = True) -> Function:
    """`f` with this VJP and no JVP. Unless `materialize`, an undefined cotangent is None instead of zeros."""
    return _rule(f, materialize, backward=_backward(vjp))


def with_jvp(f: Function, jvp: Function, *, materialize: bool = True) -> Function:
    """`f` with this JVP and no VJP. Unless `materialize`, an undefined tangent is None instead of zeros."""
    return _rule(f, materialize, jvp=_jvp(jvp))


def with_rules(f: Function, vjp: Function, jvp: Function, *, vmap: bool = False) -> Function:
    """`f` with this VJP and this JVP; with `vmap`, torch maps all three over batches."""
    return _rule(f, backward=_backward(vjp), jvp=_jvp(jvp), generate_vmap_rule=vmap)


def with_derivative(f: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """The elementwise function `f` with the derivative `slope(x)` in both modes."""
    return with_rules(f, lambda v, x: v * slope(x), lambda u, x: u * slope(x))


def with_matrix(f: Callable[[Tensor], Tensor], J: Tensor) -> Callable[[Tensor], Tensor]:
    """A function of a vector with the Jacobian `J` in both modes."""
    return with_rules(f, lambda v, x: J.mH @ v, lambda u, x: J @ u, vmap=True)


def with_gradients_changed(f: Function, change: Change) -> Function:
    """`f` whose true gradients go through `change(gradients, inputs)`."""

    def vjp(ctx: Any, *cotangents: Any) -> Any:
        inputs = _inputs(ctx)
        return tuple(change(true_vjp(f, inputs, cotangents), inputs))

    return _rule(f, backward=vjp)


def with_cotangents_changed(f: Function, change: Callable[[Tensor], Tensor]) -> Function:
    """The true VJP of `f`, of `change(cotangent)` instead of the cotangent."""
    return _rule(f, backward=lambda ctx, *vs: true_vjp(f, _inputs(ctx), tuple(map(change, vs))))


def compiler_scaling_gradients(scale: float) -> Function:
    """A compiler for `torch.compile` that runs the graphs as they are, and multiplies all gradients."""

    def compiled(graph: Any, inputs: Any) -> Any:
        # Here, as they take a second to load.
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def backward(graph: Any, _: Any) -> Any:
            return make_boxed_func(lambda *args: [scale * g if isinstance(g, Tensor) else g for g in graph(*args)])

        make: Any = aot_autograd
        return make(fw_compiler=lambda graph, _: make_boxed_func(graph), bw_compiler=backward)(graph, inputs)

    return compiled


def true_vjp(f: Function, inputs: Inputs, cotangents: Inputs) -> tuple[Tensor | None, ...]:
    """The VJP of `f` by torch's own rules, None for inputs without gradient; differentiable if grad mode is on."""
    differentiable = torch.is_grad_enabled()
    live = [isinstance(value, Tensor) and value.requires_grad for value in inputs]
    with torch.enable_grad():
        held = [
            value if differentiable or not on else value.detach().requires_grad_()
            for value, on in zip(inputs, live, strict=True)
        ]
        sources = [value for value, on in zip(held, live, strict=True) if on]
        pairs = [
            (y, v) for y, v in zip(as_tuple(f(*held)), cotangents, strict=True) if y.requires_grad and v is not None
        ]
        ys, vs = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(ys, sources, vs, create_graph=differentiable, materialize_grads=True))
    return tuple(next(found) if on else None for on in live)


def true_jvp(f: Function, inputs: tuple[Tensor, ...], tangents: tuple[Tensor, ...]) -> Tensor:
    """J u as the derivative of Jᵀv, which is linear in v: two passes of reverse mode."""
    with torch.enable_grad():
        held = tuple(x.detach().requires_grad_() for x in inputs)
        (y,) = as_tuple(f(*held))
        v = torch.zeros_like(y, requires_grad=True)
        gradients = torch.autograd.grad(y, held, v, create_graph=True)
        return torch.autograd.grad(gradients, v, tangents)[0]


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _rule(f: Function, materialize: bool = True, **members: Any) -> Function:
    """`f` as a custom Function that saves its inputs and has these members."""

    def setup_context(ctx: Any, inputs: Inputs, output: Any) -> None:
        ctx.set_materialize_grads(materialize)
        tensors = [value if isinstance(value, Tensor) else None for value in inputs]
        ctx.others = [None if isinstance(value, Tensor) else value for value in inputs]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    def forward(*inputs: Any) -> Any:
        return f(*inputs)

    # torch asks for it in every call, and Python would work it out each time.
    forward.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    members = {"forward": forward, "setup_context": setup_context, **members}
    static = {name: staticmethod(member) if callable(member) else member for name, member in members.items()}
    rule: Any = type("Rule", (torch.autograd.Function,), static)
    return rule.apply  # type: ignore[no-any-return]


def _inputs(ctx: Any) -> Inputs:
    pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
    return tuple(other if tensor is None else tensor for tensor, other in pairs)


def _backward(vjp: Function) -> Function:
    def backward(ctx: Any, *cotangents: Any) -> Any:
        gradients = as_tuple(vjp(*cotangents, *_inputs(ctx)))
        return (*gradients, *[None] * (len(ctx.others) - len(gradients)))

    return backward


def _jvp(jvp: Function) -> Function:
    return lambda ctx, *tangents: jvp(*tangents, *_inputs(ctx))
