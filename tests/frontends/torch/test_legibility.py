"""A function is vouched for only where its code shows that it puts hooks on nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import gradvet
from gradvet.frontends.torch import acquaintance
from gradvet.frontends.torch.contents import Contents

SCALE, FACTORS = 2.0, {"one": [1.0, 2.0], "two": (torch.ones(3), None)}


def double(x: Tensor) -> Tensor:
    return SCALE * x


def plain(x: Tensor) -> Tensor:
    parts = [functional.softplus(double(x) * factor) for factor in FACTORS["one"]]
    return torch.stack(parts).sum(0) * math.sqrt(2.0)


def importing(x: Tensor) -> Tensor:
    from math import pi

    return pi * x


class Hooking:
    def on(self, y: Tensor) -> Tensor:
        y.register_hook(lambda g: g)
        return y


HOOKING = Hooking()
STRANGE = ModuleType("strange_helpers")
METHOD = "register_hook"

exec("def stranger(x):\n    return x", STRANGE.__dict__)
stranger = STRANGE.stranger


def by_tensor(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda g: g)
    return y


def by_node(x: Tensor) -> Tensor:
    y = x.sin()
    y.grad_fn.register_prehook(lambda g: g)  # type: ignore[union-attr]
    return y


def by_name(x: Tensor) -> Tensor:
    y = x.sin()
    getattr(y, METHOD)(lambda g: g)
    return y


def within(x: Tensor) -> Tensor:
    def inner() -> Tensor:
        return by_tensor(x)

    return inner()


PLAIN: dict[str, Callable[..., Any]] = {
    "of torch": torch.sin,
    "lambda": lambda x: x.sin(),
    "helpers of the same file": plain,
    "import of a known module": importing,
}
SUSPECT: dict[str, Callable[..., Any]] = {
    "hook on a tensor": by_tensor,
    "hook on a node": by_node,
    "hook by the name of a method": by_name,
    "hook in a helper of a function within": within,
    "method of an object": lambda x: HOOKING.on(x.sin()),
    "function of another file": lambda x: stranger(x.sin()),
    "module of unknown origin": lambda x: STRANGE.stranger(x.sin()),
    "code that is made while it runs": lambda x: eval("x.sin()", {"x": x}),
    "bound method": HOOKING.on,
    "callable object": torch.nn.Tanh(),
}


@pytest.fixture(autouse=True)
def unacquainted() -> Iterator[None]:
    acquaintance.forget()
    yield
    acquaintance.forget()


def point() -> Tensor:
    return torch.linspace(0.3, 1.2, 6, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("kind", PLAIN)
def test_code_that_can_be_read_and_speaks_of_no_hooks_is_vouched_for(kind: str) -> None:
    assert Contents.of(PLAIN[kind], point()).hookless


@pytest.mark.parametrize("kind", SUSPECT)
def test_what_hooks_or_cannot_be_read_is_not_vouched_for(kind: str) -> None:
    assert not Contents.of(SUSPECT[kind], point()).hookless


def test_captured_tensor_with_a_hook_is_not_vouched_for() -> None:
    captured = point()
    assert Contents.of(lambda x: x * captured, point()).hookless
    captured.register_hook(lambda g: g)
    assert not Contents.of(lambda x: x * captured, point()).hookless


def test_object_of_the_users_among_the_arguments_is_not_vouched_for() -> None:
    assert Contents.of(torch.sin, point(), torch.float64, (1, 2), Fraction(1, 2)).hookless
    assert not Contents.of(torch.sin, point(), HOOKING).hookless


def refusing(gradients: Any) -> Any:
    if gradients[0] is None:
        raise RuntimeError("nothing came")
    return gradients


@pytest.mark.parametrize("seen", [False, True])
def test_hook_on_a_node_is_found_out_whatever_was_seen_before(seen: bool) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        if y.grad_fn is not None:
            y.grad_fn.register_prehook(refusing)
        return y

    if seen:
        assert gradvet.gradcheck(torch.sin, point())
    with (
        pytest.raises(gradvet.GradcheckError, match="undefined output grads"),
        pytest.warns(UserWarning, match="undefined"),
    ):
        gradvet.gradcheck(function, point())
