"""A case is a function with inputs and options that can be found by name and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, TypeVar

from gradvet.api import check
from gradvet.core.provenance import environment, source_of, title_of
from gradvet.core.results import Report
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.specimens import seeded

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


def case(*, inputs: Callable[[], Any], **options: Any) -> Callable[[Function], Function]:
    """Mark a function for `gradvet check FILE`; it stays as it is. `options` are those of `gradvet.check`.

    >>> import torch
    >>> @case(inputs=lambda: torch.ones(3, dtype=torch.float64), order=2)
    ... def cube(x):
    ...     return x**3
    >>> cube(2)
    8
    """

    if not callable(inputs):
        raise InvalidProblemError(
            f"inputs makes fresh inputs for every check, so a function was expected, found {type(inputs).__name__}: "
            "write inputs=lambda: ..."
        )

    def mark(func: Function) -> Function:
        found = (*getattr(func, MARK, ()), Case(title_of(func), func, inputs, options))
        try:
            setattr(func, MARK, found)
        except AttributeError:
            raise InvalidProblemError(f"{title_of(func)} cannot be marked: mark a function that calls it") from None
        return func

    return mark


def cases_in(module: ModuleType) -> list[Case]:
    """The marked functions of a module in the order in which they stand, each under the name that it has there."""
    found: list[Case] = []
    for name, value in vars(module).items():
        marked = vars(value).get(MARK, ()) if hasattr(value, "__dict__") else ()
        for number, one in enumerate(marked):
            found.append(replace(one, name=name if len(marked) == 1 else f"{name}[{number}]"))
    return found
