"""Do the tests notice one change?"""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult

from benchmarks.mutation.population import mutated
from benchmarks.mutation.process import Replaced, in_fork, run_tests
from benchmarks.mutation.reach import Reach

UNREACHED = "no test executes it"


class Selection:
    """A plugin of pytest: only these tests, in this order; and the first that fails."""

    def __init__(self, tests: list[str]) -> None:
        self.rank = {test: i for i, test in enumerate(tests)}
        self.failed: str | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.rank]
        items[:] = sorted(chosen, key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid


@dataclass(frozen=True)
class Laboratory:
    """A copy of the repository, what its tests reach, and for how many seconds of them one change is tried."""

    tree: Path
    reach: Reach
    limit: float

    def attempt(self, change: MutationSpec) -> WorkResult:
        source = change.module_path.read_text(encoding="utf-8")
        code = mutated(source, change)
        try:
            compile(code, "changed", "exec", dont_inherit=True)
        except SyntaxError:
            return WorkResult(worker_outcome=WorkerOutcome.NO_TEST)
        outcome, words = self._outcome(change, code)
        return WorkResult(
            worker_outcome=WorkerOutcome.NORMAL, test_outcome=outcome, output=words, diff=_difference(source, code)
        )

    def control(self) -> None:
        """The code as it is must pass, and code that cannot work must not: else nothing that is found here counts."""
        path = self.tree / "src" / "gradvet" / "core" / "extrapolation.py"
        tests = self.reach.within(self.reach.tests(path, 1), 1.0)
        source = path.read_text(encoding="utf-8")
        right, wrong = (
            in_fork(60.0, noticed_by, self.tree, Replaced(self.tree, path, code), tests)
            for code in (source, f"{source}\ndel fit_slope\n")
        )
        if right != "" or not wrong:
            raise RuntimeError(f"the code as it is: {right!r}; without a function: {wrong!r}; of {len(tests)} tests")

    def _outcome(self, change: MutationSpec, code: str) -> tuple[TestOutcome, str]:
        known = self.reach.tests(change.module_path, change.start_pos[0])
        if not known:
            return TestOutcome.SURVIVED, UNREACHED
        tests = self.reach.within(known, self.limit)
        patience = 60.0 + 5.0 * self.reach.duration(tests)
        answer = in_fork(patience, noticed_by, self.tree, Replaced(self.tree, change.module_path, code), tests)
        if answer is None:
            return TestOutcome.KILLED, "the tests died or did not end"
        if answer:
            return TestOutcome.KILLED, answer
        return TestOutcome.SURVIVED, f"{len(tests)} of {len(known)} tests"


def noticed_by(tree: Path, replaced: Replaced, tests: list[str]) -> str:
    """The test that fails, if one does."""
    sys.meta_path.insert(0, replaced)
    selection = Selection(tests)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    status = run_tests(tree, ["-x", *files], selection)
    return selection.failed or ("" if status == pytest.ExitCode.OK else f"exit status {status}")


def _difference(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))
