"""Interrupts a check at line events of gradvet's source, or by a signal, and compares the world before and after.

`python -m tests.faults.interruptions SECONDS` goes on with random points of all cases for that long.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

import gradvet
from tests.faults.options import arguments_of_a_fuzzer
from tests.faults.world import differences, world

FILES = (str(Path(gradvet.__file__).parent), str(Path(torch.__file__).parent), contextlib.__file__)
"""gradvet, torch, which swaps parameters and opens levels and modes, and the ends of generators in `with`."""


LOCK_HOLDERS = {("contextlib.py", "inner"), ("blame.py", "_recording")}
"""Files and functions whose `with` statement holds the lock of checks."""


@functools.cache
def _is_traced(code: CodeType) -> bool:
    # Where a lock is held, there is a line event before it is released, where Python delivers no signal.
    holds_lock = (Path(code.co_filename).name, code.co_name) in LOCK_HOLDERS
    return code.co_filename.startswith(FILES) and not holds_lock


def _is_interruption(error: BaseException) -> bool:
    """Whether this is an interruption, or what torch raises when it closes a level that one kept it from opening."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt)


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
        except (KeyboardInterrupt, RuntimeError) as error:
            if self.stop is None or self.count < self.stop or not _is_interruption(error):
                raise
        finally:
            sys.settrace(before)

    def _entered(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if _is_traced(frame.f_code) else None

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
    setting: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    """The setting in which the call runs."""


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
    """float32: the wider version runs in a mode that intercepts every operator."""
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


class WrongSquare(torch.autograd.Function):
    """The factor 2 of its derivative is missing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x * grad_outputs[0]


class Net(nn.Module):
    """A network with a cache, hooks and running statistics; in one of two ways its gradient is wrong."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.cache = fault, [0]
        self.first, self.norm, self.last = nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)
        self.first.register_forward_hook(lambda module, args, result: None)
        self.last.weight.register_hook(lambda gradient: None)

    def forward(self, x: Tensor) -> Tensor:
        self.cache[0] += 1
        hidden = self.norm(self.first(x))
        hidden = WrongSquare.apply(hidden) if self.fault == "function" else hidden * hidden.detach()
        return self.last(hidden)  # type: ignore[no-any-return]


def _trained(net: nn.Module) -> nn.Module:
    net(_numbers(4, 3)).sum().backward()
    return net


def of_blame_for_a_function() -> Case:
    """A model in training mode with gradients, whose custom Function is wrong."""
    net, x = _trained(Net("function").double()), _numbers(4, 3).requires_grad_()
    return Case(lambda: gradvet.blame(net, x, seed=0), (x,), (net,))


def of_blame_for_a_line() -> Case:
    """The same with a wrong line, which the automatic search of `check` finds by trying lines."""
    net, x = _trained(Net("line").double()), _numbers(4, 3).requires_grad_()
    return Case(lambda: gradvet.check(net, x, seed=0, points=None), (x,), (net,))


def of_watch() -> Case:
    """Code in a `with` block, whose calls are recorded and replayed."""
    net, x = _trained(Net("function").double().eval()), _numbers(4, 3).requires_grad_()

    def call() -> None:
        with gradvet.watch(net, seed=0) as step:
            net(x)
        step.report()

    return Case(call, (x,), (net,))


def of_a_reference() -> Case:
    """A function and its reference in two precisions, without grad mode, with another default dtype."""
    x, weight = _numbers(4, 3).float().requires_grad_(), _numbers(2, 3).float().requires_grad_()
    options: dict[str, Any] = {"reference": nn.functional.linear, "dtypes": (torch.float32, torch.bfloat16)}

    @contextlib.contextmanager
    def setting() -> Iterator[None]:
        torch.set_default_dtype(torch.float64)
        try:
            with torch.no_grad():
                yield
        finally:
            torch.set_default_dtype(torch.float32)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.mT

    return Case(lambda: gradvet.check(function, (x, weight), seed=0, **options), (x, weight), setting=setting)


def of_retained_gradients() -> Case:
    """A non-leaf input with `.grad` and a hook, in autocast, with deterministic algorithms and warnings as errors."""
    leaf = _numbers(4, 3).requires_grad_()
    x = leaf * 2.0
    x.retain_grad()
    x.register_hook(lambda gradient: None)
    x.sum().backward()

    @contextlib.contextmanager
    def setting() -> Iterator[None]:
        torch.set_deterministic_debug_mode("warn")
        try:
            with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                yield
        finally:
            torch.set_deterministic_debug_mode("default")

    return Case(lambda: gradvet.check(torch.sin, x, seed=0), (leaf, x), setting=setting)


def of_functions_of_functions() -> Case:
    """A function that swaps parameters and takes forward derivatives itself, in anomaly mode."""
    module, x = nn.Linear(3, 2).double(), _numbers(4, 3).requires_grad_()
    scale = _numbers(1).requires_grad_()

    def function(x: Tensor) -> Tensor:
        parameters = {name: value * scale for name, value in module.named_parameters()}
        _, tangent = torch.func.jvp(lambda x: torch.func.functional_call(module, parameters, (x,)).sin(), (x,), (x,))
        return tangent

    return Case(
        lambda: gradvet.check(function, x, seed=0, points=None, modes=["reverse"]),
        (x, scale),
        (module,),
        lambda: torch.autograd.detect_anomaly(check_nan=False),
    )


CASES: tuple[Callable[[], Case], ...] = (
    of_a_module,
    of_a_captured_module,
    of_low_precision,
    of_a_wrong_function,
    of_the_drop_in,
    of_a_numerical_jacobian,
    of_blame_for_a_function,
    of_blame_for_a_line,
    of_watch,
    of_a_reference,
    of_retained_gradients,
    of_functions_of_functions,
)


class Interruptions:
    """The line events of one case, and what an interruption at each of them leaves changed."""

    def __init__(self, make: Callable[[], Case]) -> None:
        torch.manual_seed(0)
        self.name, self.case = make.__name__, make()
        with self._setting():
            self.case.call()  # loads what torch loads at first use

    @functools.cached_property
    def seconds(self) -> float:
        """The time of the call."""
        with self._setting():
            began = time.perf_counter()
            self.case.call()
            return time.perf_counter() - began

    @functools.cached_property
    def places(self) -> list[tuple[CodeType, int]]:
        """The line events of the call."""
        tracer = Tracer()
        with self._setting():
            tracer.run(self.case.call)
        return tracer.places

    @contextlib.contextmanager
    def _setting(self) -> Iterator[Callable[[], list[str]]]:
        """The setting of the case; yields what tells which parts of the world have changed since."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
            with self.case.setting():
                before = world(self.case.tensors, self.case.modules)
                yield lambda: differences(before, world(self.case.tensors, self.case.modules))

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
        with self._setting() as changes:
            tracer.run(self.case.call)
            changed = changes()
        return f"{self.name}, {tracer.stopped_at}: {', '.join(changed)}" if changed else ""

    def failure_by_signal(self, source: random.Random) -> str:
        """Send SIGINT after a random time, also while torch runs; the place and what it left changed, or nothing."""
        delay = source.uniform(1e-4, self.seconds)
        with self._setting() as changes:
            place = "after the check"
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                self.case.call()
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            except (KeyboardInterrupt, RuntimeError) as error:
                if not _is_interruption(error):
                    raise
                place = "".join(traceback.format_tb(error.__traceback__)[-2:])
            changed = changes()
        return f"{self.name}, {place}: {', '.join(changed)}" if changed else ""


def main(seconds: float, points: int, seed: int) -> int:
    """Line events for three quarters of the time, at least `points`; then signals, at least a tenth as many."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    source, counts, found = random.Random(seed), {"line events": 0, "signals": 0}, 0
    began = time.monotonic()
    for kind, share, least in (("line events", 0.75, points), ("signals", 1.0, points // 10)):
        by_line = kind == "line events"
        per_case = min(50 if by_line else 5, math.ceil(least / len(CASES)) or 1)

        def is_over(kind: str = kind, share: float = share, least: int = least) -> bool:
            return time.monotonic() > began + share * seconds and counts[kind] >= least

        for round_ in itertools.count(seed):
            for make in CASES:
                if is_over():
                    break
                interruptions = Interruptions(make)
                for point in interruptions.points(per_case, round_) if by_line else range(per_case):
                    if is_over():
                        break
                    failure = interruptions.failure(point) if by_line else interruptions.failure_by_signal(source)
                    counts[kind] += 1
                    if failure:
                        print(failure, flush=True)
                        found += 1
                        torch.set_grad_enabled(True)
                        interruptions = Interruptions(make)
            if is_over():
                break
    print(f"interruptions: {counts}; {found} left something changed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*arguments_of_a_fuzzer(__doc__)))
