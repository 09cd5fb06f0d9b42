"""F23: a gradient that does not arrive: None, zeros, a cut graph, or only when another input is frozen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.gallery import conditions
from tests.gallery.case import Family
from tests.gallery.inputs import normal, uniform
from tests.gallery.mutants import missing, zeroed


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight + bias


class LinearBase(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias)


class WeightNeedsInput(LinearBase):
    """Returns early if the input needs no gradient, although the weight may need one."""

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if not ctx.needs_input_grad[0]:
            return None, None, v.sum(0)
        return v @ weight.mT, x.mT @ v, v.sum(0)


class AllOrNothing(LinearBase):
    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if not all(ctx.needs_input_grad):
            return None, None, None
        return v @ weight.mT, x.mT @ v, v.sum(0)


class WrongFlag(LinearBase):
    """Asks whether the bias needs a gradient where it means the weight."""

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return v @ weight.mT, x.mT @ v if ctx.needs_input_grad[2] else None, v.sum(0)


class ScaledByCount(LinearBase):
    """Shares the gradient among the inputs that need one."""

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        share = sum(ctx.needs_input_grad) / 3
        return share * v @ weight.mT, share * x.mT @ v, share * v.sum(0)


def weighted(x: Tensor, scale: Tensor) -> Tensor:
    return torch.sin(x) * scale


def square_with_data(x: Tensor) -> Tensor:
    return x * x.data


def square(x: Tensor) -> Tensor:
    return x * x


def normalised_by_number(x: Tensor) -> Tensor:
    """The mean becomes a Python number on its way."""
    return x / float(x.detach().mean())


def normalised(x: Tensor) -> Tensor:
    return x / x.mean()


def through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy() ** 2)


def residual_without_graph(x: Tensor) -> Tensor:
    with torch.no_grad():
        branch = torch.tanh(x)
    return x + branch


def residual(x: Tensor) -> Tensor:
    return x + torch.tanh(x)


def rewrapped(x: Tensor) -> Tensor:
    return x.sum() + torch.tensor([value**2 for value in x.tolist()], dtype=x.dtype)


def sum_and_square(x: Tensor) -> Tensor:
    return x.sum() + x**2


def value_and_detached(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sin(x), torch.cos(x).detach()


def value_and_second(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sin(x), torch.cos(x)


class MarksSecondOutput(torch.autograd.Function):
    """Declares an output that varies as not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        first, second = value_and_second(x)
        ctx.mark_non_differentiable(second)
        return first, second

    @staticmethod
    def backward(ctx: Any, v: Tensor, _: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return v * torch.cos(x)


wrong = Family("F23")
by_frozen = Family("F23", finds={"partial_requires_grad"}, drop_in=False)

CASES = (
    wrong("linear_bias_gets_none", "None means zero, and a bias that is never trained.").at(
        missing(linear, 2), linear, normal, (3, 4), (4, 2), (2,)
    ),
    wrong("weighted_scale_gets_zeros", "Zeros are returned in place of a gradient that is not implemented.").at(
        zeroed(weighted, 1), weighted, normal, (4,), (4,)
    ),
    by_frozen(
        "linear_weight_needs_input",
        "A first layer's input needs no gradient; its weight does.",
        special="the input is frozen",
        proof=conditions.frozen(0),
    ).at(WeightNeedsInput.apply, linear, normal, (3, 4), (4, 2), (2,)),
    by_frozen(
        "linear_all_or_nothing",
        "A frozen bias stops the gradient of everything else.",
        special="an input is frozen",
        proof=conditions.frozen(2),
    ).at(AllOrNothing.apply, linear, normal, (3, 4), (4, 2), (2,)),
    by_frozen(
        "linear_asks_wrong_flag",
        "An index off by one asks about another argument.",
        special="the bias is frozen",
        proof=conditions.frozen(2),
    ).at(WrongFlag.apply, linear, normal, (3, 4), (4, 2), (2,)),
    by_frozen(
        "linear_shares_gradient",
        "A gradient must not depend on who else wants one.",
        special="an input is frozen",
        proof=conditions.frozen(0),
    ).at(ScaledByCount.apply, linear, normal, (3, 4), (4, 2), (2,)),
    wrong("square_with_data", "`.data` cuts one of two factors from the graph.").at(
        square_with_data, square, normal, (4,)
    ),
    wrong("normalised_by_python_number", "A number has no graph.").at(
        normalised_by_number, normalised, uniform, 0.5, 2.0, (4,)
    ),
    wrong("square_through_numpy", "The whole output is cut off although it varies.", finds={"reverse", "metadata"}).at(
        through_numpy, square, normal, (4,)
    ),
    wrong(
        "residual_branch_without_graph", "A branch under no_grad contributes to the value and not to the gradient."
    ).at(residual_without_graph, residual, normal, (4,)),
    wrong("rewrapped_tensor", "torch.tensor(list) begins a new graph.").at(rewrapped, sum_and_square, normal, (4,)),
    wrong(
        "detached_second_output",
        "An output without a graph has a derivative all the same; beside an output with a graph it is overlooked.",
        drop_in=False,
        special="an output without a graph beside one with it",
    ).at(value_and_detached, value_and_second, normal, (4,)),
    wrong(
        "second_output_marked_constant",
        "To declare an output not differentiable does not make it constant.",
        drop_in=False,
        special="an output without a graph beside one with it",
    ).at(MarksSecondOutput.apply, value_and_second, normal, (4,)),
)
