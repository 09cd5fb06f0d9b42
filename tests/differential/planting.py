"""Errors planted in the gradients of a function that both checkers accept, and what either checker says of them."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gradvet.compat.gradcheck import as_tuple

Spoil = Callable[[Tensor, int], Tensor]
"""A wrong gradient, linear in the right one, made of it and of the position of one entry."""


def _one(factor: float) -> Spoil:
    def spoil(gradient: Tensor, entry: int) -> Tensor:
        factors = torch.ones(gradient.numel(), dtype=gradient.dtype, device=gradient.device)
        factors[entry] = factor
        return gradient * factors.reshape(gradient.shape)

    return spoil


FAULTS: dict[str, Spoil] = {
    "one entry zeroed": _one(0.0),
    "sign": lambda gradient, entry: -gradient,
    "one entry by 1 %": _one(1.01),
    "all entries by 1 %": lambda gradient, entry: gradient * 1.01,
    "one entry doubled": _one(2.0),
    "shifted by one": lambda gradient, entry: gradient.reshape(-1).roll(1).reshape(gradient.shape),
    "sign of one entry": _one(-1.0),
    "all zeroed": lambda gradient, entry: gradient * 0.0,
    "part of a neighbour added": lambda gradient, entry: (
        gradient + 0.05 * gradient.reshape(-1).roll(1).view_as(gradient)
    ),
    "mean instead": lambda gradient, entry: gradient.mean().expand(gradient.shape) + 0.0 * gradient,
}
"""By name; all are used in turn."""


def answers(
    checkers: Mapping[str, Callable[..., bool]], number: int, func: Callable[..., Any], inputs: Any, options: Any
) -> dict[str, Any] | None:
    """What each checker says in slow and in fast mode of `func` with fault `number`; None if nothing can be spoiled."""
    choice = random.Random(number)
    arguments = as_tuple(inputs)
    found = [i for i, given in enumerate(arguments) if isinstance(given, Tensor) and _can_be_spoiled(given)]
    if not found:
        return None
    place = choice.choice(found)
    fault = list(FAULTS)[number % len(FAULTS)]
    spoiled = planted(func, place, FAULTS[fault], choice.randrange(arguments[place].numel()))
    said: dict[str, Any] = {"fault": fault}
    state = torch.get_rng_state()
    for mode in (False, True):
        for name, checker in checkers.items():
            torch.set_rng_state(state)
            said[f"{name} {'fast' if mode else 'slow'}"] = _answer(
                checker, spoiled, inputs, {**options, "fast_mode": mode, "raise_exception": True}
            )
    torch.set_rng_state(state)
    return said


def planted(func: Callable[..., Any], place: int, spoil: Spoil, entry: int) -> Callable[..., Any]:
    """`func` with the gradient of the argument at `place` spoiled; its forward mode stays right."""

    class Spoiled(torch.autograd.Function):
        """The identity with a wrong gradient."""

        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
            return spoil(cotangents[0], entry)

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
            return tangents[0].view_as(tangents[0])

    def wrong(*arguments: Any) -> Any:
        passed = list(arguments)
        passed[place] = Spoiled.apply(arguments[place])
        return func(*passed)

    return wrong


def _can_be_spoiled(given: Tensor) -> bool:
    return bool(
        given.requires_grad
        and type(given) is Tensor
        and given.layout is torch.strided
        and not given.is_nested
        and given.numel()
    )


def _answer(checker: Callable[..., bool], func: Callable[..., Any], inputs: Any, options: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return str(checker(func, inputs, **options))
        except Exception as error:
            return type(error).__name__
