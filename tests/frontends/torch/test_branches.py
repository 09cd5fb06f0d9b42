"""A wider version on the branches that low precision takes: roundoff decides the side of some elements here."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import gradvet
from gradvet.core.frontend import BranchCounts, Request
from gradvet.core.problem import Distribution
from gradvet.core.results import Verdict
from gradvet.frontends.torch.binding import bind
from gradvet.frontends.torch.branches import on_same_branches
from gradvet.frontends.torch.problem import TorchProblem
from tests.frontends.torch import needs_private_names
from tests.functions import with_vjp

pytestmark = needs_private_names

Features = Callable[[Tensor], Tensor]


def sampled_on_grid(h: Tensor, **settings: Any) -> Tensor:
    """An image with a kink in the middle, at positions of which every fifth is in the middle."""
    ramps = torch.tensor([0.0, 1.0, 2.0, 7.0, 11.0]).to(h)
    grid = 0.1 * torch.stack([h, torch.zeros_like(h)], -1).view(1, 4, 10, 2)
    return functional.grid_sample(ramps.expand(1, 1, 5, 5), grid, **settings).flatten()


KINKS: dict[str, Features] = {
    "relu": functional.relu,
    "relu in place": lambda h: (h + 0.0).relu_(),
    "leaky relu": lambda h: functional.leaky_relu(h, 0.2),
    "elu": lambda h: functional.elu(h, alpha=0.3),
    "selu": functional.selu,
    "prelu": lambda h: functional.prelu(h, torch.tensor([0.3]).to(h)),
    "threshold": lambda h: functional.threshold(h, 0.0, 0.0),
    "hardtanh": lambda h: functional.hardtanh(h, 0.0, 1.0),
    "softshrink": lambda h: functional.softshrink(h + 0.5),
    "hardswish": lambda h: functional.hardswish(h - 3.0),
    "clamp": lambda h: h.clamp(min=0.0),
    "abs": torch.abs,
    "norm": lambda h: h.norm(p=1, keepdim=True),
    "comparison": lambda h: torch.where(h > 0.0, h, 3.0 * h),
    "product with a comparison": lambda h: h * (h > 0.0),
    "maximum": lambda h: torch.maximum(h[:20], h[20:]),
    "amax": lambda h: h.view(2, 20).amax(0),
    "max over an axis": lambda h: h.view(2, 20).max(0).values,
    "argmax": lambda h: h[20 * h.view(2, 20).argmax(0) + torch.arange(20)],
    "sort": lambda h: h.sort().values,
    "argsort": lambda h: h[h.argsort()],
    "topk": lambda h: h.topk(23).values,
    "kthvalue": lambda h: h.view(2, 20).kthvalue(1, dim=0).values,
    "cummax": lambda h: h.view(2, 20).cummax(0).values,
    "max pooling, 1 axis": lambda h: functional.max_pool1d(h.view(2, 20).t().reshape(1, 1, 40), 2)[0, 0],
    "max pooling, 2 axes": lambda h: functional.max_pool2d(h.view(2, 20).t().reshape(1, 1, 20, 2), (1, 2)).flatten(),
    "floor": lambda h: h * (1.0 + torch.floor(h)),
    "conversion to integers": lambda h: h[(torch.floor(h).long() % 2).abs()],
    "interpolation on a grid": lambda h: sampled_on_grid(h, align_corners=False),
    "interpolation on a grid of corners": lambda h: sampled_on_grid(h, align_corners=True, padding_mode="border"),
    "custom": with_vjp(torch.relu, lambda v, h: v * (h > 0.0)),
}


WITHOUT_FORWARD = ("interpolation on a grid", "interpolation on a grid of corners", "custom")


def numbers(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """A matrix and a vector such that every fifth element of their product is roundoff, the same on every processor."""
    generator = torch.Generator().manual_seed(0)
    matrix = 2.0 * torch.rand(40, 30, generator=generator, dtype=torch.float64) - 1.0
    x = (2.0 * torch.rand(30, generator=generator, dtype=torch.float64) - 1.0).to(dtype)
    along = torch.outer(matrix @ x.double(), x.double()) / (x.double() @ x.double())
    matrix[::5] -= along[::5]
    return matrix.to(dtype).requires_grad_(), x.requires_grad_()


def product(matrix: Tensor, x: Tensor) -> Tensor:
    """Matrix times vector, added column by column: the order of additions in `matrix @ x` depends on the processor."""
    return reduce(torch.add, (matrix * x).unbind(1))


def pair(
    features: Features, low: torch.dtype = torch.float32, high: torch.dtype = torch.float64
) -> tuple[TorchProblem, TorchProblem, BranchCounts]:
    def function(matrix: Tensor, x: Tensor) -> Tensor:
        return torch.sin(1.0 + features(product(matrix, x)))

    request = Request(function, numbers(low))
    problem = TorchProblem(bind(request), seed=0)
    found = on_same_branches(problem, problem.rebound(bind(request, wide=high), 0), 0)
    assert found is not None
    return found


@pytest.mark.parametrize("features", KINKS.values(), ids=KINKS.keys())
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_wider_version_has_the_derivative_of_the_piece_that_low_precision_takes(features: Features, mode: str) -> None:
    low, high, branches = pair(features)
    if mode == "reverse":
        v = low.random(low.codomain.size, Distribution.NEAR_UNIT)
        found, expected = low.vjp(v), high.vjp(v)
    elif features in [KINKS[name] for name in WITHOUT_FORWARD]:
        pytest.skip("it has no forward mode")
    else:
        u = low.random(low.domain.size, Distribution.NEAR_UNIT)
        found, expected = low.jvp(u), high.jvp(u)
    count, changed = branches()
    assert 0 < changed < count
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_wider_version_in_float32_takes_the_branches_of_bfloat16() -> None:
    low, high, branches = pair(lambda h: functional.relu((h + 8.0) - 8.0), torch.bfloat16, torch.float32)
    v = low.random(low.codomain.size, Distribution.NEAR_UNIT).sign()
    found, expected = low.vjp(v), high.vjp(v)
    assert branches()[1] > 0
    assert ((found - expected).norm() / expected.norm()).item() < 0.05
    assert torch.equal(found == 0.0, expected == 0.0)


def test_element_far_from_the_kink_is_not_moved() -> None:
    """Low precision takes another side there because its forward pass is wrong, and the wider version shows it."""

    def shifted(h: Tensor) -> Tensor:
        return functional.relu(h + 0.5 if h.dtype is torch.float32 else h)

    low, high, branches = pair(shifted)
    v = low.random(low.codomain.size, Distribution.NEAR_UNIT)
    found, expected = low.vjp(v), high.vjp(v)
    assert branches()[1] < 8 + 1
    assert float((found - expected).abs().max()) > 0.1


class Hinge(nn.Module):
    """A loss of differences, of which every fourth is the roundoff of an offset."""

    def __init__(self, relu: Features = functional.relu) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        x, apart = torch.randn(40, generator=generator), 3.0 * torch.rand(40, generator=generator)
        self.x, self.relu = nn.Parameter(x), relu
        self.register_buffer("target", torch.where(torch.arange(40) % 4 == 0, x, x - apart))

    def forward(self, weights: Tensor) -> Tensor:
        return self.relu((self.x + 1e3) - 1e3 - self.target).view(8, 5).sum(0) * weights


def wrong_below_double(factor: Any) -> Features:
    """`relu` with a derivative that is multiplied by this in float32."""

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        return v * (x > 0.0) * (factor if x.dtype is torch.float32 else 1.0)

    return with_vjp(torch.relu, vjp)


def precision_of(model: nn.Module) -> gradvet.Report:
    return gradvet.check(model, torch.linspace(1.0, 2.0, 5), checks="precision", seed=2)


def test_model_passes_where_roundoff_decides_the_sides_and_the_finding_says_how_many() -> None:
    report = precision_of(Hinge())
    assert report.verdict is Verdict.PASS, str(report)
    (changed,) = {f.facts["changed_branches"] for f in report.findings if "changed_branches" in f.facts}
    assert changed == 10


one_entry = torch.ones(40).index_fill(0, torch.tensor([7]), 1.1)


@pytest.mark.parametrize("factor", [1.01, one_entry], ids=["all by 1 %", "one by 10 %"])
def test_wrong_derivative_in_float32_fails_on_the_same_branches(factor: Any) -> None:
    report = precision_of(Hinge(wrong_below_double(factor)))
    assert report.verdict is Verdict.FAIL
    assert {finding.check for finding in report.failures} <= {"precision", "blame"}
