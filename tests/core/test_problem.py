"""The least that a frontend gives: a function on NumPy arrays with a VJP and a JVP by hand, and `check` of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gradvet.api.pipeline import PipelineSettings, run_pipeline
from gradvet.api.points import PointSettings
from gradvet.checks import CHECK_NAMES
from gradvet.checks.drop_in import drop_in_reverse
from gradvet.core import frontend
from gradvet.core.context import Context
from gradvet.core.frontend import Binding, Frontend, Request
from gradvet.core.ledger import Cost
from gradvet.core.modes import FORWARD, REVERSE
from gradvet.core.problem import Distribution, Evaluation, Problem
from gradvet.core.results import Report, Verdict
from gradvet.core.slope_test import decide_slopes
from gradvet.core.vectors import Leaf, Space
from gradvet.options import Options

Vector = Any


@dataclass
class FlatCoordinates:
    """Those of a vector of real numbers."""

    size: int
    parts: int = 1

    def flatten(self, value: Vector) -> Vector:
        return value

    def unflatten(self, vector: Vector) -> Vector:
        return vector

    def label(self, index: int) -> str:
        return f"[{index}]"


@dataclass
class Bound:
    """A function of one vector, with its derivatives by hand."""

    function: Callable[[Vector], Vector]
    vjp: Callable[[Vector, Vector], Vector]
    jvp: Callable[[Vector, Vector], Vector]
    point: Vector
    names: tuple[str, ...] = ("x",)
    title: str = "by hand"

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self.point,)

    @property
    def checked(self) -> list[int]:
        return [0]

    def restricted(self, positions: Sequence[int]) -> Bound:
        return self


class LeastProblem(Problem):
    """What the docstring of `Problem` names and nothing else."""

    point, eps = np.zeros(0), 2.0**-52

    def __init__(self, bound: Bound, seed: int) -> None:
        self.bound, self.point, self.cost = bound, bound.point, Cost()
        self.value = bound.function(bound.point)
        self.domain = Space([Leaf("x", FlatCoordinates(bound.point.size), 0)])
        self.codomain = Space([Leaf("y", FlatCoordinates(self.value.size), 0)])
        self._draw = np.random.default_rng(seed)
        self.random = self._random

    def _random(self, size: int, distribution: Distribution, scale: float = 1.0) -> Vector:
        return scale * self._draw.uniform(0.5, 1.5, size) * self._draw.choice([-1.0, 1.0], size)

    def evaluate_at(self, displacement: Vector) -> Evaluation:
        self.cost.forwards += 1
        there = self.point + displacement
        return Evaluation(self.bound.function(there), there - self.point)

    def vjp_at(self, displacement: Vector, v: Vector) -> Vector:
        return self.bound.vjp(self.point + displacement, v)

    def jvp_at(self, displacement: Vector, u: Vector) -> Vector:
        return self.bound.jvp(self.point + displacement, u)


class LeastFrontend(Frontend):
    def bind(self, request: Request) -> Any:
        return request.func

    def problem(self, binding: Any, seed: int, *, masked: bool = False) -> Problem:
        return LeastProblem(binding, seed)


def required(cls: type) -> set[str]:
    """Attributes of a class that have no value, and methods and properties that are not written."""
    is_protocol = getattr(cls, "_is_protocol", False)
    functions = {name: getattr(member, "fget", member) for name, member in vars(cls).items() if name[0] != "_"}
    bodies = {name: inspect.getsource(function) for name, function in functions.items() if inspect.isfunction(function)}
    unwritten = {name for name, body in bodies.items() if is_protocol or "raise NotImplementedError" in body}
    return {name for name in inspect.get_annotations(cls) if name not in vars(cls)} | unwritten


DERIVATIVES = {"vjp_at", "jvp_at"}
"""A frontend has one of them at least: what is missing says that the function has no such mode."""


def test_minimum_of_a_frontend_is_what_the_docstrings_name() -> None:
    of_problem, of_binding, of_frontend = required(Problem) | DERIVATIVES, required(Binding), required(Frontend)
    assert of_problem <= {*vars(LeastProblem), *vars(LeastProblem(bound(), 0))}
    assert of_binding <= {*dir(Bound), *vars(bound())}
    assert of_frontend <= vars(LeastFrontend).keys()
    documented = (Problem.__doc__ or "", frontend.__doc__ or "")
    assert all(f"`{name}`" in documented[0] for name in of_problem)
    assert f"{len(of_problem | of_binding | of_frontend)} names" in documented[1]
    assert (len(of_problem), len(of_binding), len(of_frontend)) == (10, 6, 2)


def bound(factor: float = 1.0) -> Bound:
    """The sines of neighbouring sums, whose derivatives have this factor."""

    def spread(v: Vector) -> Vector:
        return np.concatenate([v, [0.0]]) + np.concatenate([[0.0], v])

    return Bound(
        lambda x: np.sin(x[1:] + x[:-1]),
        lambda x, v: factor * spread(v * np.cos(x[1:] + x[:-1])),
        lambda x, u: factor * np.cos(x[1:] + x[:-1]) * (u[1:] + u[:-1]),
        np.linspace(0.3, 1.4, 4),
    )


def report_of(bound: Bound) -> Report:
    settings = PipelineSettings(1, frozenset(CHECK_NAMES) - {"opcheck", "compile"}, PointSettings())
    return run_pipeline(LeastFrontend(), Request(bound, (bound.point,)), settings, Options(seed=3))  # type: ignore[arg-type]


def test_right_derivative_passes() -> None:
    report = report_of(bound())
    assert report.verdict is Verdict.PASS
    assert {row.mode for row in report.ledger} == {"reverse", "forward"}


def test_wrong_derivative_fails_and_names_an_entry() -> None:
    report = report_of(bound(1.01))
    assert report.verdict is Verdict.FAIL
    failed = {finding.check: finding for finding in report.failures}
    assert set(failed) == {"reverse", "forward"}
    assert failed["reverse"].mismatches


@pytest.mark.parametrize("mode", [REVERSE, FORWARD], ids=["reverse", "forward"])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.PASS), (0.99, Verdict.FAIL)])
def test_error_bars_decide_on_numpy_arrays(mode: Any, factor: float, verdict: Verdict) -> None:
    context = Context.of(LeastProblem(bound(factor), 0), Options(seed=0))
    assert decide_slopes(context, mode)[0].verdict is verdict


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.PASS), (0.99, Verdict.FAIL)])
def test_tolerances_decide_on_numpy_arrays(factor: float, verdict: Verdict) -> None:
    context = Context.of(LeastProblem(bound(factor), 0), Options(seed=0))
    (finding,) = drop_in_reverse(context)
    assert finding.verdict is verdict
