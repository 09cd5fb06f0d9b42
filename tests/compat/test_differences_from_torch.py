"""Calls that torch's own tests make and that ended otherwise on gradvet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import gradcheck as torch_gradcheck
from torch.autograd.gradcheck import gradgradcheck as torch_gradgradcheck
from torch.utils._pytree import tree_map

import gradvet
from tests.functions import with_vjp

MODES = pytest.mark.parametrize("fast_mode", [False, True], ids=["slow", "fast"])
FORWARD = {"check_forward_ad": True, "check_undefined_grad": False}


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


class AsItIs(torch.autograd.Function):
    """Returns its inputs as they are, and their tangents as well, which forward mode does not allow."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Any:
        return inputs if len(inputs) > 1 else inputs[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        return cotangents

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        return tangents if len(tangents) > 1 else tangents[0]


@MODES
@pytest.mark.parametrize("inputs", [(leaf(3),), (leaf(2, 3),), (leaf(2, 3), leaf(3, 2)), (leaf(3), leaf(3))], ids=str)
def test_tangent_that_is_returned_as_it_is_is_refused(inputs: tuple[Tensor, ...], fast_mode: bool) -> None:
    for check in (torch_gradcheck, gradvet.gradcheck):
        with pytest.raises(RuntimeError, match="jvp is not returning a view"):
            check(AsItIs.apply, inputs, fast_mode=fast_mode, **FORWARD)


def test_check_fails_a_jvp_that_nobody_can_call() -> None:
    headlines = {failure.check: failure.headline for failure in gradvet.check(AsItIs, leaf(3), seed=1).failures}
    assert "view_as" in headlines["forward"]


def without_cotangent(cotangent: Tensor | None, x: Tensor) -> Tensor:
    """The derivative of the identity, wrong where there is no cotangent."""
    return torch.ones_like(x) if cotangent is None else cotangent


careless = with_vjp(torch.clone, without_cotangent, materialize=False)


@MODES
def test_warning_about_undefined_gradients_has_the_words_that_tests_match_on(fast_mode: bool) -> None:
    for check in (torch_gradcheck, gradvet.gradcheck):
        with pytest.warns(UserWarning, match="undefined gradient support checking feature"):
            assert not check(careless, leaf(3), fast_mode=fast_mode, raise_exception=False)


class Likeness:
    """A value that acts as a tensor through its own operations and converts to no number."""

    def __init__(self, tensor: Tensor) -> None:
        self.__dict__["tensor"] = tensor

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.tensor, name)
        return _on_tensors(value) if callable(value) else _wrapped(value)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _on_tensors(func)(*args, **(kwargs or {}))


def _wrapped(tree: Any) -> Any:
    return tree_map(lambda value: Likeness(value) if isinstance(value, Tensor) else value, tree)


def _on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        plain = tree_map(lambda value: value.tensor if isinstance(value, Likeness) else value, (args, kwargs))
        return _wrapped(function(*plain[0], **plain[1]))

    return call


for _name in ("add", "sub", "mul", "truediv", "neg", "getitem", "setitem"):
    setattr(Likeness, f"__{_name}__", _on_tensors(getattr(Tensor, f"__{_name}__")))


@MODES
@pytest.mark.parametrize("order", [1, 2])
def test_tensor_like_that_converts_to_no_number_is_checked(order: int, fast_mode: bool) -> None:
    check = gradvet.gradcheck if order == 1 else gradvet.gradgradcheck
    inputs = (Likeness(leaf(2)), Likeness(leaf(2, seed=2)))
    assert check(torch.mul, inputs, fast_mode=fast_mode, raise_exception=False) in (True, False)
    assert gradvet.gradcheck(torch.mul, inputs, fast_mode=fast_mode)


@MODES
@pytest.mark.parametrize("function", [lambda x: x.detach(), lambda x: torch.arange(3)], ids=["detached", "integer"])
def test_second_order_without_a_differentiable_output_raises(function: Callable[..., Any], fast_mode: bool) -> None:
    for check in (torch_gradgradcheck, gradvet.gradgradcheck):
        with pytest.raises(TypeError):
            check(function, leaf(3), fast_mode=fast_mode, raise_exception=False)


@MODES
@pytest.mark.parametrize("forward", [{}, {"check_fwd_over_rev": True}], ids=["reverse", "both"])
def test_gradient_that_is_zero_whatever_the_input_is_accepted(forward: dict[str, bool], fast_mode: bool) -> None:
    for check in (torch_gradgradcheck, gradvet.gradgradcheck):
        assert check(torch.sgn, leaf(3), fast_mode=fast_mode, **forward)


def test_comparison_of_all_entries_is_announced_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    module = sys.modules["gradvet.compat.gradcheck"]

    class Timer:
        daemon = False

        def __init__(self, seconds: float, action: Callable[[], None]) -> None:
            assert seconds == module.PROGRESS_DELAY_SECONDS == 2.0
            said.append("due")

        def start(self) -> None: ...
        def cancel(self) -> None: ...

    monkeypatch.setattr(module.threading, "Timer", Timer)
    assert gradvet.gradcheck(torch.sin, leaf(300), atol=0.0)
    assert said == []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert gradvet.gradcheck(torch.sin, leaf(300), atol=0.0)
    assert said == ["due"]


@MODES
def test_second_order_of_a_cast_to_complex32_is_refused_as_by_torch(fast_mode: bool) -> None:
    """Tensors of this type cannot be compared by `torch.equal`."""
    with pytest.raises(gradvet.GradcheckError, match="Jacobian mismatch"):
        gradvet.gradgradcheck(lambda x: x.to(torch.complex32), leaf(6), fast_mode=fast_mode)
