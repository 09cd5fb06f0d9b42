"""Hooks do not show in a graph: they are noticed when they are registered."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Verdict
from gradvet.frontends.torch.hooks import noticed_hooks


def hook(gradient: Tensor) -> Tensor:
    return gradient


def hooked(x: Tensor, change: object = hook) -> Tensor:
    y = x * 1.0
    y.register_hook(change)  # type: ignore[no-untyped-call]
    return y.sin()


def inputs(*shape: int) -> Tensor:
    return torch.linspace(0.5, 2.0, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def test_hooks_are_noticed_inside_alone() -> None:
    x, original = inputs(3).requires_grad_(), Tensor.register_hook
    hooked(x)
    with noticed_hooks() as outer:
        hooked(x)
        with noticed_hooks() as inner:
            hooked(x)
        x.sin()
    hooked(x)
    assert (outer, inner) == ([hook], [hook])
    assert Tensor.register_hook is original


def test_method_is_put_back_when_something_raises() -> None:
    original = Tensor.register_hook
    with pytest.raises(ZeroDivisionError), noticed_hooks():
        raise ZeroDivisionError
    assert Tensor.register_hook is original


def test_hooks_of_another_thread_are_not_taken_for_ones_own() -> None:
    x, original = inputs(3).requires_grad_(), Tensor.register_hook
    with noticed_hooks() as seen:
        other = threading.Thread(target=hooked, args=(x,))
        other.start()
        other.join()
    assert seen == []
    assert Tensor.register_hook is original


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


def test_method_that_somebody_else_put_there_is_called_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = Tensor.register_hook, list[object]()

    def mine(self: Tensor, change: object) -> object:
        calls.append(change)
        return original(self, change)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(Tensor, "register_hook", mine)
    with noticed_hooks() as seen:
        hooked(inputs(3).requires_grad_())
    assert Tensor.register_hook is mine
    assert calls == seen == [hook]
