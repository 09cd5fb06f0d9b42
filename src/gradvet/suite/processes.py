"""An executor whose calls run in new processes, within limits: a crash, a hang or a flood is that call's exception.

The standard library's pool breaks as a whole when one of its processes dies. Here a process that dies, or is ended
because it went beyond a limit, takes one call with it; the next call gets another process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from gradvet.suite.wire import receive, send

Result = TypeVar("Result")

LOOK = 0.02
"""Seconds between two looks at the processes that have limits."""

START = 300.0
"""Seconds that a new process may take to prepare itself, where there is a time limit at all."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may use; None is no limit."""

    seconds: float | None = None
    bytes: int | None = None
    """Resident memory of the process."""


class DeadProcessError(RuntimeError):
    """The process died under the call."""


class TimeLimitError(DeadProcessError):
    """The process was ended: the call took too long."""


class MemoryLimitError(DeadProcessError):
    """The process was ended: it held too much memory."""


class Processes(ThreadPoolExecutor):
    """At most `jobs` processes. `prepare(*with_)` runs first in each, outside of the limits of any call."""

    def __init__(
        self, jobs: int, limits: Limits | None = None, prepare: Callable[..., Any] | None = None, with_: Any = ()
    ) -> None:
        super().__init__(jobs, thread_name_prefix="gradvet")
        self._limits = limits or Limits()
        self._preparation = (prepare, tuple(with_)) if prepare else None
        self._threads_each = max(1, (os.cpu_count() or 1) // jobs)
        self._mine = threading.local()
        self._children: set[_Child] = set()
        self._aborted = threading.Event()
        self._over = threading.Event()
        if self._limits != Limits():
            arguments = (self._children, self._limits, self._over)
            threading.Thread(target=_watch, args=arguments, name="gradvet-limits", daemon=True).start()
            weakref.finalize(self, self._over.set)

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """The future of `fn(*args)`, which must be importable by name, as its arguments."""
        assert not kwargs
        return super().submit(self._call, fn, args)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: when their calls are done, or at once with `cancel_futures`."""
        if cancel_futures:
            super().shutdown(wait=False, cancel_futures=True)
            self._aborted.set()  # first: a process that is just being started sees it
            for child in list(self._children):
                child.kill()
        super().shutdown(wait=wait)
        if wait:
            for child in list(self._children):
                child.end()
            self._over.set()

    def _call(self, func: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        child: _Child | None = getattr(self._mine, "child", None)
        if child is None or not child.is_fit(self._limits):
            child = self._mine.child = self._started(child)
        try:
            return child.call(func, arguments, self._limits.seconds)
        except DeadProcessError:
            self._children.discard(child)
            self._mine.child = None
            raise

    def _started(self, former: _Child | None) -> _Child:
        if former is not None:
            former.end()
            self._children.discard(former)
        child = _Child(self._limits.seconds, self._threads_each)
        self._children.add(child)
        if self._aborted.is_set():
            child.kill()
        if self._preparation is not None:
            limit = None if self._limits.seconds is None else max(START, self._limits.seconds)
            try:
                child.call(*self._preparation, limit)
            except DeadProcessError:
                self._children.discard(child)
                raise
        return child


class _Child:
    """A process that runs one call at a time."""

    def __init__(self, seconds: float | None, threads: int) -> None:
        self._errors = tempfile.TemporaryFile("ab+")  # noqa: SIM115, it is closed with the process
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gradvet.suite.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._deadline: float | None = None
        self._limit: float | None = None
        self._verdict: DeadProcessError | None = None
        self._send((sys.path, seconds))

    def call(self, func: Callable[..., Any], arguments: tuple[Any, ...], seconds: float | None) -> Any:
        """What the function gives; what it raises in other words; DeadProcessError if there is no answer."""
        self._errors.truncate(0)
        self._limit, self._deadline = seconds, None if seconds is None else time.monotonic() + seconds
        self._send((func, arguments))
        assert self._process.stdout is not None
        try:
            fine, answer = receive(self._process.stdout)
        except EOFError:
            raise self._obituary() from None
        finally:
            self._deadline = None
        if fine:
            return answer
        raise answer

    def is_fit(self, limits: Limits) -> bool:
        """Whether it is alive, and leaves the next call at least half of the memory allowed."""
        if self._process.poll() is not None:
            return False
        return limits.bytes is None or self._resident() <= limits.bytes / 2

    def hold_to(self, limits: Limits) -> None:
        """End the process if its call is beyond a limit."""
        deadline = self._deadline
        if self._verdict is not None:
            return
        if deadline is not None and time.monotonic() > deadline:
            self._end_with(TimeLimitError(f"did not end within {self._limit:g} s"))
        elif limits.bytes is not None and self._resident() > limits.bytes:
            self._end_with(MemoryLimitError(f"used more than {limits.bytes / 2**20:.0f} MiB of memory"))

    def kill(self) -> None:
        """End the process; whoever waits for its answer hears of it."""
        self._process.kill()

    def end(self) -> None:
        """End the process and close what leads to it; nobody may be waiting for its answer."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead: who waits for the answer will hear of it
            send(self._process.stdin, value)

    def _end_with(self, verdict: DeadProcessError) -> None:
        self._verdict = verdict
        self.kill()

    def _obituary(self) -> DeadProcessError:
        code = self._process.wait()
        last = self._last_words()
        self.end()
        if self._verdict is not None:
            return self._verdict
        cause = f"was ended by {_signal(-code)}" if code < 0 else f"ended its process with code {code}"
        return DeadProcessError(f"{cause} ({last})" if last else cause)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line for line in self._errors.read()[-4000:].decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:200] if lines else ""

    def _resident(self) -> int:
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0


def _watch(children: set[_Child], limits: Limits, over: threading.Event) -> None:
    while not over.wait(LOOK):
        for child in list(children):
            child.hold_to(limits)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
