"""Functions that the tests call in worker processes, which import them by name."""

from __future__ import annotations

import ctypes
import os
import sys
import time

from gradvet.suite.worker import GRACE_SECONDS


def double(x: float) -> float:
    return 2 * x


def prepare(value: int) -> list[int]:
    return [value]


def append(state: list[int], value: int) -> list[int]:
    state.append(value)
    return state


def process_id() -> int:
    return os.getpid()


def exit_process() -> None:
    print("last words", file=sys.stderr, flush=True)
    os._exit(7)


def crash() -> None:
    ctypes.string_at(0)


def hang() -> None:
    time.sleep(1_000_000)


def hang_with_gil() -> None:
    ctypes.PyDLL(None).sleep(1_000_000)  # a C function that holds the GIL


def use_memory() -> None:
    memory = bytearray(b"x") * 2**29
    time.sleep(1e6)
    del memory


def fail() -> None:
    raise KeyError("no such thing")


def quit_python() -> None:
    sys.exit("enough")


def print_and_answer() -> str:
    print("on the standard output")
    return "answer"


def prepare_slowly() -> None:
    time.sleep(GRACE_SECONDS + 1.0)


def hang_after(state: None, argument: None) -> None:
    hang()
