"""Derivatives by plain autograd, for the proof that the gallery is right. Nothing here uses gradvet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tests.gallery.case import Function, Inputs


def live(inputs: Inputs) -> list[Tensor]:
    """The inputs that are differentiated."""
    return [value for value in inputs if isinstance(value, Tensor) and value.requires_grad]


def outputs(value: Any) -> list[Tensor]:
    """The floating-point tensors of an output, however nested."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() or value.is_complex() else []
    if isinstance(value, dict):
        value = value.values()
    return [leaf for item in value for leaf in outputs(item)] if isinstance(value, Iterable) else []


def dense(inputs: Inputs) -> Inputs:
    """Sparse inputs as strided leaves, all others as they are."""
    return tuple(
        value.detach().to_dense().requires_grad_(value.requires_grad)
        if isinstance(value, Tensor) and value.layout != torch.strided
        else value
        for value in inputs
    )


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers in one real vector of double precision, zeros of sparse tensors included."""
    strided = [t.detach() if t.layout == torch.strided else t.detach().to_dense() for t in tensors]
    parts = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in strided]
    return torch.cat([part.to(torch.float64).reshape(-1) for part in parts])


def directions(tensors: Sequence[Tensor], seed: int = 1, scale: float = 1.0) -> list[Tensor]:
    """Dense signed directions of about `scale`, the same for tensors of the same shapes."""
    generator = torch.Generator().manual_seed(seed)
    return [scale * _signed(t, generator) for t in tensors]


def _signed(like: Tensor, generator: torch.Generator) -> Tensor:
    def draw() -> Tensor:
        magnitude = 0.5 + torch.rand(like.shape, generator=generator, dtype=torch.float64)
        return magnitude * (2 * torch.randint(0, 2, like.shape, generator=generator) - 1)

    return (torch.complex(draw(), draw()) if like.is_complex() else draw()).to(like.dtype)


def pullback(results: Sequence[Tensor], inputs: Inputs, cotangents: Sequence[Tensor], **options: Any) -> list[Tensor]:
    """Gradients of all live inputs; zero where an output or an input is not connected."""
    sources = live(inputs)
    pairs = [(y, v) for y, v in zip(results, cotangents, strict=True) if y.requires_grad]
    if not pairs:
        return [torch.zeros_like(source) for source in sources]
    ys, vs = zip(*pairs, strict=True)
    return list(torch.autograd.grad(ys, sources, vs, allow_unused=True, materialize_grads=True, **options))


def gradients(function: Function, inputs: Inputs, scale: float = 3.0) -> list[Tensor]:
    """One backward pass with a dense cotangent."""
    results = outputs(function(*inputs))
    return pullback(results, inputs, directions(results, scale=scale))


def pushforward(function: Function, inputs: Inputs, tangents: Sequence[Tensor]) -> list[Tensor]:
    """One pass of forward mode; zero where no tangent arrives."""
    with forward_ad.dual_level():
        feed = iter(tangents)
        duals = [
            forward_ad.make_dual(value.detach(), next(feed))
            if isinstance(value, Tensor) and value.requires_grad
            else value
            for value in inputs
        ]
        pairs = [forward_ad.unpack_dual(y) for y in outputs(function(*duals))]
        return [torch.zeros_like(y) if t is None else t.clone() for y, t in pairs]


def shifted(inputs: Inputs, tangents: Sequence[Tensor], step: float) -> Inputs:
    feed = iter(tangents)
    return tuple(
        (value.detach() + step * next(feed)).requires_grad_()
        if isinstance(value, Tensor) and value.requires_grad
        else value
        for value in inputs
    )


def slope(function: Function, inputs: Inputs, tangents: Sequence[Tensor], step: float) -> Tensor:
    """The directional derivative by central differences, extrapolated once: error O(step^4)."""

    def central(h: float) -> Tensor:
        ahead = flat(outputs(function(*shifted(inputs, tangents, h))))
        behind = flat(outputs(function(*shifted(inputs, tangents, -h))))
        return (ahead - behind) / (2 * h)

    return (4 * central(step / 2) - central(step)) / 3


def one_sided(function: Function, inputs: Inputs, tangents: Sequence[Tensor], step: float) -> tuple[Tensor, Tensor]:
    """The directional derivatives from below and from above, each extrapolated once: error O(step^2)."""
    here = flat(outputs(function(*shifted(inputs, tangents, 0.0))))

    def ahead(h: float) -> Tensor:
        return (flat(outputs(function(*shifted(inputs, tangents, h)))) - here) / h

    return 2 * ahead(-step / 2) - ahead(-step), 2 * ahead(step / 2) - ahead(step)


def axes(sources: list[Tensor]) -> list[list[Tensor]]:
    """The direction of all ones, then the unit directions."""
    axes = [[torch.ones_like(source) for source in sources]]
    for slot, source in enumerate(sources):
        for entry in range(source.numel()):
            axis = [torch.zeros_like(other) for other in sources]
            axis[slot].view(-1)[entry] = 1.0
            axes.append(axis)
    return axes
