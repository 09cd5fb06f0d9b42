"""F23: a gradient that does not arrive: None, zeros, a cut graph, or only when another input is frozen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.gallery import conditions
from tests.gallery.case import Case
from tests.gallery.inputs import at, normal, uniform
from tests.gallery.mutants import missing, zeroed

FROZEN = frozenset({"frozen"})


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight + bias


class LinearBase(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias)


class WeightNeedsInput(LinearBase):
    """Leaves early when the input needs no gradient, as if nobody else did."""

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


CASES = (
    Case(
        "linear_bias_gets_none",
        "F23",
        at(missing(linear, 2), normal, (3, 4), (4, 2), (2,)),
        "None means zero, and a bias that is never trained.",
        twin=linear,
    ),
    Case(
        "weighted_scale_gets_zeros",
        "F23",
        at(zeroed(weighted, 1), normal, (4,), (4,)),
        "Zeros stand in for a gradient that nobody wrote.",
        twin=weighted,
    ),
    Case(
        "linear_weight_needs_input",
        "F23",
        at(WeightNeedsInput.apply, normal, (3, 4), (4, 2), (2,)),
        "A first layer's input needs no gradient; its weight does.",
        twin=linear,
        findings=FROZEN,
        drop_in=False,
        special="the input is frozen",
        witness=conditions.frozen(0),
    ),
    Case(
        "linear_all_or_nothing",
        "F23",
        at(AllOrNothing.apply, normal, (3, 4), (4, 2), (2,)),
        "A frozen bias stops the gradient of everything else.",
        twin=linear,
        findings=FROZEN,
        drop_in=False,
        special="an input is frozen",
        witness=conditions.frozen(2),
    ),
    Case(
        "linear_asks_wrong_flag",
        "F23",
        at(WrongFlag.apply, normal, (3, 4), (4, 2), (2,)),
        "An index off by one asks about another argument.",
        twin=linear,
        findings=FROZEN,
        drop_in=False,
        special="the bias is frozen",
        witness=conditions.frozen(2),
    ),
    Case(
        "linear_shares_gradient",
        "F23",
        at(ScaledByCount.apply, normal, (3, 4), (4, 2), (2,)),
        "A gradient must not depend on who else wants one.",
        twin=linear,
        findings=FROZEN,
        drop_in=False,
        special="an input is frozen",
        witness=conditions.frozen(0),
    ),
    Case(
        "square_with_data",
        "F23",
        at(square_with_data, normal, (4,)),
        "`.data` cuts one of two factors from the graph.",
        twin=square,
    ),
    Case(
        "normalised_by_python_number",
        "F23",
        at(normalised_by_number, uniform, 0.5, 2.0, (4,)),
        "A number has no graph.",
        twin=normalised,
    ),
    Case(
        "square_through_numpy",
        "F23",
        at(through_numpy, normal, (4,)),
        "The whole output is cut off although it varies.",
        twin=square,
        findings=frozenset({"reverse", "metadata"}),
    ),
    Case(
        "residual_branch_without_graph",
        "F23",
        at(residual_without_graph, normal, (4,)),
        "A branch under no_grad contributes to the value and not to the gradient.",
        twin=residual,
    ),
    Case(
        "rewrapped_tensor",
        "F23",
        at(rewrapped, normal, (4,)),
        "torch.tensor(list) begins a new graph.",
        twin=sum_and_square,
    ),
    Case(
        "detached_second_output",
        "F23",
        at(value_and_detached, normal, (4,)),
        "An output without a graph has a derivative all the same; beside another one nobody looks.",
        twin=value_and_second,
        drop_in=False,
        special="an output without a graph beside one with it",
    ),
    Case(
        "second_output_marked_constant",
        "F23",
        at(MarksSecondOutput.apply, normal, (4,)),
        "To declare an output not differentiable does not make it constant.",
        twin=value_and_second,
        drop_in=False,
        special="an output without a graph beside one with it",
    ),
)
