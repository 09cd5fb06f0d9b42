"""What all tests share: each runs from a random state of its own that is the same every time."""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import settings

# A loaded machine is slow, not wrong: no deadline per example. The examples are the same every time.
settings.register_profile("gradvet", deadline=None, derandomize=True)
settings.load_profile("gradvet")

PROCESSES = {"plugin", "browser", "suite", "test_cli.py", "test_docs.py", "test_examples.py"}
"""Tests that start processes of their own, whose randomness is not ours to fix."""


@pytest.fixture(autouse=True)
def fixed_randomness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """gradvet draws a fresh seed for every check; a test that fails must fail again when it is run again."""
    seed = zlib.crc32(request.node.nodeid.rpartition("/")[2].encode())
    random.seed(seed)
    place = Path(str(request.node.path)).relative_to(Path(__file__).parent).parts[0]
    if place in PROCESSES:
        return
    import torch

    torch.manual_seed(seed)
    generator = random.Random(seed)
    monkeypatch.setattr(os, "urandom", generator.randbytes)
