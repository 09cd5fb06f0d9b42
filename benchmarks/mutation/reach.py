"""Which tests execute which lines of core/ and checks/, and how long each takes: measured once, by coverage.py.

A change is tried with the tests that execute its line. Lines that run when the file is imported (constants, defaults,
fields of dataclasses) may matter to all tests that execute anything in the file.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData

from benchmarks.mutation.population import MUTATED
from benchmarks.mutation.process import run_tests


class Clock:
    """A plugin of pytest: the test that runs is the context of what is covered, and the tests that pass are timed."""

    def __init__(self, coverage: Coverage) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = {}
        self.others: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self.others.add(report.nodeid)

    @property
    def passed(self) -> dict[str, float]:
        return {test: seconds for test, seconds in self.seconds.items() if test not in self.others}


class Reach:
    """What was measured, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._coverage = folder / "reach.coverage"
        self._seconds = folder / "reach.json"

    @property
    def is_known(self) -> bool:
        return self._seconds.exists()

    def join(self, parts: Iterable[tuple[Path, dict[str, float]]]) -> None:
        """Keep what several processes measured."""
        data = CoverageData(str(self._coverage))
        seconds: dict[str, float] = {}
        for path, clocked in parts:
            part = CoverageData(str(path))
            part.read()
            data.update(part)
            seconds |= clocked
        data.write()
        self._seconds.write_text(json.dumps(seconds), encoding="utf-8")

    def tests(self, path: Path, line: int) -> list[str]:
        """The tests that a change at this line concerns: those of its own file, then of all in turn, quick first."""
        seconds, known = _seconds(self._seconds), _contexts(self._coverage, path)
        own = {test for test in seconds if Path(test.partition("::")[0]).name == f"test_{path.stem}.py"}
        lines = concerned_lines(path, line)
        found = {test for number in lines or known for test in known.get(number, ())} & seconds.keys()
        files: dict[str, int] = {}
        order: list[tuple[bool, int, float, str]] = []
        for test in sorted(found if lines else found | own, key=lambda test: (seconds[test], test)):
            file = test.partition("::")[0]
            files[file] = files.get(file, 0) + 1
            order.append((test not in own, files[file], seconds[test], test))
        return [test for *_, test in sorted(order)]

    def within(self, tests: list[str], limit: float) -> list[str]:
        """As many of these tests as take so many seconds together."""
        seconds, total = _seconds(self._seconds), 0.0
        taken: list[str] = []
        for test in tests:
            total += seconds[test]
            if total > limit and taken:
                break
            taken.append(test)
        return taken

    def duration(self, tests: list[str]) -> float:
        return sum(_seconds(self._seconds)[test] for test in tests)


def measured(tree: Path, tests: str, path: Path) -> dict[str, float]:
    """Run tests under the eyes of coverage.py, which writes to a path; the seconds of those that pass."""
    where = [str(tree / "src" / "gradvet" / folder / "*") for folder in MUTATED]
    coverage = Coverage(data_file=str(path), config_file=False, include=where)
    clock = Clock(coverage)
    coverage.start()
    run_tests(tree, [tests], clock)
    coverage.stop()
    coverage.save()
    return clock.passed


@cache
def _seconds(path: Path) -> dict[str, float]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


@cache
def _contexts(coverage: Path, path: Path) -> dict[int, list[str]]:
    data = CoverageData(str(coverage))
    data.read()
    return data.contexts_by_lineno(str(path))


def concerned_lines(path: Path, line: int) -> range | None:
    """The lines of the innermost statement around this line, less those of its body; none outside of functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inner = [part for function in functions for part in ast.walk(function) if isinstance(part, ast.stmt)]
    around = [span for span in map(_span, (node for node in inner if node not in functions)) if line in span]
    return min(around, key=len, default=None)


def _span(statement: ast.stmt) -> range:
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return range(statement.lineno, max(last, statement.lineno) + 1)
