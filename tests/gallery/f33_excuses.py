"""F33: a wrong gradient in a function of a kind whose errors a checker may excuse.

Saturated, next to the edge of a domain, under autocast, in training, approximate on purpose and so on: each case is a
right function of the gallery whose input goes through an identity with a wrong backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.functions import with_vjp
from tests.gallery import proofs, right_autocast, right_random, right_saturated, right_training
from tests.gallery.case import NOT_CLASSICAL, Case, Family, Function, Inputs
from tests.gallery.inputs import point

Change = Callable[[Tensor], Tensor]


class Behind(nn.Module):
    """A function or module whose first input goes through an identity with a wrong backward pass."""

    def __init__(self, function: Function, change: Change) -> None:
        super().__init__()
        self.function, self.identity = function, with_vjp(torch.clone, lambda v, x: change(v))

    def forward(self, x: Tensor, *others: Any) -> Any:
        return self.function(self.identity(x), *others)


def halved(g: Tensor) -> Tensor:
    return 0.5 * g


def too_large(g: Tensor) -> Tensor:
    return 1.1 * g


def negated(g: Tensor) -> Tensor:
    return -g


def without_last(g: Tensor) -> Tensor:
    """The last element, or row, gets nothing."""
    return torch.cat([g[:-1], torch.zeros_like(g[-1:])])


def reversed_order(g: Tensor) -> Tensor:
    return g.flip(0)


def coupled(x: Tensor) -> Tensor:
    """Softplus of each element, and a gradient that adds all of them to each."""
    return F.softplus(x) + with_vjp(lambda x: 0.0 * x.sum(), lambda v, x: (0.3 * v).expand(x.shape))(x)


def seeded(function: Function) -> Function:
    """The same draws at every call."""

    def drawn(*inputs: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return function(*inputs)

    return drawn


RIGHT = {
    case.name: case
    for cases in (right_autocast.CASES, right_random.CASES, right_saturated.CASES, right_training.CASES)
    for case in cases
}

wrong = Family("F33")


STEPS = {"next_to": 1e-10, "of_2000": 1e-9}
"""Steps of the differences that prove a reference next to an edge and among close neighbours, by a part of the name."""

REFUSED = ("reentrant", "expanded")
"""Parts of names of functions that the classical check refuses to call."""


def spoiled(name: str, change: Change, why: str) -> Case:
    """The right case of this name behind a wrong identity."""
    case = RIGHT[name]
    is_drawn = case in right_training.CASES[:3]
    proof = proofs.precision if is_drawn else case.proof

    def build() -> tuple[Function, Inputs]:
        function, inputs = case.build()
        return Behind(seeded(function) if is_drawn else function, change), inputs

    def reference(*inputs: Any) -> Any:
        function = case.reference or case.build()[0]
        return seeded(function)(*inputs) if is_drawn else function(*inputs)

    facts = {"dtype": case.dtype, "proof": proof, "resolution": case.resolution, "accuracy": case.accuracy}
    facts["step"] = next((step for part, step in STEPS.items() if part in name), 1e-4)
    if case.dtype is not torch.float64 or any(part in name for part in REFUSED):
        facts |= {"drop_in": False, "special": NOT_CLASSICAL}
    return wrong(f"{name}_{change.__name__}", why, **facts).of(build, reference)


def each(change: Change, why: str, names: str) -> Sequence[Case]:
    return [spoiled(name, change, why) for name in names.split()]


CASES = (
    wrong(
        "softplus_at_minus_forty_coupled",
        "Values of 1e-20 suggest steps so small that rounding takes them away, and then nothing changes.",
    ).at(coupled, F.softplus, point, [-45.0, -38.0]),
    *each(
        without_last,
        "The last entry is not saturated, and gets no gradient.",
        "gelu_from_minus_nine_to_minus_five cross_entropy_of_two_certain_and_one_uncertain tanh_at_twenty",
    ),
    *each(halved, "The steep entries next to the edge show it.", "asin_next_to_one half_circle_next_to_its_end"),
    *each(negated, "The steep entries next to the edge show it.", "acos_next_to_one"),
    *each(
        too_large,
        "A tenth is more than bfloat16 inside explains.",
        "product_under_autocast network_with_one_layer_under_autocast model_under_autocast",
    ),
    *each(
        too_large,
        "A tenth is more than float32 inside explains.",
        "sine_in_float32_inside softmax_in_float32_inside energy_in_float32_inside",
    ),
    *each(halved, "Shared memory explains no factor.", "sine_of_overlapping_windows log_total_of_expanded_rows"),
    *each(without_last, "Shared memory explains no lost patch.", "correlation_of_overlapping_patches"),
    *each(
        too_large,
        "Ten thousand times the accuracy that the author asks for.",
        "solver_stopped_at_1e_6 fixed_point_stopped_at_1e_6 inverse_root_by_newton",
    ),
    *each(
        without_last,
        "The draws do not explain a row without gradient.",
        "conv_norm_dropout_in_training image_block_in_training mlp_with_dropout_in_training",
    ),
    *each(
        too_large,
        "The frozen model is right.",
        "frozen_bfloat16_model adapter_beside_frozen_bfloat16_layer softmax_of_frozen_bfloat16_layer",
    ),
    *each(
        without_last,
        "The buffers are right.",
        "fourier_features standardised_by_buffers blurred_by_buffer",
    ),
    *each(halved, "Most slopes are 0 or 1, and none is a half.", "gelu_of_wide_inputs gelu_of_wide_inputs_in_float32"),
    *each(negated, "Most slopes are 0 or 1, and none is -1.", "gelu_of_hundreds"),
    *each(
        too_large,
        "The second forward pass inside the backward pass is right.",
        "reentrant_checkpoint reentrant_checkpoint_of_two_inputs chain_of_reentrant_checkpoints",
    ),
    *each(
        reversed_order,
        "The permutation is lost.",
        "sort_of_2000_even_numbers sort_of_2000_random_numbers largest_gaps_of_2000_random_numbers",
    ),
)
