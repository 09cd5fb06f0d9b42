"""One process of the executor may die or be ended; that is one call's exception and nobody else's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest

from gradvet.suite.processes import DeadProcessError, Limits, MemoryLimitError, Processes, TimeLimitError
from tests.suite import deeds


def test_calls_are_answered_by_other_processes_which_are_kept() -> None:
    with Processes(1) as processes:
        assert processes.submit(deeds.double, 21).result() == 42
        pids = {processes.submit(deeds.process).result() for _ in range(3)}
    assert len(pids) == 1
    assert pids != {deeds.process()}


def test_preparation_runs_once_in_each_process() -> None:
    with Processes(1, prepare=deeds.prepare, with_=(5,)) as processes:
        assert [processes.submit(deeds.secret).result() for _ in range(2)] == [[5], [5]]


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        (deeds.leave, r"ended its process with code 7 \(last words\)"),
        (deeds.crash, "was ended by SIGSEGV"),
    ],
)
def test_death_is_the_exception_of_one_call(deed: Callable[[], None], words: str) -> None:
    with Processes(1) as processes:
        fatal, next_ = processes.submit(deed), processes.submit(deeds.double, 2)
        with pytest.raises(DeadProcessError, match=words):
            fatal.result()
        assert next_.result() == 4


@pytest.mark.parametrize("deed", [deeds.hang, deeds.hang_without_yielding])
def test_call_that_hangs_is_ended(deed: Callable[[], None]) -> None:
    with Processes(1, Limits(seconds=0.5)) as processes:
        stuck, next_ = processes.submit(deed), processes.submit(deeds.double, 2)
        with pytest.raises(TimeLimitError, match=r"did not end within 0\.5 s"):
            stuck.result()
        assert next_.result() == 4


def test_call_that_takes_too_much_memory_is_ended() -> None:
    with Processes(1, Limits(bytes=300 * 2**20)) as processes:
        large, next_ = processes.submit(deeds.flood), processes.submit(deeds.double, 2)
        with pytest.raises(MemoryLimitError, match="used more than 300 MiB of memory"):
            large.result()
        assert next_.result() == 4


@pytest.mark.parametrize(
    ("deed", "words"), [(deeds.fail, "KeyError: 'no such thing'"), (deeds.quit_python, "SystemExit: enough")]
)
def test_exception_comes_home_in_words(deed: Callable[[], None], words: str) -> None:
    with Processes(1) as processes:
        first, second = processes.submit(deed), processes.submit(deeds.process)
        with pytest.raises(RuntimeError, match=words):
            first.result()
        assert isinstance(second.result(), int)


def test_what_a_call_prints_does_not_disturb_the_answers() -> None:
    with Processes(1) as processes:
        assert processes.submit(deeds.chatter).result() == "answer"


def test_shutdown_at_once_does_not_wait_for_what_hangs() -> None:
    processes = Processes(2)
    futures = [processes.submit(deeds.hang) for _ in range(4)]
    processes.shutdown(cancel_futures=True)
    assert all(future.done() for future in futures)


def test_processes_end_when_their_parent_is_killed() -> None:
    program = """
from gradvet.suite.processes import Processes
from tests.suite import deeds
processes = Processes(1)
print(processes.submit(deeds.process).result(), flush=True)
processes.submit(deeds.hang)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    gone, _ = psutil.wait_procs([child], timeout=60)
    assert gone == [child]
