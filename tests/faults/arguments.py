"""Calls the public functions with arguments of wrong types and values.

`python -m tests.faults.arguments SECONDS` goes on with random combinations for that long.
"""

from __future__ import annotations

import inspect
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

import gradvet
from gradvet.errors import InvalidProblemError
from tests.faults.options import arguments_of_a_fuzzer


class Unprintable:
    """An object without a `repr`."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def cyclic() -> list[Any]:
    value: list[Any] = [1.0]
    value.append(value)
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "zero": lambda: 0,
    "three": lambda: 3,
    "minus one": lambda: -1,
    "a huge integer": lambda: 10**40,
    "a float": lambda: 0.5,
    "a large float": lambda: 1e300,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "a complex number": lambda: 1j,
    "an empty text": lambda: "",
    "a text": lambda: "no such name",
    "a text of two lines": lambda: "two\nlines",
    "bytes": lambda: b"reverse",
    "an empty list": lambda: [],
    "an empty tuple": lambda: (),
    "an empty mapping": lambda: {},
    "a list of numbers": lambda: [1, 2],
    "a list of None": lambda: [None],
    "a pair in the wrong order": lambda: (1, 0),
    "a pair of texts": lambda: ("a", "b"),
    "a pair with NaN": lambda: (float("nan"), 1.0),
    "three numbers": lambda: (0.0, 1.0, 2.0),
    "a mapping of numbers": lambda: {1: 2},
    "a mapping of names": lambda: {"no such name": True},
    "a cyclic list": cyclic,
    "an iterator": lambda: iter([1, 2]),
    "an object": object,
    "an object without repr": Unprintable,
    "a class": lambda: dict,
    "a tensor": lambda: torch.ones(2, dtype=torch.float64),
    "an array": lambda: numpy.ones(2),
    "a NumPy integer": lambda: numpy.int64(1),
    "a dtype": lambda: torch.float64,
}

ARGUMENTS = (
    *("kwargs", "argnums", "order", "modes", "masked", "resolution", "power", "accuracy", "budget", "seed", "checks"),
    *("surrogate", "points", "domain", "compile", "thorough", "reference", "dtypes", "stops", "blame"),
)
OF_A_MODEL = ("kwargs", "loss", "order", "stops", "budget", "seed", "surrogate")
"""Arguments of `blame`; `watch` has those after the first two."""

SLOW = {("compile", "True"), ("thorough", "True")}
"""Right values whose checks take long."""


def point() -> torch.Tensor:
    return torch.linspace(0.3, 1.1, 3, dtype=torch.float64)


def complaint(call: Callable[[], object]) -> str:
    """What is wrong with how a call refuses its arguments; nothing if it runs or raises one sentence of gradvet's."""
    try:
        call()
    except InvalidProblemError as error:
        text = str(error)
        return "" if text and "\n" not in text and len(text) < 450 else f"not one sentence: {text!r}"
    except gradvet.GradientError:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def single_calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """Each value for each argument, beside right values of the others."""
    for name, value in VALUES.items():
        for argument in ARGUMENTS:
            if (argument, name) in SLOW:
                continue
            if _is_called(argument, name):
                continue
            given = {"points": None, "seed": 0, argument: value()}
            yield f"{argument}: {name}", lambda given=given: gradvet.check(torch.sin, point(), **given)
        for argument in ("inconclusive", "msg"):
            given = {"points": None, "seed": 0, argument: value()}
            yield f"{argument}: {name}", lambda given=given: gradvet.assert_gradients(torch.sin, point(), **given)
        if not callable(value()):
            yield f"func: {name}", lambda value=value: gradvet.check(value(), point())
            yield (
                f"numerical_jacobian, func: {name}",
                lambda value=value: gradvet.numerical_jacobian(value(), point()),
            )
        if name not in ("a tensor",):
            yield f"inputs: {name}", lambda value=value: gradvet.check(_first, (value(),), seed=0)
            yield f"inputs alone: {name}", lambda value=value: gradvet.check(_first, value(), seed=0)
            yield (
                f"numerical_jacobian, inputs: {name}",
                lambda value=value: gradvet.numerical_jacobian(_first, (value(),)),
            )
        yield f"points: a list of {name}", lambda value=value: gradvet.check(torch.sin, point(), points=[value()])
        if not callable(value()):
            yield f"domain: a list of {name}", lambda value=value: gradvet.check(torch.sin, point(), domain=[value()])


def _is_called(argument: str, name: str) -> bool:
    """Whether the value is called, or makes the function raise: an exception is its own then."""
    if (argument, name) == ("kwargs", "a mapping of names"):
        return True
    return argument in ("surrogate", "domain", "reference") and callable(VALUES[name]())


def calls_about_models() -> Iterator[tuple[str, Callable[[], object]]]:
    """Each value for each argument of `blame` and `watch`."""
    model = torch.nn.Linear(3, 2).double()

    def watched(given: dict[str, Any]) -> object:
        with gradvet.watch(**given) as step:
            model(point()).sum().backward()
        return step.report()

    for name, value in VALUES.items():
        for argument in OF_A_MODEL:
            if (argument == "loss" and callable(value())) or (argument, name) == ("kwargs", "a mapping of names"):
                continue
            given = {"seed": 0, argument: value()}
            yield f"blame, {argument}: {name}", lambda given=given: gradvet.blame(model, point(), **given)
            if argument in OF_A_MODEL[2:]:
                yield f"watch, {argument}: {name}", lambda given=given: watched(given)
        yield f"blame, model: {name}", lambda value=value: gradvet.blame(value(), point())
        yield f"watch, model: {name}", lambda value=value: watched({"model": value()})


def drop_in_complaint(call: Callable[[], object]) -> str:
    """The same for the drop-in functions, which raise torch's exceptions: gradvet's own code has to raise them."""
    try:
        call()
    except gradvet.GradcheckError:
        return ""
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        text, place = str(error), traceback.extract_tb(error.__traceback__)[-1]
        is_own = "gradvet" in place.filename and (place.line or "").startswith("raise ")
        is_flag = "ambiguous" in text  # the sentence of torch and NumPy about an array in place of a flag
        return "" if "\n" not in text and (is_own or is_flag) else f"{type(error).__name__}: {text}, at {place}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def drop_in_calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """Each value for each argument of `gradcheck` and `gradgradcheck`."""
    for function in (gradvet.gradcheck, gradvet.gradgradcheck):
        for name, value in VALUES.items():
            # torch itself refuses wrong `grad_outputs`.
            for argument in inspect.signature(function).parameters.keys() - {"func", "inputs", "grad_outputs"}:
                given = {argument: value()}
                label = f"{function.__name__}, {argument}: {name}"
                yield label, lambda given=given, call=function: call(torch.sin, point().requires_grad_(), **given)
            if not callable(value()):
                label = f"{function.__name__}, func: {name}"
                yield label, lambda value=value, call=function: call(value(), point().requires_grad_())
            label = f"{function.__name__}, inputs: {name}"
            yield label, lambda value=value, call=function: call(_at_most_one, value())


def _first(value: Any, *others: Any) -> Any:
    return value


def _at_most_one(*values: Any) -> Any:
    return values[:1]


def random_call(source: random.Random) -> tuple[str, Callable[[], object]]:
    """Up to four arguments with random values."""
    chosen = source.sample(ARGUMENTS, source.randint(1, 4))
    names = {argument: source.choice(list(VALUES)) for argument in chosen}
    names = {a: n for a, n in names.items() if (a, n) not in SLOW and not _is_called(a, n)}
    given: dict[str, Any] = {"points": None, **{argument: VALUES[name]() for argument, name in names.items()}}
    return str(names), lambda: gradvet.check(torch.sin, point(), **given)


def all_complaints() -> Iterator[tuple[str, str]]:
    """Each single call with what is wrong with how it is refused."""
    yield from ((label, complaint(call)) for label, call in (*single_calls(), *calls_about_models()))
    yield from ((label, drop_in_complaint(call)) for label, call in drop_in_calls())


def main(seconds: float, least: int, seed: int) -> int:
    deadline = time.monotonic() + seconds
    source, number, found = random.Random(seed), 0, 0
    warnings.simplefilter("ignore")

    def complaints() -> Iterator[tuple[str, str]]:
        yield from all_complaints()
        while time.monotonic() < deadline or number < least:
            label, call = random_call(source)
            yield label, complaint(call)

    for label, what in complaints():
        number += 1
        if what:
            found += 1
            print(f"{label}: {what}", flush=True)
    print(f"{number} calls, {found} not refused in one sentence")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*arguments_of_a_fuzzer(__doc__)))
