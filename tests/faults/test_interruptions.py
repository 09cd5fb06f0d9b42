"""A check that is interrupted at any line leaves nothing changed. `make fuzz` tries more lines.

The interruptions come in a process of their own: one that torch itself does not survive must not fail other tests.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.frontends.torch import private
from gradvet.frontends.torch.preservation import PreservedState
from gradvet.frontends.torch.process_state import ProcessState
from gradvet.suite.run import Run, run_case
from gradvet.suite.sources import Targets
from tests.faults.interruptions import Tracer, of_watch
from tests.faults.world import differences, world
from tests.reports.samples import passed

POINTS = 4
"""Interruptions at lines, one of each of the first cases; `.ci/run` tries 2,000 of all by `make fuzz`, and signals."""


@pytest.mark.skipif(private.PUBLIC_ONLY, reason="open modes cannot be closed without private names")
def test_interrupted_check_leaves_everything_as_it_was() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.interruptions", "0", "--points", str(POINTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"'line events': {POINTS}" in done.stdout


def test_interruption_at_the_ends_of_a_watched_block_leaves_no_hooks() -> None:
    net, x = torch.nn.Linear(2, 1), torch.ones(3, 2)
    watch = gradvet.watch(net)  # it lives on: hooks are not removed by its deletion
    before = world([x], [net])

    def block(tracer: Tracer, part: str) -> None:
        if part == "start":
            tracer.run(watch.__enter__)
            watch.__exit__(None, None, None)
            return
        try:
            with watch:
                net(x)
                sys.settrace(tracer._entered)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)

    for part in ("start", "end"):
        count = Tracer(0)
        block(count, part)
        assert count.count > 5
        for stop in [*range(1, 10), *range(10, count.count, 5), *range(count.count - 5, count.count + 1)]:
            block(tracer := Tracer(stop), part)
            assert differences(before, world([x], [net])) == [], tracer.stopped_at


@pytest.mark.parametrize(
    "check", [functools.partial(gradvet.check, seed=0), gradvet.gradcheck], ids=["check", "gradcheck"]
)
def test_interruption_behind_an_error_of_torch_interrupts_the_check(check: Callable[..., object]) -> None:
    """As torch does if an interruption comes while it closes a level of a transform."""
    calls = stop = 0

    def function(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == stop:
            try:
                raise KeyboardInterrupt
            finally:
                raise RuntimeError("the level is not open")
        return x.sin()

    x = torch.linspace(-1.0, 1.0, 3, dtype=torch.float64, requires_grad=True)
    check(function, x)
    for number in range(1, calls + 1):
        calls, stop = 0, number
        with pytest.raises(KeyboardInterrupt):
            check(function, x)


def changing(x: Tensor) -> Tensor:
    """Changes settings of the process, which are then restored."""
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.rand(1)
    with torch.enable_grad():
        return x.sin()


@dataclass
class ChangingCase:
    """A case of a run that checks nothing."""

    name: str = "case"

    def run(self, seed: int, **options: Any) -> Any:
        changing(torch.ones(2))
        return passed("case")


RESTORING: dict[str, Callable[[Tensor], object]] = {
    "check": lambda x: gradvet.check(changing, x, seed=0, points=None, checks=["reverse"]),
    "gradcheck": lambda x: gradvet.gradcheck(changing, x, raise_exception=False, check_undefined_grad=False),
    "a case of a run": lambda x: run_case(Run(Targets(()), 0), {"case": ChangingCase()}, "case"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("name", RESTORING)
def test_restoration_that_is_interrupted_is_repeated(name: str) -> None:
    x = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    before = world([x])
    RESTORING[name](x)
    tracer = Tracer()
    tracer.run(lambda: RESTORING[name](x))
    ends = [number for number, (code, _) in enumerate(tracer.places, 1) if code in EXITS]
    stops = range(ends[0], ends[-1], len(tracer.places[ends[0] :]) // 20)
    assert len(stops) > 10
    for stop in stops:
        Tracer(stop).run(lambda: RESTORING[name](x))
        assert differences(before, world([x])) == [], tracer.places[stop - 1]


EXITS = {PreservedState.__exit__.__code__, ProcessState.__exit__.__code__}


def test_interrupted_transform_of_torch_prints_no_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption at the first line of `__exit__` in contextlib leaves the generator of the context suspended."""
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    x = torch.ones(2)

    def call() -> None:
        state = PreservedState(torch.sin, (x,))
        with state, state:
            torch.func.jvp(torch.sin, (x,), (x,))

    call()
    tracer = Tracer()
    tracer.run(call)
    before = world([x])
    for stop, (code, _) in enumerate(tracer.places, 1):
        if Path(code.co_filename).name == "contextlib.py":
            Tracer(stop).run(call)
            assert differences(before, world([x])) == []
    assert complaints == []


def test_watch_opens_no_context_of_torch_inside_the_block() -> None:
    """An interruption at the end of such a context would leave it open: what the block changes is not restored."""
    case = of_watch()
    tracer = Tracer()

    def block() -> None:
        with gradvet.watch(case.modules[0]):
            tracer.run(lambda: case.modules[0](*case.tensors))

    block()
    files = {Path(code.co_filename).name for code, _ in tracer.places}
    assert "recording.py" in files
    assert files.isdisjoint({"grad_mode.py", "autocast_mode.py"})
