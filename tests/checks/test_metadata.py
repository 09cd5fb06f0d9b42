"""Attributes of derivatives, as findings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet.checks.outputs import drop_in_tangent_types, metadata
from gradvet.core.context import Context
from gradvet.core.problem import AttributeMismatch
from gradvet.core.results import Finding, Verdict
from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.layouts import layouts_of
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.options import Options
from tests.core.wrong_jacobians import numbers
from tests.functions import with_jvp, with_vjp


def found(check: Any, function: Any, *points: Tensor, exact: bool = True) -> list[Finding]:
    problem = TorchProblem(drop_in_binding(function, [point.requires_grad_() for point in points]), seed=0)
    return list(check(Context(problem, Options(seed=0, exact_types=exact))))


identity_with_sparse_gradient = with_vjp(torch.clone, lambda v, x: v.to_sparse())


def sparse_gradient(x: Tensor, y: Tensor) -> Tensor:
    return x * identity_with_sparse_gradient(y)


def test_gradients_like_their_inputs_pass_in_silence() -> None:
    assert found(metadata, lambda x, y: x * y, numbers((3,), 0), numbers((3,), 1)) == []
    assert found(metadata, lambda x, y: (x.sin(), x * y), numbers((3,), 0), numbers((3,), 1)) == []


def test_sparse_gradient_of_a_dense_input_fails() -> None:
    (finding,) = found(metadata, sparse_gradient, numbers((3,), 0), numbers((3,), 1))
    assert (finding.check, finding.verdict) == ("metadata", Verdict.FAIL)
    assert finding.headline == "the derivative for input 1 has layout torch.sparse_coo, not torch.strided"
    assert finding.facts == {
        "attribute": "layout",
        "found": "torch.sparse_coo",
        "expected": "torch.strided",
        "kind": "sparse",
    }


def test_layout_counts_beside_several_outputs() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return sparse_gradient(x, y), x.sin()

    (finding,) = found(metadata, function, numbers((3,), 0), numbers((3,), 1))
    assert finding.facts["attribute"] == "layout"


@pytest.mark.parametrize(
    ("gradient", "attribute"),
    [
        (torch.zeros(3), "dtype"),
        (torch.zeros(2, dtype=torch.float64), "shape"),
        (torch.zeros(3, dtype=torch.float64, device="meta"), "device"),
        (torch.zeros(3, dtype=torch.float64).to_sparse(), "layout"),
    ],
)
def test_every_attribute_of_a_gradient_is_compared(gradient: Tensor, attribute: str) -> None:
    (layout,) = layouts_of([numbers((3,), 0)], False, torch.device("cpu"))
    ((name, found, expected),) = layout.mismatches(gradient)
    assert name == attribute
    assert found == str(getattr(gradient, attribute))
    assert expected == str(getattr(numbers((3,), 0), attribute))
    assert layout.mismatches(numbers((3,), 1)) == []


complex_with_real_tangent = with_jvp(lambda x: torch.complex(x, x), lambda u, x: u * 2.0)


def test_real_tangent_of_a_complex_value_fails_where_types_must_be_exact() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), complex_with_real_tangent(x)

    (finding,) = found(drop_in_tangent_types, function, numbers((3,), 0))
    assert (finding.check, finding.verdict) == ("tangent types", Verdict.FAIL)
    assert finding.headline == "the derivative for output 1 has dtype torch.float64, not torch.complex128"
    assert found(drop_in_tangent_types, function, numbers((3,), 0), exact=False) == []


def test_tangents_like_their_values_pass_in_silence() -> None:
    assert found(drop_in_tangent_types, lambda x: (x.sin(), torch.complex(x, x)), numbers((3,), 0)) == []
    assert found(drop_in_tangent_types, torch.abs, numbers((3,), 0, torch.complex128)) == []


def test_misfits_of_a_pass_are_data() -> None:
    problem = TorchProblem(
        drop_in_binding(sparse_gradient, [numbers((3,), 0).requires_grad_(), numbers((3,), 1).requires_grad_()]), 0
    )
    found = problem.gradient(torch.ones(3, dtype=torch.float64))
    assert found.mismatches == [AttributeMismatch(1, "layout", "torch.sparse_coo", "torch.strided", "sparse")]
