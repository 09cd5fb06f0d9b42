"""Runs every test that asks for a `checker` with gradvet and with torch, in slow and in fast mode.

Those with torch show that the tests describe what torch does. They are part of `make gallery`, not of `make test`.

`upstream_differs("why")` leaves torch out of a test: torch does something else there, and gradvet is to do it right.
`upstream_differs("why", mode="fast")` leaves it out in that mode alone.
"""

from __future__ import annotations

import pytest

from .checker import LIBRARIES, MODES, Checker, Library, library


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "upstream_differs(reason, mode=None): torch behaves otherwise here, only gradvet is run"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "checker" in metafunc.fixturenames:
        variants = [
            pytest.param((name, mode), id=f"{name}-{mode}", marks=_marks(name))
            for name in LIBRARIES
            for mode in MODES
            if not _is_left_out(metafunc, name, mode)
        ]
        metafunc.parametrize("checker", variants, indirect=True)
    elif "implementation" in metafunc.fixturenames:
        names = [pytest.param(name, marks=_marks(name)) for name in LIBRARIES if not _is_left_out(metafunc, name, None)]
        metafunc.parametrize("implementation", names, indirect=True)


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.gallery] if name == "torch" else []


def _is_left_out(metafunc: pytest.Metafunc, name: str, mode: str | None) -> bool:
    """Whether torch differs here, or only tests of gradvet are wanted: then those of torch need not be made."""
    marks = list(metafunc.definition.iter_markers("upstream_differs"))
    is_unwanted = "not gallery" in metafunc.config.option.markexpr
    return name == "torch" and (is_unwanted or any(mark.kwargs.get("mode") in (None, mode) for mark in marks))


@pytest.fixture
def checker(request: pytest.FixtureRequest) -> Checker:
    name, mode = request.param
    return Checker(library(name), mode)


@pytest.fixture
def implementation(request: pytest.FixtureRequest) -> Library:
    return library(request.param)
