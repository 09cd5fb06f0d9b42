"""Every tensor takes its device from the inputs, whatever torch's default device is."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import gradvet
from tests.faults.interruptions import WrongSquare
from tests.sources import SOURCES, nodes_of

FACTORIES = frozenset(
    {
        *("arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn"),
        *("randperm", "scalar_tensor", "tensor", "zeros"),
    }
)


class Model(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return WrongSquare.apply(super().forward(x))  # type: ignore[no-any-return, no-untyped-call]


def model() -> nn.Module:
    return Model(3, 2, device="cpu", dtype=torch.float64)


def watched(model: nn.Module, x: torch.Tensor) -> Any:
    with gradvet.watch(model, seed=0) as step:
        model(x).sum().backward()
    return step.report()


def names_the_function(report: Any) -> bool:
    return [culprit.what for culprit in report.culprits] == ["autograd.Function WrongSquare"]


CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "check": lambda x: gradvet.check(torch.sin, x, seed=0).passed,
    "check of a module": lambda x: gradvet.check(nn.Linear(3, 2, device="cpu").double(), x, seed=0).passed,
    "check in float32": lambda x: gradvet.check(torch.sin, x.float(), seed=0).passed,
    "check of complex numbers": lambda x: gradvet.check(torch.sin, x.to(torch.complex128), seed=0).passed,
    "thorough check": lambda x: gradvet.check(torch.sin, x, seed=0, thorough=True).passed,
    "check in a domain": lambda x: gradvet.check(torch.log, x.abs(), seed=0, domain=(0.1, 5.0)).passed,
    "numerical_jacobian": lambda x: gradvet.numerical_jacobian(torch.sin, x).value.device.type == "cpu",
    "gradcheck": lambda x: gradvet.gradcheck(torch.sin, x.requires_grad_(), check_forward_ad=True),
    "gradcheck, fast mode": lambda x: gradvet.gradcheck(torch.sin, x.requires_grad_(), fast_mode=True),
    "gradgradcheck": lambda x: gradvet.gradgradcheck(torch.sin, x.requires_grad_()),
    "check with a reference": lambda x: (
        gradvet.check(torch.sin, x.float(), reference=torch.sin, dtypes=(torch.float32, torch.bfloat16), seed=0).passed
    ),
    "blame": lambda x: names_the_function(gradvet.blame(model(), x, seed=0)),
    "watch": lambda x: names_the_function(watched(model(), x)),
    "sparse": lambda x: gradvet.check(lambda s: (s * s).sum(), x.reshape(1, 3).to_sparse(), seed=0, masked=True).passed,
}


@pytest.fixture
def default_is_meta() -> Iterator[None]:
    before = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None if before.type == "cpu" else before)


@pytest.mark.usefixtures("default_is_meta")
@pytest.mark.parametrize("call", CALLS)
def test_default_device_does_not_matter(call: str) -> None:
    x = torch.tensor([0.3, -0.7, 1.2], dtype=torch.float64, device="cpu")
    assert CALLS[call](x) is True
    assert torch.get_default_device().type == "meta"


def calls_without_device(text: str) -> list[int]:
    """The lines on which a factory of torch is called without a device."""
    return [
        node.lineno
        for node in nodes_of(text)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "torch"
        and node.func.attr in FACTORIES
        and "device" not in {keyword.arg for keyword in node.keywords}
    ]


def test_every_factory_call_names_its_device() -> None:
    found = {path: lines for path, text in SOURCES.items() if (lines := calls_without_device(text))}
    assert found == {}


def test_factory_call_without_device_is_found() -> None:
    assert calls_without_device("import torch\ntorch.zeros(3)\ntorch.ones(3, device=home)") == [2]
