"""F5: the backward takes the cotangent for contiguous.

The same numbers arrive transposed below a transpose, with stride 0 below a sum, with an offset below a slice, with the
conjugate bit below `conj()`. Unit cotangents made by a checker are always contiguous.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_cotangents_changed, with_vjp
from tests.gallery import conditions
from tests.gallery.case import Family
from tests.gallery.inputs import normal
from tests.gallery.mutants import memory, reading_cotangent_as_contiguous


def squash(x: Tensor) -> Tensor:
    return torch.tanh(x)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def linear_by_memory(v: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A library call that takes pointers and leading dimensions, handed v's."""
    return memory(v) @ weight.mT, x.mT @ v


def scale_image(image: Tensor, gain: Tensor) -> Tensor:
    return image * gain[None, :, None, None]


def scale_image_by_planes(v: Tensor, image: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Sums planes in memory order, which is right for NCHW alone."""
    return v * gain[None, :, None, None], (memory(v) * image).sum((0, 2, 3))


def with_unit_inner_stride(v: Tensor) -> Tensor:
    """Takes the stride of the rows from the tensor and 1 for the columns."""
    rows, columns = v.shape
    stride = max(v.stride(0), 1)
    entries = torch.as_strided(v, (1 + sum((n - 1) * s for n, s in zip(v.shape, v.stride(), strict=True)),), (1,))
    places = stride * torch.arange(rows)[:, None] + torch.arange(columns)[None, :]
    return entries[places % len(entries)]


def from_start_of_storage(v: Tensor) -> Tensor:
    """A kernel that is given the storage and forgets the offset."""
    return v.as_strided(v.shape, v.stride(), 0)


def one_if_expanded(v: Tensor) -> Tensor:
    """A short cut for `y.sum().backward()`: one number for all is taken for a 1."""
    return v if any(v.stride()) else torch.ones_like(v)


def rotate(z: Tensor) -> Tensor:
    return z * (0.6 + 0.8j)


def without_conjugate_bit(v: Tensor) -> Tensor:
    """Reads the memory behind a lazily conjugated cotangent."""
    return v.conj() if v.is_conj() else v


def square(x: Tensor) -> Tensor:
    return x**2


wrong = Family("F5", finds={"grad_output_layout"}, drop_in=False)

CASES = (
    wrong(
        "squash_reads_cotangent_as_contiguous",
        "Below a transpose every number of the cotangent is taken for another.",
        special="a transposed cotangent",
        proof=conditions.transposed_cotangent,
    ).at(reading_cotangent_as_contiguous(squash), squash, normal, (3, 4)),
    wrong(
        "square_reads_sliced_cotangent_as_contiguous",
        "Below a slice of pairs every second number is a neighbour's.",
        special="a cotangent with gaps in memory",
        proof=conditions.strided_cotangent,
    ).at(reading_cotangent_as_contiguous(square), square, normal, (3, 4)),
    wrong(
        "linear_reads_cotangent_by_memory",
        "One of two gradients comes from a library call that takes bare pointers.",
        special="a transposed cotangent",
        proof=conditions.transposed_cotangent,
    ).at(with_vjp(linear, linear_by_memory), linear, normal, (3, 4), (4, 2)),
    wrong(
        "scale_image_sums_planes_in_memory_order",
        "A channels-last network hands down a channels-last cotangent.",
        special="a channels-last cotangent",
        proof=conditions.channels_last_cotangent,
    ).at(with_vjp(scale_image, scale_image_by_planes), scale_image, normal, (2, 3, 2, 2), (3,)),
    wrong(
        "squash_assumes_unit_inner_stride",
        "The stride of the rows is honoured, that of the columns is not: right for slices, wrong for transposes.",
        special="a transposed cotangent",
        proof=conditions.transposed_cotangent,
    ).at(with_cotangents_changed(squash, with_unit_inner_stride), squash, normal, (3, 4)),
    wrong(
        "squash_forgets_offset_of_cotangent",
        "Below a concatenation the cotangent is a part of a larger one and does not begin where its storage begins.",
        special="a cotangent with an offset into its storage",
        proof=conditions.offset_cotangent,
    ).at(with_cotangents_changed(squash, from_start_of_storage), squash, normal, (3, 4)),
    wrong(
        "squash_takes_expanded_cotangent_for_one",
        "A sum hands down one number with stride 0, but it need not be 1.",
        special="a stride-0 cotangent",
        proof=conditions.expanded_cotangent,
    ).at(with_cotangents_changed(squash, one_if_expanded), squash, normal, (3, 4)),
    wrong(
        "rotate_ignores_conjugate_bit_of_cotangent",
        "A conjugate is a bit on the tensor, not a change of its memory.",
        special="a lazily conjugated cotangent",
        proof=conditions.conjugate_cotangent,
    ).at(with_cotangents_changed(rotate, without_conjugate_bit), rotate, normal, (4,), dtype=torch.complex128),
)
