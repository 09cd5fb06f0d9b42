"""The arguments of `check`: wrong types and values are refused with one sentence before any work; which checks run."""

from __future__ import annotations

import difflib
import functools
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from numbers import Integral, Real
from typing import Any, NoReturn, ParamSpec, TypeVar

from gradvet.checks.catalogue import COMPILE, FORMER_NAMES, HIGHER_ORDER, NAMES, REFERENCE, SECOND_ORDER
from gradvet.core.frontend import Request, is_strategy
from gradvet.errors import InvalidArgumentError, InvalidProblemError
from gradvet.options import SEEDS, Budget

MAX_ORDER = 5
"""Highest order of derivatives: the cost doubles with each order."""


TOLERANCES = ("atol", "rtol", "eps", "tol", "tolerance", "nondet_tol")
"""Arguments of torch's checker that `check` does not have."""

P = ParamSpec("P")
R = TypeVar("R")


def explaining_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with a sentence in place of Python's message where it is called with arguments it does not take."""
    known = list(signature(function).parameters)
    name = f"gradvet.{function.__name__}"

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > 2:
            raise InvalidArgumentError(
                f"{name} takes a function and its inputs: pass several as a tuple, {name}(func, (a, b))"
            )
        for given in kwargs.keys() - set(known):
            raise InvalidArgumentError(f"{name} has no argument {given}{_instead(given, known)}")
        return function(*args, **kwargs)

    return call


def _instead(given: str, known: list[str]) -> str:
    """What to use in place of an argument that does not exist."""
    if given in TOLERANCES:
        return ": it compares with the error bar that it measures; gradvet.gradcheck has torch's tolerances"
    close = difflib.get_close_matches(given, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; it has {', '.join(known)}"


@contextmanager
def explaining_lists(inputs: Any) -> Iterator[None]:
    """Add a note to a TypeError inside if the inputs are a list, which torch's checker takes for several arguments."""
    try:
        yield
    except TypeError as error:
        if isinstance(inputs, list) and hasattr(error, "add_note"):
            error.add_note("The inputs are a list, which is one argument: pass several arguments as a tuple.")
        raise


def surrogates_of(surrogate: Any, *, or_function: bool = False) -> dict[Any, Callable[..., Any]]:
    """The surrogates of classes inside a model; none if the argument is None, or a function where that is allowed."""
    if surrogate is None or (or_function and callable(surrogate)):
        return {}
    if not isinstance(surrogate, Mapping):
        also = "is a function, or " if or_function else ""
        refuse(f"surrogate {also}maps subclasses of autograd.Function to functions", surrogate)
    for cls, function in surrogate.items():
        if not isinstance(cls, type) or not callable(function) or not hasattr(cls, "apply"):
            refuse("surrogate maps subclasses of autograd.Function to functions", {cls: function})
    return dict(surrogate)


def request_of(
    func: Callable[..., Any],
    inputs: Any,
    kwargs: Mapping[str, Any] | None,
    surrogate: Any = None,
    argnums: Any = None,
) -> Request:
    """The function and its arguments, tested."""
    if not callable(func):
        refuse("a function, a module or an autograd.Function was expected", func)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        refuse("kwargs is a mapping of names to values", kwargs)
    for name in kwargs or ():
        if not isinstance(name, str):
            refuse("the keys of kwargs are names of arguments", name)
    request = Request(func, inputs, kwargs, surrogate)
    return replace(request, argnums=_argnums(argnums, len(request.positional)))


def _argnums(given: Any, count: int) -> tuple[int, ...] | None:
    if given is None:
        return None
    numbers = (given,) if isinstance(given, Integral) else given
    if isinstance(numbers, str) or not isinstance(numbers, Iterable):
        refuse("argnums is the number of a positional argument, or several", given)
    listed = tuple(numbers)
    for number in listed:
        if not is_integer(number) or not -count <= number < count:
            refuse(f"argnums has numbers of the {count} positional arguments, from 0 to {count - 1}", number)
    if not listed:
        refuse("argnums names at least one positional argument", given)
    return tuple(dict.fromkeys(int(number) % count for number in listed))


def order_of(given: Any) -> int:
    if not is_integer(given) or not 1 <= given <= MAX_ORDER:
        refuse(f"order is an integer from 1 to {MAX_ORDER}", given)
    return int(given)


def flag(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        refuse(f"{name} is True or False", given)
    return bool(given)


def seed_of(given: Any) -> int:
    if not is_integer(given) or int(given) not in SEEDS:
        refuse("seed is an integer of at most 64 bits", given)
    return int(given)


def fraction(name: str, given: Any, example: str, *, zero: bool = False) -> float:
    """A relative error in (0, 1], or in [0, 1) if it may be zero."""
    if not is_number(given) or not (0.0 <= given < 1.0 if zero else 0.0 < given <= 1.0):
        refuse(f"{name} is a relative error between 0 and 1 such as {example}", given)
    return float(given)


def budget_of(given: Any) -> Budget:
    """A number is seconds."""
    if given is None:
        return Budget()
    budget = given if isinstance(given, Budget) else Budget(seconds=given)
    if budget.seconds is not None and not (is_number(budget.seconds) and budget.seconds > 0):
        refuse("budget is a positive number of seconds or a gradvet.Budget", given)
    if budget.bytes is not None and not (is_number(budget.bytes) and budget.bytes > 0):
        refuse("the bytes of a budget are a positive number", given)
    return budget


def names_of(name: str, given: Any) -> tuple[str, ...]:
    """One name or several."""
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Iterable):
        refuse(f"{name} is a name or several names", given)
    listed = tuple(given)
    for one in listed:
        if not isinstance(one, str):
            refuse(f"{name} has names", one)
    return listed


def checks_of(given: Any) -> Any:
    """None, names of checks, or a mapping of names to whether they run."""
    if given is None:
        return None
    names = names_of("checks", given)
    if not isinstance(given, Mapping):
        return names
    for wanted in given.values():
        flag("a value of the mapping checks", wanted)
    return given


def require_domain(domain: Any) -> None:
    """Raise unless a domain is a region, a list of regions, or a mapping to regions."""
    several = list(domain.values()) if isinstance(domain, Mapping) else domain
    for region in several if isinstance(several, list) else [several]:
        if region is not None and not is_strategy(region) and not callable(region):
            _require_interval(region)


def _require_interval(region: Any) -> None:
    if not isinstance(region, tuple) or len(region) != 2:
        refuse("a domain is an interval (low, high), a function of candidate values, or a Hypothesis strategy", region)
    for end in region:
        if end is not None and (not is_number(end) or math.isnan(end)):
            refuse("the ends of an interval of domain are numbers, or None for no bound", end)
    low, high = (-math.inf if region[0] is None else region[0], math.inf if region[1] is None else region[1])
    if not low < high:
        refuse("an interval of domain has a low end below its high end", region)


def is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def refuse(expected: str, found: Any) -> NoReturn:
    """Raise an error of one line."""
    try:
        shown = " ".join(reprlib.repr(found).split())
    except Exception:  # the object cannot be shown
        shown = f"a {type(found).__name__}"
    raise InvalidProblemError(f"{expected}, found {shown}")


MODES = ("reverse", "forward")


Selection = frozenset[str]
"""Names of the checks that run."""


def selection_of(modes: Iterable[str], checks: Iterable[str] | Mapping[str, bool] | None) -> Selection:
    """All checks of the modes; or only those named; or all with some switched on or off."""
    wanted = (modes,) if isinstance(modes, str) else tuple(modes)
    _require_known("mode", wanted, MODES)
    names = set(_of_modes(wanted))
    if isinstance(checks, Mapping):
        switches = {FORMER_NAMES.get(name, name): on for name, on in checks.items()}
        _require_known("check", switches, NAMES)
        names = {name for name in NAMES if switches.get(name, name in names)}
    elif checks is not None:
        names = {FORMER_NAMES.get(name, name) for name in ([checks] if isinstance(checks, str) else checks)}
        _require_known("check", names, NAMES)
    if not names or not wanted:
        raise InvalidProblemError("no check is left to run: name at least one mode and one check")
    return frozenset(names)


@functools.cache
def _of_modes(modes: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name for name in NAMES if _belongs(name, modes))


def _belongs(name: str, modes: tuple[str, ...]) -> bool:
    """Whether a check runs by default for these modes."""
    if name in MODES:
        return name in modes
    if name == COMPILE:
        return False
    if name in (REFERENCE, HIGHER_ORDER):
        return "reverse" in modes
    if name == "jvp_vjp_agree":
        return set(modes) == set(MODES)
    return name not in SECOND_ORDER or set(name.split("-over-")) <= set(modes)


def _require_known(kind: str, given: Iterable[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(known)}"
            raise InvalidProblemError(f"there is no {kind} {name!r}; {meant}")
