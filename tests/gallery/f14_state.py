"""F14: state that outlives a call: workspaces, caches, running statistics, a path for each grad mode."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery import conditions
from tests.gallery.case import Family, Function
from tests.gallery.inputs import normal
from tests.gallery.mutants_of_state import with_stale_inputs, with_workspace


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


def sine_and_double(x: Tensor) -> Tensor:
    return torch.sin(x) + torch.sin(2 * x)


def with_workspace_used_twice() -> Function:
    once = with_workspace(sine)
    return lambda x: once(x) + once(2 * x)


def with_fast_path(x: Tensor) -> Tensor:
    """Without grad mode a shorter series stands for the sine."""
    return torch.sin(x) if torch.is_grad_enabled() else x - x**3 / 6


def with_running_mean() -> Function:
    """Subtracts a running mean that every call moves."""
    running = torch.zeros((), dtype=torch.float64)

    def centred(x: Tensor) -> Tensor:
        running.mul_(0.9).add_(0.1 * x.detach().mean())
        return (x - running) ** 2

    return centred


def around_zero(x: Tensor) -> Tensor:
    """What the running mean gives at its first call."""
    return (x - 0.1 * x.mean()) ** 2


class AddingUp(torch.nn.Module):
    """Keeps the sum of all gradients, and returns it as the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.total: Tensor | float = 0.0

    def add(self, gradient: Tensor) -> Tensor:
        self.total = self.total + gradient
        return self.total

    def forward(self, x: Tensor) -> Tensor:
        return with_vjp(sine, lambda v, x: self.add(v * torch.cos(x)))(x)  # type: ignore[no-any-return]


class LastKept(torch.nn.Module):
    """Differentiates at the last input that it has seen."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.detach()
        return with_vjp(sine, lambda v, x: v * torch.cos(self.seen))(x)  # type: ignore[no-any-return]


class FirstKept(torch.nn.Module):
    """Differentiates at the first input that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return with_vjp(sine, lambda v, x, seen=self.seen: v * torch.cos(seen[0]))(x)  # type: ignore[no-any-return]


wrong = Family("F14")

CASES = (
    wrong(
        "sine_with_workspace",
        "A workspace that all calls share is overwritten by the next forward before this one's backward.",
        finds={"reentrancy"},
        drop_in=False,
        special="another forward before the backward",
        proof=conditions.interleaved,
    ).of(lambda: (with_workspace(sine), normal((5,))), sine),
    wrong(
        "sine_with_workspace_used_twice",
        "The same within one function: its second call overwrites what the first one saved.",
        finds={"reverse", "reentrancy"},
    ).of(lambda: (with_workspace_used_twice(), normal((5,))), sine_and_double),
    wrong(
        "sine_with_first_call_cached",
        "A cache by shape is right until the values change.",
        finds={"reentrancy", "reverse", "points", "input_layout"},
        drop_in=False,
        special="another call before this one",
        proof=conditions.other_inputs_first,
    ).of(lambda: (with_stale_inputs(sine), normal((5,))), sine),
    wrong(
        "sine_with_fast_path_without_grad_mode",
        "Evaluation and training compute different functions, and so does a checkpoint.",
        finds={"values", "checkpoint"},
        drop_in=False,
        special="grad mode off",
        proof=conditions.without_grad_mode,
    ).at(with_fast_path, sine, normal, (5,)),
    wrong(
        "sine_with_fast_path_under_checkpoint",
        "A checkpoint runs the forward once without grad mode and once with it.",
        finds={"values", "checkpoint"},
        drop_in=False,
        special="a checkpoint",
        proof=conditions.checkpointed,
    ).at(with_fast_path, sine, normal, (3, 2)),
    wrong(
        "centred_by_running_mean",
        "Every call moves the buffer that the next call subtracts.",
        finds={"determinism", "values", "reverse", "reentrancy"},
        special="a second call",
        proof=conditions.other_inputs_first,
    ).of(lambda: (with_running_mean(), normal((4,))), around_zero),
    wrong(
        "module_that_adds_up_gradients",
        "An attribute of the module keeps the sum of all gradients, as `.grad` does.",
        finds={"reentrancy"},
        special="passes before this one",
        proof=conditions.after_other_passes,
    ).of(lambda: (AddingUp(), normal((5,))), sine),
    wrong(
        "module_that_keeps_its_last_input",
        "Another forward before the backward replaces what backward reads.",
        finds={"reentrancy"},
        drop_in=False,
        special="another forward before the backward",
        proof=conditions.interleaved,
    ).of(lambda: (LastKept(), normal((5,))), sine),
    wrong(
        "module_that_keeps_its_first_input",
        "A list in the module grows with every call, and backward reads its first item.",
        finds={"reentrancy"},
        drop_in=False,
        special="a call before this one",
        proof=conditions.after_other_passes,
    ).of(lambda: (FirstKept(), normal((5,))), sine),
)
