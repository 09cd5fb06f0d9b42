"""What is found at a point of the checker's choice, and what a derivative that raises there comes to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.api import points
from gradvet.api.points import finding_of_exception
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.results import Verdict
from gradvet.errors import DerivativeError, InvalidProblemError, UnsupportedError
from tests.core.contexts import context_of, point
from tests.functions import with_derivative


@pytest.mark.parametrize(
    ("error", "verdict", "words"),
    [
        (DerivativeError("it broke\nhere"), Verdict.FAIL, "it broke, though the forward pass accepts these inputs"),
        (UnsupportedError("none"), Verdict.SKIPPED, "the operators have no derivative there"),
        (KeyError("why"), Verdict.INCONCLUSIVE, "the check raised KeyError: 'why'"),
        (ValueError(), Verdict.INCONCLUSIVE, "the check raised ValueError: "),
    ],
)
def test_derivative_that_raises_is_wrong_only_if_it_is_the_users(
    error: Exception, verdict: Verdict, words: str
) -> None:
    found = finding_of_exception(context_of(torch.sin, point(1.0)).problem, REVERSE, error)
    assert (found.check, found.verdict, found.headline) == ("reverse", verdict, words)


def test_what_the_framework_does_not_offer_is_skipped() -> None:
    error = RuntimeError("derivative for aten::frobnicate is not implemented")
    found = finding_of_exception(context_of(torch.sin, point(1.0)).problem, REVERSE, error)
    assert found.verdict is Verdict.SKIPPED


def test_derivative_that_raises_for_an_empty_input_is_not_wrong() -> None:
    empty = context_of(lambda x, y: x.sum() + y, point(), point(1.0))
    assert finding_of_exception(empty.problem, REVERSE, DerivativeError("it broke")).verdict is not Verdict.FAIL


@pytest.mark.parametrize("mode", [REVERSE, FORWARD], ids=["reverse", "forward"])
@pytest.mark.parametrize("small", [0.1, 1e-2, 1e-3])
def test_error_of_an_output_of_small_slope_is_found_beside_large_ones(mode: Mode, small: float) -> None:
    def found(factor: float) -> Verdict:
        inner = with_derivative(lambda x: small * x, lambda x: torch.full_like(x, factor * small))

        def both(x: Tensor) -> Tensor:
            return torch.cat([torch.sin(x[:3]), inner(x[3:])])

        return points.compare_at_point(context_of(both, point(0.3, 0.7, 1.1, 0.5, 0.6)), mode).verdict

    assert found(1.0) is Verdict.PASS
    assert found(1.5) is Verdict.FAIL


@pytest.mark.parametrize(("point", "words"), [((torch.ones(3),), "refused"), ((-torch.ones(2),), "not finite")])
def test_point_of_the_user_that_is_refused_or_not_finite_is_no_pass(point: Any, words: str) -> None:
    def function(x: Tensor) -> Tensor:
        return (x * torch.ones(2, dtype=x.dtype)).log()

    x = torch.full((2,), 2.0, dtype=torch.float64)
    points = [tuple(one.double() for one in point)]
    report = gradvet.check(function, x, points=points, seed=1)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert words in str(report)
    assert gradvet.check(function, x, points=[(3.0 * x,)], seed=1).verdict is Verdict.PASS


@pytest.mark.parametrize("settings", [{"points": [torch.ones(2)]}, {"domain": (0.0, 1.0)}])
def test_other_points_are_refused_beside_a_reference(settings: Any) -> None:
    with pytest.raises(InvalidProblemError, match="with a reference the kernel is compared at the inputs given"):
        gradvet.check(torch.sin, torch.ones(2), reference=torch.sin, **settings)
