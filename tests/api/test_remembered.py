"""What torch makes of its own operators is asked once; what it makes of the user's rules, every time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.api import remembered
from gradvet.api.catalogue import ABOUT_RULES
from gradvet.core.results import Report, Verdict


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    remembered.forget()
    yield
    remembered.forget()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2.0 * x

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        return 2.0 * cotangents[0]


def inputs(*shape: int) -> Tensor:
    return torch.linspace(0.5, 2.0, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def about(report: Report, name: str) -> list[str]:
    return [finding.headline for finding in report.findings if finding.check == name]


def calls(function: Any, *arguments: Tensor, **settings: Any) -> int:
    report = gradvet.check(function, arguments, seed=0, **settings)
    assert report.verdict is Verdict.PASS
    return report.cost.forwards + report.cost.pulls


@pytest.mark.parametrize("name", ["batched", "checkpoint", "linearity", "undefined", "cotangents", "accumulation"])
def test_same_operators_are_asked_once(name: str) -> None:
    first, second = (gradvet.check(lambda x: x.sin() * x, inputs(length), seed=0) for length in (5, 7))
    assert about(first, name)
    assert not any("seen before" in words for words in about(first, name))
    assert [f"{words} (seen before)" for words in about(first, name)] == about(second, name)


def test_other_numbers_need_no_second_look_and_other_operators_and_dimensions_do() -> None:
    def is_asked(function: Any, x: Tensor) -> bool:
        return not any("seen before" in words for words in about(gradvet.check(function, x, seed=0), "batched"))

    assert is_asked(torch.sin, inputs(5))
    assert not is_asked(torch.sin, inputs(7) + 1.0)
    assert is_asked(torch.cos, inputs(5))
    assert is_asked(torch.sin, inputs(5, 2))
    assert is_asked(torch.sin, inputs(5).to(torch.complex128))


def test_second_look_costs_less() -> None:
    assert calls(torch.sin, inputs(5)) > calls(torch.sin, inputs(5))


class Expanding(torch.autograd.Function):
    """Takes an expanded cotangent for a single number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2.0 * x

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        (v,) = cotangents
        return 2.0 * (v if any(v.stride()) else torch.ones_like(v))


def by_stride(gradient: Tensor) -> Tensor:
    return gradient if any(gradient.stride()) else torch.ones_like(gradient)


def test_wrong_function_is_found_after_a_right_one_of_the_same_code_and_operators() -> None:
    def function(change: Any, hook: Any) -> Any:
        def changed(x: Tensor) -> Tensor:
            y: Tensor = change(x * 1.0)
            if hook is not None:
                y.register_hook(hook)  # type: ignore[no-untyped-call]
            return y

        return changed

    def itself(x: Tensor) -> Tensor:
        return x

    def failures(change: Any, hook: Any) -> list[str]:
        report = gradvet.check(function(change, hook), inputs(5), seed=0)
        return [finding.check for finding in report.failures]

    for _ in range(2):
        assert failures(itself, None) == []
    assert "cotangents" in failures(Expanding.apply, None)
    assert "cotangents" in failures(itself, by_stride)


def test_gradient_that_is_not_added_up_is_found_after_one_that_is() -> None:
    def cleared(tensor: Tensor) -> None:
        assert tensor.grad is not None
        tensor.grad.zero_()

    for hooked in (False, False, True):
        x = inputs(5).requires_grad_()
        if hooked:
            x.register_post_accumulate_grad_hook(cleared)
        report = gradvet.check(torch.sin, x, seed=0)
        assert [finding.check for finding in report.failures] == ["accumulation"] * hooked


def test_check_that_is_named_is_carried_out_every_time() -> None:
    checks = dict.fromkeys(ABOUT_RULES, True)
    assert calls(torch.sin, inputs(5), checks=checks) == calls(torch.sin, inputs(5), checks=checks)


def test_rules_of_the_user_are_asked_every_time() -> None:
    def function(x: Tensor) -> Tensor:
        out: Tensor = Doubled.apply(x)  # type: ignore[no-untyped-call]
        return out

    for _ in range(2):
        assert not any("seen before" in words for words in about(gradvet.check(function, inputs(5), seed=0), "batched"))


def test_what_torch_gets_wrong_is_shown_every_time() -> None:
    def distances(x: Tensor) -> Tensor:
        return torch.cdist(x, 2.0 * x.flip(0))

    first, second = (gradvet.check(distances, inputs(3, 2) ** power, seed=0) for power in (1, 2))
    assert any("not to be trusted under vmap" in note for note in first.notes)
    assert any("not to be trusted under vmap" in note for note in second.notes)
    assert first.notes != second.notes


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST", 3)
    for function in (torch.sin, torch.cos, torch.tanh, torch.exp):
        gradvet.check(function, inputs(3), seed=0)
    assert len(remembered._SEEN) == 3


@pytest.mark.parametrize("function", [lambda x: x.sin() * x, torch.relu, lambda x: x.exp().cumsum(0)])
def test_report_does_not_depend_on_what_was_seen_before(function: Any) -> None:
    first, second = (gradvet.check(function, inputs(5), seed=3) for _ in range(2))
    assert (first.resolution, first.miss, first.notes) == (second.resolution, second.miss, second.notes)
    assert [str(finding.facts) for finding in first.findings] == [str(finding.facts) for finding in second.findings]


def test_one_function_does_not_answer_for_another() -> None:
    def by_hand(x: Tensor) -> Tensor:
        return x.sin() if float(x.sum()) > -1e9 else x.cos()

    plain = about(gradvet.check(torch.sin, inputs(5), seed=0), "batched")
    assert not any("cannot be batched" in words for words in plain)
    assert any("cannot be batched" in words for words in about(gradvet.check(by_hand, inputs(5), seed=0), "batched"))
    remembered.forget()
    gradvet.check(by_hand, inputs(5), seed=0)
    assert about(gradvet.check(torch.sin, inputs(5), seed=0), "batched") == plain


@pytest.mark.parametrize("function", [torch.nn.Tanh(), torch.nn.functional.tanh, torch.tanh])
def test_anything_that_can_be_called_can_be_checked_twice(function: Any) -> None:
    for _ in range(2):
        assert gradvet.check(function, inputs(5), seed=0).verdict is Verdict.PASS


def test_closure_that_puts_hooks_on_nodes_is_asked_again() -> None:
    def made(wrong: bool) -> Any:
        def function(x: Tensor) -> Tensor:
            y = x.sin()
            if y.grad_fn is not None:
                y.grad_fn.register_prehook(lambda gs: (1.5 * gs[0],) if wrong and not gs[0].is_contiguous() else gs)
            return y

        return function

    x = torch.linspace(0.1, 1.2, 12, dtype=torch.float64).reshape(3, 4)
    assert gradvet.check(made(False), x, seed=1).verdict is Verdict.PASS
    report = gradvet.check(made(True), x, seed=1)
    assert "cotangents" in {finding.check for finding in report.failures}


def test_functions_of_one_code_that_were_made_otherwise_do_not_answer_for_each_other() -> None:
    def made(skips: bool) -> Any:
        def function(x: Tensor, w: Tensor) -> Tensor:
            # Without a gradient for w that of x is lost, if it is made so.
            return (x.detach() + 0.0 * x if skips and not w.requires_grad else x) * w

        return function

    tensors = inputs(4), 0.5 + inputs(4)
    for _ in range(2):
        assert gradvet.check(made(False), tensors, seed=0).verdict is Verdict.PASS
    report = gradvet.check(made(True), tensors, seed=0)
    assert [finding.check for finding in report.failures] == ["frozen"]


@pytest.mark.parametrize("held", [1, 1.0, True, "one", None, torch.sin, lambda x: x])
def test_settings_and_functions_that_a_function_holds_belong_to_what_is_asked(held: object) -> None:
    def made(setting: object, default: object = None) -> Any:
        return lambda x, other=default: (x, setting, other)

    kind = remembered._code_of
    assert kind(made(held)) == kind(made(held))
    assert kind(made(held)) != kind(made(2))
    assert kind(made(held)) != kind(made(held, 2))
    assert kind(made(inputs(3))) == kind(made(inputs(4)))


def test_function_that_calls_itself_is_remembered_too() -> None:
    def made() -> Any:
        def halved(x: Tensor, times: int = 2) -> Tensor:
            return halved(0.5 * x, times - 1) if times else x.sin()

        return halved

    assert remembered._code_of(made()) == remembered._code_of(made())
    assert gradvet.check(made(), inputs(4), seed=0).verdict is Verdict.PASS
