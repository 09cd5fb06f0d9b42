"""How often a checker calls the function and runs backward through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from benchmarks.functions import Problem


@dataclass
class Counter:
    """Wraps a function with one output. A batched call or a batched backward pass counts once: it is one pass."""

    function: Callable[..., Tensor]
    calls: int = 0
    backward_passes: int = 0

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.calls += 1
        output = self.function(*inputs)
        if output.requires_grad:
            output.register_hook(self.note_backward)
        return output

    def note_backward(self, _: Tensor | None) -> None:
        self.backward_passes += 1


def counted(checker: Callable[..., bool], problem: Problem) -> Counter:
    function, inputs = problem
    counter = Counter(function)
    checker(counter, inputs)
    return counter
