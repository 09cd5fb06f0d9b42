"""Runs checks that may end the process in a child process; a child that dies is a finding.

The child is a new interpreter that runs this module, because a CUDA context does not survive a fork. It imports the
user's function by name, so that functions that cannot be pickled are left out, and the report says so.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradvet.core.results import Finding, Verdict

MAX_CHILD_SECONDS = 600.0
"""Time after which the child is ended, if the check has no budget."""

TRYING, DONE, REFUSED = "trying", "done", "refused"
"""Kinds of messages of the child: what it tries next, its findings, and why it cannot begin."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a child."""

    messages: Sequence[tuple[str, Any]]
    status: int | None
    """The exit status, negative for a signal; None if it took too long."""
    words: str
    """The last line that it wrote to stderr."""

    def last(self, kind: str) -> Any:
        """The content of the last message of this kind; None if there is none."""
        return next((content for name, content in reversed(self.messages) if name == kind), None)


def findings_of_child(task: tuple[Any, ...], checks: Sequence[str], seconds: float) -> Iterator[Finding]:
    """The findings of these checks, run in a child; `task` is `run_pipeline` with its arguments."""
    try:
        payload = pickle.dumps(task)
    except Exception as error:
        yield from _left_out(checks, f"{type(error).__name__}: {error}")
        return
    seconds = max(0.0, min(seconds, MAX_CHILD_SECONDS))
    outcome = _run(payload, seconds)
    found, refused = outcome.last(DONE), outcome.last(REFUSED)
    if found is not None:
        yield from (finding for finding in found if finding.check in checks)
    elif refused is not None:
        yield from _left_out(checks, refused)
    else:
        check, what = outcome.last(TRYING) or (checks[0], "its start")
        facts = {"status": outcome.status, "stderr": outcome.words, "point": what}
        if outcome.status is None:
            headline = f"a process of its own took longer than {seconds:.0f} s at {what}"
            yield Finding(check, Verdict.INCONCLUSIVE, headline, facts=facts)
        else:
            headline = f"the function ends the process at {what}: {_ending(outcome)}"
            advice = "Look for reads and writes beyond the end of a tensor, and for assumptions about alignment."
            yield Finding(check, Verdict.FAIL, headline, facts=facts, advice=advice)


def _left_out(checks: Sequence[str], reason: str) -> Iterator[Finding]:
    words = " ".join(reason.split())[:200]
    for check in checks:
        yield Finding(
            check,
            Verdict.SKIPPED,
            f"other shapes and alignments run in a process of their own, which cannot load the function ({words}); "
            "define it at the top level of a module",
        )


def _run(payload: bytes, seconds: float) -> _Outcome:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", "from gradvet.api.isolation import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as child:
        try:
            written, errors = child.communicate(payload, timeout=seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            written, errors = child.communicate()
            return _Outcome(_messages(written), None, _last_line(errors))
        return _Outcome(_messages(written), child.returncode, _last_line(errors))


def _messages(written: bytes) -> list[tuple[str, Any]]:
    """The messages of a child; the last one may be incomplete."""
    stream, found = io.BytesIO(written), []
    while stream.tell() < len(written):
        try:
            found.append(pickle.load(stream))
        except Exception:
            break
    return found


def _last_line(errors: bytes) -> str:
    return (errors.decode(errors="replace").strip().splitlines() or [""])[-1][:200]


def _ending(outcome: _Outcome) -> str:
    if outcome.status is not None and outcome.status < 0:
        return signal.Signals(-outcome.status).name
    return outcome.words or f"exit status {outcome.status}"


def main() -> None:
    """The child: reads a task from stdin, says on stdout what it tries, and returns its findings."""
    # What the function prints goes to stderr, so that it does not mix with messages.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def say(kind: str, content: Any) -> None:
        answers.write(pickle.dumps((kind, content)))
        answers.flush()

    try:
        run, frontend, request, settings, options = pickle.load(sys.stdin.buffer)
    except Exception as error:
        say(REFUSED, f"{type(error).__name__}: {error}")
        return
    announced = replace(settings, announce=lambda check, what: say(TRYING, (check, what)))
    say(DONE, run(frontend, request, announced, options).findings)
