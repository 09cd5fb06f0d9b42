"""Interrupts a check at line events of gradvet's source, or by a signal, and compares the world before and after.

`python -m tests.faults.interruptions SECONDS` goes on with random points of all cases for that long.
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import stateless

import gradvet
from tests.faults.world import differences, world

SOURCE = str(Path(gradvet.__file__).parent)
FILES = (SOURCE, stateless.__file__, torch.autograd.forward_ad.__file__)
"""gradvet, and what torch runs to swap parameters and to open a level of dual numbers."""


class Tracer:
    """Counts the line events of `FILES`; raises KeyboardInterrupt at one of them, or notes all places."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop, self.count, self.stopped_at = stop, 0, ""
        self.places: list[tuple[CodeType, int]] = []

    def run(self, call: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self._entered)
        try:
            call()
        except KeyboardInterrupt:
            if self.stop is None or self.count < self.stop:
                raise
        finally:
            sys.settrace(before)

    def _entered(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(FILES) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.stop is None:
                self.places.append((frame.f_code, frame.f_lineno))
            elif self.count == self.stop:
                self.stopped_at = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} ({frame.f_code.co_name})"
                raise KeyboardInterrupt
        return self._line


@dataclass
class Case:
    """A call, and the tensors and modules that it must leave alone."""

    call: Callable[[], object]
    tensors: tuple[Tensor, ...]
    modules: tuple[nn.Module, ...] = ()


def _numbers(*shape: int) -> Tensor:
    return torch.linspace(-0.7, 1.3, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def of_a_module() -> Case:
    """A module in training mode with parameters, running statistics, random numbers and gradients of its own."""
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)).double()
    x = _numbers(4, 3).requires_grad_()
    module(x.detach()).sum().backward()
    return Case(lambda: gradvet.check(module, x, seed=0, points=None), (x,), (module,))


def of_a_captured_module() -> Case:
    """A function that captures a module and a tensor; second order."""
    module, factor = nn.Linear(3, 2).double(), _numbers(2).requires_grad_()
    x = _numbers(4, 3).requires_grad_()
    (module(x.detach()) * factor).sum().backward()

    def function(x: Tensor) -> Tensor:
        return (module(x) * factor).sin()

    return Case(lambda: gradvet.check(function, x, seed=0, order=2), (x, factor), (module,))


def of_low_precision() -> Case:
    """float32: the float64 reference runs in a mode that intercepts every operator."""
    module, x = nn.Linear(3, 2), _numbers(4, 3).float().requires_grad_()
    return Case(lambda: gradvet.check(module, x, seed=0, points=None), (x,), (module,))


def of_a_wrong_function() -> Case:
    """A wrong derivative: the wrong entry is located. The given points are inputs of the caller."""
    x, other = _numbers(4).requires_grad_(), (0.5 * _numbers(4)).requires_grad_()
    return Case(lambda: gradvet.check(lambda x: x * x.detach(), x, seed=0, points=[other]), (x, other))


def of_the_drop_in() -> Case:
    """gradcheck with all options on a function of a module and a sparse tensor, and gradgradcheck."""
    module = nn.BatchNorm1d(3).double()
    x = _numbers(4, 3).requires_grad_()

    def call() -> None:
        options: dict[str, Any] = {"check_forward_ad": True, "check_batched_grad": True}
        gradvet.gradcheck(module, x, raise_exception=False, **options)
        gradvet.gradgradcheck(torch.sin, x)

    return Case(call, (x,), (module,))


def of_a_numerical_jacobian() -> Case:
    module, x = nn.Linear(2, 2).double(), _numbers(2).requires_grad_()
    return Case(lambda: gradvet.numerical_jacobian(module, x), (x,), (module,))


CASES: tuple[Callable[[], Case], ...] = (
    of_a_module,
    of_a_captured_module,
    of_low_precision,
    of_a_wrong_function,
    of_the_drop_in,
    of_a_numerical_jacobian,
)


class Interruptions:
    """The line events of one case, and what an interruption at each of them leaves changed."""

    def __init__(self, make: Callable[[], Case]) -> None:
        torch.manual_seed(0)
        self.name, self.case = make.__name__, make()
        self.case.call()  # loads what torch loads at first use
        tracer = Tracer()
        tracer.run(self.case.call)
        self.places = tracer.places
        self._before = world(self.case.tensors, self.case.modules)

    def points(self, number: int, seed: int) -> list[int]:
        """Line events: of each line the first and the last, and random ones, `number` in all."""
        numbers = {place: index for index, place in reversed(list(enumerate(self.places, 1)))}
        last = {place: index for index, place in enumerate(self.places, 1)}
        edges = sorted({*numbers.values(), *last.values()})
        source = random.Random(seed)
        chosen = source.sample(edges, min(number, len(edges)))
        return chosen + [source.randint(1, len(self.places)) for _ in range(number - len(chosen))]

    def failure(self, point: int) -> str:
        """Interrupt at one line event; where that was and what it left changed, or nothing."""
        tracer = Tracer(point)
        tracer.run(self.case.call)
        changed = differences(self._before, world(self.case.tensors, self.case.modules))
        return f"{self.name}, {tracer.stopped_at}: {', '.join(changed)}" if changed else ""

    def failure_by_signal(self, source: random.Random) -> str:
        """Send SIGINT after a random time, also while torch runs; the place and what it left changed, or nothing."""
        began = time.perf_counter()
        self.case.call()
        place = "after the check"
        try:
            signal.setitimer(signal.ITIMER_REAL, source.uniform(1e-4, time.perf_counter() - began))
            self.case.call()
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        except KeyboardInterrupt as error:
            place = "".join(traceback.format_tb(error.__traceback__)[-2:])
        changed = differences(self._before, world(self.case.tensors, self.case.modules))
        return f"{self.name}, {place}: {', '.join(changed)}" if changed else ""


def main(seconds: float) -> int:
    """Line events for three quarters of the time, then signals."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    source, counts, found = random.Random(0), {"line events": 0, "signals": 0}, 0
    began = time.monotonic()
    for kind, share in (("line events", 0.75), ("signals", 1.0)):
        for seed in itertools.count():
            for make in CASES:
                interruptions = Interruptions(make)
                for point in interruptions.points(50, seed):
                    if time.monotonic() > began + share * seconds:
                        break
                    by_line = kind == "line events"
                    failure = interruptions.failure(point) if by_line else interruptions.failure_by_signal(source)
                    counts[kind] += 1
                    if failure:
                        print(failure, flush=True)
                        found += 1
                        interruptions = Interruptions(make)
            if time.monotonic() > began + share * seconds:
                break
    print(f"interruptions: {counts}; {found} left something changed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
