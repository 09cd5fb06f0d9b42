"""Fixtures of all tests: a fixed random state for each test; no limits on time, because a loaded machine is slow."""

from __future__ import annotations

import gc
import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The examples are the same in every run.
settings.register_profile("gradvet", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gradvet")

PROCESSES = {"plugin", "browser", "suite", "cli", "test_docs.py", "test_examples.py"}
"""Tests that start processes of their own, whose random state a fixture cannot set."""


GALLERY_ONLY = {"test_gallery_itself.py", "test_held_out.py"}
"""Files with tests of `make gallery` alone: thousands, which other runs need not make and leave out again."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if collection_path.name in GALLERY_ONLY and "not gallery" in config.option.markexpr else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules and tests stay until the end: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


TIME_LIMITS = (
    "gradvet.api.blame.AUTOMATIC_SECONDS",
    "gradvet.api.blame.DEFAULT_SECONDS",
    "gradvet.core.ledger.MAX_VARIATION_SECONDS",
    "gradvet.core.ledger.MIN_VARIATION_SECONDS",
    "gradvet.frontends.torch.blame.pieces.MAX_PIECE_SECONDS",
    "gradvet.suite.run.CONNECT_TIMEOUT_SECONDS",
    "gradvet.core.processes.OUTPUT_TIMEOUT_SECONDS",
)
"""Limits after which gradvet leaves something out. A test of such a limit sets it."""


@pytest.fixture(scope="session", autouse=True)
def _no_time_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in TIME_LIMITS:
            patch.setattr(name, 3600.0)
        yield


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
