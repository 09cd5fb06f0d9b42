"""F32: right in most passes and wrong in one of twenty or of a hundred, like a race that is seldom lost.

A counter decides, so that every run of the gallery sees the same passes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
from torch import Tensor

from tests.functions import Gradients, with_gradients_changed
from tests.gallery import conditions
from tests.gallery.case import Family, Function
from tests.gallery.inputs import normal

Loss = Callable[[Tensor], Tensor]


def seldom(function: Function, period: int, lose: Loss) -> Function:
    """The gradients of every `period`-th backward pass go through `lose`."""
    passes = count(1)

    def change(gradients: Gradients, _: object) -> Gradients:
        if next(passes) % period:
            return gradients
        return [None if gradient is None else lose(gradient) for gradient in gradients]

    return with_gradients_changed(function, change)


def reversed_order(gradient: Tensor) -> Tensor:
    """The entries in the order of another thread."""
    return gradient.flip(0)


def nothing(gradient: Tensor) -> Tensor:
    return torch.zeros_like(gradient)


def halved(gradient: Tensor) -> Tensor:
    return 0.5 * gradient


def without_last(gradient: Tensor) -> Tensor:
    """One update is lost."""
    kept = gradient.clone()
    kept[-1] = 0.0
    return kept


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


def energy(x: Tensor) -> Tensor:
    return (torch.sin(x) ** 2).sum()


def mixed(x: Tensor) -> Tensor:
    return torch.tanh(x + 0.5 * x.roll(1))


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


wrong = Family(
    "F32",
    finds={"determinism", "reverse", "linearity", "reentrancy"},
    special="one backward pass of twenty",
    proof=conditions.passes(20),
)
rare = Family(
    "F32",
    finds={"determinism", "reverse", "linearity", "reentrancy"},
    special="one backward pass of a hundred",
    proof=conditions.passes(100),
)

CASES = (
    wrong("mixed_lost_in_one_pass_of_20", "A check of every entry makes enough passes to see one of twenty.").of(
        lambda: (seldom(mixed, 20, nothing), normal((24,))), mixed
    ),
    wrong("sine_halved_in_one_pass_of_20", "A check of five entries makes too few passes.", drop_in=False).of(
        lambda: (seldom(sine, 20, halved), normal((5,))), sine
    ),
    wrong(
        "energy_without_last_in_one_pass_of_20",
        "A check of a scalar loss has one or two backward passes.",
        drop_in=False,
    ).of(lambda: (seldom(energy, 20, without_last), normal((6,))), energy),
    rare("mixed_halved_in_one_pass_of_100", "A check of every one of sixty entries makes a hundred passes.").of(
        lambda: (seldom(mixed, 100, halved), normal((60,))), mixed
    ),
    rare("linear_lost_in_one_pass_of_100", "Twelve outputs do not lead to a hundred passes.", drop_in=False).of(
        lambda: (seldom(linear, 100, nothing), normal((4, 5), (5, 3))), linear
    ),
    wrong("sine_in_reversed_order_in_one_pass_of_20", "Right numbers in wrong places now and then.", drop_in=False).of(
        lambda: (seldom(sine, 20, reversed_order), normal((5,))), sine
    ),
)
