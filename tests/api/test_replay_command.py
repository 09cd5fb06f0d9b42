"""The line that says how to get a report again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet


class Tripled(torch.autograd.Function):
    """Right, and applied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 3.0 * x

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return 3.0 * dy


def scaled(x: Tensor, scale: Any = 1.0) -> Tensor:
    return scale * x


def again(func: Callable[..., Any], **settings: Any) -> str:
    report = gradvet.check(func, torch.linspace(0.1, 0.9, 3, dtype=torch.float64), seed=7, **settings)
    assert report.replay.endswith(", seed=7)")
    return report.replay.removeprefix("gradvet.check(").removesuffix(", seed=7)")


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (torch.sin, "sin"),
        (Tripled, "Tripled"),
        (Tripled.apply, "Tripled.apply"),
        (functools.partial(scaled, scale=2.0), "scaled"),
        (torch.nn.Linear(3, 2).double(), "func"),
        (lambda x: x.sin(), "func"),
    ],
)
def test_function_is_called_what_people_call_it(func: Callable[..., Any], name: str) -> None:
    assert again(func, checks=["reverse"]).startswith(f"{name}, inputs")


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({}, "scaled, inputs"),
        ({"kwargs": {"scale": -2}}, "scaled, inputs, kwargs={'scale': -2}"),
        ({"kwargs": {"scale": torch.ones(3)}}, "scaled, inputs, kwargs=kwargs"),
        ({"order": 2, "modes": "reverse"}, "scaled, inputs, order=2, modes=('reverse',)"),
        ({"checks": ["reverse", "values"]}, "scaled, inputs, checks=['values', 'reverse']"),
        ({"checks": {"input_layout": False}}, "scaled, inputs, checks={'input_layout': False}"),
        ({"masked": True, "resolution": 0.001}, "scaled, inputs, masked=True, resolution=0.001"),
        ({"budget": 5.0}, "scaled, inputs, budget=5.0"),
        (
            {"budget": gradvet.Budget(bytes=10**9)},
            "scaled, inputs, budget=gradvet.Budget(seconds=None, bytes=1000000000)",
        ),
        ({"surrogate": torch.sinh, "checks": ["reverse"]}, "scaled, inputs, checks=['reverse'], surrogate=sinh"),
    ],
)
def test_every_setting_that_is_not_the_usual_one_is_written(settings: dict[str, Any], written: str) -> None:
    assert again(scaled, **settings) == written


def test_line_gives_the_same_findings_again() -> None:
    inputs = torch.linspace(0.1, 0.9, 3, dtype=torch.float64)
    first = gradvet.check(scaled, inputs, kwargs={"scale": 2}, checks={"jvp_vjp_agree": False}, modes="reverse", seed=3)
    second = eval(first.replay, {"gradvet": gradvet, "scaled": scaled, "inputs": inputs})
    assert second.findings == first.findings
    assert second.replay == first.replay
