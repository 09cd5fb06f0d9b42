"""PyTorch's own tests on both checkers: `python -m tests.differential.torch_tests PATH [FILE...] [--pytest "ARGS"]`.

PATH is an unpacked source tree of PyTorch, whose version need not be the installed one: helpers of its tests that the
installed version lacks are taken from the tree. Each test file that mentions gradcheck runs in a process of its own;
of its tests, those that can reach a function which mentions it. A test runs with torch's checker; if it called the
checker, it runs once more with gradvet's. Printed are the tests that end differently and the tests in which a call of
the checker does, unless `TESTS` explains them; if it does not explain one, the command ends with status 1. Results are
appended to `--json`, and tests that it has are not run again but counted, so that a long run can be made in parts.

With `--plant N`, each N-th call that passes on gradvet is made again with an error planted in its gradients, in slow
and fast mode on both checkers. Printed are the errors that torch refuses and gradvet accepts in the same mode.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib
import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

import gradvet
from benchmarks.suites import CHECKERS, is_same, kind, test_files
from tests.differential import planting
from tests.differential.table import TESTS

RECORD = "GRADVET_TORCH_TESTS_RECORD"
"""Environment variable with the file that the process of a test file writes its tests to."""

FILE = "GRADVET_TORCH_TESTS_FILE"
"""Environment variable with that test file."""

KNOWN = "GRADVET_TORCH_TESTS_KNOWN"
"""Environment variable with the file of results that are there already."""

PLANT = "GRADVET_TORCH_TESTS_PLANT"
"""Environment variable with the N of `--plant N`; 0 plants nothing."""

HELPERS = "torch.testing._internal"
"""The package with the helpers of PyTorch's tests."""

Test = dict[str, Any]
"""A test: file, name, and for each checker how it ended, how each call ended, and CPU seconds inside the checker."""


def main(arguments: list[str] | None = None) -> int:
    wanted = parsed(arguments)
    folder = wanted.path / "test" if (wanted.path / "test").is_dir() else wanted.path
    files = [folder / file for file in wanted.files] or sorted(test_files(folder))
    tests = recorded(wanted.json)
    for file in files:
        found, summary = run_file(folder, file, shlex.split(wanted.pytest), wanted.timeout, wanted.json, wanted.plant)
        tests += found
        print(f"{file.relative_to(folder)}: {len(found)} tests call the checker; pytest: {summary}", flush=True)
        for test in filter(differs, found):
            print(f"  {described(test)}", flush=True)
        for test, said in accepted(found):
            print(f"  accepted: {test['name']}: {said}", flush=True)
        if wanted.json:
            with wanted.json.open("a") as record:
                record.writelines(json.dumps(test) + "\n" for test in found)
    differing = [test for test in tests if differs(test)]
    unexplained = [test for test in differing if reason_of(test) is None]
    seconds = [sum(test[checker]["seconds"] for test in tests) for checker in CHECKERS]
    calls = sum(len(test["torch"]["calls"]) for test in tests)
    print(f"{len(tests)} tests with {calls} calls; {len(differing)} differ, {len(unexplained)} of them unexplained")
    print(f"CPU time inside the checker: torch {seconds[0]:.1f} s, gradvet {seconds[1]:.1f} s")
    if wanted.plant:
        print_planted(tests)
    return 1 if unexplained or any(accepted(tests)) else 0


def accepted(tests: list[Test]) -> list[tuple[Test, dict[str, str]]]:
    """The planted errors that torch refuses and gradvet accepts in the same mode."""
    planted = [(test, said) for test in tests for said in test.get("planted", ())]
    return [
        (test, said)
        for test, said in planted
        if any(said[f"torch {mode}"] != "True" and said[f"gradvet {mode}"] == "True" for mode in ("slow", "fast"))
    ]


def print_planted(tests: list[Test]) -> None:
    planted = [said for test in tests for said in test.get("planted", ())]
    for mode in ("slow", "fast"):
        refused = [said for said in planted if said[f"torch {mode}"] != "True"]
        passed = sum(said[f"gradvet {mode}"] == "True" for said in refused)
        counts = f"{len(planted)} errors planted; torch's {mode} mode refuses {len(refused)}"
        print(f"{counts}, of these gradvet accepts {passed}")
    unseen = [said for said in planted if said["torch slow"] != "True" and said["gradvet fast"] == "True"]
    of_torch = sum(said["torch slow"] != "True" and said["torch fast"] == "True" for said in planted)
    print(f"refused by torch's slow mode, accepted in fast mode: torch {of_torch}, gradvet {len(unseen)}")


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.differential.torch_tests", description=__doc__)
    parser.add_argument("path", type=Path, help="unpacked source tree of PyTorch")
    parser.add_argument("files", nargs="*", help="test files, relative to its folder `test` (default: all)")
    parser.add_argument("--pytest", default="", help="more arguments for pytest, as one string")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for each file")
    parser.add_argument("--plant", type=int, default=0, metavar="N", help="plant an error in each N-th call")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append each test to this file, one per line")
    return parser.parse_args(arguments)


def run_file(
    folder: Path, file: Path, more: list[str], timeout: float, known: Path | None = None, plant: int = 0
) -> tuple[list[Test], str]:
    """The tests of a file that call the checker, and the last line of pytest."""
    with tempfile.TemporaryDirectory() as place:
        record = Path(place) / "tests.jsonl"
        own = Path(__file__).resolve().parents[2]
        paths = [str(own), str(own / "src"), os.environ.get("PYTHONPATH", ""), str(folder)]
        settings = {
            RECORD: str(record),
            FILE: str(file),
            KNOWN: str(known.resolve()) if known else os.devnull,
            PLANT: str(plant),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1",
        }
        settings["PYTHONSAFEPATH"] = "1"
        command = [sys.executable, "-m", "pytest", "-q", "-p", __spec__.name, "-p", "no:cacheprovider", "--noconftest"]
        command += ["-c", os.devnull, "--rootdir", str(folder), *more, str(file)]
        try:
            done = subprocess.run(
                command, cwd=folder, env=os.environ | settings, capture_output=True, text=True, timeout=timeout
            )
            lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or [""]
        except subprocess.TimeoutExpired:
            lines = [f"stopped after {timeout:g} s"]
        found = record.read_text().splitlines() if record.exists() else []
    return [{"file": str(file.relative_to(folder)), **json.loads(line)} for line in found], lines[-1].strip("= ")


def recorded(file: Path | None) -> list[Test]:
    """The tests of a file of results; none if there is no such file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file and file.exists() else []


def differs(test: Test) -> bool:
    """Whether the test, or a call of the checker in it, ends differently."""
    by_torch, by_gradvet = test["torch"], test["gradvet"]
    pairs = list(zip(by_torch["calls"], by_gradvet["calls"], strict=False))
    one_lacks_calls = len(by_torch["calls"]) != len(by_gradvet["calls"])
    return by_torch["outcome"] != by_gradvet["outcome"] or one_lacks_calls or not all(is_same(*pair) for pair in pairs)


def reason_of(test: Test) -> str | None:
    """Why the table says that this difference is right."""
    return next((why for name, why in TESTS.items() if test["name"].endswith(name)), None)


def described(test: Test) -> str:
    both = [test[checker] for checker in CHECKERS]
    ends = ", ".join(f"{checker} {end['outcome']}" for checker, end in zip(CHECKERS, both, strict=True))
    pairs = zip(*(end["calls"] for end in both), strict=False)
    first = next((f"; call {i}: {' / '.join(pair)}" for i, pair in enumerate(pairs) if not is_same(*pair)), "")
    words = next((f"\n      {end['error']}" for end in both if end["error"]), "")
    explained = f"\n      explained: {reason}" if (reason := reason_of(test)) else ""
    return f"{test['name']}: {ends}{first}{words}{explained}"


# From here on: the plugin in the process of a test file.


class Recorded:
    """One of torch's functions, answered by the checker under test."""

    checker = "torch"
    nested = False
    """Whether a checker runs: torch's second order calls torch's first order by its name."""
    calls: ClassVar[list[str]] = []
    seconds = 0.0
    passed = 0
    """Calls that passed on gradvet, in all tests."""
    planted: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, of_torch: Callable[..., bool], of_gradvet: Callable[..., bool]) -> None:
        self.checkers = {"torch": of_torch, "gradvet": of_gradvet}
        self.__name__ = of_torch.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        if Recorded.nested:
            return self.checkers["torch"](*args, **kwargs)
        Recorded.nested, started = True, time.process_time()
        outcome = "raised"
        try:
            answer = self.checkers[Recorded.checker](*args, **kwargs)
            outcome = str(answer)
            return answer
        except Exception as error:
            outcome = kind(error)
            raise
        finally:
            Recorded.seconds += time.process_time() - started
            Recorded.calls.append(outcome)
            if outcome == "True" and Recorded.checker == "gradvet":
                self._plant(*args, **kwargs)
            Recorded.nested = False

    def _plant(self, func: Any, inputs: Any, *more: Any, **options: Any) -> None:
        every, Recorded.passed = int(os.environ[PLANT]), Recorded.passed + 1
        if every and not more and Recorded.passed % every == 0:
            said = planting.answers(self.checkers, Recorded.passed // every, func, inputs, options)
            Recorded.planted += [said] if said else []


def pytest_configure(config: Any) -> None:
    """Put the recorded functions in the place of torch's, before test modules import them."""
    if RECORD not in os.environ:
        return
    module = sys.modules["torch.autograd.gradcheck"]
    for name in ("gradcheck", "gradgradcheck"):
        both = Recorded(getattr(module, name), getattr(gradvet, name))
        setattr(module, name, both)
        setattr(torch.autograd, name, both)
    file = Path(os.environ[FILE])
    for source in helpers_of(file):
        supply_missing_names(f"{HELPERS}.{source.stem}", source)
    supply_placeholders(file)


def helpers_of(file: Path) -> list[Path]:
    """The modules with helpers that a test file imports, in its own tree."""
    names = sorted(set(re.findall(rf"{re.escape(HELPERS)}\.(common_\w+)", file.read_text())))
    places = [folder / HELPERS.replace(".", "/") / f"{name}.py" for name in names for folder in file.parents]
    return [place for place in places if place.exists()]


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out tests that have a result, and tests that cannot reach the checker."""
    if RECORD not in os.environ:
        return
    known = {test["name"] for test in recorded(Path(os.environ[KNOWN]))}
    file = Path(os.environ[FILE])
    by_name = mentions([file, *helpers_of(file)])
    chosen = [item for item in items if item.nodeid not in known and by_name.get(_written_name(item), True)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _written_name(item: Any) -> str:
    """The name of the function that a test was made from."""
    return str(inspect.unwrap(getattr(item.obj, "__func__", item.obj)).__code__.co_name)


def mentions(files: list[Path]) -> dict[str, bool]:
    """For each function by name: whether it, or a function that it names, mentions gradcheck."""
    texts: dict[str, str] = {}
    for file in files:
        text = file.read_text()
        lines = text.splitlines()
        owners = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Module | ast.ClassDef)]
        for node in (child for owner in owners for child in owner.body if isinstance(child, ast.FunctionDef)):
            written = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            texts[node.name] = f"{texts.get(node.name, '')}\n{written}"
    words = {name: set(re.findall(r"\w+", text)) for name, text in texts.items()}
    found = {name for name, text in texts.items() if "gradcheck" in text}
    while more := {name for name in words if name not in found and words[name] & found}:
        found |= more
    return {name: name in found for name in texts}


def supply_missing_names(name: str, source: Path) -> None:
    """Let names that an installed module lacks come from another version of it."""

    @functools.cache
    def other() -> Any:
        spec = importlib.util.spec_from_file_location(f"{name}_of_the_tree", source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def found(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return getattr(other(), attribute)

    with contextlib.suppress(ImportError):
        importlib.import_module(name).__dict__["__getattr__"] = found


def supply_placeholders(file: Path) -> None:
    """Let a test file be imported though the installed version lacks a function that some of its tests need."""

    def absent(*args: Any, **kwargs: Any) -> None:
        raise unittest.SkipTest("the installed version lacks this function")

    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
            with contextlib.suppress(ImportError):
                module = importlib.import_module(str(node.module))
                for name in (alias.name for alias in node.names if not hasattr(module, alias.name)):
                    setattr(module, name, absent)


def pytest_runtest_protocol(item: Any, nextitem: Any) -> bool | None:
    """Run a test with torch's checker and, if it called it, with gradvet's."""
    if RECORD not in os.environ:
        return None
    reports, by_torch = _run(item, nextitem, "torch")
    if by_torch["calls"]:
        item._initrequest()
        _, by_gradvet = _run(item, nextitem, "gradvet")
        with open(os.environ[RECORD], "a") as record:
            found = {"name": item.nodeid, "torch": by_torch, "gradvet": by_gradvet, "planted": Recorded.planted}
            record.write(json.dumps(found) + "\n")
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True


def _run(item: Any, nextitem: Any, checker: str) -> tuple[list[Any], dict[str, Any]]:
    from _pytest.runner import runtestprotocol

    Recorded.checker, Recorded.calls, Recorded.seconds, Recorded.planted = checker, [], 0.0, []
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    outcome = next((report.outcome for report in reports if report.outcome != "passed"), "passed")
    errors = [str(report.longrepr).strip().splitlines()[-1] for report in reports if report.failed]
    found = {"outcome": outcome, "calls": Recorded.calls, "seconds": Recorded.seconds, "error": "".join(errors[:1])}
    return reports, found


if __name__ == "__main__":
    sys.exit(main())
