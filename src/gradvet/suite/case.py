"""A case is a function with inputs and options that can be found by name and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, TypeVar

from gradvet.api import check
from gradvet.core.provenance import environment, source_of, title_of
from gradvet.core.results import Report
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.inputs import seeded
from gradvet.suite.grid import Grid, combinations, label, require_takers, with_those_it_takes

MARK = "__gradvet_cases__"

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Case:
    """What to check, and how. `inputs` makes fresh inputs each time."""

    name: str
    func: Callable[..., Any]
    inputs: Callable[[], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    replay: str = ""
    """The command that runs this case alone."""
    label: str = ""
    """What tells it from the other cases of the same function."""

    def run(self, seed: int, **overrides: Any) -> Report:
        """Check the case. The seed settles the inputs as well as the directions."""
        with seeded(seed):
            inputs = self.inputs()
            report = check(self.func, inputs, **{**self.options, **overrides, "seed": seed})
        return replace(
            report,
            title=self.name,
            replay=f"{self.replay} --seed {seed}" if self.replay else report.replay,
            source=source_of(self.func),
            environment=environment(),
        )


def case(*, inputs: Callable[..., Any], grid: Grid | None = None, **options: Any) -> Callable[[Function], Function]:
    """Mark a function for `gradvet check FILE`; it stays as it is. `options` are those of `gradvet.check`.

    >>> import torch
    >>> @case(inputs=lambda: torch.ones(3, dtype=torch.float64), order=2)
    ... def cube(x):
    ...     return x**3
    >>> cube(2)
    8

    A `grid` gives one case for each combination of parameters. Each goes by name to whoever takes it: the function, its
    inputs, or both.

    >>> @case(inputs=lambda n: torch.ones(n, 4, dtype=torch.float64), grid={"n": (2, 3), "dim": (0, 1)})
    ... def total(x, dim):
    ...     return x.sum(dim)
    """
    if grid is not None and not all(map(list, grid.values())):
        raise InvalidProblemError("a parameter of the grid has no values, so that there is no case: give it some")

    if not callable(inputs):
        raise InvalidProblemError(
            f"inputs makes fresh inputs for every check, so a function was expected, found {type(inputs).__name__}: "
            "write inputs=lambda: ..."
        )

    def mark(func: Function) -> Function:
        require_takers(grid or {}, (func, inputs))
        name = title_of(func)
        found = [
            Case(
                name,
                with_those_it_takes(func, parameters),
                with_those_it_takes(inputs, parameters),
                options,
                label=label(parameters),
            )
            for parameters in combinations({name: tuple(values) for name, values in (grid or {}).items()})
        ]
        try:
            setattr(func, MARK, (*getattr(func, MARK, ()), *found))
        except AttributeError:
            raise InvalidProblemError(f"{name} cannot be marked: mark a function that calls it") from None
        return func

    return mark


def cases_in(module: ModuleType) -> list[Case]:
    """The marked functions of a module in the order in which they stand, each under the name that it has there."""
    found: list[Case] = []
    for name, value in vars(module).items():
        marked = vars(value).get(MARK, ()) if hasattr(value, "__dict__") else ()
        labels = Counter(one.label for one in marked)
        for number, one in enumerate(marked):
            # A label alone is enough where it is the only one of its kind; a function marked twice counts its cases.
            told = (
                one.label if one.label and labels[one.label] == 1 else ",".join(filter(None, (one.label, str(number))))
            )
            found.append(replace(one, name=name if len(marked) == 1 and not one.label else f"{name}[{told}]"))
    return found
