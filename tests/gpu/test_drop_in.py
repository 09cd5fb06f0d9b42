"""The drop-in functions on a CUDA device: the same verdicts, and everything left as it was found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from benchmarks.functions import FUNCTIONS, on_device

MODES = pytest.mark.parametrize("options", [{}, {"fast_mode": True}, {"exhaustive": True}], ids=str)


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device="cuda", requires_grad=True)


class Spoiled(torch.autograd.Function):
    """The sine, with one entry of its gradient half as large again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient = cotangent * x.cos()
        gradient[7] *= 1.5
        return gradient


@MODES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_right_function_passes(name: str, options: dict[str, bool]) -> None:
    function, inputs = on_device(FUNCTIONS[name](100), "cuda")
    assert gradvet.gradcheck(function, inputs, nondet_tol=1e-9, **options)


@MODES
def test_wrong_entry_is_named(options: dict[str, bool]) -> None:
    with pytest.raises(gradvet.GradcheckError, match=r"d output 0 \[7\] / d input 0 \[7\]"):
        gradvet.gradcheck(Spoiled.apply, leaf(1000), **options)


@MODES
@pytest.mark.parametrize("function", [lambda z: z * z.abs(), lambda z: z.real * z.imag], ids=["complex", "real"])
def test_complex_input_is_checked(function: Callable[[Tensor], Tensor], options: dict[str, bool]) -> None:
    z = leaf(5, dtype=torch.complex128)
    assert gradvet.gradcheck(function, z, check_forward_ad=True, check_batched_grad=True, **options)


def test_second_order_is_checked() -> None:
    assert gradvet.gradgradcheck(torch.tanh, leaf(20))


def test_inputs_on_two_devices_are_checked_together() -> None:
    there, here = leaf(5), torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert gradvet.gradcheck(lambda x, y: x * y.to("cuda"), (there, here))


@MODES
def test_random_state_and_inputs_are_left_as_they_were(options: dict[str, bool]) -> None:
    x = leaf(30)
    values, state = x.detach().clone(), torch.cuda.get_rng_state()
    assert gradvet.gradcheck(lambda x: x.sin() + torch.rand_like(x).detach() * 0.0, x, **options)
    assert torch.equal(x, values)
    assert torch.equal(torch.cuda.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_checked_with_error_bars(dtype: torch.dtype) -> None:
    x = torch.linspace(-2.0, 2.0, 50, device="cuda", dtype=dtype)
    assert gradvet.check(torch.nn.functional.gelu, x).verdict.value in ("pass", "inconclusive")
