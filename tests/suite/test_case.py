"""Cases, also those of a parameter grid (`suite/__init__.py`)."""

from __future__ import annotations

import random
from types import ModuleType

import numpy
import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Verdict
from gradvet.errors import InvalidProblemError
from gradvet.suite import Case, cases_in


def point() -> Tensor:
    return torch.randn(2, 3, dtype=torch.float64)


def module_with(**values: object) -> ModuleType:
    module = ModuleType("ops")
    vars(module).update(values)
    return module


def test_decorated_function_stays_as_it_is() -> None:
    @gradvet.case(inputs=point)
    def double(x: float) -> float:
        return 2.0 * x

    assert double(3.0) == 6.0


def test_cases_are_found_in_the_order_of_their_definitions() -> None:
    mark = gradvet.case(inputs=point)
    first, second = mark(lambda x: x.sin()), mark(lambda x: x.cos())
    found = cases_in(module_with(later=first, plain=point, earlier=second, number=3))
    assert [case.name for case in found] == ["later", "earlier"]


def test_function_may_have_several_cases() -> None:
    function = gradvet.case(inputs=point)(gradvet.case(inputs=point, order=2)(lambda x: x.sin()))
    found = cases_in(module_with(f=function))
    assert [(case.name, dict(case.options)) for case in found] == [("f[0]", {"order": 2}), ("f[1]", {})]


def test_case_runs_with_its_options() -> None:
    report = Case("square", torch.square, point, {"modes": ("reverse",)}).run(seed=3)
    assert report.verdict is Verdict.PASS
    assert "forward" not in {finding.check for finding in report.findings}


def test_options_of_the_run_come_before_those_of_the_case() -> None:
    report = Case("square", torch.square, point, {"order": 1}).run(seed=3, order=2)
    assert "reverse-over-reverse" in {finding.check for finding in report.findings}


def test_seed_determines_the_inputs() -> None:
    drawn: list[Tensor] = []

    def recording() -> Tensor:
        drawn.append(point())
        return drawn[-1]

    case = Case("square", torch.square, recording)
    for seed in (3, 3, 4):
        case.run(seed)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_seed_determines_other_random_generators() -> None:
    def mixed() -> Tensor:
        return torch.tensor([random.random(), numpy.random.rand()], dtype=torch.float64)

    first, second = list[Tensor](), list[Tensor]()
    for drawn in (first, second):
        Case("square", lambda x, drawn=drawn: drawn.append(x.detach().clone()) or x.square(), mixed).run(seed=3)
    assert torch.equal(first[0], second[0])


def test_running_a_case_leaves_the_random_state_alone() -> None:
    state = torch.get_rng_state()
    Case("square", torch.square, point).run(seed=3)
    assert torch.equal(torch.get_rng_state(), state)


def test_report_of_a_case_has_name_code_environment_and_replay() -> None:
    report = Case("ops.py::point", lambda x: x.sin(), point, replay="gradvet check ops.py::point").run(seed=3)
    assert report.title == "ops.py::point"
    assert report.replay == "gradvet check ops.py::point --seed 3"
    assert report.environment["torch"].startswith(torch.__version__.split("+")[0])
    assert report.source is not None
    assert report.source.file.endswith("test_case.py")


def test_inputs_that_are_not_a_function_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match=r"a function was expected, found Tensor: write inputs=lambda"):
        gradvet.case(inputs=point())  # type: ignore[arg-type]


def test_function_that_cannot_be_marked_is_named() -> None:
    with pytest.raises(InvalidProblemError, match="sin cannot be marked: mark a function that calls it"):
        gradvet.case(inputs=point)(torch.sin)


def test_case_needs_inputs() -> None:
    with pytest.raises(TypeError, match="inputs"):
        gradvet.case()


def grid_cases(**functions: object) -> list[Case]:
    return cases_in(module_with(**functions))


def matrix(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, 4, dtype=dtype)


@gradvet.case(inputs=matrix, grid={"n": (2, 3), "dim": (0, 1)})
def total(x: Tensor, dim: int) -> Tensor:
    return x.sum(dim)


def test_every_combination_is_a_case_with_its_parameters_in_its_name() -> None:
    found = grid_cases(total=total)
    assert [case.name for case in found] == [
        "total[n=2,dim=0]",
        "total[n=2,dim=1]",
        "total[n=3,dim=0]",
        "total[n=3,dim=1]",
    ]


def test_parameters_reach_inputs_and_function() -> None:
    shapes = {case.name: (case.inputs().shape, case.func(case.inputs()).shape) for case in grid_cases(total=total)}
    assert shapes["total[n=3,dim=0]"] == ((3, 4), (4,))
    assert shapes["total[n=2,dim=1]"] == ((2, 4), (2,))


def test_cases_of_a_grid_can_be_run() -> None:
    report = grid_cases(total=total)[1].run(seed=0)
    assert report.verdict is Verdict.PASS
    assert report.title == "total[n=2,dim=1]"
    assert report.source is not None
    assert "x.sum(dim)" in report.source.code


def test_parameter_that_both_accept_reaches_both() -> None:
    @gradvet.case(inputs=matrix, grid={"n": [2, 3]})
    def scaled(x: Tensor, n: int) -> Tensor:
        return x * n

    inputs = [(case.inputs(), case.func(torch.ones(1))) for case in grid_cases(scaled=scaled)]
    assert [(len(x), float(value)) for x, value in inputs] == [(2, 2.0), (3, 3.0)]


def test_one_value_is_named_as_well() -> None:
    found = gradvet.case(inputs=matrix, grid={"n": [2]})(lambda x: x.sin())
    assert [case.name for case in grid_cases(sine=found)] == ["sine[n=2]"]


def test_two_grids_of_one_function_have_different_names() -> None:
    once = gradvet.case(inputs=matrix, grid={"n": [2]})
    assert [case.name for case in grid_cases(sine=once(once(lambda x: x.sin())))] == ["sine[n=2,0]", "sine[n=2,1]"]


def test_parameter_that_is_not_accepted_is_refused() -> None:
    with pytest.raises(
        InvalidProblemError, match="the grid has a parameter 'm' that neither the function nor its inputs"
    ):
        gradvet.case(inputs=matrix, grid={"m": [2]})(lambda x: x.sin())


def test_parameter_without_values_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="has no values"):
        gradvet.case(inputs=matrix, grid={"n": []})
