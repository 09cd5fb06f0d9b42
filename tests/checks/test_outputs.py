"""Outputs without a derivative, as findings."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from gradvet.checks.outputs import constancy, detached, drop_in_detached, values
from gradvet.core.context import Context
from gradvet.core.results import Finding, Verdict
from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.options import Options
from tests.core.wrong_jacobians import context_at, numbers


def found(check: Any, function: Any) -> list[Finding]:
    return list(check(context_at(function, numbers((4,), 0))))


def test_constant_function_passes() -> None:
    assert found(constancy, lambda x: torch.ones(3)) == [
        Finding("constancy", Verdict.PASS, "no output has a derivative, and none varies")
    ]
    assert [finding.verdict for finding in found(constancy, lambda x: ())] == [Verdict.PASS]


def test_function_that_varies_without_a_derivative_fails() -> None:
    (finding,) = found(constancy, lambda x: (torch.ones(2), x.detach() * 2.0))
    assert (finding.check, finding.verdict) == ("constancy", Verdict.FAIL)
    assert finding.headline == "no output has a derivative, yet output 1 varies with the inputs"
    assert finding.facts == {"outputs": ["output 1"]}


def test_single_element_that_varies_is_seen() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cat([torch.ones(1000, dtype=x.dtype), x.detach()[2:3]])

    (finding,) = found(constancy, function)
    assert finding.verdict is Verdict.FAIL


def test_variation_within_what_is_allowed_passes() -> None:
    def verdict(allowed: float) -> Verdict:
        x = numbers((4,), 0).requires_grad_()
        problem = TorchProblem(drop_in_binding(lambda x: 1e-4 * x.detach(), [x]), seed=0)
        (finding,) = constancy(Context(problem, Options(seed=0, constant_within=allowed)))
        return finding.verdict

    assert verdict(1e-3) is Verdict.PASS
    assert verdict(1e-5) is Verdict.FAIL
    assert verdict(0.0) is Verdict.FAIL


def test_what_turns_into_no_number_is_not_constant() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.where(x.detach().sum() > float(numbers((4,), 0).sum()), torch.nan, 1.0)

    assert [finding.verdict for finding in found(constancy, function)] == [Verdict.FAIL]


def test_function_with_a_derivative_is_another_checks_matter() -> None:
    assert found(constancy, lambda x: (x * 2.0, x.detach())) == []


def test_detached_output_that_varies_is_remarked_upon_and_passes() -> None:
    (finding,) = found(drop_in_detached, lambda x: (x * 2.0, torch.ones(3), x.detach().exp()))
    assert (finding.check, finding.verdict) == ("detached", Verdict.PASS)
    assert finding.facts == {"outputs": ["output 2"]}
    assert finding.headline.startswith("output 2 varies with the inputs but does not require grad")


def test_outputs_that_do_not_vary_are_not_remarked_upon() -> None:
    assert found(drop_in_detached, lambda x: (x * 2.0, torch.ones(3), torch.arange(3))) == []
    assert found(drop_in_detached, lambda x: x * 2.0) == []
    assert found(drop_in_detached, lambda x: x.detach() * 2.0) == []


def test_detached_output_is_not_called_constant_where_the_function_raises_beside_the_point() -> None:
    given = numbers((4,), 0)

    def function(x: Tensor) -> Any:
        if not torch.equal(x.detach(), given):
            raise ValueError("outside of the domain")
        return x * 2.0, 3.0 * x.detach()

    (finding,) = found(detached, function)
    assert (finding.verdict, finding.headline) == (
        Verdict.SKIPPED,
        "the function could not be evaluated beside the point",
    )


def _noisy(seed: int, shift: float) -> Finding:
    """What `values` says about a function with a noise of its own, which adds `shift` without grad mode."""
    noise = random.Random(seed)

    def function(x: Tensor) -> Tensor:
        return x.sin() + 1e-6 * noise.random() + (0.0 if torch.is_grad_enabled() else shift)

    (finding,) = values(context_at(function, numbers((3,), 0)))
    return finding


def test_function_with_a_noise_of_its_own_is_not_blamed_for_grad_mode() -> None:
    assert {_noisy(seed, 0.0).verdict for seed in range(200)} == {Verdict.PASS}
    assert _noisy(0, 1e-2).verdict is Verdict.FAIL
