"""The worker process of `processes`: answers calls over a connection until its parent closes it."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

GRACE_SECONDS = 5.0
"""Time after the limit of a call at which the system ends the worker, if the parent has not."""


def main(descriptor: int) -> None:
    """Answer calls with `(number, succeeded, value, whether stdout and stderr are still those of the start)`.

    A call is its number and the pickle of its other parts.

    The result of a call with `keep` stays here and is the first argument of all later calls.
    """
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, calls), daemon=True).start()
    state: tuple[Any, ...] = ()
    process, streams = os.getpid(), _streams()
    while True:
        number, keep, func, arguments, seconds = calls.get()
        with _time_limit(seconds):
            succeeded, value = _call(func, (*state, *arguments))
        if os.getpid() != process:
            os._exit(0)  # a copy of this process that the function made with os.fork: it answers no call
        if keep and succeeded:
            state, value = (value,), None
        connection.send((number, succeeded, value, streams == _streams()))


def _streams() -> list[tuple[int, int] | None]:
    """What stdout and stderr of the process are; None for one that is closed."""
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
    while True:
        try:
            number, call = connection.recv()
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)
            return
        try:
            calls.put((number, *pickle.loads(call)))
        except BaseException as error:
            # The function cannot be imported here: answer the call with this error.
            calls.put((number, False, _raise, (_picklable(error),), None))


@contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """End the process by a system timer, which also works while a case holds the GIL."""
    if seconds is None:
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _call(func: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, func(*arguments)
    except BaseException as error:
        return False, _picklable(error)


def _raise(*arguments: Any) -> None:
    raise arguments[-1]


def _picklable(error: BaseException) -> Exception:
    """The message of an exception whose class may not be picklable."""
    return RuntimeError(f"{type(error).__name__}: {error}")
