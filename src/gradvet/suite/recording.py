"""Listens to the drop-in functions: what they find is a report, but what they return is True or an exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gradvet.compat import checker
from gradvet.core.provenance import environment, is_own, source_of
from gradvet.core.results import Report
from gradvet.core.runner import Check
from gradvet.options import Options


@contextmanager
def recorded(listen: Callable[[Report], object]) -> Iterator[None]:
    """Every report of `gradcheck` and `gradgradcheck` inside also goes to `listen`, passed or not."""
    vet = checker._vet

    def listening(
        func: Callable[..., Any], arguments: tuple[Any, ...], options: Options, catalogue: list[Check]
    ) -> Report:
        report = vet(func, arguments, options, catalogue)
        # The gradient that gradgradcheck differentiates is gradvet's own function: its name tells nobody anything.
        title = "gradient" if is_own(func) else report.title
        listen(replace(report, title=title, source=source_of(func), environment=environment()))
        return report

    checker._vet = listening
    try:
        yield
    finally:
        checker._vet = vet
