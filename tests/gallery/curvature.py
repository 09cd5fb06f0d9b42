"""Second derivatives in the four compositions of forward and reverse mode, and the true one by differences."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery.case import Function, Inputs
from tests.gallery.derivatives import axes, directions, flat, gradients, live, outputs, pullback, pushforward, slope


def curvature(function: Function, inputs: Inputs) -> Tensor:
    """H u, H the Hessian of <v, f>, by differences of the gradient."""
    return slope(lambda *xs: gradients(function, xs, scale=1.0), inputs, directions(live(inputs), seed=3), 1e-3)


def reverse_over_reverse(function: Function, inputs: Inputs) -> Tensor:
    results = outputs(function(*inputs))
    first = pullback(results, inputs, directions(results), create_graph=True)
    return flat(pullback(first, inputs, directions(live(inputs), seed=3)))


def forward_over_reverse(function: Function, inputs: Inputs) -> Tensor:
    def gradient(*xs: Tensor) -> list[Tensor]:
        held = tuple(x if x.requires_grad else x.requires_grad_() for x in xs)
        results = outputs(function(*held))
        return pullback(results, held, directions(results), create_graph=True)

    return flat(pushforward(gradient, inputs, directions(live(inputs), seed=3)))


def _derivative_along(function: Function) -> Function:
    """x -> <v, J(x) u> in forward mode, in a form that can be differentiated again."""

    def along(*xs: Tensor) -> Tensor:
        tangents = tuple(directions(xs, seed=3))
        products = torch.func.jvp(lambda *args: tuple(outputs(function(*args))), xs, tangents)[1]
        terms = [(v * p).sum() for v, p in zip(directions(products), products, strict=True)]
        return torch.stack(terms).sum()

    return along


def reverse_over_forward(function: Function, inputs: Inputs) -> Tensor:
    slots = tuple(range(len(inputs)))
    return flat(torch.func.grad(_derivative_along(function), slots)(*(x.detach() for x in inputs)))


def forward_over_forward(function: Function, inputs: Inputs) -> Tensor:
    along, points = _derivative_along(function), [x.detach() for x in inputs]
    entries = []
    for axis in axes(points)[1:]:
        entries.append(torch.func.jvp(along, tuple(points), tuple(axis))[1])
    return flat(entries)


COMPOSITIONS = {
    "reverse-over-reverse": reverse_over_reverse,
    "forward-over-reverse": forward_over_reverse,
    "reverse-over-forward": reverse_over_forward,
    "forward-over-forward": forward_over_forward,
}
