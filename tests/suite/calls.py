"""Functions that the tests call in worker processes, which import them by name."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time


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
    time.sleep(0.5)


def hang_after(state: None, argument: None) -> None:
    hang()


def fork_and_return() -> int:
    """Returns in two processes: the one that was called, and a copy of it."""
    parent = os.getpid()
    os.fork()
    return parent


def hang_with_child_in_other_session(state: int, path: str) -> None:
    """A child in a session of its own, which holds all open pipes, outlives the worker's process group."""
    child = os.fork()
    if not child:
        os.setsid()
        time.sleep(300)
        os._exit(0)
    _name_child(child, path)
    hang()


def start_child(state: int, path: str) -> None:
    """Write the number of a child process that hangs to a file, and hang."""
    import subprocess

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"]) as child:
        _name_child(child.pid, path)
        hang()


def _name_child(child: int, path: str) -> None:
    """The file appears with its content, so that a reader finds none or a complete one."""
    with open(path + ".new", "w") as stream:
        stream.write(str(child))
    os.replace(path + ".new", path)


def write_to_every_pipe(content: bytes) -> None:
    for descriptor in range(3, 30):
        with contextlib.suppress(OSError):
            os.write(descriptor, content)


def close_streams() -> int:
    os.close(1)
    os.close(2)
    return os.getpid()


def print_without_end() -> None:
    for _ in range(20_000):
        print("x" * 1000, file=sys.stderr)
    print("last words", file=sys.stderr, flush=True)
    os._exit(7)


def imported_files() -> list[str]:
    import queue

    return [queue.__file__]
