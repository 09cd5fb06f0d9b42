"""F6: the backward takes an input for contiguous. Some cases are built with one that is not, the others need a copy."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery import conditions
from tests.gallery.case import Family, Inputs
from tests.gallery.inputs import normal
from tests.gallery.mutants import memory


def cube(x: Tensor) -> Tensor:
    return x**3


def cube_by_memory(v: Tensor, x: Tensor) -> Tensor:
    return 3 * v * memory(x) ** 2


def transposed_leaf() -> Inputs:
    (x,) = normal((4, 3))
    return (x.detach().t().requires_grad_(),)


def sliced_leaf() -> Inputs:
    (x,) = normal((6, 3))
    return (x.detach()[2:].requires_grad_(),)


def channels_last_leaf() -> Inputs:
    image, gain = normal((2, 3, 2, 2), (3,))
    return image.detach().contiguous(memory_format=torch.channels_last).requires_grad_(), gain


def row_softmax(x: Tensor, temperature: Tensor) -> Tensor:
    return torch.softmax(x / temperature, -1)


def row_softmax_by_memory(v: Tensor, x: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the temperature reads the logits in memory order."""
    y = torch.softmax(x / temperature, -1)
    g = y * (v - (v * y).sum(-1, keepdim=True))
    return g / temperature, -(g * memory(x)).sum() / temperature**2


def exponential(x: Tensor) -> Tensor:
    return torch.exp(0.5 * x)


def exponential_from_start_of_storage(v: Tensor, x: Tensor) -> Tensor:
    return 0.5 * v * torch.exp(0.5 * x.as_strided(x.shape, x.stride(), 0))


def image_gain(image: Tensor, gain: Tensor) -> Tensor:
    return image * gain[None, :, None, None]


def image_gain_by_planes(v: Tensor, image: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    return v * gain[None, :, None, None], (v * memory(image)).sum((0, 2, 3))


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


def sine_in_strides_of_the_input(v: Tensor, x: Tensor) -> Tensor:
    """Fills the gradient in row order into memory that has the strides of the input."""
    filled = torch.empty_like(x)
    torch.as_strided(filled, (x.numel(),), (1,)).copy_((v * torch.cos(x)).reshape(-1))
    return filled


wrong = Family("F6", finds={"input_layout"}, drop_in=False)

CASES = (
    wrong(
        "cube_reads_transposed_input_as_contiguous",
        "Strides are part of the input: here it is a transpose.",
        finds={"reverse", "input_layout"},
        drop_in=True,
        special="a transposed input",
    ).at(with_vjp(cube, cube_by_memory), cube, transposed_leaf),
    wrong(
        "cube_reads_input_as_contiguous",
        "Right for the input at hand, wrong for its transpose: only a copy in another layout shows it.",
        special="a transposed input",
        proof=conditions.transposed_inputs,
    ).at(with_vjp(cube, cube_by_memory), cube, normal, (3, 4)),
    wrong(
        "row_softmax_reads_logits_by_memory",
        "The gradient of one argument misreads the layout of another.",
        special="a transposed input",
        proof=conditions.transposed_inputs,
    ).at(with_vjp(row_softmax, row_softmax_by_memory), row_softmax, lambda: (*normal((3, 4)), *normal((), seed=4))),
    wrong(
        "exponential_forgets_offset_of_sliced_input",
        "A slice does not begin where its storage begins.",
        finds={"reverse", "input_layout"},
        drop_in=True,
        special="an input with an offset into its storage",
    ).at(with_vjp(exponential, exponential_from_start_of_storage), exponential, sliced_leaf),
    wrong(
        "exponential_forgets_offset",
        "Right for a tensor of its own, wrong for a part of a larger one.",
        special="an input with an offset into its storage",
        proof=conditions.offset_inputs,
    ).at(with_vjp(exponential, exponential_from_start_of_storage), exponential, normal, (4, 3)),
    wrong(
        "image_gain_reads_channels_last_image_by_planes",
        "A channels-last image is not stored plane by plane.",
        finds={"reverse", "input_layout"},
        drop_in=True,
        special="a channels-last input",
    ).at(with_vjp(image_gain, image_gain_by_planes), image_gain, channels_last_leaf),
    wrong(
        "image_gain_reads_image_by_planes",
        "Right for NCHW, wrong once the model is made channels-last.",
        special="a channels-last input",
        proof=conditions.channels_last_inputs,
    ).at(with_vjp(image_gain, image_gain_by_planes), image_gain, normal, (2, 3, 2, 2), (3,)),
    wrong(
        "sine_fills_gradient_in_row_order",
        "The gradient is allocated like the input and filled as if it were contiguous.",
        special="a transposed input",
        proof=conditions.transposed_inputs,
    ).at(with_vjp(sine, sine_in_strides_of_the_input), sine, normal, (3, 4)),
)
