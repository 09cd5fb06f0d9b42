"""The time for other shapes and memory layouts, with a clock that the functions under test move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.api.points import PointSearch, PointSettings
from gradvet.api.validation import selection_of
from gradvet.checks.state import grad_output_layout, input_layout
from gradvet.core.context import Context
from gradvet.core.frontend import Request
from gradvet.core.ledger import Record, VariationBudget
from gradvet.core.results import Finding, Verdict
from gradvet.frontends.torch import FRONTEND
from gradvet.options import Options
from tests.functions import with_vjp


@dataclass
class Clock:
    """Seconds that pass only when they are added."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits that all other tests do without."""
    monkeypatch.setattr("gradvet.core.ledger.MIN_VARIATION_SECONDS", 1.0)
    monkeypatch.setattr("gradvet.core.ledger.MAX_VARIATION_SECONDS", 10.0)


@pytest.mark.parametrize(("elapsed", "limit"), [(0.0, 1.0), (0.5, 1.0), (4.0, 4.0), (50.0, 10.0)])
def test_budget_is_the_time_of_the_check_so_far_within_limits(elapsed: float, limit: float) -> None:
    clock = Clock()
    budget = VariationBudget(clock)
    clock.now += elapsed
    assert budget.limit == limit
    assert not budget.is_spent


def test_time_of_variations_does_not_raise_the_budget() -> None:
    clock = Clock()
    budget = VariationBudget(clock)
    clock.now += 7.0

    def compiling() -> str:
        clock.now += 3.0
        return "result"

    found, left_out = budget.carried_out(dict.fromkeys(("a", "b", "c"), compiling))
    assert (list(found), left_out) == (["a", "b"], ["c"])
    assert budget.limit == 7.0
    assert "6 s were spent" in budget.reason
    assert "the budget was 7 s" in budget.reason


def test_variation_that_would_exceed_the_budget_like_the_one_before_is_not_begun() -> None:
    clock = Clock()
    budget = VariationBudget(clock)
    clock.now += 4.0

    def compiling() -> str:
        clock.now += 3.0
        return "result"

    found, left_out = budget.carried_out(dict.fromkeys(("a", "b"), compiling))
    assert (list(found), left_out) == (["a"], ["b"])


def test_unlimited_budget_is_never_spent() -> None:
    clock = Clock()
    budget = VariationBudget(clock, is_limited=False)
    budget.measured(lambda: setattr(clock, "now", clock.now + 1e6))
    assert not budget.is_spent


def compiled(clock: Clock) -> Callable[..., Any]:
    """The square of a matrix; every call with another shape or other strides takes seven seconds."""
    seen: set[object] = set()

    def compile(*tensors: Tensor) -> None:
        key = tuple((t.shape, t.stride()) for t in tensors)
        clock.now += 0.0 if key in seen else 7.0
        seen.add(key)

    def square(x: Tensor) -> Tensor:
        compile(x)
        return x * x

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        compile(v, x)
        return 2.0 * v * x

    return with_vjp(square, vjp)


def context_of(function: Callable[..., Any], clock: Clock, *, is_limited: bool = True) -> tuple[Context, Request]:
    request = Request(function, torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    record = Record(variations=VariationBudget(clock, is_limited))
    return Context(FRONTEND.problem(FRONTEND.bind(request), 0), Options(seed=0), record), request


def shapes(context: Context, request: Request) -> Iterator[Finding]:
    return PointSearch(
        FRONTEND, context, request, PointSettings(), selection_of(("reverse",), ["shapes", "reverse"])
    ).findings()


def test_first_call_that_exceeds_every_budget_leaves_no_time_for_variations() -> None:
    clock = Clock()
    budget = VariationBudget(clock)
    budget.first(lambda: setattr(clock, "now", clock.now + 40.0))
    assert budget.is_spent
    assert "the first call took 40 s" in budget.reason
    assert budget.compiles(lambda: None)
    assert not budget.compiles(lambda: setattr(clock, "now", clock.now + 39.0))


@pytest.mark.parametrize(("seconds", "formats"), [(40.0, {torch.float32}), (2.0, {torch.float32, torch.float64})])
def test_kernel_of_long_compilation_is_not_compiled_again(
    seconds: float, formats: set[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    seen: set[torch.dtype] = set()

    def tuned(x: Tensor) -> Tensor:
        clock.now += 0.0 if x.dtype in seen else seconds
        seen.add(x.dtype)
        return x.sin()

    monkeypatch.setattr("gradvet.api.pipeline.VariationBudget", partial(VariationBudget, clock))
    report = gradvet.check(with_vjp(tuned, lambda v, x: v * x.cos()), torch.ones(5, 3), seed=1)
    assert report.verdict is Verdict.PASS, str(report)
    assert seen == formats
    assert any("compiled for long" in note for note in report.notes) == (seconds > 10.0)


def test_shapes_end_when_their_compilation_has_used_up_the_budget_and_that_is_said() -> None:
    clock = Clock()
    context, request = context_of(compiled(clock), clock)
    tried, skipped = shapes(context, request)
    assert tried.facts["exercised"] == ["length 5 instead of 6"]
    assert "length 1 instead of 6 and the following" in skipped.headline
    assert "points='thorough' tries all" in skipped.headline


def test_shapes_are_all_tried_without_a_limit() -> None:
    clock = Clock()
    (tried,) = shapes(*context_of(compiled(clock), clock, is_limited=False))
    assert len(tried.facts["exercised"]) > 2


@pytest.mark.parametrize(("check", "first"), [(input_layout, "transposed"), (grad_output_layout, "expanded")])
def test_memory_layouts_that_the_budget_leaves_out_are_named(
    check: Callable[[Context], Iterator[Finding]], first: str
) -> None:
    clock = Clock()
    context, _ = context_of(compiled(clock), clock)
    findings = list(check(context))
    assert [finding.verdict for finding in findings] == [Verdict.PASS, Verdict.SKIPPED]
    assert first in findings[0].headline
    assert findings[1].headline.split(": ")[1].endswith("offset")
    assert "the budget was" in findings[1].headline
