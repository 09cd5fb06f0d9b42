"""A framework as the interfaces see it: it binds user input, and makes problems of it, points, and tools.

A new frontend subclasses `Frontend` and `core.problem.Problem`. The minimum is 18 names: `Frontend.bind` and
`Frontend.problem`, the six of `Binding`, and the ten that the docstring of `Problem` names. With these, derivatives are
compared with differences at the user's point. Every other method has a default that says that the framework does not
offer it; what needs it is skipped or left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from gradvet.core.problem import Problem
from gradvet.core.reference_errors import Format
from gradvet.core.results import Report
from gradvet.core.vectors import Array, Space
from gradvet.errors import UnsupportedError

CONSTANT_INPUTS = "the model raises if its inputs require grad: they are constants, and its parameters were checked"


@dataclass(frozen=True, slots=True)
class Request:
    """A function and its arguments as the user passed them."""

    func: Callable[..., Any]
    inputs: Any
    kwargs: Mapping[str, Any] | None = None
    surrogate: Callable[..., Any] | None = None
    reference: Callable[..., Any] | None = None
    """Another implementation of the same function, with which values and gradients are compared."""
    argnums: tuple[int, ...] | None = None
    """Numbers of the positional arguments that are checked; None: all that can be, and the parameters."""
    has_constant_inputs: bool = False
    """Whether the parameters of a module are checked alone."""
    safe_devices: tuple[str, ...] | None = ("cpu",)
    """Kinds of devices on which kernels are called with other shapes and alignments in this process; None: all."""

    @property
    def positional(self) -> tuple[Any, ...]:
        """The positional arguments: the inputs if they are a tuple, otherwise the inputs as the only one."""
        return self.inputs if type(self.inputs) is tuple else (self.inputs,)


class Binding(Protocol):
    """A function of flat arguments, some of which are checked."""

    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def arguments(self) -> tuple[Any, ...]: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def title(self) -> str: ...
    @property
    def checked(self) -> list[int]:
        """The positions of the arguments that are checked."""
        ...

    def restricted(self, positions: Sequence[int]) -> Binding:
        """The binding with these arguments alone checked; the others are constants."""
        ...


def is_strategy(value: Any) -> bool:
    """Whether this is a Hypothesis strategy."""
    return hasattr(value, "do_draw") and hasattr(value, "example")


def examples(strategy: Any, count: int, seed: int) -> list[Any]:
    """At most `count` examples of a strategy, the same for the same seed. Imports Hypothesis."""
    import hypothesis

    found: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def gather(example: Any) -> None:
        found.append(example)

    gather()
    return found[:count]


@dataclass(slots=True)
class Point:
    """A generated or given point in one or several forms, each made on demand."""

    name: str
    forms: Iterator[Any]
    """Bindings, the preferred one first."""
    given: bool = False
    """Whether the user gave it."""


OwnProblem = Any
"""A problem that the frontend made."""


BranchCounts = Callable[[], tuple[int, int]]
"""How many elements of a function have branches (kinks, selections), and how many of them roundoff changed so far."""


class Frontend:
    """One framework. Problems that it receives are those that it made."""

    # The minimum of a frontend.

    def bind(self, request: Request) -> Binding:
        """Find the tensors in the arguments of a request, and the parameters of a module."""
        raise NotImplementedError

    def problem(self, binding: Any, seed: int, *, masked: bool = False) -> Problem:
        """The function at the point. Raises if it returns nothing that could have a derivative. Calls the function."""
        raise NotImplementedError

    # Other problems of the same function.

    def with_constant_inputs(self, request: Request) -> Request | None:
        """The request with the parameters alone to be checked, if a module runs only so; otherwise None.

        For a call that raised. Calls the function.
        """
        return None

    def settle(self, request: Request, names: Sequence[str]) -> bool:
        """Whether the first call of a module, and no later one, sets these parameters; then it has been called.

        The caller preserves the state of the module. Calls the function.
        """
        return False

    def isolated(self, problem: OwnProblem, seed: int) -> Problem:
        """The problem with a forward pass, on copies of the inputs, for every backward pass. Calls the function."""
        own: Problem = problem
        return own

    def restricted(self, problem: OwnProblem, leaves: Sequence[int], seed: int) -> Problem:
        """The problem with these inputs alone; the others are constants. Calls the function."""
        raise UnsupportedError("inputs that are checked in parts")

    def wider_version(self, problem: OwnProblem, request: Request, seed: int) -> tuple[Problem, Problem] | None:
        """The problem, with the eps that its values show, and the same in float64, else in float32 if that is wider.

        None if the function has no such version.
        """
        return None

    def second_order(self, problem: OwnProblem, composition: str, seed: int) -> Problem:
        """The problem whose derivative is the second derivative named `outer-over-inner`."""
        raise UnsupportedError("second derivatives")

    # Other points.

    def points(
        self, problem: OwnProblem, request: Request, domain: Any, seed: int, *, thorough: bool
    ) -> Iterator[Point]:
        """Other values of the inputs, inside of the regions that the user gave in `domain=`."""
        return iter(())

    def shapes(
        self, problem: OwnProblem, request: Request, domain: Any, seed: int, *, thorough: bool, empty: bool
    ) -> Iterator[Point]:
        """Other lengths of the inputs, with `empty` also 0; none if the function refers to integers or makes them."""
        return iter(())

    # State and words.

    def require_separate(self, request: Request) -> None:
        """Raise if elements of an input share memory, so that none of them can change alone."""

    def preserved_state(self, function: Any, arguments: Sequence[Any]) -> AbstractContextManager[None]:
        """Restore random states, buffers, gradients and arguments on exit."""
        return nullcontext()

    def notes(self, problem: OwnProblem) -> Iterator[str]:
        """Sentences about inputs and outputs for the report."""
        return iter(())

    def explained(self, report_for: Callable[[bool], Report], arguments: Sequence[Any], masked: bool) -> Report:
        """The report for a value of `masked`.

        If it fails, a sentence tells the verdict for the other value, if that may differ; an exception gets a note if
        the kind of the inputs may explain it.
        """
        return report_for(masked)

    # Operators one by one, where the framework lets them be intercepted.

    def on_smooth_piece(self, problem: OwnProblem) -> tuple[Problem, BranchCounts] | None:
        """The problem with values that continue beyond kinks as they are at the point; None without kinks.

        Calls the function.
        """
        return None

    def on_same_branches(
        self, problem: OwnProblem, wide: OwnProblem, seed: int
    ) -> tuple[Problem, Problem, BranchCounts] | None:
        """Both problems such that a pass of the wider version takes the branches of the last pass of the problem.

        Calls both functions. None if branches cannot be seen.
        """
        return None

    def rounded(self, problem: OwnProblem, call: Callable[[], Array]) -> Array | None:
        """The result of a call in which every operator rounds to the format of the problem.

        None if operators cannot be intercepted.
        """
        return None

    # Kernels against a reference of the user.

    def plain_problem(self, problem: OwnProblem, request: Request, seed: int) -> tuple[Problem, Request]:
        """The problem of `request.reference` at the same point and from the same random state, and its own request."""
        raise UnsupportedError("reference=")

    def formats(self, problem: OwnProblem, space: Space) -> list[Format]:
        """Shape and format of each leaf of a space of the problem."""
        raise UnsupportedError("reference=")

    def tf32_products(self, problem: OwnProblem) -> AbstractContextManager[object] | None:
        """Cuts the factors of torch's products of float32 numbers off to TF32 while it is open.

        None where kernels of the problem's device and precision do not compute so.
        """
        return None

    def cast(self, request: Request, dtype: Any) -> tuple[str, Request]:
        """The name of a dtype, and the request with inputs, parameters and buffers in it."""
        raise UnsupportedError("dtypes=")

    def has_lost_device(self, problem: OwnProblem) -> bool:
        """Whether a kernel made the device of the problem unusable. Waits for the device."""
        return False

    # Tools.

    def registration_complaints(self, request: Request) -> Mapping[str, str] | None:
        """Complaints about a custom operator by test, empty if it passes; None if the function is none."""
        return None

    def compiled(self, problem: OwnProblem, request: Request) -> Problem:
        """The problem with the function compiled."""
        raise UnsupportedError("a compiler")
