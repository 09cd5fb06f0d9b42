"""What a function leads to is read from its code and from what it holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradvet.frontends.torch.contents import REACH, Contents


def hooking(x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]
    return x


def calling(x: Tensor) -> Tensor:
    return hooking(x * 1.0)


def nesting(x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        y.register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]
        return y

    return inner(x * 1.0)


class Holder:
    def __call__(self, x: Tensor) -> Tensor:
        return hooking(x * 1.0)

    def method(self, x: Tensor) -> Tensor:
        return hooking(x * 1.0)


@pytest.mark.parametrize(
    ("function", "hookless"),
    [
        (torch.sin, True),
        (lambda x: x.sin() * 2.0, True),
        (hooking, False),
        (calling, False),
        (nesting, False),
        (lambda x: calling(x), False),
        (Holder(), False),
        (Holder().method, False),
        (torch.nn.Tanh(), False),
    ],
)
def test_code_that_puts_hooks_on_tensors_is_seen_as_far_as_it_can_be_read(function: object, hookless: bool) -> None:
    assert Contents.of(function, torch.ones(1)).hookless is hookless


def test_code_that_is_too_far_to_be_read_is_not_vouched_for() -> None:
    def chained(function: object, links: int) -> object:
        for _ in range(links):
            function = (lambda inner: lambda x: inner(x))(function)
        return function

    assert Contents.of(chained(torch.sin, 3)).hookless
    assert not Contents.of(chained(hooking, 3)).hookless
    assert not Contents.of(chained(hooking, REACH + 3)).hookless
