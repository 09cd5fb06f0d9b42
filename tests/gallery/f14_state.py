"""F14: state that outlives a call: workspaces, caches, running statistics, a path for each grad mode."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery import conditions
from tests.gallery.case import Case, Function
from tests.gallery.inputs import at, normal
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


CASES = (
    Case(
        "sine_with_workspace",
        "F14",
        lambda: (with_workspace(sine), normal((5,))),
        "A workspace that belongs to nobody is overwritten by the next forward before this one's backward.",
        twin=sine,
        findings=frozenset({"interleaving"}),
        drop_in=False,
        special="another forward before the backward",
        witness=conditions.interleaved,
    ),
    Case(
        "sine_with_workspace_used_twice",
        "F14",
        lambda: (with_workspace_used_twice(), normal((5,))),
        "The same within one function: its second call overwrites what the first one saved.",
        twin=sine_and_double,
        findings=frozenset({"reverse", "interleaving"}),
    ),
    Case(
        "sine_with_first_call_cached",
        "F14",
        lambda: (with_stale_inputs(sine), normal((5,))),
        "A cache by shape is right until the values change.",
        twin=sine,
        findings=frozenset({"interleaving", "reverse", "points", "layouts"}),
        drop_in=False,
        special="another call before this one",
        witness=conditions.elsewhere_first,
    ),
    Case(
        "sine_with_fast_path_without_grad_mode",
        "F14",
        at(with_fast_path, normal, (5,)),
        "Evaluation and training compute different functions, and so does a checkpoint.",
        twin=sine,
        findings=frozenset({"values", "checkpoint"}),
        drop_in=False,
        special="grad mode off",
        witness=conditions.without_grad_mode,
    ),
    Case(
        "sine_with_fast_path_under_checkpoint",
        "F14",
        at(with_fast_path, normal, (3, 2)),
        "A checkpoint runs the forward once without grad mode and once with it.",
        twin=sine,
        findings=frozenset({"values", "checkpoint"}),
        drop_in=False,
        special="a checkpoint",
        witness=conditions.checkpointed,
    ),
    Case(
        "centred_by_running_mean",
        "F14",
        lambda: (with_running_mean(), normal((4,))),
        "Every call moves the buffer that the next call subtracts.",
        twin=around_zero,
        findings=frozenset({"determinism", "values", "reverse", "interleaving"}),
        special="a second call",
        witness=conditions.elsewhere_first,
    ),
)
