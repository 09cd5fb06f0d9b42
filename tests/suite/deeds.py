"""What calls in other processes do in these tests; imported there by name."""

from __future__ import annotations

import ctypes
import os
import sys
import time

SECRET = []


def double(x: float) -> float:
    return 2 * x


def prepare(value: int) -> None:
    SECRET.append(value)


def secret() -> list[int]:
    return SECRET


def process() -> int:
    return os.getpid()


def leave() -> None:
    print("last words", file=sys.stderr, flush=True)
    os._exit(7)


def crash() -> None:
    ctypes.string_at(0)


def hang() -> None:
    time.sleep(1000)


def hang_without_yielding() -> None:
    ctypes.PyDLL(None).sleep(1000)  # a C function that keeps Python's lock


def flood() -> int:
    return len(bytearray(b"x") * 2**30)


def fail() -> None:
    raise KeyError("no such thing")


def quit_python() -> None:
    sys.exit("enough")


def chatter() -> str:
    print("on the standard output")
    return "answer"
