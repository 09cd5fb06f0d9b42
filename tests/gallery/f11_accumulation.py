"""F11: repeated indices, races, gradients that are counted too often or not often enough."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery import conditions
from tests.gallery.case import Family, Function
from tests.gallery.inputs import indices, normal, uniform

TOKENS = indices([2, 0, 2, 1, 2])
SOURCE = indices([0, 1, 2, 0, 3, 1])
TARGET = indices([1, 1, 0, 2, 2, 0])
SEGMENTS = indices([0, 0, 1, 1, 1])


def embedding(table: Tensor) -> Tensor:
    return torch.sin(table)[TOKENS]


def embedding_overwritten(v: Tensor, table: Tensor) -> Tensor:
    gradient = torch.zeros_like(table)
    gradient[TOKENS] = v
    return gradient * torch.cos(table)


def scattered(x: Tensor) -> Tensor:
    return torch.zeros(3, dtype=x.dtype).index_add(0, TOKENS, x**2)


def scattered_counted_twice(v: Tensor, x: Tensor) -> Tensor:
    """Multiplies by the number of writers, although each of them is a term of its own."""
    return 2 * x * v[TOKENS] * torch.bincount(TOKENS)[TOKENS]


def messages(nodes: Tensor) -> Tensor:
    """Each edge carries its source to its target."""
    return torch.zeros_like(nodes).index_add(0, TARGET, torch.tanh(nodes[SOURCE]))


def messages_overwritten(v: Tensor, nodes: Tensor) -> Tensor:
    gradient = torch.zeros_like(nodes)
    gradient[SOURCE] = v[TARGET] * (1 - torch.tanh(nodes[SOURCE]) ** 2)
    return gradient


def sampled(signal: Tensor, position: Tensor) -> Tensor:
    """Linear interpolation of a signal at fractional positions."""
    left = position.detach().floor().long()
    weight = position - left
    return signal[left] * (1 - weight) + signal[left + 1] * weight


def sampled_overwritten(v: Tensor, signal: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """The second corner overwrites what the first one left."""
    left = position.floor().long()
    weight = position - left
    gradient = torch.zeros_like(signal)
    gradient.index_add_(0, left, v * (1 - weight))
    gradient[left + 1] = v * weight
    return gradient, v * (signal[left + 1] - signal[left])


def segment_mean(x: Tensor) -> Tensor:
    counts = torch.bincount(SEGMENTS)
    return torch.zeros(2, dtype=x.dtype).index_add(0, SEGMENTS, torch.exp(x)) / counts


def segment_mean_divided_twice(v: Tensor, x: Tensor) -> Tensor:
    counts = torch.bincount(SEGMENTS)
    return torch.exp(x) * (v / counts)[SEGMENTS] / counts[SEGMENTS]


def overlapping_maximum(x: Tensor) -> Tensor:
    return x.unfold(0, 3, 1).amax(-1)


def overlapping_maximum_overwritten(v: Tensor, x: Tensor) -> Tensor:
    """Where windows overlap, one entry can win several of them."""
    winners = x.unfold(0, 3, 1).argmax(-1) + torch.arange(len(x) - 2)
    gradient = torch.zeros_like(x)
    gradient[winners] = v
    return gradient


def tied_weights(x: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh(x @ weight) @ weight.mT


def tied_weights_of_decoder(v: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The weight is used twice; only its last use is counted."""
    hidden = torch.tanh(x @ weight)
    inner = (v @ weight) * (1 - hidden**2)
    return inner @ weight.mT, v.mT @ hidden


def racing(forward: Function) -> Function:
    """Every second backward loses the update of the last entry, as two threads would that add without a lock."""
    runs = [0]

    def backward(v: Tensor, x: Tensor) -> Tensor:
        runs[0] += 1
        gradient = v * torch.cos(x)
        return torch.cat([gradient[:-1], gradient[-1:] * (runs[0] % 2)])

    return with_vjp(forward, backward)


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


class WritesGrad(torch.autograd.Function):
    """Writes the leaf's `.grad` itself and returns the gradient, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.leaf = x
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient = v * torch.cos(x)
        if ctx.leaf.grad is not None:
            ctx.leaf.grad.add_(gradient.detach())
        return gradient


def upsampled(x: Tensor) -> Tensor:
    return (x**2).repeat_interleave(2)


def upsampled_from_last(v: Tensor, x: Tensor) -> Tensor:
    return 2 * x * v[1::2]


wrong = Family("F11")

CASES = (
    wrong("embedding_overwritten", "A token that occurs three times must collect three gradients.").at(
        with_vjp(embedding, embedding_overwritten), embedding, normal, (4, 2)
    ),
    wrong("scattered_counted_twice", "The number of writers has no place in the adjoint of a scatter.").at(
        with_vjp(scattered, scattered_counted_twice), scattered, normal, (5,)
    ),
    wrong("messages_overwritten", "A node that sends along two edges keeps the gradient of one.").at(
        with_vjp(messages, messages_overwritten), messages, normal, (4, 2)
    ),
    wrong("sampled_overwritten", "Samples share their corners.").at(
        with_vjp(sampled, sampled_overwritten), sampled, lambda: (*normal((5,)), *uniform(0.2, 3.8, (6,)))
    ),
    wrong("segment_mean_divided_twice", "The size of the segment is divided by in the helper and at the call.").at(
        with_vjp(segment_mean, segment_mean_divided_twice), segment_mean, normal, (5,)
    ),
    wrong("overlapping_maximum_overwritten", "One entry can be the maximum of several overlapping windows.").at(
        with_vjp(overlapping_maximum, overlapping_maximum_overwritten), overlapping_maximum, normal, (9,)
    ),
    wrong("tied_weights_of_decoder", "A weight that is used twice has a gradient of two terms.").at(
        with_vjp(tied_weights, tied_weights_of_decoder), tied_weights, normal, (2, 4), (4, 3)
    ),
    wrong(
        "sine_with_race",
        "An update that is lost now and then gives another gradient at every run.",
        finds={"determinism", "reverse", "reentrancy"},
        special="every second backward",
        proof=conditions.second_backward,
    ).of(lambda: (racing(sine), normal((5,))), sine),
    wrong(
        "sine_writes_grad_itself",
        "With a gradient already there, the new one arrives twice.",
        finds={"accumulation"},
        drop_in=False,
        special="an existing .grad",
        proof=conditions.accumulated,
    ).at(WritesGrad.apply, sine, normal, (5,)),
    wrong("upsampled_from_last", "Two copies of an entry send back two gradients; the last one wins here.").at(
        with_vjp(upsampled, upsampled_from_last), upsampled, normal, (4,)
    ),
)
