"""An executor whose calls run in worker processes with limits on time and memory.

A worker that dies, or is killed because it exceeded a limit, fails one call; the next call gets a new worker. The
standard library's pool fails all its calls in this situation.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any, TypeVar

import psutil

from gradvet.core.documents import escape_controls
from gradvet.options import Budget

Result = TypeVar("Result")


class Status(str, Enum):
    """How a case ended."""

    REPORTED = "reported"
    RAISED = "raised"
    DIED = "died"
    TIME_LIMIT = "time limit"
    MEMORY_LIMIT = "memory limit"
    UNFINISHED = "unfinished"
    """The run ended before the case."""
    DAMAGED = "damaged"
    """The stored result cannot be read."""


POLL_SECONDS = 0.02
"""Time between two inspections of the workers for exceeded limits."""

MAX_ANSWER_BYTES = 2**30
"""Size of an answer; more is no answer but something that a case wrote to the pipe."""

OUTPUT_CHUNK_BYTES = 2**14
"""Size of one piece of a worker's output; the last two are kept."""

OUTPUT_TIMEOUT_SECONDS = 1.0
"""Time to wait for the last output of a dead worker, in case a child of it holds the pipe."""

START_TIMEOUT_SECONDS = 300.0
"""Time within which a worker must be ready, if calls have a time limit. Importing torch on a busy machine is slow."""


class ProcessDiedError(RuntimeError):
    """The worker process died during the call: by itself, or it was killed because the call exceeded a limit."""

    def __init__(self, message: str, status: Status = Status.DIED, cause: str = "") -> None:
        """`cause` is the signal, the last line that the process printed, or its exit code."""
        super().__init__(message)
        self.status, self.cause = status, cause


class ProcessExecutor(ThreadPoolExecutor):
    """Runs calls in at most `jobs` worker processes.

    `prepare(*arguments)` runs first in each worker, outside the limits of any call. Its result stays in the worker and
    is the first argument of every call.
    """

    def __init__(
        self,
        jobs: int,
        limits: Budget | None = None,
        prepare: Callable[..., Any] | None = None,
        arguments: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(jobs, thread_name_prefix="gradvet")
        self._limits = limits or Budget()
        self._preparation = (prepare, arguments) if prepare else None
        self._threads_per_worker = max(1, (os.cpu_count() or 1) // jobs)
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._aborted = threading.Event()

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """The future of `fn(*args)`. The worker imports the function by name; the arguments are pickled."""
        assert not kwargs
        return super().submit(self._call, fn, args)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers: after their calls, or at once with `cancel_futures`."""
        if cancel_futures:
            super().shutdown(wait=False, cancel_futures=True)
            self._aborted.set()  # before the loop, so that a worker that is being started sees it
            for worker in list(self._workers):
                worker.kill()
        super().shutdown(wait=wait)
        if wait:
            for worker in list(self._workers):
                worker.close()

    def _call(self, func: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        worker = self._take_worker()
        try:
            return worker.call(func, arguments, self._limits)
        finally:
            self._idle.append(worker)

    def _take_worker(self) -> _Worker:
        """An idle worker that can be used again, or a new one that is prepared."""
        with contextlib.suppress(IndexError):  # of `pop`: none is idle
            while not (worker := self._idle.pop()).is_reusable(self._limits):
                self._end(worker)
            return worker
        worker = _Worker(self._threads_per_worker)
        self._workers.add(worker)
        if self._aborted.is_set():
            worker.kill()
        if self._preparation is not None:
            seconds = self._limits.seconds
            limit = None if seconds is None else max(START_TIMEOUT_SECONDS, seconds)
            try:
                worker.call(*self._preparation, replace(self._limits, seconds=limit), keep=True)
            except Exception:
                self._end(worker)
                raise
        return worker

    def _end(self, worker: _Worker) -> None:
        worker.close()
        self._workers.discard(worker)


class _Worker:
    """A worker process, seen from its parent. It runs one call at a time.

    The process leads a process group of its own, so that its children can be killed with it.
    """

    def __init__(self, threads: int) -> None:
        self._connection, theirs = Pipe()
        # The path is set before anything is imported, so that no module of the current folder takes the place of one
        # of the standard library.
        start = (
            "import sys; sys.path[:] = sys.argv[2:]; from gradvet.core.processes import serve; serve(int(sys.argv[1]))"
        )
        folders = [*(folder or os.getcwd() for folder in sys.path), str(Path(__file__).parents[2])]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", start, str(theirs.fileno()), *folders],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={"OMP_NUM_THREADS": str(threads), **os.environ},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._output: deque[bytes] = deque(maxlen=2)
        self._reader = threading.Thread(target=_keep_last, args=(self._process.stdout, self._output), daemon=True)
        self._reader.start()
        self._number = 0
        self._has_its_streams = True

    def call(self, func: Callable[..., Any], arguments: tuple[Any, ...], limits: Budget, *, keep: bool = False) -> Any:
        """The result of the function. Raises RuntimeError with its message if it raises, or ProcessDiedError."""
        self._output.clear()
        self._number += 1
        deadline = math.inf if limits.seconds is None else time.monotonic() + limits.seconds
        try:
            self._connection.send((self._number, limits.seconds, keep, pickle.dumps((func, arguments))))
            while True:
                # A dead process may have answered before, and a child of it may hold the pipe.
                is_dead = self._process.poll() is not None
                if self._connection.poll(0 if is_dead else POLL_SECONDS):
                    number, succeeded, value, self._has_its_streams = self._received()
                    if number == self._number:
                        break
                elif is_dead:
                    raise EOFError
                self._require_within(limits, deadline)
        except (EOFError, OSError):
            raise self._death_error() from None
        if succeeded:
            return value
        raise value

    def _received(self) -> tuple[int, bool, Any, bool]:
        try:
            number, succeeded, value, has_its_streams = pickle.loads(self._connection.recv_bytes(MAX_ANSWER_BYTES))
        except EOFError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:  # the process is dead
                raise
            self.close()
            words = f"gave no readable answer ({type(error).__name__}): its code wrote to the pipe"
            raise ProcessDiedError(words) from None
        return number, succeeded, value, has_its_streams

    def _require_within(self, limits: Budget, deadline: float) -> None:
        """Kill the process if its call exceeds a limit."""
        if time.monotonic() > deadline:
            error = ProcessDiedError(f"did not end within {limits.seconds:g} s", Status.TIME_LIMIT)
        elif limits.bytes is not None and self._resident_bytes() > limits.bytes:
            words = f"used more than {limits.bytes / 2**20:.0f} MiB of memory"
            error = ProcessDiedError(words, Status.MEMORY_LIMIT)
        else:
            return
        self.close()
        raise error

    def is_reusable(self, limits: Budget) -> bool:
        """Whether the process runs, has not closed its streams, and uses at most half of the memory limit."""
        if self._process.poll() is not None or not self._has_its_streams:
            return False
        return limits.bytes is None or self._resident_bytes() <= limits.bytes / 2

    def kill(self) -> None:
        """Kill the process and its children; a pending `call` raises ProcessDiedError."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of the group is left
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process and its children, and close the pipe. No call may be pending."""
        if self._connection.closed:
            return
        self.kill()
        self._process.wait()
        self._connection.close()

    def _death_error(self) -> ProcessDiedError:
        code = self._process.wait()
        self.close()
        last_line = self._last_line()
        end = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended its process with code {code}"
        cause = _signal_name(-code) if code < 0 else last_line or f"exit status {code}"
        return ProcessDiedError(f"{end} ({last_line})" if last_line else end, cause=cause)

    def _last_line(self) -> str:
        self._reader.join(OUTPUT_TIMEOUT_SECONDS)
        lines = [line for line in b"".join(self._output).decode(errors="replace").splitlines() if line.strip()]
        return escape_controls(lines[-1].strip()[:200]) if lines else ""

    def _resident_bytes(self) -> int:
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0


def _signal_name(number: int) -> str:
    """The name of a signal; its number where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _keep_last(stream: IO[bytes], chunks: deque[bytes]) -> None:
    """Read what a worker prints, to keep its end alone."""
    with stream:
        while chunk := os.read(stream.fileno(), OUTPUT_CHUNK_BYTES):
            chunks.append(chunk)


GRACE_SECONDS = 5.0
"""Time after the limit of a call at which the system ends the worker, if the parent has not."""


def serve(descriptor: int) -> None:
    """Answer calls with `(number, succeeded, value, whether stdout and stderr are still those of the start)`.

    A call is its number, its time limit, whether its result stays here as the first argument of all later calls, and
    the pickle of function and arguments.
    """
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, calls), daemon=True).start()
    state: tuple[Any, ...] = ()
    process, streams = os.getpid(), _streams()
    while True:
        number, seconds, keep, call = calls.get()
        if seconds is not None:  # a timer of the system ends a case that holds the GIL when the parent is gone
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_SECONDS)
        succeeded, value = _call(call, state)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if os.getpid() != process:
            os._exit(0)  # a copy of this process that the function made with os.fork: it answers no call
        if keep and succeeded:
            state, value = (value,), None
        connection.send((number, succeeded, value, streams == _streams()))


def _call(call: bytes, state: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        func, arguments = pickle.loads(call)
        return True, func(*state, *arguments)
    except BaseException as error:  # its class may not be picklable
        return False, RuntimeError(f"{type(error).__name__}: {error}")


def _streams() -> list[tuple[int, int] | None]:
    """Device and inode of stdout and stderr of the process; None for one that is closed."""
    found: list[tuple[int, int] | None] = []
    for descriptor in (1, 2):
        try:
            status = os.fstat(descriptor)
            found.append((status.st_dev, status.st_ino))
        except OSError:
            found.append(None)
    return found


def _listen(connection: Connection, calls: queue.SimpleQueue[Any]) -> None:
    """Queue the calls. End this process and its children when the parent is gone, even if a case hangs."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            calls.put(connection.recv())
    os.killpg(0, signal.SIGKILL)
