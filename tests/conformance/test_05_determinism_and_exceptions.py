"""Entries 71 to 82: backward run twice, undefined gradients, and exceptions of the user's own code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.functions import with_vjp

from .checker import Checker
from .functions import PlantedError, with_broken_backward, with_jittering_backward
from .points import leaf

NOT_REENTRANT = "Backward is not reentrant"
UNDEFINED_WARNING = "Backwards compatibility: New undefined gradient support checking"


def test_071_jitter_in_backward_is_not_reentrant(checker: Checker) -> None:
    checker.rejects(NOT_REENTRANT, with_jittering_backward(1e-6), leaf(3))
    text = checker.rejects(NOT_REENTRANT, with_jittering_backward(1e-6), leaf(3), nondet_tol=1e-9)
    assert "1e-09" in text, "the tolerance"
    assert "nondet_tol" in text, "the advice"


def test_072_jitter_within_nondet_tol_passes(checker: Checker) -> None:
    checker.accepts(with_jittering_backward(1e-6), leaf(3), nondet_tol=1e-5)


def test_073_jitter_is_found_in_second_order(checker: Checker) -> None:
    jittering = with_jittering_backward(1e-12)
    checker.second_order.rejects(NOT_REENTRANT, jittering, leaf(3))
    checker.second_order.accepts(jittering, leaf(3), nondet_tol=1e-5)


def test_074_random_forward_is_a_mismatch(checker: Checker) -> None:
    checker.rejects("Jacobian mismatch for output 0 with respect to input 0", lambda x: x * torch.rand_like(x), leaf(3))


def _with_raising_hook(x: Tensor) -> Tensor:
    y = x.clone()
    y.register_hook(_raise_on_undefined)
    return y * 2


def _raise_on_undefined(gradient: Tensor | None) -> Tensor:
    if gradient is None:
        raise RuntimeError("no gradient")
    return gradient


CANNOT_TAKE_UNDEFINED = {
    "function": with_vjp(torch.clone, lambda v, x: _raise_on_undefined(v).clone(), materialize=False),
    "hook": _with_raising_hook,
}


@pytest.mark.parametrize("kind", CANNOT_TAKE_UNDEFINED)
def test_075_backward_that_cannot_take_an_undefined_gradient_is_rejected(checker: Checker, kind: str) -> None:
    phrase = "Expected backward function to handle undefined output grads"
    with pytest.warns(UserWarning, match=UNDEFINED_WARNING):
        checker.rejects(phrase, CANNOT_TAKE_UNDEFINED[kind], leaf(3))


@pytest.mark.parametrize("kind", CANNOT_TAKE_UNDEFINED)
def test_076_undefined_gradients_are_not_tried_on_request(checker: Checker, kind: str) -> None:
    checker.accepts(CANNOT_TAKE_UNDEFINED[kind], leaf(3), check_undefined_grad=False)


ones_for_undefined = with_vjp(
    torch.clone, lambda v, x: torch.ones_like(x) if v is None else v.clone(), materialize=False
)
"""The identity; its backward returns ones for an undefined gradient."""


def test_077_gradient_made_up_for_an_undefined_one_is_rejected(checker: Checker) -> None:
    phrase = "Expected all input grads to be undefined or zero when all output grads are undefined or zero"
    with pytest.warns(UserWarning, match=UNDEFINED_WARNING):
        checker.rejects(phrase, ones_for_undefined, leaf(3))
    checker.accepts(ones_for_undefined, leaf(3), check_undefined_grad=False)


def test_078_each_of_several_outputs_is_undefined_alone_and_all_together(checker: Checker) -> None:
    seen = set()

    def vjp(first: Tensor | None, second: Tensor | None, x: Tensor) -> Tensor:
        seen.add((first is not None, second is not None))
        zero = torch.zeros_like(x)
        return (zero if first is None else first) + (zero if second is None else second)

    checker.accepts(with_vjp(lambda x: (x.clone(), x.clone()), vjp, materialize=False), leaf(3))
    assert {(False, False), (False, True), (True, False)} <= seen


def test_079_exception_for_one_undefined_gradient_escapes(checker: Checker) -> None:
    def vjp(first: Tensor | None, second: Tensor | None, x: Tensor) -> Tensor:
        if first is None or second is None:
            raise PlantedError("one gradient is missing")
        return first + second

    pair = with_vjp(lambda x: (x.clone(), x.clone()), vjp, materialize=False)
    checker.refuses(PlantedError, "one gradient is missing", pair, leaf(3))


def test_080_exception_of_the_function_escapes(checker: Checker) -> None:
    def func(x: Tensor) -> Tensor:
        raise PlantedError("not today")

    checker.refuses(PlantedError, "not today", func, leaf(3))
    checker.second_order.refuses(PlantedError, "not today", func, leaf(3))


def test_081_exception_of_backward_escapes(checker: Checker) -> None:
    checker.refuses(PlantedError, "backward is broken", with_broken_backward, leaf(3))


def test_082_leaf_changed_in_place_is_the_error_of_the_engine(checker: Checker) -> None:
    phrase = "a leaf Variable that requires grad is being used in an in-place operation"
    checker.refuses(RuntimeError, phrase, lambda x: x.mul_(2), leaf(3))
