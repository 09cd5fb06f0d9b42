"""A process that has imported all that is slow to import, and forks for every run of tests.

gradvet itself is imported in the fork alone, from a copy of the repository, and one of its files may be another there.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, ModuleType
from typing import ParamSpec, TypeVar

import pytest

SLOW = (
    "torch",
    "numpy",
    "hypothesis",
    "scipy",
    "mpmath",
    "rich.console",
    "torch.testing._internal.opinfo.core",
    "torch._dynamo",
)
FORK = multiprocessing.get_context("fork")

P = ParamSpec("P")
T = TypeVar("T")


def prepare() -> None:
    for name in SLOW:
        importlib.import_module(name)


def in_fork(limit: float | None, deed: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What the deed gives in a process of its own; nothing if that dies, or takes longer than so many seconds."""
    here, there = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: there.send(deed(*args, **kwargs)))
    process.start()
    there.close()
    try:
        return _received(here, limit)
    finally:
        process.kill()
        process.join()


def run_tests(tree: Path, tests: Sequence[str], *plugins: object) -> int:
    """Run tests of a copy of the repository, up to the first that fails; without a word."""
    os.chdir(tree)
    sys.path[:0] = [str(tree), str(tree / "src")]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    # Plain assertions: pytest's own way of importing what it rewrites would pass by the changed source.
    words = ["-q", "-n", "0", "-p", "no:cacheprovider", "--assert=plain", *tests]
    return int(pytest.main(words, plugins=list(plugins)))


class Replaced(MetaPathFinder):
    """Gives the module at a path another source."""

    def __init__(self, tree: Path, path: Path, source: str) -> None:
        self.name = ".".join(path.relative_to(tree / "src").with_suffix("").parts).removesuffix(".__init__")
        self.path, self.source = path, source

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        return spec_from_file_location(name, self.path, loader=_Loader(name, str(self.path), self.source))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec", dont_inherit=True)


def _received(connection: Connection, limit: float | None) -> T | None:
    try:
        return connection.recv() if connection.poll(limit) else None
    except EOFError:
        return None
