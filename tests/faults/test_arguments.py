"""Arguments of wrong types and values are refused in one sentence (`api/validation.py`). `make fuzz` tries more."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import gradvet
from gradvet.api.validation import FORMER_NAMES
from gradvet.errors import InvalidProblemError
from tests.faults.arguments import (
    calls_about_models,
    complaint,
    drop_in_calls,
    drop_in_complaint,
    point,
    random_call,
    single_calls,
)

RANDOM_CALLS = 100


def test_every_argument_refuses_wrong_types_and_values_in_one_sentence() -> None:
    found = [f"{label}: {what}" for label, call in single_calls() if (what := complaint(call))]
    assert found == []


def test_functions_about_models_refuse_wrong_types_and_values_in_one_sentence() -> None:
    found = [f"{label}: {what}" for label, call in calls_about_models() if (what := complaint(call))]
    assert found == []


@pytest.mark.parametrize("surrogate", ["x", 3, [1], torch.sin])
def test_surrogates_of_a_model_are_a_mapping(surrogate: Any) -> None:
    sentence = "surrogate maps subclasses of autograd.Function to functions, found "
    for call in (gradvet.watch, lambda **given: gradvet.blame(torch.nn.Tanh(), point(), **given)):
        with pytest.raises(InvalidProblemError, match=sentence):
            call(surrogate=surrogate)


@pytest.mark.filterwarnings("ignore")
def test_drop_in_functions_refuse_wrong_types_and_values_in_one_sentence() -> None:
    found = [f"{label}: {what}" for label, call in drop_in_calls() if (what := drop_in_complaint(call))]
    assert found == []


def test_name_of_a_check_that_is_misspelt_is_corrected() -> None:
    with pytest.raises(InvalidProblemError, match=r"there is no check 'layout'; did you mean 'input_layout'\?"):
        gradvet.check(torch.sin, point(), checks=["layout"])


@pytest.mark.parametrize(("former", "name"), FORMER_NAMES.items())
def test_checks_run_under_their_former_names(former: str, name: str) -> None:
    chosen = {
        finding.check for finding in gradvet.check(torch.mul, (point(), point()), checks=[former], seed=0).findings
    }
    assert chosen == {name}
    left_out = gradvet.check(torch.mul, (point(), point()), checks={former: False}, seed=0)
    assert name not in {finding.check for finding in left_out.findings}


def test_resolution_and_its_former_name_are_the_same() -> None:
    asked = [gradvet.check(torch.sin, point(), seed=0, points=None, **{name: 1e-4}) for name in ("resolution", "power")]
    assert asked[0].ledger == asked[1].ledger
    assert {row.asked for row in asked[1].ledger} == {1e-4}
    with pytest.raises(InvalidProblemError, match=r"^resolution= and power= are two names of the same argument: give"):
        gradvet.check(torch.sin, point(), resolution=0.1, power=0.1)


def test_random_combinations_of_arguments_are_refused_in_one_sentence() -> None:
    source = random.Random(0)
    calls = [random_call(source) for _ in range(RANDOM_CALLS)]
    assert [f"{label}: {what}" for label, call in calls if (what := complaint(call))] == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"domain": (1, 0)}, "an interval of domain has a low end below its high end, found (1, 0)"),
        ({"points": []}, "points= has no inputs: leave it out, or pass None to try no other points"),
        ({"order": 6}, "order is an integer from 1 to 5, found 6"),
        ({"order": True}, "order is an integer from 1 to 5, found True"),
        ({"seed": 1.5}, "seed is an integer of at most 64 bits, found 1.5"),
        ({"budget": float("nan")}, "budget is a positive number of seconds or a gradvet.Budget, found nan"),
        ({"budget": "1"}, "budget is a positive number of seconds or a gradvet.Budget, found '1'"),
        ({"kwargs": [1]}, "kwargs is a mapping of names to values, found [1]"),
        ({"argnums": 1}, "argnums has numbers of positional arguments, from 0 to 0 here, found 1"),
        ({"modes": 3}, "modes is a name or several names, found 3"),
        ({"checks": {"reverse": 1}}, "a value of the mapping checks is True or False, found 1"),
        ({"thorough": 1}, "thorough is True or False, found 1"),
        ({"surrogate": 1}, "surrogate is a function, or maps subclasses of autograd.Function to functions, found 1"),
        ({"accuracy": 1}, "accuracy is a relative error between 0 and 1 such as 1e-5, found 1"),
    ],
)
def test_sentence_says_what_was_expected_and_what_was_found(arguments: dict[str, Any], sentence: str) -> None:
    def never(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the function was called")

    with pytest.raises(InvalidProblemError) as refusal:
        gradvet.check(never, point(), **arguments)
    assert str(refusal.value) == sentence


def test_numpy_integers_are_integers() -> None:
    numpy = pytest.importorskip("numpy")
    assert gradvet.check(torch.sin, point(), seed=numpy.int64(7), order=numpy.int64(1)).seed == 7
