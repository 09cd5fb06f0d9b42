"""Hooks do not show in a graph: they are noticed when they are registered."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Verdict
from gradvet.frontends.torch.hooks import have_hooks, hooks_so_far
from tests.core.trials import trial_of


def hook(gradient: Tensor) -> Tensor:
    return gradient


def hooked(x: Tensor, change: object = hook) -> Tensor:
    y = x * 1.0
    y.register_hook(change)  # type: ignore[no-untyped-call]
    return y.sin()


def inputs(*shape: int) -> Tensor:
    return torch.linspace(0.5, 2.0, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def test_hooks_of_another_thread_at_one_call_are_not_taken_for_ones_own() -> None:
    others = [threading.Thread(target=hooked, args=(inputs(3).requires_grad_(),))]

    def beside(x: Tensor) -> Tensor:
        if len(calls) == 1:
            others[0].start()
            others[0].join()
        calls.append(x)
        return x.sin()

    calls: list[Tensor] = []
    context = trial_of(beside, inputs(3).requires_grad_())
    assert context.is_steady
    assert not others[0].is_alive()
    assert context.problem.variants.is_builtin()


def test_hooks_on_inputs_are_seen_on_them() -> None:
    x = inputs(3).requires_grad_()
    assert not have_hooks([x, None])
    x.register_hook(hook)  # type: ignore[no-untyped-call]
    assert have_hooks([None, x])


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
        before = hooks_so_far()
        register(lambda *_: None)  # type: ignore[no-untyped-call]
        assert hooks_so_far() > before


def test_first_call_shows_whether_there_are_hooks() -> None:
    for function in (hooked, torch.sin):
        context = trial_of(function, inputs(3).requires_grad_())
        before = context.problem.cost.forwards
        assert context.problem.variants.is_builtin() is (function is torch.sin)
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
