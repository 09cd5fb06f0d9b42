"""A worker process that dies or exceeds a limit fails one call.

Tests the worker process too.
"""

from __future__ import annotations

import importlib
import pickle
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gradvet.core import processes as module
from gradvet.core.processes import ProcessDiedError, ProcessExecutor, Status
from gradvet.options import Budget
from tests.suite import calls

ROOT = Path(__file__).parents[2]


def test_calls_run_in_a_worker_that_is_reused() -> None:
    with ProcessExecutor(1) as processes:
        assert processes.submit(calls.double, 21).result() == 42
        pids = {processes.submit(calls.process_id).result() for _ in range(3)}
    assert len(pids) == 1
    assert pids != {calls.process_id()}


def test_result_of_the_preparation_stays_in_the_worker() -> None:
    with ProcessExecutor(1, prepare=calls.prepare, arguments=(5,)) as processes:
        assert [processes.submit(calls.append, value).result() for value in (6, 7)] == [[5, 6], [5, 6, 7]]


def test_preparation_is_outside_the_time_limit() -> None:
    with ProcessExecutor(1, Budget(seconds=0.25), prepare=calls.prepare_slowly) as processes:
        stuck = processes.submit(calls.hang_after, None)
        with pytest.raises(ProcessDiedError, match=r"did not end within 0\.25 s") as raised:
            stuck.result()
        assert raised.value.status is Status.TIME_LIMIT


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (calls.exit_process, r"ended its process with code 7 \(last words\)"),
        (calls.crash, "was ended by SIGSEGV"),
    ],
)
def test_death_of_a_worker_fails_one_call(call: Callable[[], None], message: str) -> None:
    with ProcessExecutor(1) as processes:
        fatal, next_ = processes.submit(call), processes.submit(calls.double, 2)
        with pytest.raises(ProcessDiedError, match=message):
            fatal.result()
        assert next_.result() == 4


@pytest.mark.parametrize("call", [calls.hang, calls.hang_with_gil])
def test_call_that_hangs_is_ended(call: Callable[[], None]) -> None:
    with ProcessExecutor(1, Budget(seconds=0.2)) as processes:
        for future in [processes.submit(call), processes.submit(call)]:
            with pytest.raises(ProcessDiedError, match=r"did not end within 0\.2 s") as raised:
                future.result()
            assert raised.value.status is Status.TIME_LIMIT


def test_call_that_takes_too_much_memory_is_ended() -> None:
    with ProcessExecutor(1, Budget(bytes=300 * 2**20)) as processes:
        large, next_ = processes.submit(calls.use_memory), processes.submit(calls.double, 2)
        with pytest.raises(ProcessDiedError, match="used more than 300 MiB of memory") as raised:
            large.result()
        assert raised.value.status is Status.MEMORY_LIMIT
        assert next_.result() == 4


@pytest.mark.parametrize(
    ("call", "message"), [(calls.fail, "KeyError: 'no such thing'"), (calls.quit_python, "SystemExit: enough")]
)
def test_exception_of_a_call_arrives_with_its_message(call: Callable[[], None], message: str) -> None:
    with ProcessExecutor(1) as processes:
        first, second = processes.submit(call), processes.submit(calls.process_id)
        with pytest.raises(RuntimeError, match=message):
            first.result()
        assert isinstance(second.result(), int)


def test_output_of_a_call_does_not_disturb_the_results() -> None:
    with ProcessExecutor(1) as processes:
        assert processes.submit(calls.print_and_answer).result() == "answer"


def test_immediate_shutdown_does_not_wait_for_calls_that_hang() -> None:
    processes = ProcessExecutor(2)
    futures = [processes.submit(calls.hang) for _ in range(4)]
    processes.shutdown(cancel_futures=True)
    assert all(future.done() for future in futures)


def test_processes_end_when_their_parent_is_killed() -> None:
    program = """
import time
from gradvet.core.processes import ProcessExecutor
from tests.suite import calls
processes = ProcessExecutor(1)
print(processes.submit(calls.process_id).result(), flush=True)
processes.submit(calls.hang)
time.sleep(1e6)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    gone, _ = psutil.wait_procs([child], timeout=600)
    assert gone == [child]


def test_copy_of_a_worker_made_by_fork_answers_no_call() -> None:
    with ProcessExecutor(1) as processes:
        found = [processes.submit(call).result() for call in (calls.fork_and_return, calls.process_id) * 3]
        assert len(set(found)) == 1
        copies = [one.pid for one in psutil.Process(found[0]).children()]
        until = time.monotonic() + 600.0
        while any(map(is_running, copies)):
            assert time.monotonic() < until, "a copy goes on"
            time.sleep(0.02)


def test_answer_to_another_call_is_ignored() -> None:
    """A case, or a process that it left behind, may write an answer that looks right but for its number."""
    forged = pickle.dumps((1, True, "forged", True))
    with ProcessExecutor(1) as processes:
        assert processes.submit(calls.double, 2).result() == 4
        processes.submit(calls.write_to_every_pipe, struct.pack("!i", len(forged)) + forged).result()
        assert [processes.submit(calls.double, number).result() for number in (3, 4)] == [6, 8]


@pytest.mark.parametrize("content", [b"\x00\x00\x00\x04junk", b"\x7f\xff\xff\xffjunk"])
def test_call_that_writes_to_the_pipe_fails_alone(content: bytes) -> None:
    with ProcessExecutor(1) as processes:
        hostile, next_ = processes.submit(calls.write_to_every_pipe, content), processes.submit(calls.double, 2)
        with pytest.raises(ProcessDiedError, match="gave no readable answer"):
            hostile.result(timeout=600)
        assert next_.result(timeout=600) == 4


def test_file_that_is_missing_when_the_function_is_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OSError of the import is not the end of the pipe."""
    text = "import sys\nif 'pytest' not in sys.modules:\n    open('weights.bin')\ndef call():\n    pass\n"
    (tmp_path / "kernel_of_this_test.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    function = importlib.import_module("kernel_of_this_test").call
    with ProcessExecutor(1) as processes, pytest.raises(RuntimeError, match=r"FileNotFoundError: .*weights\.bin"):
        processes.submit(function).result()


def test_worker_whose_streams_were_closed_is_replaced() -> None:
    with ProcessExecutor(1) as processes:
        first = processes.submit(calls.close_streams).result()
        assert processes.submit(calls.process_id).result() != first


def test_child_that_holds_the_pipe_does_not_delay_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradvet.core.processes.OUTPUT_TIMEOUT_SECONDS", 0.1)
    child = child_of_ended_call(calls.hang_with_child_in_other_session, tmp_path / "child")
    assert is_running(child), "the call was ended only after the child had closed the pipe"
    psutil.Process(child).kill()


def test_children_of_a_call_that_hangs_are_ended_with_it(tmp_path: Path) -> None:
    child = child_of_ended_call(calls.start_child, tmp_path / "child")
    while is_running(child):  # the signal was sent, and the system may take a while
        time.sleep(0.01)


def child_of_ended_call(call: Callable[[int, str], None], file: Path) -> int:
    """The process that a call started before its time was over. A slow machine gets more time.

    With a preparation, the start of the worker is outside the limit.
    """
    for seconds in (0.5, 4.0, 60.0):
        with (
            ProcessExecutor(1, Budget(seconds=seconds), prepare=calls.process_id) as processes,
            pytest.raises(ProcessDiedError, match="did not end"),
        ):
            processes.submit(call, str(file)).result()
        if file.exists():
            return int(file.read_text())
    raise AssertionError("the call did not start its child")


def is_running(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_last_words_of_a_worker_that_printed_a_lot_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[deque[bytes]] = []
    keep = module._keep_last
    monkeypatch.setattr(module, "_keep_last", lambda stream, chunks: (kept.append(chunks), keep(stream, chunks)))
    with ProcessExecutor(1) as processes, pytest.raises(ProcessDiedError, match=r"code 7 \(last words\)"):
        processes.submit(calls.print_without_end).result()
    assert sum(map(len, kept[0])) <= 2 * module.OUTPUT_CHUNK_BYTES  # of 20 MB


def test_files_in_the_current_folder_do_not_replace_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise RuntimeError('this file was run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT), *filter(None, sys.path)])
    with ProcessExecutor(1) as processes:
        (found,) = processes.submit(calls.imported_files).result()
    assert not found.startswith(str(tmp_path))
