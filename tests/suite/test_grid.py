"""A grid gives one case for each combination of parameters, and each parameter goes to whoever takes it."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Verdict
from gradvet.errors import InvalidProblemError
from gradvet.suite.case import Case, cases_in


def cases(**functions: object) -> list[Case]:
    module = ModuleType("ops")
    vars(module).update(functions)
    return cases_in(module)


def matrix(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, 4, dtype=dtype)


@gradvet.case(inputs=matrix, grid={"n": (2, 3), "dim": (0, 1)})
def total(x: Tensor, dim: int) -> Tensor:
    return x.sum(dim)


def test_every_combination_is_a_case_with_its_parameters_in_its_name() -> None:
    found = cases(total=total)
    assert [case.name for case in found] == [
        "total[n=2,dim=0]",
        "total[n=2,dim=1]",
        "total[n=3,dim=0]",
        "total[n=3,dim=1]",
    ]


def test_parameters_reach_inputs_and_function() -> None:
    shapes = {case.name: (case.inputs().shape, case.func(case.inputs()).shape) for case in cases(total=total)}
    assert shapes["total[n=3,dim=0]"] == ((3, 4), (4,))
    assert shapes["total[n=2,dim=1]"] == ((2, 4), (2,))


def test_cases_of_a_grid_can_be_run() -> None:
    report = cases(total=total)[1].run(seed=0)
    assert report.verdict is Verdict.PASS
    assert report.title == "total[n=2,dim=1]"
    assert report.source is not None
    assert "x.sum(dim)" in report.source.code


def test_parameter_that_both_take_reaches_both() -> None:
    @gradvet.case(inputs=matrix, grid={"n": [2, 3]})
    def scaled(x: Tensor, n: int) -> Tensor:
        return x * n

    inputs = [(case.inputs(), case.func(torch.ones(1))) for case in cases(scaled=scaled)]
    assert [(len(x), float(value)) for x, value in inputs] == [(2, 2.0), (3, 3.0)]


def test_one_value_is_named_as_well() -> None:
    found = gradvet.case(inputs=matrix, grid={"n": [2]})(lambda x: x.sin())
    assert [case.name for case in cases(sine=found)] == ["sine[n=2]"]


def test_two_grids_of_one_function_have_different_names() -> None:
    once = gradvet.case(inputs=matrix, grid={"n": [2]})
    assert [case.name for case in cases(sine=once(once(lambda x: x.sin())))] == ["sine[n=2,0]", "sine[n=2,1]"]


def test_parameter_that_nobody_takes_is_refused() -> None:
    with pytest.raises(
        InvalidProblemError, match="the grid has a parameter 'm' that neither the function nor its inputs"
    ):
        gradvet.case(inputs=matrix, grid={"m": [2]})(lambda x: x.sin())


def test_parameter_without_values_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="has no values"):
        gradvet.case(inputs=matrix, grid={"n": []})
