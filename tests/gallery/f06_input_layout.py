"""F6: the backward takes an input for contiguous. Some cases are built with one that is not, the others need a copy."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery import conditions
from tests.gallery.case import Case, Inputs
from tests.gallery.inputs import at, normal
from tests.gallery.mutants import memory, rule

LAYOUTS = frozenset({"layouts"})


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


CASES = (
    Case(
        "cube_reads_transposed_input_as_contiguous",
        "F6",
        at(rule(cube, cube_by_memory), transposed_leaf),
        "Strides are part of the input: here it is a transpose.",
        twin=cube,
        findings=frozenset({"reverse", "layouts"}),
        special="a transposed input",
    ),
    Case(
        "cube_reads_input_as_contiguous",
        "F6",
        at(rule(cube, cube_by_memory), normal, (3, 4)),
        "Right for the input at hand, wrong for its transpose: only a copy in another layout shows it.",
        twin=cube,
        findings=LAYOUTS,
        drop_in=False,
        special="a transposed input",
        witness=conditions.transposed_inputs,
    ),
    Case(
        "row_softmax_reads_logits_by_memory",
        "F6",
        at(rule(row_softmax, row_softmax_by_memory), lambda: (*normal((3, 4)), *normal((), seed=4))),
        "The gradient of one argument misreads the layout of another.",
        twin=row_softmax,
        findings=LAYOUTS,
        drop_in=False,
        special="a transposed input",
        witness=conditions.transposed_inputs,
    ),
    Case(
        "exponential_forgets_offset_of_sliced_input",
        "F6",
        at(rule(exponential, exponential_from_start_of_storage), sliced_leaf),
        "A slice does not begin where its storage begins.",
        twin=exponential,
        findings=frozenset({"reverse", "layouts"}),
        special="an input with an offset into its storage",
    ),
    Case(
        "exponential_forgets_offset",
        "F6",
        at(rule(exponential, exponential_from_start_of_storage), normal, (4, 3)),
        "Right for a tensor of its own, wrong for a part of a larger one.",
        twin=exponential,
        findings=LAYOUTS,
        drop_in=False,
        special="an input with an offset into its storage",
        witness=conditions.offset_inputs,
    ),
    Case(
        "image_gain_reads_channels_last_image_by_planes",
        "F6",
        at(rule(image_gain, image_gain_by_planes), channels_last_leaf),
        "A channels-last image is not stored plane by plane.",
        twin=image_gain,
        findings=frozenset({"reverse", "layouts"}),
        special="a channels-last input",
    ),
    Case(
        "image_gain_reads_image_by_planes",
        "F6",
        at(rule(image_gain, image_gain_by_planes), normal, (2, 3, 2, 2), (3,)),
        "Right for NCHW, wrong once the model is made channels-last.",
        twin=image_gain,
        findings=LAYOUTS,
        drop_in=False,
        special="a channels-last input",
        witness=conditions.channels_last_inputs,
    ),
    Case(
        "sine_fills_gradient_in_row_order",
        "F6",
        at(rule(sine, sine_in_strides_of_the_input), normal, (3, 4)),
        "The gradient is allocated like the input and filled as if it were contiguous.",
        twin=sine,
        findings=LAYOUTS,
        drop_in=False,
        special="a transposed input",
        witness=conditions.transposed_inputs,
    ),
)
