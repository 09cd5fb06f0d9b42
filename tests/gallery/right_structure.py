"""Right functions of every form: views, writes in place, containers, integers, unused inputs, edges of shape."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery import proofs
from tests.gallery.case import Inputs, right
from tests.gallery.inputs import at, indices, normal

PICKED = indices([2, 0, 2, 1])


def written_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.mul_(2).sin_()
    y[1:] += x[:-1] ** 2
    return y


def written_through_view(x: Tensor) -> Tensor:
    y = x * 1.0
    y.t()[0].copy_(torch.sin(x[:, 0]))
    return y


def written_row_by_row(x: Tensor) -> Tensor:
    table = torch.zeros(3, x.shape[0], dtype=x.dtype)
    for row in range(3):
        table[row] = x ** (row + 1)
    return table


def diagonal_and_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.diagonal(x), x.t()


def windows(x: Tensor) -> Tensor:
    return x.unfold(0, 3, 1).pow(2).sum(-1)


def strided_windows(x: Tensor) -> Tensor:
    return (x * 1.0).as_strided((3, 2), (1, 2)).sin()


def expanded_inside(x: Tensor) -> Tensor:
    return (x[:, None].expand(-1, 4) * torch.arange(4)).cos()


def with_dictionary(x: Tensor) -> dict[str, Tensor]:
    return {"sine": torch.sin(x), "square": x**2}


def with_nothing(x: Tensor) -> tuple[Tensor, None]:
    return torch.sin(x), None


def with_list(x: Tensor) -> list[Tensor]:
    return [torch.sin(x), x.sum(), x[:1]]


def with_indices_after(x: Tensor) -> tuple[Tensor, Tensor]:
    best = (x**2).max(-1)
    return best.values, best.indices


def with_indices_before(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.argsort(x.detach()), torch.sin(x)


def with_constant_before(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ones(3, dtype=x.dtype), torch.sin(x)


def with_options(x: Tensor, power: int, flip: bool, nothing: None, table: Tensor) -> Tensor:
    y = x**power * table
    return y.flip(0) if flip else y


def ignoring_second(x: Tensor, y: Tensor) -> Tensor:
    return torch.sin(x)


def constant(x: Tensor) -> Tensor:
    return torch.zeros(2, dtype=x.dtype) + 0 * x.sum()


def transposed_leaf() -> Inputs:
    return (normal((3, 4))[0].detach().t().requires_grad_(),)


def sliced_leaf() -> Inputs:
    return (normal((8,))[0].detach()[1::2].requires_grad_(),)


def channels_last_leaf() -> Inputs:
    return (normal((1, 2, 3, 2))[0].detach().contiguous(memory_format=torch.channels_last).requires_grad_(),)


def expanded_leaf() -> Inputs:
    return (normal((3, 1))[0].detach().expand(3, 2).requires_grad_(),)


def same_leaf_twice() -> Inputs:
    (x,) = normal((3,))
    return x, x


def with_passengers() -> Inputs:
    (x,) = normal((3,))
    return x, 2, True, None, torch.tensor([1, 2, 3])


def product(a: Tensor, b: Tensor) -> Tensor:
    return a * torch.sin(b)


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


CASES = (
    right("in_place_on_a_clone", "Writes in place that autograd follows.", at(written_in_place, normal, (4,)), order=2),
    right(
        "in_place_through_a_view", "A write to a view is a write to its base.", at(written_through_view, normal, (3, 2))
    ),
    right("in_place_row_by_row", "A table filled in a loop.", at(written_row_by_row, normal, (3,))),
    right("views_as_outputs", "Two views of one input.", at(diagonal_and_transpose, normal, (3, 4))),
    right("overlapping_windows", "One entry in three windows.", at(windows, normal, (6,)), order=2),
    right("overlapping_strides", "Overlapping memory inside the function.", at(strided_windows, normal, (5,))),
    right("expanded_inside", "A stride of 0 on the way.", at(expanded_inside, normal, (3,)), order=2),
    right(
        "dictionary_of_outputs",
        "Outputs by name.",
        at(with_dictionary, normal, (3,)),
        beyond=True,
        proof=proofs.differences(1e-3),
    ),
    right(
        "none_among_outputs",
        "An output that is not there.",
        at(with_nothing, normal, (3,)),
        beyond=True,
        proof=proofs.differences(1e-3),
    ),
    right("list_of_outputs", "Outputs of three shapes.", at(with_list, normal, (3,))),
    right("integer_output_after", "Indices beside values.", at(with_indices_after, normal, (2, 4))),
    right(
        "integer_output_before",
        "Indices in front of values.",
        at(with_indices_before, normal, (4,)),
        beyond=True,
        proof=proofs.differences(1e-3),
    ),
    right(
        "constant_output_before",
        "An output without a graph that does not vary.",
        at(with_constant_before, normal, (3,)),
    ),
    right(
        "other_arguments",
        "A number, a flag, None and an integer tensor pass through.",
        at(with_options, with_passengers),
    ),
    right("unused_input", "A missing gradient is zero.", at(ignoring_second, normal, (3,), (2,)), order=2),
    right("constant_function", "Zero everywhere.", at(constant, normal, (3,)), order=2),
    right("identity", "The output is the input itself.", at(lambda x: x, normal, (3,))),
    right("same_input_twice", "Both slots are one tensor.", at(product, same_leaf_twice)),
    right("transposed_input", "A leaf that is not contiguous.", at(torch.sin, transposed_leaf), order=2),
    right("sliced_input", "A leaf with gaps and an offset.", at(torch.sin, sliced_leaf), order=2),
    right("channels_last_input", "A leaf with permuted memory.", at(torch.sin, channels_last_leaf)),
    right(
        "expanded_input",
        "Entries that share their memory; torch refuses them.",
        at(torch.sin, expanded_leaf),
        reference=lambda x: torch.sin(x.clone()),
        drop_in=False,
    ),
    right("empty_input", "Nothing to differentiate.", at(torch.sin, normal, (0, 3))),
    right(
        "empty_beside_full",
        "One input without entries.",
        at(lambda x, y: torch.sin(x).sum() + y**2, normal, (0,), (3,)),
    ),
    right("scalar_input", "A tensor without axes.", at(torch.sin, normal, ()), order=2),
    right("size_one_axes", "Broadcasting from (1, 3) and (2, 1).", at(torch.mul, normal, (1, 3), (2, 1)), order=2),
    right(
        "gather_with_repeats", "A row that is read twice.", at(lambda x: torch.sin(x)[PICKED], normal, (3, 2)), order=2
    ),
    right(
        "scatter_add",
        "Two rows that meet.",
        at(lambda x: torch.zeros(3, dtype=x.dtype).index_add(0, PICKED, x**2), normal, (4,)),
        order=2,
    ),
    right(
        "einstein_sum",
        "Three operands.",
        at(lambda a, b, c: torch.einsum("ij,jk,k->i", a, b, c), normal, (2, 3), (3, 4), (4,)),
        order=2,
    ),
    right(
        "convolution",
        "Strided and dilated.",
        at(
            lambda x, w: torch.nn.functional.conv1d(x, w, stride=2, dilation=2, padding=1), normal, (1, 2, 9), (2, 2, 3)
        ),
    ),
    right(
        "interpolation",
        "Linear, corners aligned.",
        at(lambda x: torch.nn.functional.interpolate(x, size=7, mode="linear", align_corners=True), normal, (1, 1, 4)),
        order=2,
    ),
    right("causal_attention", "A masked softmax.", at(attention, normal, (1, 1, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2))),
    right("cumulative_product", "A scan.", at(lambda x: torch.cumprod(x, 0), normal, (5,)), order=2),
)
