"""Runs checks that may end the process in a child process; a child that dies is a finding.

The child imports the user's function by name, so that functions that cannot be pickled are left out, and the report
says so.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gradvet.core.results import Finding, Verdict
from gradvet.options import Budget

MAX_CHILD_SECONDS = 600.0
"""Time after which the child is ended, if the check has no budget."""

CRASH_ADVICE = "Look for reads and writes beyond the end of a tensor, and for assumptions about alignment."


def findings_of_child(task: tuple[Any, ...], checks: Sequence[str], seconds: float) -> Iterator[Finding]:
    """The findings of these checks, run in a child; `task` is `run_pipeline` with its arguments."""
    from gradvet.core.processes import ProcessDiedError, ProcessExecutor, Status  # few checks need them

    try:
        payload = pickle.dumps(task)
    except Exception as error:
        yield from _left_out(checks, f"{type(error).__name__}: {error}")
        return
    seconds = max(0.0, min(seconds, MAX_CHILD_SECONDS))
    executor = ProcessExecutor(1, Budget(seconds=seconds))
    with TemporaryDirectory() as folder:
        announced = Path(folder, "announced")
        announced.write_text(f"{checks[0]}\nits start", encoding="utf-8")
        try:
            found = executor.submit(_findings, payload, announced).result()
        except RuntimeError as error:
            check, _, what = announced.read_text(encoding="utf-8").partition("\n")
            if isinstance(error, ProcessDiedError) and error.status is Status.TIME_LIMIT:
                headline = f"a process of its own took longer than {seconds:.0f} s at {what}"
                yield Finding(check, Verdict.INCONCLUSIVE, headline, facts={"point": what})
                return
            cause = error.cause if isinstance(error, ProcessDiedError) else str(error)
            headline = f"the function ends the process at {what}: {cause}"
            yield Finding(check, Verdict.FAIL, headline, facts={"point": what}, advice=CRASH_ADVICE)
            return
        finally:
            executor.shutdown(cancel_futures=True)
    if isinstance(found, str):
        yield from _left_out(checks, found)
    else:
        yield from (finding for finding in found if finding.check in checks)


def _left_out(checks: Sequence[str], reason: str) -> Iterator[Finding]:
    words = " ".join(reason.split())[:200]
    for check in checks:
        yield Finding(
            check,
            Verdict.SKIPPED,
            f"other shapes and alignments run in a process of their own, which cannot load the function ({words}); "
            "define it at the top level of a module",
        )


def _findings(payload: bytes, announced: Path) -> tuple[Finding, ...] | str:
    """Runs in the child: the findings, or why it cannot begin. What it tries next is in the file `announced`."""
    try:
        run, frontend, request, settings, options = pickle.loads(payload)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

    def announce(check: str, what: str) -> None:
        announced.write_text(f"{check}\n{what}", encoding="utf-8")

    findings: tuple[Finding, ...] = run(frontend, request, replace(settings, announce=announce), options).findings
    return findings
