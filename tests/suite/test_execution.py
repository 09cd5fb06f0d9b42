"""Cases run in this process, in others or on a cluster; each has one outcome, whatever the others do."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gradvet.suite.engines import Place
from gradvet.suite.execution import Engine, LostEngineError, outcomes
from gradvet.suite.job import Ending, Outcome
from gradvet.suite.processes import DeadProcessError, Limits
from tests.suite.runs import all_outcomes, report_of, write_cases

HERE, APART = Place(), Place(jobs=1)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("place", [HERE, Place(jobs=2)], ids=["here", "apart"])
def test_case_that_raises_does_not_stop_the_others(folder: Path, place: Place) -> None:
    target = write_cases(
        folder, right="return x.sin()", broken="raise RuntimeError('no such kernel')", also_right="return x.cos()"
    )
    found = all_outcomes(target, place)
    assert {name: one.ending for name, one in found.items()} == {
        "right": Ending.REPORTED,
        "broken": Ending.RAISED,
        "also_right": Ending.REPORTED,
    }
    assert found["broken"].words == "RuntimeError: no such kernel"
    assert [report_of(found[name]).seed for name in ("right", "also_right")] == [5, 5]


def test_same_seed_gives_the_same_findings_everywhere(folder: Path) -> None:
    target = write_cases(folder, right="return x.sin() * x.exp()")
    reports = [report_of(all_outcomes(target, place)["right"]) for place in (HERE, APART)]
    assert reports[0].findings == reports[1].findings
    assert reports[0].resolution == reports[1].resolution


def test_crash_hang_and_flood_are_results_of_their_cases(folder: Path) -> None:
    target = write_cases(
        folder,
        leaves="os._exit(3)",
        crashes="ctypes.string_at(0)",
        hangs="time.sleep(1000)",
        floods="x = x + len(bytearray(b'x') * 2**32)",
        after="return x.cos()",
    )
    found = all_outcomes(target, Place(jobs=1, limits=Limits(seconds=3.0, bytes=2**30), retries=0))
    assert {name: one.ending for name, one in found.items()} == {
        "leaves": Ending.DIED,
        "crashes": Ending.DIED,
        "hangs": Ending.TIME,
        "floods": Ending.MEMORY,
        "after": Ending.REPORTED,
    }
    assert found["leaves"].words == "ended its process with code 3"
    assert found["crashes"].words == "was ended by SIGSEGV"


DIES_ONCE = """if not os.path.exists('tried'):
        open('tried', 'w').close()
        os._exit(1)
    return x.sin()"""


def test_case_that_dies_once_is_tried_again(folder: Path) -> None:
    found = all_outcomes(write_cases(folder, unlucky=DIES_ONCE), APART)["unlucky"]
    assert (found.ending, found.attempts) == (Ending.REPORTED, 2)


class Clumsy(Executor):
    """Dies of every call that has a bad name in it."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        (names,) = args
        self.calls.append(list(names))
        future: Future[Any] = Future()
        if "bad" in names:
            future.set_exception(DeadProcessError("worker lost"))
        else:
            future.set_result(fn(names))
        return future


def reported(names: Sequence[str]) -> list[Outcome]:
    return [Outcome(name, Ending.REPORTED) for name in names]


def test_batch_that_is_lost_is_repeated_one_by_one() -> None:
    executor = Clumsy()
    engine = Engine(executor, reported, ahead=2, batch=3, retries=1)
    found = list(outcomes(["a", "bad", "b", "c"], engine))
    assert sorted((one.name, one.ending.value, one.attempts) for one in found) == [
        ("a", "reported", 1),
        ("b", "reported", 1),
        ("bad", "died", 2),
        ("c", "reported", 1),
    ]
    assert executor.calls.count(["a", "bad", "b"]) == 1
    assert executor.calls.count(["bad"]) == 2


def test_no_more_calls_run_at_a_time_than_the_engine_wants() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def call(names: Sequence[str]) -> list[Outcome]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return reported(names)

    with ThreadPoolExecutor(8) as executor:
        assert len(list(outcomes([str(number) for number in range(20)], Engine(executor, call, ahead=3)))) == 20
    assert 1 < most <= 3


def test_engine_that_gives_up_is_not_taken_for_a_result() -> None:
    class Gone(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    with pytest.raises(LostEngineError, match="the cluster is gone"):
        list(outcomes(["a"], Engine(Gone(), reported, ahead=1)))
