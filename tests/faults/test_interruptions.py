"""A check that is interrupted at any line leaves nothing changed. `make fuzz` tries more lines.

The interruptions come in a process of their own: one that torch itself does not survive must not fail other tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gradvet
from gradvet.frontends.torch import private
from tests.faults.interruptions import Tracer, of_watch

POINTS = 24
"""Interruptions of all cases together; `.ci/run` tries 2,000 by `make fuzz`."""


@pytest.mark.skipif(private.PUBLIC_ONLY, reason="open modes cannot be closed without private names")
def test_interrupted_check_leaves_everything_as_it_was() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.interruptions", "0", "--points", str(POINTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"'line events': {POINTS}" in done.stdout


def test_watch_opens_no_context_of_torch_inside_the_block() -> None:
    """An interruption at the end of such a context would leave it open: what the block changes is not restored."""
    case = of_watch()
    tracer = Tracer()

    def block() -> None:
        with gradvet.watch(case.modules[0]):
            tracer.run(lambda: case.modules[0](*case.tensors))

    block()
    files = {Path(code.co_filename).name for code, _ in tracer.places}
    assert "recording.py" in files
    assert files.isdisjoint({"grad_mode.py", "autocast_mode.py"})
