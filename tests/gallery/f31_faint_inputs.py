"""F31: wrong where little is at stake: an input among many, or an entry far below the typical one.

Measured against its own true value each of these gradients is wrong by half or more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_gradients_changed
from tests.gallery import proofs, right_saturated, right_scales
from tests.gallery.case import Family, Function
from tests.gallery.inputs import normal, point
from tests.gallery.mutants import negated, scaled, wrong_where, zeroed

DECADES = torch.logspace(0, -8, 33, dtype=torch.float64)


def weighted_sum(weights: list[float]) -> Function:
    """One input for each weight, all of them added up."""

    def function(*inputs: Tensor) -> Tensor:
        return sum(weight * torch.sin(x) for weight, x in zip(weights, inputs, strict=True))

    return function


def weights(count: int, faint: dict[int, float]) -> list[float]:
    return [faint.get(index, 1.0) for index in range(count)]


ONE_OF_HUNDRED = weighted_sum(weights(100, {80: 1e-6}))
LAST_OF_SEVENTY = weighted_sum(weights(70, {69: 1e-4}))
MANY_FAINT = weighted_sum(weights(90, dict.fromkeys(range(1, 90), 1e-05)))


def lost_but_for_the_first(function: Function) -> Function:
    return with_gradients_changed(function, lambda gradients, _: [gradients[0], *map(torch.zeros_like, gradients[1:])])


def decades(x: Tensor) -> Tensor:
    return (DECADES * torch.exp(0.3 * x)).sum()


def faint_decades(x: Tensor) -> Tensor:
    return DECADES < 1e-4


def rows_of_decades(x: Tensor) -> Tensor:
    """Rows that differ by six orders of magnitude."""
    return torch.logspace(0, -6, len(x), dtype=x.dtype)[:, None] * torch.tanh(x)


def certain_loss(x: Tensor) -> Tensor:
    """The class is almost certain; unlikely classes have probabilities from 1e-3 to 1e-8."""
    logits = x - torch.linspace(0.0, 18.0, x.shape[-1], dtype=x.dtype)
    return torch.logsumexp(logits, -1) - logits[..., 0]


def unlikely(x: Tensor) -> Tensor:
    return (torch.arange(x.shape[-1]) >= 4).expand(x.shape)


COUNTS = [[0.0, 1.0, -2.0, 1.0], [0.0, 2.0, 1.0, -1.0], [-1.0, 0.0, 0.0, 2.0]]
"""Small integers: zeros at a kink, and equal numbers that are not."""


def shifted(x: Tensor, shift: Tensor) -> Tensor:
    return x + shift


def beside_shift(size: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    return point([1.9, 0.34, 0.0093], size, dtype=dtype)


def faint_magnitudes(x: Tensor, y: Tensor) -> Tensor:
    """The magnitudes add a billionth to the value."""
    return torch.tanh(y).sum() + 1e-9 * x.abs().sum()


def beside_steep(x: Tensor, y: Tensor) -> Tensor:
    return x + 1e13 * y


each = Family(
    "F31",
    drop_in=False,
    special="an entry far below the others",
    proof=proofs.by_entry(proofs.reverse),
)

CASES = (
    each(
        "shift_of_1e_14_negated", "Steps of its own size are hidden by roundoff, wider ones are not.", drop_in=True
    ).at(negated(shifted, slot=1), shifted, beside_shift, 1e-14),
    each("tiny_input_of_a_norm_doubled", "Over steps of its own size it changes nothing that can be seen.").of(
        lambda: (scaled(right_scales.length, 2.0, slot=1), right_scales.beside_tiny()), right_scales.length
    ),
    each("input_of_a_faint_output_lost", "No roundoff hides it: its output is another one.").at(
        zeroed(right_scales.beside_faint_output, slot=1), right_scales.beside_faint_output, normal, (3,), (3,)
    ),
    each("input_beside_slopes_of_1e13_lost", "A step of size one changes the outputs by hundreds of spacings.").at(
        zeroed(beside_steep, slot=0), beside_steep, normal, (3,), (3,)
    ),
    each("input_80_of_100_lost", "It contributes a millionth of what the others do, and is never trained.").at(
        zeroed(ONE_OF_HUNDRED, slot=80), ONE_OF_HUNDRED, normal, *[(2,)] * 100
    ),
    each("input_80_of_100_negated", "Of the right size and of the wrong sign.").at(
        negated(ONE_OF_HUNDRED, slot=80), ONE_OF_HUNDRED, normal, *[(2,)] * 100
    ),
    each("last_of_seventy_inputs_halved", "More inputs than are looked at one by one.", drop_in=True).at(
        scaled(LAST_OF_SEVENTY, 0.5, slot=69), LAST_OF_SEVENTY, normal, *[(3,)] * 70
    ),
    each("faint_inputs_lost_beside_one_strong", "Eighty-nine inputs lose their gradient; one carries the value.").at(
        lost_but_for_the_first(MANY_FAINT), MANY_FAINT, normal, *[(2,)] * 90
    ),
    each(
        "faint_entries_lost_over_eight_decades",
        "Within one tensor everything below 1e-4 of the peak is zero.",
        drop_in=True,
    ).at(wrong_where(decades, faint_decades), decades, normal, (33,)),
    each("last_row_of_six_decades_doubled", "The faintest row is doubled.").at(
        wrong_where(rows_of_decades, lambda x: (torch.arange(len(x)) == len(x) - 1)[:, None], 2.0),
        rows_of_decades,
        normal,
        (7, 3),
    ),
    each("unlikely_classes_lost", "Gradients of classes with small probabilities are cut off.", drop_in=True).at(
        wrong_where(certain_loss, unlikely), certain_loss, normal, (2, 10)
    ),
    each("least_certain_row_of_sharp_softmax_halved", "Roundoff hides outputs of the other rows.", drop_in=True).at(
        wrong_where(right_saturated.sharp_softmax, lambda x: (x.amax(-1) == 1.31)[:, None].expand(x.shape), 0.5),
        right_saturated.sharp_softmax,
        point,
        right_saturated.SHARP,
    ),
    each("half_open_gates_of_sharp_sigmoid_lost", "Roundoff hides the open gates, and not these.", drop_in=True).at(
        wrong_where(right_saturated.sharp_sigmoid, lambda x: abs(x) < 0.1),
        right_saturated.sharp_sigmoid,
        point,
        right_saturated.GATES,
    ),
    each(
        "first_row_of_faint_magnitudes_lost",
        "Some counts are zero, at the kink; the others of the first row are not, and their slopes are lost.",
    ).at(
        wrong_where(faint_magnitudes, lambda x: (torch.arange(len(x))[:, None] == 0).expand(x.shape), slot=0),
        faint_magnitudes,
        point,
        COUNTS,
        [0.3, -0.8],
    ),
)
