"""A check that is interrupted at any line leaves nothing changed. `make fuzz` tries more lines.

The interruptions come in a process of their own: one that torch itself does not survive must not fail other tests.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from gradvet.frontends.torch import private

POINTS = 300
"""Interruptions of all cases."""


@pytest.mark.skipif(private.PUBLIC_ONLY, reason="open modes cannot be closed without private names")
def test_interrupted_check_leaves_everything_as_it_was() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.interruptions", "0", "--points", str(POINTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"'line events': {POINTS}" in done.stdout
