"""One case for each combination of parameters."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, update_wrapper
from typing import Any

from gradvet.errors import InvalidProblemError

Grid = Mapping[str, Iterable[Any]]


def combinations(grid: Grid) -> Iterator[dict[str, Any]]:
    """`{"n": (2, 3), "dim": (0, 1)}` has four; the last name varies fastest.

    >>> [tuple(one.values()) for one in combinations({"n": (2, 3), "dim": (0, 1)})]
    [(2, 0), (2, 1), (3, 0), (3, 1)]
    """
    return (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


def label(parameters: Mapping[str, Any]) -> str:
    """`n=2,dim=0`; what has no short name of its own is printed as it is."""
    return ",".join(f"{name}={getattr(value, '__name__', value)}" for name, value in parameters.items())


def with_those_it_takes(func: Callable[..., Any], parameters: Mapping[str, Any]) -> Callable[..., Any]:
    """The function with the parameters that it has filled in by name."""
    taken = {name: value for name, value in parameters.items() if takes(func, name)}
    return update_wrapper(partial(func, **taken), func) if taken else func


def takes(func: Callable[..., Any], name: str) -> bool:
    try:
        known = inspect.signature(func).parameters
    except (TypeError, ValueError):
        return False
    return name in known or any(one.kind is one.VAR_KEYWORD for one in known.values())


def require_takers(grid: Grid, takers: Iterable[Callable[..., Any]]) -> None:
    """A parameter that nobody takes would vary nothing."""
    functions = list(takers)
    for name in grid:
        if not any(takes(func, name) for func in functions):
            raise InvalidProblemError(
                f"the grid has a parameter {name!r} that neither the function nor its inputs take: rename one of them"
            )
