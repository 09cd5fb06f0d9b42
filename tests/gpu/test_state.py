"""On a CUDA device: the default device does not matter, and inputs and generators are left as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import gradvet


@pytest.fixture
def default_is_cuda() -> Iterator[None]:
    torch.set_default_device("cuda")
    try:
        yield
    finally:
        torch.set_default_device(None)


def calls() -> dict[str, Callable[[Tensor], object]]:
    return {
        "check": lambda x: gradvet.check(torch.sin, x, seed=0).passed,
        "check in float32": lambda x: gradvet.check(torch.sin, x.float(), seed=0).passed,
        "numerical_jacobian": lambda x: bool(
            torch.allclose(gradvet.numerical_jacobian(torch.sin, x).value.diagonal(), x.cos().cpu())
        ),
        "gradcheck": lambda x: gradvet.gradcheck(torch.sin, x.requires_grad_(), check_forward_ad=True),
        "fast mode": lambda x: gradvet.gradcheck(torch.sin, x.requires_grad_(), fast_mode=True),
        "gradgradcheck": lambda x: gradvet.gradgradcheck(torch.sin, x.requires_grad_()),
    }


@pytest.mark.usefixtures("default_is_cuda")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("call", calls())
def test_default_device_cuda_does_not_matter(call: str, device: str) -> None:
    x = torch.tensor([0.3, -0.7, 1.2], dtype=torch.float64, device=device)
    assert calls()[call](x) is True


@pytest.mark.parametrize("call", calls())
def test_inputs_on_the_gpu_do_not_need_a_default_device(call: str) -> None:
    assert calls()[call](torch.tensor([0.3, -0.7, 1.2], dtype=torch.float64, device="cuda")) is True


def test_generator_and_parameters_on_the_gpu_stay() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)).double().cuda()
    x = torch.randn(4, 3, dtype=torch.float64, device="cuda")
    states = [tensor.clone() for tensor in module.state_dict().values()]
    generator = torch.cuda.get_rng_state()
    gradvet.check(module, x, seed=0)
    assert torch.equal(torch.cuda.get_rng_state(), generator)
    assert all(map(torch.equal, module.state_dict().values(), states))
