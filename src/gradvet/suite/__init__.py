"""Many checks in one run: cases (functions with inputs and options, found by name), and the result of one case."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, update_wrapper
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from gradvet.core.processes import Status
from gradvet.core.provenance import title_of
from gradvet.core.results import Report, Verdict
from gradvet.errors import InvalidProblemError

CASES_ATTRIBUTE = "__gradvet_cases__"
"""Attribute of a decorated function that holds its cases."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Case:
    """A function to check, with options. `inputs` returns new inputs at each call."""

    name: str
    func: Callable[..., Any]
    inputs: Callable[[], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    replay: str = ""
    """The command that runs this case alone, without its seed."""
    label: str = ""
    """Grid parameters, as in `n=2,dim=0`; part of the name."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Words of the Python API in errors about the inputs, and their replacements."""

    def run(self, seed: int, **overrides: Any) -> Report:
        """Check the case. The seed determines the inputs as well as the directions."""
        from gradvet.api import check  # here, because results are read and worker processes start without a framework
        from gradvet.frontends.torch.random_state import seeded

        with seeded(seed):
            inputs = self.inputs()
            try:
                report = check(self.func, inputs, **{**self.options, **overrides, "seed": seed})
            except InvalidProblemError as error:
                message = str(error)
                for python, own in self.words.items():
                    message = message.replace(python, own)
                raise type(error)(message) from error
        return replace(
            report,
            title=self.name,
            replay=f"{self.replay} --seed {seed}" if self.replay else report.replay,
        )


def require_file(path: str) -> None:
    """Raise if a target of the command line names a file that does not exist."""
    if not Path(path).is_file():
        raise InvalidProblemError(f"there is no file {path}: check the path, from the folder {Path.cwd().name}")


WITHOUT_RESULT = (Status.DIED, Status.TIME_LIMIT, Status.MEMORY_LIMIT, Status.UNFINISHED, Status.DAMAGED)
"""Ends of a case that say nothing about its function, so that a run with one of them is incomplete."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The report of a case. A case that came to no end has a report with the verdict ERROR."""

    name: str
    report: Report
    attempts: int = 1
    seconds: float = 0.0
    """Wall time of the case, including the creation of its inputs."""
    error: BaseException | None = None
    """The exception, if the case raised it in this process."""

    @classmethod
    def of_error(cls, name: str, status: Status, message: str, attempts: int = 1, seconds: float = 0.0) -> CaseResult:
        return cls(name, Report.of_error(name, status.value, message, seconds), attempts, seconds)

    @property
    def verdict(self) -> Verdict:
        return self.report.verdict

    @property
    def status(self) -> str:
        """A value of `Status`."""
        kinds = [finding.check for finding in self.report.findings if finding.verdict is Verdict.ERROR]
        return kinds[0] if kinds else Status.REPORTED.value

    @property
    def message(self) -> str:
        """The error, if there is no verdict about the gradients."""
        return next((one.headline for one in self.report.findings if one.verdict is Verdict.ERROR), "")


def case(
    *, inputs: Callable[..., Any], grid: Mapping[str, Iterable[Any]] | None = None, **options: Any
) -> Callable[[Function], Function]:
    """Mark a function for `gradvet check FILE`. The function itself is unchanged; `options` go to `gradvet.check`.

    >>> import torch
    >>> @case(inputs=lambda: torch.ones(3, dtype=torch.float64), order=2)
    ... def cube(x):
    ...     return x**3
    >>> cube(2)
    8

    A `grid` makes one case for each combination of its parameters. A parameter is passed by name to the function, to
    `inputs`, or to both, according to their signatures.

    >>> @case(inputs=lambda n: torch.ones(n, 4, dtype=torch.float64), grid={"n": (2, 3), "dim": (0, 1)})
    ... def total(x, dim):
    ...     return x.sum(dim)
    """
    if grid is not None and not all(map(list, grid.values())):
        raise InvalidProblemError("a parameter of the grid has no values, so there is no case: give it some")
    if not callable(inputs):
        raise InvalidProblemError(
            f"inputs makes fresh inputs for every check, so a function was expected, found {type(inputs).__name__}: "
            "write inputs=lambda: ..."
        )
    values = {name: tuple(some) for name, some in (grid or {}).items()}

    def mark(func: Function) -> Function:
        for parameter in values:
            if not _accepts(func, parameter) and not _accepts(inputs, parameter):
                raise InvalidProblemError(
                    f"the grid has a parameter {parameter!r} that neither the function nor its inputs take: rename one "
                    "of them"
                )
        name = title_of(func)
        cases = []
        for combination in itertools.product(*values.values()):  # the last parameter varies fastest
            parameters = dict(zip(values, combination, strict=True))
            label = ",".join(f"{key}={getattr(value, '__name__', value)}" for key, value in parameters.items())
            cases.append(Case(name, _bind(func, parameters), _bind(inputs, parameters), options, label=label))
        try:
            setattr(func, CASES_ATTRIBUTE, (*getattr(func, CASES_ATTRIBUTE, ()), *cases))
        except AttributeError:
            raise InvalidProblemError(f"{name} cannot be marked: mark a function that calls it") from None
        return func

    return mark


def cases_in(module: ModuleType) -> list[Case]:
    """The cases of a module in the order of their definitions, named after the module's attributes."""
    cases: list[Case] = []
    for name, value in vars(module).items():
        marked = vars(value).get(CASES_ATTRIBUTE, ()) if hasattr(value, "__dict__") else ()
        labels = Counter(one.label for one in marked)
        for number, one in enumerate(marked):
            # The number is added if several cases of the function have the same label, or none.
            parts = [one.label] if one.label and labels[one.label] == 1 else filter(None, (one.label, str(number)))
            is_only_case = len(marked) == 1 and not one.label
            cases.append(replace(one, name=name if is_only_case else f"{name}[{','.join(parts)}]"))
    return cases


def _bind(func: Callable[..., Any], parameters: Mapping[str, Any]) -> Callable[..., Any]:
    """The function with the parameters that its signature accepts filled in."""
    accepted = {name: value for name, value in parameters.items() if _accepts(func, name)}
    return update_wrapper(partial(func, **accepted), func) if accepted else func


def _accepts(func: Callable[..., Any], name: str) -> bool:
    try:
        known = inspect.signature(func).parameters
    except (TypeError, ValueError):
        return False
    return name in known or any(one.kind is one.VAR_KEYWORD for one in known.values())
