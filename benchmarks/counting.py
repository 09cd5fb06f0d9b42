"""How often a checker calls the function and runs backward through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from benchmarks.functions import Problem
from gradvet.frontends.torch import private

ENGINE_NAME = "_execution_engine"
ENGINE = getattr(torch.autograd.Variable, ENGINE_NAME)


@dataclass
class Count:
    """A batched call or a batched backward pass counts once: it is one pass."""

    calls: int = 0
    backward_passes: int = 0

    def run_backward(self, *args: Any, **settings: Any) -> Any:
        """What stands in for torch's engine: a hook in the function would be a rule of its own to whoever looks."""
        self.backward_passes += 1
        return ENGINE.run_backward(*args, **settings)

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls are counted."""

        def called(*values: Any) -> Any:
            self.calls += 1
            return function(*values)

        return called


@contextmanager
def counting() -> Iterator[Count]:
    """Counts the backward passes inside the block, and the calls of the functions that `Count.counted` wraps."""
    count = Count()
    with mock.patch.object(private, "ENGINE", count), mock.patch.object(torch.autograd.Variable, ENGINE_NAME, count):
        yield count


def counted(checker: Callable[..., bool], problem: Problem) -> Count:
    """The work of one check among others; what is asked once in a process was asked before."""
    function, inputs = problem
    with counting() as count:
        checker(count.counted(function), inputs)
    return count
