"""Gradients made wrong on purpose: an operator's sample whose gradient differs from the right one in a known way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from gradvet.frontends.torch.arguments import tensors_of
from gradvet.frontends.torch.random_state import seeded
from tests.differential.samples import Sample


class Fault(Enum):
    """What is done to the gradient of one input."""

    ONE_BY_A_THOUSANDTH = "one entry off by 1e-3"
    ALL_BY_A_THOUSANDTH = "all entries off by 1e-3"
    ONE_ZEROED = "one entry zeroed"
    ONE_BY_A_HUNDREDTH = "one entry off by 1e-2"


@dataclass(frozen=True)
class Place:
    """The entry that is made wrong: the largest of one input's gradient."""

    position: int
    entry: int


def planted(sample: Sample, fault: Fault) -> Sample | None:
    """The sample with that fault in it; None if no input has a gradient that could be wrong."""
    place = _place(sample)
    if place is None:
        return None

    class Spoiled(torch.autograd.Function):
        """The identity, with a spoiled gradient."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
            return spoil(cotangents[0], fault, place.entry)

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
            return tangents[0].view_as(tangents[0])

    def function(*inputs: Tensor) -> Any:
        changed: list[Any] = list(inputs)
        changed[place.position] = Spoiled.apply(inputs[place.position])  # type: ignore[no-untyped-call]
        return sample.function(*changed)

    return replace(sample, function=function)


def spoil(gradient: Tensor, fault: Fault, entry: int) -> Tensor:
    """A copy of the gradient with the fault in it."""
    spoiled = gradient.clone(memory_format=torch.contiguous_format)
    flat: Tensor = spoiled.view(-1)
    if fault is Fault.ALL_BY_A_THOUSANDTH:
        flat *= 1.001
    else:
        flat[entry] *= {Fault.ONE_BY_A_THOUSANDTH: 1.001, Fault.ONE_BY_A_HUNDREDTH: 1.01, Fault.ONE_ZEROED: 0.0}[fault]
    return spoiled


def _place(sample: Sample) -> Place | None:
    """A typical entry: the one in the middle of those that are not zero, ordered by size."""
    with seeded(0):
        outputs = _tensors(sample.function(*sample.inputs))
        live = [output for output in outputs if output.requires_grad]
        if not live:
            return None
        cotangents = [torch.randn_like(output) for output in live]
        gradients = torch.autograd.grad(live, sample.inputs, cotangents, allow_unused=True)
    for position, gradient in enumerate(gradients):
        if gradient is None or gradient.layout is not torch.strided or not gradient.numel():
            continue
        size = gradient.abs().reshape(-1)
        if not bool(torch.isfinite(size).all()) or float(size.max()) == 0.0:
            continue
        known = torch.nonzero(size > 1e-3 * size.max()).reshape(-1)
        order = torch.argsort(size[known])
        return Place(position, int(known[order[len(order) // 2]]))
    return None


def _tensors(result: Any) -> list[Tensor]:
    return tensors_of(result)
