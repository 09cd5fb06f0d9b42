"""Hooks do not show in a graph: they are noticed when they are registered."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Verdict
from gradvet.core.vectors import is_zero
from gradvet.frontends.torch.private import has_hooks, hook_count
from tests.core.contexts import context_of
from tests.frontends.torch import needs_private_names


def hook(gradient: Tensor) -> Tensor:
    return gradient


def hooked(x: Tensor, change: object = hook) -> Tensor:
    y = x * 1.0
    y.register_hook(change)  # type: ignore[no-untyped-call]
    return y.sin()


def inputs(*shape: int) -> Tensor:
    return torch.linspace(0.5, 2.0, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


@needs_private_names
def test_hooks_of_another_thread_at_one_call_are_not_taken_for_ones_own() -> None:
    others = [threading.Thread(target=hooked, args=(inputs(3).requires_grad_(),))]

    def beside(x: Tensor) -> Tensor:
        if len(calls) == 1:
            others[0].start()
            others[0].join()
        calls.append(x)
        return x.sin()

    calls: list[Tensor] = []
    context = context_of(beside, inputs(3).requires_grad_())
    assert is_zero(context.repeat_noise)
    assert not others[0].is_alive()
    assert context.problem.rules.are_builtin


@needs_private_names
def test_hooks_on_inputs_are_seen_on_them() -> None:
    x = inputs(3).requires_grad_()
    assert not has_hooks([x, None], since=hook_count())
    x.register_hook(hook)  # type: ignore[no-untyped-call]
    assert has_hooks([None, x], since=hook_count())


def test_hook_that_is_wrong_at_zero_alone_is_found() -> None:
    def wrong(x: Tensor) -> Tensor:
        return hooked(x, lambda g: g if g is None else torch.where(x.detach() == 0.0, 2.0 * g, g))

    report = gradvet.check(wrong, inputs(6), seed=0)
    assert [finding.check for finding in report.failures] == ["points"]
    assert "at zeros" in report.failures[0].headline


def test_hook_that_only_looks_passes_even_if_it_expects_a_gradient() -> None:
    norms: list[float] = []
    report = gradvet.check(lambda x: hooked(x, lambda g: norms.append(float(g.norm()))), inputs(6), seed=0)
    assert report.verdict is Verdict.PASS
    assert norms


def test_hook_that_cannot_be_carried_out_fails() -> None:
    report = gradvet.check(lambda x: hooked(x, lambda g: g.no_such_thing()), inputs(6), seed=0)
    assert [finding.check for finding in report.failures] == ["reverse"]
    assert "no_such_thing" in report.failures[0].headline


def test_every_kind_of_hook_is_counted() -> None:
    x = inputs(3).requires_grad_()
    y = x * 1.0
    assert y.grad_fn is not None
    for register in (x.register_hook, y.register_hook, y.grad_fn.register_hook, x.register_post_accumulate_grad_hook):
        before = hook_count()
        register(lambda *_: None)  # type: ignore[no-untyped-call]
        assert hook_count() != before  # not a number where the count is unknown


@needs_private_names
def test_first_call_shows_whether_there_are_hooks() -> None:
    for function in (hooked, torch.sin):
        context = context_of(function, inputs(3).requires_grad_())
        before = context.problem.cost.forwards
        assert context.problem.rules.are_builtin is (function is torch.sin)
        assert context.problem.cost.forwards == before


class Helper:
    """Puts hooks on what it is given, where no reader of the function's own code would see it."""

    @staticmethod
    def on_node(y: Tensor, change: Any) -> None:
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda gradients: (change(gradients[0]),))

    @staticmethod
    def by_name(y: Tensor, change: Any) -> None:
        getattr(y, "register_" + "hook")(change)


def refusing(gradient: Tensor | None) -> Tensor:
    if gradient is None:
        raise RuntimeError("nothing came")
    return gradient


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("put", [Helper.on_node, Helper.by_name])
def test_hook_is_found_out_however_it_was_put_and_whatever_was_seen_before(put: Any, seen: bool) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        put(y, refusing)
        return y

    if seen:
        assert gradvet.gradcheck(torch.sin, inputs(5).requires_grad_())
    with pytest.warns(UserWarning, match="undefined"), pytest.raises(gradvet.GradcheckError, match="undefined output"):
        gradvet.gradcheck(function, inputs(5).requires_grad_())


class SquareInPlace(torch.autograd.Function):
    """The square, written to its input. The derivative is wrong at zero alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.clone())
        ctx.mark_dirty(x)
        return x.mul_(x)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where(x == 0.0, cotangents[0], 2.0 * x * cotangents[0])


def square_of_a_view(x: Tensor) -> Tensor:
    y = x.clone()
    SquareInPlace.apply(y[1:])  # type: ignore[no-untyped-call]
    return y


def builtin_square_of_a_view(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:].mul_(x[1:])
    return y


def test_custom_function_that_writes_to_a_view_is_a_custom_rule() -> None:
    problem = context_of(square_of_a_view, inputs(5).requires_grad_()).problem
    assert problem.rules.has_custom
    assert not problem.rules.are_builtin
    report = gradvet.check(square_of_a_view, inputs(6), seed=0)
    assert [finding.check for finding in report.failures] == ["points"]
    assert "at zeros" in report.failures[0].headline


def test_builtin_operator_that_writes_to_a_view_is_a_builtin_rule() -> None:
    problem = context_of(builtin_square_of_a_view, inputs(5).requires_grad_()).problem
    assert any("CopySlices" in name for name in problem.rules.node_names)
    assert not problem.rules.has_custom
    assert gradvet.check(builtin_square_of_a_view, inputs(6), seed=0).verdict is Verdict.PASS
