"""Suites of public projects on both checkers: `python -m benchmarks.suites PATH... [--pytest "ARGUMENTS"]`.

Each PATH is the unpacked source of a project. Of its tests, the files that mention gradcheck, or import a helper that
does, run once under pytest, in a process of their own. Every call of either function goes to torch's checker and to
gradvet's in turn, from the same random state; the test sees torch's answer. Printed are the calls whose outcomes
differ, the number of calls, the processor time inside either checker, and the calls that lose most. Nothing is
installed: what a project needs must be importable, and files that cannot be imported are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import gradvet
from benchmarks.timing import quiet_collector

RECORD = "GRADVET_SUITE_RECORD"
"""Environment variable with the file that the process of a suite writes its calls to."""

CHECKERS = ("torch", "gradvet")
FIRST_SHOWN = 5
"""Calls that lose most and are listed for each suite."""

Call = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites", description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, help="unpacked sources of projects")
    parser.add_argument("--pytest", default="", help="more arguments for pytest, as one string")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for each suite")
    wanted = parser.parse_args(arguments)
    rows, details = [], []
    for path in wanted.paths:
        calls, summary = run_suite(path.resolve(), shlex.split(wanted.pytest), wanted.timeout)
        rows.append(row_of(path.resolve().name, calls, summary))
        details += [f"\n{path.resolve().name}", *details_of(calls)]
    print("| suite | pytest | calls | fast | second order | outcomes differ | torch, s | gradvet, s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))
    print("\n".join(details))
    return 0


def run_suite(path: Path, more: list[str], timeout: float) -> tuple[list[Call], str]:
    """The calls that the tests of a project make, and the last line of pytest."""
    files = sorted(map(str, test_files(path)))
    if not files:
        return [], "no test mentions gradcheck"
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "calls.jsonl"
        own = Path(__file__).resolve().parent.parent
        paths = [str(own), str(own / "src"), str(path), str(path / "src"), os.environ.get("PYTHONPATH", "")]
        settings = {RECORD: str(record), "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
        settings["PYTHONSAFEPATH"] = "1"  # a project may have a folder called benchmarks itself
        command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.suites", "-p", "no:cacheprovider"]
        command += ["--continue-on-collection-errors", "--rootdir", str(path), *more, *files]
        try:
            done = subprocess.run(
                command,
                cwd=path,
                env=os.environ | settings,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
            lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or [""]
        except subprocess.TimeoutExpired:
            lines = [f"stopped after {timeout:g} s"]
        found = record.read_text().splitlines() if record.exists() else []
    return [json.loads(line) for line in found], lines[-1].strip("= ")


def test_files(path: Path) -> Iterator[Path]:
    """Test files that mention gradcheck, or import a module beside, above or one folder below those that does."""
    texts = {file: file.read_text(errors="ignore") for file in path.rglob("*.py")}
    ends = ("_test", "_tests")
    tests = [file for file in texts if file.stem.startswith("test_") or f"_{file.stem}".endswith(ends)]
    helpers = [file for file in texts if file not in tests and "gradcheck" in texts[file]]
    for file in tests:
        names = [
            helper.stem for helper in helpers if not {helper.parent, helper.parent.parent}.isdisjoint(file.parents)
        ]
        imported = rf"(?m)^\s*(?:from|import)\b.*\b(?:{'|'.join(names)})\b"
        if "gradcheck" in texts[file] or (names and re.search(imported, texts[file])):
            yield file


def row_of(name: str, calls: list[Call], summary: str) -> str:
    seconds = [sum(call[checker]["seconds"] for call in calls) for checker in CHECKERS]
    counts = len(calls), sum(call["fast"] for call in calls), sum(call["order"] == 2 for call in calls)
    differ = sum(differs(call) for call in calls)
    cells = (name, summary, *counts, differ, *(f"{taken:.2g}" if taken < 1 else f"{taken:.1f}" for taken in seconds))
    return f"| {' | '.join(map(str, cells))} |"


def details_of(calls: list[Call]) -> Iterator[str]:
    for call in calls:
        if differs(call):
            yield f"  differs: {call['test']}: torch {call['torch']['outcome']}, gradvet {call['gradvet']['outcome']}"
    for call in sorted(calls, key=lost, reverse=True)[:FIRST_SHOWN]:
        times = f"torch {call['torch']['seconds']:.3f} s, gradvet {call['gradvet']['seconds']:.3f} s"
        mode = "fast" if call["fast"] else "slow"
        yield f"  {times}: {call['test']} ({mode}, order {call['order']})"


def differs(call: Call) -> bool:
    return not is_same(call["torch"]["outcome"], call["gradvet"]["outcome"])


def lost(call: Call) -> float:
    return float(call["gradvet"]["seconds"] - call["torch"]["seconds"])


# From here on: the plugin in the process of a suite.


class Interleaved:
    """One of torch's functions, which calls both checkers and gives torch's answer."""

    nested = False
    """Whether a checker runs: torch's second order calls torch's first order by its name."""

    def __init__(self, of_torch: Callable[..., bool], of_gradvet: Callable[..., bool], order: int, file: Path) -> None:
        self.checkers = {"torch": of_torch, "gradvet": of_gradvet}
        self.order, self.file, self.number = order, file, 0
        self.__name__ = of_torch.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        if Interleaved.nested:
            return self.checkers["torch"](*args, **kwargs)
        self.number += 1
        call: Call = {
            "test": os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0],
            "fast": bool(kwargs.get("fast_mode", False)),
            "order": self.order,
        }
        state = torch.get_rng_state(), random.getstate()
        answers: dict[str, Any] = {}
        Interleaved.nested = True
        try:
            # In turn, so that neither always has the warm caches.
            for name in CHECKERS if self.number % 2 else reversed(CHECKERS):
                torch.set_rng_state(state[0])
                random.setstate(state[1])
                call[name], answers[name] = self._timed(name, args, kwargs)
        finally:
            Interleaved.nested = False
        with self.file.open("a") as file:
            file.write(json.dumps(call) + "\n")
        if isinstance(answers["torch"], Exception):
            raise answers["torch"]
        return bool(answers["torch"])

    def _timed(self, name: str, args: Any, kwargs: Any) -> tuple[Call, Any]:
        with quiet_collector():
            started = time.process_time()
            try:
                answer: Any = self.checkers[name](*args, **kwargs)
                outcome = str(answer)
            except Exception as error:
                answer, outcome = error, kind(error)
            return {"outcome": outcome, "seconds": time.process_time() - started}, answer


def kind(error: Exception) -> str:
    """The class; for one of gradvet's, the classes that it is derived from."""
    if not type(error).__module__.startswith("gradvet"):
        return type(error).__name__
    names = [cls.__name__ for cls in type(error).__mro__ if not cls.__module__.startswith("gradvet")]
    return " / ".join(names[: names.index("Exception")])


def is_same(of_torch: str, of_gradvet: str) -> bool:
    """Whether a caller who is prepared for torch's outcome is served by gradvet's: a subclass is caught too."""
    return of_torch in of_gradvet.split(" / ")


def pytest_configure(config: Any) -> None:
    """Put both checkers in the place of torch's, before test modules import them."""
    if RECORD not in os.environ:
        return
    file, module = Path(os.environ[RECORD]), sys.modules["torch.autograd.gradcheck"]
    for checker in (module.gradgradcheck, gradvet.gradgradcheck):  # what a first call loads belongs to no suite
        checker(torch.sin, torch.ones(2, dtype=torch.float64, requires_grad=True))
    for order, name in ((1, "gradcheck"), (2, "gradgradcheck")):
        both = Interleaved(getattr(module, name), getattr(gradvet, name), order, file)
        setattr(module, name, both)
        setattr(torch.autograd, name, both)


if __name__ == "__main__":
    sys.exit(main())
