"""The process in which cases run: `python -m gradvet.suite.child`, started and spoken to by `processes`.

It answers calls until its parent is gone. What a case prints goes to the standard error stream: the standard output
carries the answers.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from gradvet.suite.wire import receive, send

GRACE = 5.0
"""Seconds beyond the time limit after which the system ends a process whose parent has not."""


def main() -> None:
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends this process
    sys.path[:], limit = receive(requests)
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, calls), daemon=True).start()
    while True:
        func, arguments = calls.get()
        with _within(limit):
            answer = _answer(func, arguments)
        send(answers, answer)


def _listen(requests: IO[bytes], calls: queue.SimpleQueue[Any]) -> None:
    """Pass calls on. The parent's end closes when it dies, however it dies, and a case may be hanging then."""
    while True:
        try:
            calls.put(receive(requests))
        except EOFError:
            os._exit(0)
        except BaseException as error:
            # What was to be called cannot be found here: that is the answer.
            calls.put((_raise, (_portable(error),)))


@contextmanager
def _within(limit: float | None) -> Iterator[None]:
    """The system itself ends what holds Python's lock for ever, also where the parent is no more."""
    if limit is None or not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, limit + GRACE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(func: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, func(*arguments)
    except BaseException as error:
        return False, _portable(error)


def _raise(error: Exception) -> None:
    raise error


def _portable(error: BaseException) -> Exception:
    """Exceptions of other packages may not survive the pipe; their words do."""
    return RuntimeError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
