"""A derivative that raises is wrong; one that the framework does not offer is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet import Report, Verdict
from tests.functions import with_jvp, with_rules, with_vjp


def doubled(vjp: Callable[[Tensor], Tensor]) -> Any:
    """Twice its input, with a VJP of its own."""
    return with_vjp(lambda x: 2.0 * x, lambda v, x: vjp(v))


unnamed = doubled(lambda v: 2.0 * v * nowhere_defined)  # type: ignore[name-defined]  # noqa: F821
short = doubled(lambda v: (2.0 * v)[:2])
viewing = doubled(lambda v: 2.0 * v.view(-1).view(v.shape))
unforeseen = with_vjp(lambda x: (2.0 * x, 3.0 * x), lambda g, h, x: 2.0 * g + 3.0 * h, materialize=False)
"""Two outputs; the VJP forgets that a cotangent may be missing."""


def point() -> Tensor:
    return torch.linspace(0.5, 2.0, 12, dtype=torch.float64).reshape(4, 3)


def checked(function: Any, **settings: Any) -> Report:
    return gradvet.check(function, point(), seed=1, **settings)


@pytest.mark.parametrize(("function", "words"), [(unnamed, "NameError"), (short, "invalid gradient")])
def test_backward_that_raises_is_the_one_finding(function: Any, words: str) -> None:
    report = checked(function)
    assert [finding.verdict for finding in report.findings] == [Verdict.FAIL]
    assert words in report.findings[0].headline


def test_backward_that_raises_does_not_matter_if_only_forward_mode_was_asked_for() -> None:
    def raising(v: Tensor, x: Tensor) -> Tensor:
        raise ValueError("no")

    both = with_rules(lambda x: 2.0 * x, raising, lambda u, x: 2.0 * u)

    assert checked(both, modes="forward").verdict is Verdict.PASS
    assert checked(both).verdict is Verdict.FAIL


def test_backward_that_raises_for_a_transposed_cotangent_says_so() -> None:
    failures = checked(viewing).failures
    assert [finding.check for finding in failures] == ["grad_output_layout"]
    assert "transposed in memory" in failures[0].headline


def asserting(v: Tensor) -> Tensor:
    assert v.is_contiguous()
    return 2.0 * v


def checking(v: Tensor) -> Tensor:
    if not v.is_contiguous():
        raise RuntimeError("grad must be contiguous")  # as TORCH_CHECK of an extension does
    return 2.0 * v


@pytest.mark.parametrize("vjp", [asserting, checking])
def test_backward_that_asserts_a_contiguous_grad_output_passes_with_a_note(vjp: Any) -> None:
    report = checked(doubled(vjp))
    assert report.passed
    assert ["asks for another memory layout" in note for note in report.notes].count(True) == 1
    assert "grad_output_layout" in {one.check for one in report.findings if one.verdict is Verdict.SKIPPED}


def test_backward_that_asserts_something_else_fails() -> None:
    def asserting(v: Tensor) -> Tensor:
        assert not v.is_contiguous()
        return 2.0 * v

    assert "AssertionError" in checked(doubled(asserting)).failures[0].headline


def test_any_exception_for_a_missing_cotangent_fails() -> None:
    failures = checked(unforeseen).failures
    assert {finding.check for finding in failures} == {"none_grad_output"}
    assert "TypeError" in failures[0].headline


def test_function_that_spoils_its_own_graph_fails() -> None:
    def spoiled(x: Tensor) -> Tensor:
        y = x.exp()
        z = y * 1.0
        y += 1.0
        return z + y

    assert "inplace" in checked(spoiled).failures[0].headline


def test_function_without_backward_is_checked_in_forward_mode() -> None:
    right, wrong = (checked(with_jvp(lambda x: 2.0 * x, lambda u, x, f=f: f * u)) for f in (2.0, 2.01))
    assert right.verdict is Verdict.PASS
    assert "reverse" in {finding.check for finding in right.findings if finding.verdict is Verdict.SKIPPED}
    assert [finding.check for finding in wrong.failures] == ["forward"]


def test_derivative_that_torch_does_not_offer_is_no_mistake_but_no_pass_either() -> None:
    def product(x: Tensor) -> Tensor:
        return torch.sparse.mm(x, torch.ones(4, 2, dtype=torch.float64))

    square = torch.eye(4, dtype=torch.float64).to_sparse_csc().requires_grad_()
    report = gradvet.check(product, (square,), masked=True, seed=1)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "no derivative could be compared" in str(report)


def test_assertion_of_the_function_next_to_the_point_is_the_edge_of_its_domain() -> None:
    def guarded(x: Tensor) -> Tensor:
        assert bool((x <= 2.0).all())
        return x * x

    report = checked(guarded)
    assert not report.failures
    assert any("one side" in note for note in report.notes)


def test_outputs_that_are_not_finite_are_counted() -> None:
    def edged(x: Tensor) -> Tensor:
        return (x - 1.0).log()

    report = checked(edged)
    assert not report.failures
    assert any("not finite" in note for note in report.notes)
