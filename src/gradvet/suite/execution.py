"""Runs cases on an executor, each to one outcome: work that is lost is begun again, and never counted twice."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from dataclasses import dataclass, replace
from typing import Any

from gradvet.suite.job import Ending, Outcome
from gradvet.suite.processes import MemoryLimitError, TimeLimitError

Call = Callable[[Sequence[str]], list[Outcome]]


class LostEngineError(RuntimeError):
    """The executor gave up what it was asked to do."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An executor, and how it is best used."""

    executor: Executor
    call: Call
    """What it runs: the outcomes of several cases by name."""
    ahead: int
    """How many calls it is given at a time."""
    batch: int = 1
    """How many cases a call has."""
    retries: int = 0


def outcomes(names: Sequence[str], engine: Engine) -> Iterator[Outcome]:
    """What became of each case, as it becomes known."""
    waiting = deque(names[start : start + engine.batch] for start in range(0, len(names), engine.batch))
    begun: Counter[str] = Counter()
    running: dict[Future[list[Outcome]], Sequence[str]] = {}
    while waiting or running:
        while waiting and len(running) < engine.ahead:
            batch = waiting.popleft()
            begun.update(batch)
            running[engine.executor.submit(engine.call, batch)] = batch
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            batch = running.pop(future)
            error = _error(future)
            if error is None:
                yield from (
                    replace(found, attempts=found.attempts + begun[found.name] - 1) for found in future.result()
                )
            elif len(batch) > 1:
                # One of them did it. Alone, each answers for itself.
                begun.subtract(batch)
                waiting.extendleft([name] for name in reversed(batch))
            elif begun[batch[0]] <= engine.retries:
                waiting.appendleft(batch)
            else:
                yield Outcome(batch[0], _ending(error), words=_words(error), attempts=begun[batch[0]])


def _error(future: Future[Any]) -> BaseException | None:
    try:
        return future.exception()
    except CancelledError:
        raise LostEngineError("the cluster is gone: what was found so far is kept where --store was given") from None


def _ending(error: BaseException) -> Ending:
    if isinstance(error, TimeLimitError):
        return Ending.TIME
    return Ending.MEMORY if isinstance(error, MemoryLimitError) else Ending.DIED


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
