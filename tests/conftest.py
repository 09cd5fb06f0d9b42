"""Fixtures of all tests: each test starts from a fixed random state of its own."""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No limit on time, because a loaded machine is slow. The examples are the same in every run.
settings.register_profile("gradvet", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gradvet")

PROCESSES = {"plugin", "browser", "suite", "cli", "test_docs.py", "test_examples.py"}
"""Tests that start processes of their own, whose random state a fixture cannot set."""


@pytest.fixture(autouse=True)
def fixed_randomness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix the seeds that gradvet draws for its checks, so that a failing test fails again."""
    seed = zlib.crc32(request.node.nodeid.rpartition("/")[2].encode())
    random.seed(seed)
    place = Path(str(request.node.path)).relative_to(Path(__file__).parent).parts[0]
    if place in PROCESSES:
        return
    import torch

    torch.manual_seed(seed)
    generator = random.Random(seed)
    monkeypatch.setattr(os, "urandom", generator.randbytes)
