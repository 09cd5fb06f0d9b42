"""The worker process `python -m gradvet.suite.worker`, and the messages between it and `processes`.

A worker answers calls until its parent closes the pipe. Its standard output carries the answers, so the output of
cases is redirected to standard error.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

HEADER = struct.Struct("<Q")
"""Length of the pickle that follows, in bytes."""

GRACE_SECONDS = 5.0
"""Time after the limit of a call at which the system ends the worker, if the parent has not."""


def send(stream: IO[bytes], value: Any) -> None:
    content = pickle.dumps(value)
    stream.write(HEADER.pack(len(content)) + content)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """The next value; raises EOFError if the other end is closed."""
    return pickle.loads(_read(stream, HEADER.unpack(_read(stream, HEADER.size))[0]))


def main() -> None:
    """Answer calls `(keep, func, arguments, seconds)`.

    The result of a call with `keep` stays here and is the first argument of all later calls.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it too, and ends this process
    sys.path[:] = receive(requests)
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, calls), daemon=True).start()
    state: tuple[Any, ...] = ()
    while True:
        keep, func, arguments, seconds = calls.get()
        with _time_limit(seconds):
            succeeded, value = _call(func, (*state, *arguments))
        if keep and succeeded:
            state, value = (value,), None
        send(answers, (succeeded, value))


def _listen(requests: IO[bytes], calls: queue.SimpleQueue[Any]) -> None:
    """Queue the calls, and end the process when the parent is gone, even if a case hangs."""
    while True:
        try:
            calls.put(receive(requests))
        except EOFError:
            os._exit(0)
        except BaseException as error:
            # The function cannot be imported here: answer the call with this error.
            calls.put((False, _raise, (_picklable(error),), None))


@contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """End the process by a system timer, which also works while a case holds the GIL."""
    if seconds is None or not hasattr(signal, "setitimer"):
        yield
        return
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


def _read(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return content


if __name__ == "__main__":
    main()
