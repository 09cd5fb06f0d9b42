"""The arguments of `check`: wrong ones are refused before any work; and the call that gives the same report again."""

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

from gradvet.checks import CHECK_NAMES, COMPILE, HIGHER_ORDER, REFERENCE, SECOND_ORDER
from gradvet.core.frontend import Request, is_strategy
from gradvet.core.provenance import title_of
from gradvet.errors import InvalidArgumentError, InvalidProblemError, first_line
from gradvet.options import SEEDS, Budget, Options

MAX_ORDER = 5
"""Highest order of derivatives: the cost doubles with each order."""

TOLERANCES = ("atol", "rtol", "eps", "tol", "tolerance", "nondet_tol")
"""Arguments of torch's checker that `check` does not have."""

ONE_INPUT_EACH = "pass one input for each argument, several as a tuple, and keyword arguments as kwargs={...}"

CONTEXT_FIRST = "; forward takes ctx first, unless the class has a setup_context"

P = ParamSpec("P")
R = TypeVar("R")

ARGUMENTS_ELSEWHERE = {"inconclusive": "assert_gradients", "msg": "assert_gradients", "loss": "blame"}
"""Arguments that one function of gradvet has alone, and that function."""


def explaining_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with a sentence in place of Python's message where it is called with arguments it does not take."""
    name = f"gradvet.{function.__name__}"
    known = list(signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > 2:
            raise InvalidArgumentError(
                f"{name} takes a function and its inputs: pass several as a tuple, {name}(func, (a, b))"
            )
        for given in kwargs.keys() - set(known):
            raise InvalidArgumentError(f"{name} has no argument {given}{_instead(given, known, args[:1])}")
        return function(*args, **kwargs)

    return call


def _instead(given: str, known: list[str], checked: tuple[Any, ...]) -> str:
    """Advice on an argument that does not exist: of the function that is checked, or of another function of gradvet."""
    how = f"arguments of the function itself are passed as kwargs={{{given!r}: ...}}"
    if any(given in _names(func) for func in checked):
        return f"; {how}"
    if given in TOLERANCES:
        return ": it compares with the error bar that it measures; gradvet.gradcheck has torch's tolerances"
    if given in ARGUMENTS_ELSEWHERE:
        return f"; gradvet.{ARGUMENTS_ELSEWHERE[given]} has it"
    if close := difflib.get_close_matches(given, known, 1):
        return f"; did you mean {close[0]}?"
    return f"; it has {', '.join(known)}; {how}"


def _names(func: Any) -> Iterable[str]:
    """The names of the arguments of a function, a module or an `autograd.Function`; none of what is written in C."""
    try:
        return signature(getattr(func, "forward", func)).parameters
    except (TypeError, ValueError):
        return ()


@contextmanager
def explaining_call(request: Request) -> Iterator[None]:
    """Add what to do to the exception of a function that is called with arguments that it does not take."""
    try:
        yield
    except (TypeError, AttributeError) as error:
        func, text = request.func, first_line(error)
        # `Norm.forward() missing 1 required positional argument: 'weight'`
        name, forward = text.partition("(")[0].rpartition(".")[2], getattr(func, "forward", func)
        is_own = name in (getattr(func, "__name__", ""), getattr(forward, "__name__", ""))
        # `'list' object has no attribute 'sin'`, `argument 'input' (position 1) must be Tensor, not list`
        is_list = isinstance(request.inputs, list)
        if not is_own and not (is_list and (text.startswith("'list' object") or text.endswith("not list"))):
            raise
        advice = f"the list is one argument; {ONE_INPUT_EACH}" if is_list else ONE_INPUT_EACH
        advice += CONTEXT_FIRST if isinstance(func, type) else ""
        raise InvalidArgumentError(f"{text}: {advice}") from (None if is_own else error)
    except RuntimeError as error:
        own, given = _dtypes(getattr(request.func, "parameters", tuple)()), _dtypes(request.positional)
        if "type" not in first_line(error) or not own or not given or own == given:
            raise
        raise InvalidArgumentError(
            f"{first_line(error)}: the parameters are {' and '.join(own)}, the inputs {' and '.join(given)}; give both "
            "one dtype, such as model.double() and x.double()"
        ) from error


def _dtypes(values: Iterable[Any]) -> list[str]:
    """The floating-point and complex dtypes among values."""
    known = (str(getattr(value, "dtype", "")).rpartition(".")[2] for value in values)
    return sorted({name for name in known if "float" in name or "complex" in name})


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
    require_no_module_class(func)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        refuse("kwargs is a mapping of names to values", kwargs)
    for name in kwargs or ():
        if not isinstance(name, str):
            refuse("the keys of kwargs are names of arguments", name)
    request = Request(func, inputs, kwargs, surrogate)
    return replace(request, argnums=_argnums(argnums, len(request.positional)))


def require_no_module_class(func: Any) -> None:
    """Raise for the class of a module."""
    if isinstance(func, type) and hasattr(func, "named_parameters"):
        raise InvalidProblemError(f"pass an instance of the module, such as {func.__name__}(...), not its class")


def _argnums(given: Any, count: int) -> tuple[int, ...] | None:
    if given is None:
        return None
    numbers = (given,) if isinstance(given, Integral) else given
    if isinstance(numbers, str) or not isinstance(numbers, Iterable):
        refuse("argnums is the number of a positional argument, or several", given)
    listed = tuple(numbers)
    for number in listed:
        if not is_integer(number) or not -count <= number < count:
            refuse(f"argnums has numbers of positional arguments, from 0 to {count - 1} here", number)
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


def resolution_of(resolution: float | None, power: float | None, default: float) -> float:
    """The resolution asked for, under its name or under `power`, its former one."""
    if resolution is not None and power is not None:
        raise InvalidProblemError("resolution= and power= are two names of the same argument: give only resolution=")
    if power is not None:
        return fraction("power", power, "0.01")
    return default if resolution is None else fraction("resolution", resolution, "0.01")


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
    """Raise an error of one line: what was expected, and what was found."""
    raise InvalidProblemError(f"{expected}, found {' '.join(reprlib.repr(found).split())}")


MODES = ("reverse", "forward")

FORMER_NAMES = {
    "undefined": "none_grad_output",
    "grad_outputs": "grad_output_layout",
    "cotangents": "grad_output_layout",
    "interleaving": "reentrancy",
    "frozen": "partial_requires_grad",
    "layouts": "input_layout",
    "duality": "jvp_vjp_agree",
}
"""Names of checks that `checks=` still accepts, with those of today."""

Selection = frozenset[str]
"""Names of the checks that run."""


def selection_of(modes: tuple[str, ...], checks: Iterable[str] | Mapping[str, bool] | None) -> Selection:
    """All checks of the modes; or only those named; or all with some switched on or off."""
    _require_known("mode", modes, MODES)
    names = set(_of_modes(modes))
    if isinstance(checks, Mapping):
        switches = {FORMER_NAMES.get(name, name): on for name, on in checks.items()}
        _require_known("check", switches, CHECK_NAMES)
        names = {name for name in CHECK_NAMES if switches.get(name, name in names)}
    elif checks is not None:
        names = {FORMER_NAMES.get(name, name) for name in checks}
        _require_known("check", names, CHECK_NAMES)
    if not names or not modes:
        raise InvalidProblemError("no check is left to run: name at least one mode and one check")
    return frozenset(names)


@functools.cache
def _of_modes(modes: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name for name in CHECK_NAMES if _belongs(name, modes))


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


PLAIN = (bool, int, float, complex, str, type(None))
FEW = 3
"""Number of left-out checks up to which the command names them; beyond that it names those that ran."""


def replay(
    request: Request,
    order: int,
    selection: Selection,
    bytes: int | None,
    options: Options,
    points: Mapping[str, str],
) -> str:
    """`gradvet.check(Wrong.apply, inputs, order=2, seed=7)`: values without a literal are given by name."""
    usual = Options(seed=options.seed)
    settings = {
        "kwargs": _written(request.kwargs) if request.kwargs else "",
        "argnums": repr(request.argnums) if request.argnums is not None else "",
        "order": repr(order) if order != 1 else "",
        **_selection(selection),
        "masked": "True" if options.masked else "",
        "resolution": repr(options.resolution) if options.resolution != usual.resolution else "",
        "accuracy": repr(options.accuracy) if options.accuracy else "",
        "budget": _budget(options.seconds, bytes),
        "surrogate": _named(request.surrogate, "surrogate") if request.surrogate else "",
        "reference": _named(request.reference, "reference") if request.reference else "",
        **points,
        "seed": repr(options.seed),
    }
    given = ", ".join(f"{name}={value}" for name, value in settings.items() if value)
    return f"gradvet.check({_named(request.func, 'func')}, inputs, {given})"


def _named(func: Any, otherwise: str) -> str:
    """The function's name if that can stand in code, which `<lambda>` and the class of a module cannot."""
    title = title_of(func)
    is_instance = title == type(func).__name__
    return title if not is_instance and all(part.isidentifier() for part in title.split(".")) else otherwise


def _written(kwargs: Mapping[str, Any]) -> str:
    return repr(dict(kwargs)) if all(map(_is_plain, kwargs.values())) else "kwargs"


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)


def _selection(selection: Selection) -> dict[str, str]:
    if COMPILE in selection:
        return {**_selection(selection - {COMPILE}), "compile": "True"}
    for modes in (MODES, *((mode,) for mode in MODES)):
        if selection == selection_of(modes, None):
            return {} if modes == MODES else {"modes": repr(modes)}
    left_out = {name: False for name in CHECK_NAMES if name not in selection and name != COMPILE}
    chosen = [name for name in CHECK_NAMES if name in selection]
    return {"checks": repr(left_out if len(left_out) <= FEW else chosen)}


def _budget(seconds: float | None, bytes: int | None) -> str:
    if bytes is not None:
        return f"gradvet.Budget(seconds={seconds!r}, bytes={bytes!r})"
    return repr(seconds) if seconds is not None else ""
