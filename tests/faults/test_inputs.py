"""Inputs without usable values are refused in one sentence before any call (`frontends/torch/validation.py`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradvet
from gradvet.errors import InvalidProblemError


def numbers(*shape: int) -> Tensor:
    return torch.linspace(0.3, 1.1, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def fake() -> Tensor:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        return mode.from_tensor(numbers(3))


def freed() -> Tensor:
    tensor = numbers(3)
    tensor.untyped_storage().resize_(0)
    return tensor


def too_small() -> Tensor:
    tensor = numbers(3)
    tensor.untyped_storage().resize_(8)
    return tensor


def cyclic() -> list[Any]:
    found: list[Any] = [numbers(3)]
    found.append(found)
    return found


@dataclass
class Node:
    value: Tensor
    next: Any = None


def cyclic_dataclass() -> Node:
    node = Node(numbers(3))
    node.next = [node]
    return node


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "meta tensor": (lambda: torch.ones(3, dtype=torch.float64, device="meta"), "is a meta tensor"),
    "fake tensor": (fake, "is a fake tensor"),
    "strided nested tensor": (
        lambda: torch.nested.nested_tensor([numbers(2), numbers(3)]),
        "is a nested tensor",
    ),
    "jagged nested tensor": (
        lambda: torch.nested.nested_tensor([numbers(2), numbers(3)], layout=torch.jagged),
        "is a nested tensor",
    ),
    "float8": (lambda: numbers(3).to(torch.float8_e4m3fn), "has dtype float8_e4m3fn"),
    "freed memory": (freed, "was freed"),
    "memory that is too small": (too_small, "was freed"),
}
CYCLIC = {"cyclic list": cyclic, "cyclic dataclass": cyclic_dataclass}


def never(*arguments: Any) -> Tensor:
    raise AssertionError("the function was called")


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("check", [gradvet.check, gradvet.numerical_jacobian, gradvet.gradcheck])
@pytest.mark.filterwarnings("ignore")
def test_tensor_without_usable_values_is_refused(kind: str, check: Callable[..., Any]) -> None:
    make, words = REFUSED[kind]
    tensor = make()
    if check is gradvet.gradcheck:
        tensor.requires_grad_()
    with pytest.raises(InvalidProblemError) as refusal:
        check(never, (tensor,))
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", CYCLIC)
@pytest.mark.parametrize("check", [gradvet.check, gradvet.numerical_jacobian])
def test_container_that_contains_itself_is_refused(kind: str, check: Callable[..., Any]) -> None:
    with pytest.raises(InvalidProblemError, match="input 0 contains itself"):
        check(never, (CYCLIC[kind](),))
    with pytest.raises(InvalidProblemError, match="kwargs contains itself"):
        check(never, (numbers(3),), kwargs={"more": CYCLIC[kind]()})


def test_container_that_occurs_twice_is_no_cycle() -> None:
    pair = [numbers(3)]
    assert gradvet.check(lambda a, b: a[0] * b[0], (pair, pair)).passed


@pytest.mark.parametrize("check", [gradvet.check, gradvet.numerical_jacobian])
def test_lazy_module_is_refused(check: Callable[..., Any]) -> None:
    with pytest.raises(InvalidProblemError, match="weight is not initialised yet"):
        check(nn.LazyLinear(2).double(), numbers(4, 3))


def test_module_without_values_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="weight is a meta tensor"):
        gradvet.check(nn.Linear(3, 2, device="meta"), numbers(4, 3).float())


def test_constant_in_float8_is_no_obstacle() -> None:
    factor = torch.tensor([1.0, 2.0, 0.5]).to(torch.float8_e4m3fn)
    x = numbers(3).requires_grad_()
    assert gradvet.check(lambda x, factor: x * factor.double(), (x, factor)).passed


@pytest.mark.parametrize("make", [lambda: numbers(1).expand(3), lambda: numbers(5).as_strided((3, 3), (1, 1))])
def test_numerical_jacobian_of_overlapping_elements_is_refused(make: Callable[[], Tensor]) -> None:
    with pytest.raises(InvalidProblemError, match="share memory"):
        gradvet.numerical_jacobian(never, make())


def test_numerical_jacobian_of_a_single_number() -> None:
    found = gradvet.numerical_jacobian(torch.sin, torch.tensor(0.5, dtype=torch.float64))
    assert found.value.shape == ()
    assert abs(float(found.value) - float(torch.cos(torch.tensor(0.5, dtype=torch.float64)))) < 1e-9


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_numerical_jacobian_at_a_number_that_is_not_finite(odd: float) -> None:
    x = torch.tensor([0.5, odd, 2.0], dtype=torch.float64)
    found = gradvet.numerical_jacobian(torch.sin, x)
    assert torch.isnan(found.value[:, 1]).all()
    assert torch.isinf(found.error[:, 1]).all()
    assert torch.isinf(found.error[1]).all()
    finite = [0, 2]
    assert torch.allclose(found.value.diagonal()[finite], x.cos()[finite])
    assert bool((found.error.diagonal()[finite] < 1e-6).all())


def test_freed_memory_does_not_crash_the_process() -> None:
    """In a process of its own: before, this was a segmentation fault."""
    code = (
        "import torch, gradvet\n"
        "x = torch.ones(3, dtype=torch.float64); x.untyped_storage().resize_(0)\n"
        "try: gradvet.check(torch.sin, x)\n"
        "except gradvet.InvalidProblemError as error: print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "refused")
