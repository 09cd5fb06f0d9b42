"""Runs checks that may end the process in a child process; a child that dies is a finding.

The child is a new interpreter that runs this module, because a CUDA context does not survive a fork. It imports the
user's function by name, so that functions that cannot be pickled are left out, and the report says so.
"""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gradvet.core.documents import signal_name
from gradvet.core.results import Finding, Verdict

MAX_CHILD_SECONDS = 600.0
"""Time after which the child is ended, if the check has no budget."""

TRYING, DONE, REFUSED = "trying", "done", "refused"
"""Kinds of messages of the child: what it tries next, its findings, and why it cannot begin."""


def findings_of_child(task: tuple[Any, ...], checks: Sequence[str], seconds: float) -> Iterator[Finding]:
    """The findings of these checks, run in a child; `task` is `run_pipeline` with its arguments."""
    try:
        payload = pickle.dumps(task)
    except Exception as error:
        yield from _left_out(checks, f"{type(error).__name__}: {error}")
        return
    seconds = max(0.0, min(seconds, MAX_CHILD_SECONDS))
    messages, status, words = _run(payload, seconds)
    found, refused = messages.get(DONE), messages.get(REFUSED)
    if found is not None:
        yield from (finding for finding in found if finding.check in checks)
    elif refused is not None:
        yield from _left_out(checks, refused)
    else:
        check, what = messages.get(TRYING) or (checks[0], "its start")
        facts = {"status": status, "stderr": words, "point": what}
        if status is None:
            headline = f"a process of its own took longer than {seconds:.0f} s at {what}"
            yield Finding(check, Verdict.INCONCLUSIVE, headline, facts=facts)
        else:
            headline = f"the function ends the process at {what}: {_ending(status, words)}"
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


def _run(payload: bytes, seconds: float) -> tuple[dict[str, Any], int | None, str]:
    """The last message of each kind, the exit status (negative for a signal, None if it took too long), and the last
    line that the child wrote to stderr.
    """
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
            return _messages(written), None, _last_line(errors)
        return _messages(written), child.returncode, _last_line(errors)


def _messages(written: bytes) -> dict[str, Any]:
    """The last message of each kind of a child; the end may be incomplete."""
    stream, found = io.BytesIO(written), dict[str, Any]()
    while stream.tell() < len(written):
        try:
            kind, content = pickle.load(stream)
        except Exception:
            break
        found[kind] = content
    return found


def _last_line(errors: bytes) -> str:
    return (errors.decode(errors="replace").strip().splitlines() or [""])[-1][:200]


def _ending(status: int, words: str) -> str:
    return signal_name(-status) if status < 0 else words or f"exit status {status}"


def main() -> None:
    """The child: reads a task from stdin, says on stdout what it tries, and returns its findings."""
    # Output of the function goes to stderr, so that it does not mix with messages.
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
