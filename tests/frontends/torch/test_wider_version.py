"""The wider version of functions that cast, capture low precision or draw random numbers.

Covers `frontends/torch/wider_version.py` and `double_precision.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gradvet
from gradvet.core.direction_average import AVERAGED
from gradvet.core.frontend import Request
from gradvet.core.results import Verdict
from gradvet.frontends.torch import wider_version as wider_version_module
from gradvet.frontends.torch.binding import bind
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.frontends.torch.wider_version import wider_problem
from tests.frontends.torch import needs_private_names
from tests.functions import with_vjp
from tests.gallery.inputs import normal
from tests.gallery.kernels import kernel, squash, squash_vjp

pytestmark = needs_private_names  # without operator modes there is no such version

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Function = Callable[..., Any]


def verdict(function: Function, *inputs: Any, **options: Any) -> Verdict:
    return gradvet.check(function, inputs, seed=20, **options).verdict


def wider_version(function: Function, *inputs: Any) -> tuple[TorchProblem, TorchProblem | None]:
    """The problem and its wider version."""
    request = Request(function, inputs, None)
    problem = TorchProblem(bind(request), seed=0)
    return wider_problem(problem, request, 0) or (problem, None)


def single(*shape: int, dtype: torch.dtype = F32, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


# Captured low precision and casts.

WEIGHT = single(6, 5, dtype=BF16).detach()


def through_bfloat16(x: Tensor) -> Tensor:
    return torch.tanh((x.to(BF16) @ WEIGHT).float())


def partly_detached(x: Tensor) -> Tensor:
    return (x.to(BF16) @ WEIGHT).float() * x.detach().sum(-1, keepdim=True)


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=BF16):
        return F.gelu(F.linear(x, WEIGHT.float().mT)).float()


def under_autocast_detached(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=BF16):
        hidden = F.linear(x, WEIGHT.float().mT)
        return (hidden * torch.sigmoid(hidden.detach())).float()


@pytest.mark.parametrize("function", [through_bfloat16, under_autocast])
def test_captured_bfloat16_is_double_precision_inside(function: Function) -> None:
    problem, found = wider_version(function, single(3, 6))
    assert found is not None
    exact = torch.autograd.functional.jacobian(
        lambda x: torch.tanh(x @ WEIGHT.double()) if function is through_bfloat16 else F.gelu(x @ WEIGHT.double()),
        problem.inputs[0].detach().double(),
    ).reshape(15, 18)
    rows = torch.stack([found.vjp(v) for v in torch.eye(15, dtype=torch.float64)])
    assert torch.allclose(rows, exact, rtol=1e-13, atol=1e-14)
    columns = torch.stack([found.jvp(u) for u in torch.eye(18, dtype=torch.float64)], 1)
    assert torch.allclose(columns, exact, rtol=1e-13, atol=1e-14)
    assert problem.eps == 2.0**-7, "the given problem is as coarse as the numbers inside it"
    assert found.internal_eps() == found.eps == 2.0**-52


def test_given_problem_keeps_its_own_eps() -> None:
    request = Request(through_bfloat16, (single(3, 6),), None)
    given = TorchProblem(bind(request), seed=0)
    found = wider_problem(given, request, 0)
    assert found is not None
    assert (given.eps, found[0].eps, found[1].eps) == (2.0**-23, 2.0**-7, 2.0**-52)
    assert found[0].cost is given.cost


@pytest.mark.parametrize("function", [partly_detached, under_autocast_detached])
def test_wrong_functions_of_captured_bfloat16_fail(function: Function) -> None:
    assert verdict(function, single(3, 6)) is Verdict.FAIL


def test_exact_constants_of_bfloat16_do_not_make_the_problem_coarse() -> None:
    constant = torch.tensor([0.5, 2.0, 3.0], dtype=BF16)
    problem, found = wider_version(lambda x: torch.sin(x) * constant, single(3))
    assert found is not None
    assert problem.eps == 2.0**-23


def test_coarse_numbers_that_no_output_uses_do_not_make_the_problem_coarse() -> None:
    def logged(x: Tensor) -> Tensor:
        x.detach().to(BF16).norm()
        return torch.sin(x)

    problem, found = wider_version(logged, single(30))
    assert found is not None
    assert problem.eps == 2.0**-23


def test_coarse_factors_without_a_gradient_make_the_problem_coarse() -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * WEIGHT.sum().float()

    problem, found = wider_version(scaled, single(30))
    assert found is not None
    assert problem.eps == 2.0**-7
    assert verdict(scaled, single(30)) is Verdict.PASS


def test_captured_convolution_and_batch_norm_in_training() -> None:
    layers = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Dropout(0.2))
    before = {name: tensor.clone() for name, tensor in layers.state_dict().items()}
    assert verdict(lambda x: layers(x), single(4, 2, 6)) is Verdict.PASS
    assert all(torch.equal(tensor, before[name]) for name, tensor in layers.state_dict().items())
    assert all(parameter.grad is None for parameter in layers.parameters())


CONVOLUTION, KEPT = nn.Conv1d(2, 4, 3).bfloat16(), single(4, 1, 5, 6, dtype=BF16).detach()


def convolved(x: Tensor) -> Tensor:
    return CONVOLUTION(x.to(BF16)).float()  # type: ignore[no-any-return]


def attending_to_constants(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x[:, None].to(BF16), KEPT, KEPT).float()


@pytest.mark.parametrize("function", [convolved, attending_to_constants])
def test_functions_that_compare_formats_before_they_call_an_operator_have_a_wider_version(function: Function) -> None:
    _, found = wider_version(function, single(4, 2, 6))
    assert found is not None
    assert found.internal_eps() == 2.0**-52


def test_casts_in_second_derivatives() -> None:
    assert verdict(lambda x: torch.sin(x.to(BF16)).float() * x, single(4), order=2) is Verdict.PASS


def test_autocast_around_the_check() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    with torch.autocast("cpu", dtype=BF16):
        assert verdict(model, single(3, 4)) is Verdict.PASS
        assert verdict(lambda x: model(x), single(3, 4)) is Verdict.PASS
        assert torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_cache_enabled()
        assert model(single(3, 4)).dtype == BF16
    assert torch.get_default_dtype() == F32


# Nothing of the user's is changed.


def write_whole(x: Tensor, scratch: Tensor) -> None:
    scratch.copy_(x.detach().expand_as(scratch))


def write_part(x: Tensor, scratch: Tensor) -> None:
    scratch[0] = x.detach()


def write_out(x: Tensor, scratch: Tensor) -> None:
    torch.mul(x.detach().expand_as(scratch), 1.0, out=scratch)


@pytest.mark.parametrize("write", [write_whole, write_part, write_out])
def test_writes_into_low_precision_refuse_the_wider_version(write: Function) -> None:
    x = single(4)
    scratch = x.detach().expand(2, 4).clone()
    before = scratch.clone()

    def function(y: Tensor) -> Tensor:
        write(y, scratch)
        return torch.sin(y) * 2

    problem, found = wider_version(function, x)
    assert found is None
    assert scratch.dtype == F32
    assert torch.equal(scratch, before)
    assert torch.equal(problem.inputs[0], x)


def test_writes_into_own_memory_are_allowed() -> None:
    def function(x: Tensor) -> Tensor:
        total = torch.zeros(3, dtype=F32)
        total[0] = 2.0
        total += 1.0
        return torch.sin(x.to(BF16)).float() * total

    assert wider_version(function, single(3))[1] is not None


# Random numbers.


def gated(x: Tensor) -> Tensor:
    return x * torch.bernoulli(torch.sigmoid(x.detach()))


def noisy(x: Tensor) -> Tensor:
    return torch.sin(x + 0.1 * torch.randn_like(x)) + torch.rand(x.shape).to(x.dtype) * x


def drawn_in_two_formats(x: Tensor) -> Tensor:
    return (
        torch.rand(x.shape, dtype=torch.float64).to(x.dtype) * x.sin() + torch.rand(x.shape, dtype=F16).to(x.dtype) * x
    )


def picked(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1).gather(-1, torch.multinomial(torch.softmax(x.detach(), -1), 1))


def dropped_natively(x: Tensor) -> Tensor:
    return torch.native_dropout(torch.sin(x), 0.3, True)[0]


def dropped_twice(x: Tensor) -> Tensor:
    return F.dropout(torch.sin(F.dropout(x, 0.2)), 0.3)


def dropped_in_checkpoint(x: Tensor) -> Tensor:
    y = checkpoint(dropped_twice, x, use_reentrant=False)
    assert isinstance(y, Tensor)
    return y


def attended(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x * 2, x.sin(), dropout_p=0.2)


def gumbel(x: Tensor) -> Tensor:
    return F.gumbel_softmax(x)


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize(
    "function",
    [
        *(gated, noisy, drawn_in_two_formats, picked, dropped_natively, dropped_twice, dropped_in_checkpoint, attended),
        gumbel,
    ],
)
def test_the_wider_version_draws_the_same_numbers(function: Function, dtype: torch.dtype) -> None:
    x = single(4, 5, dtype=dtype)
    problem, found = wider_version(function, x)
    assert found is not None
    assert torch.allclose(problem.value, found.value, rtol=16 * problem.eps, atol=16 * problem.eps)
    assert dtype is not BF16 or verdict(function, x) is Verdict.PASS


def test_normal_numbers_follow_their_mean() -> None:
    """Torch gives the mean of `torch.normal` no gradient."""
    assert verdict(lambda mean: torch.normal(mean, 1.0) * mean, single(5)) is Verdict.FAIL


def test_other_masks_in_the_backward_pass_are_no_wider_version_for_themselves() -> None:
    masked = with_vjp(
        lambda x: x * torch.bernoulli(torch.full_like(x, 0.7)),
        lambda v, x: v * torch.bernoulli(torch.full_like(v, 0.7)),
    )
    assert verdict(masked, single(20)) is Verdict.FAIL


# What is no wider version.


def in_numpy(dtype: Any) -> Function:
    """A sine in lower precision than its result, out of sight of torch."""

    def sine(x: Tensor) -> Tensor:
        values = x.detach().numpy()
        return torch.from_numpy(numpy.sin(values.astype(dtype)).astype(values.dtype))

    return with_vjp(sine, lambda v, x: v * torch.cos(x))


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float16])
@pytest.mark.parametrize("outer", [lambda y: y, torch.sum, lambda y: (y, y.sum() * 3)])
def test_coarse_kernels_have_no_wider_version(dtype: Any, outer: Function) -> None:
    sine = in_numpy(dtype)
    assert wider_version(lambda x: outer(sine(x)), single(50))[1] is None


def test_kernels_that_refuse_float64_have_no_wider_version() -> None:
    assert wider_version(kernel(squash, squash_vjp, only=BF16), *normal((20,), dtype=BF16))[1] is None


def test_backward_passes_that_refuse_float64_have_no_wider_version() -> None:
    def backward(v: Tensor, x: Tensor) -> Tensor:
        if v.dtype == torch.float64:
            raise TypeError("no float64")
        return v * torch.cos(x)

    x = single(20)
    assert wider_version(with_vjp(torch.sin, backward), x)[1] is None
    assert verdict(with_vjp(torch.sin, backward), x) is not Verdict.FAIL


def test_bits_of_numbers_are_not_read() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.sin(x) + 0 * (x.detach().view(torch.int32) & 1).to(x.dtype)

    assert wider_version(function, single(6))[1] is None


@pytest.mark.parametrize(
    ("function", "point"),
    [
        (torch.round, [0.3, 1.7, -2.2, 5.0]),
        (torch.floor, [1.0, 2.0, -3.0, 0.25]),
        (torch.relu, [0.0, 1.0, -1.0, 2.0]),
        (torch.sin, [0.0, 0.0]),
        (lambda x: torch.sqrt(1 - x * x), [1.0, 0.5]),
        (lambda x: (1e3 + x) ** 2, [0.3, 1.7]),
    ],
)
def test_jumps_kinks_and_edges_at_the_point_leave_a_wider_version(function: Function, point: list[float]) -> None:
    assert wider_version(function, torch.tensor(point, requires_grad=True))[1] is not None


def test_kernels_that_compute_in_float32_are_double_precision_in_the_mode() -> None:
    def sine(x: Tensor) -> Tensor:
        return torch.sin(x.float()).to(x.dtype)

    def backward(v: Tensor, x: Tensor) -> Tensor:
        return (v.float() * torch.cos(x.float())).to(x.dtype)

    x = single(50, dtype=BF16)
    _, found = wider_version(with_vjp(sine, backward), x)
    assert found is not None
    assert torch.equal(found.vjp(found.zeros(50) + 1.0), torch.cos(x.detach().double()))
    assert verdict(with_vjp(sine, lambda v, x: 0.95 * backward(v, x)), x) is Verdict.FAIL


def test_custom_operators_in_python_run_in_the_mode() -> None:
    @torch.library.custom_op("gradvet_tests::float_sine", mutates_args=())
    def float_sine(x: Tensor) -> Tensor:
        return torch.sin(x.float()).to(x.dtype)

    float_sine.register_autograd(
        lambda ctx, v: (v.float() * torch.cos(ctx.saved_tensors[0].float())).to(v.dtype),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    assert wider_version(float_sine, single(20, dtype=BF16))[1] is not None


# Modules.


class Counting(nn.Module):
    """Its result depends on a buffer that every call changes."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(1.0)
        return torch.sin(x) * self.total


def test_buffers_of_modules_start_from_the_same_values() -> None:
    module = Counting()
    assert verdict(module, single(3)) is Verdict.PASS
    assert torch.equal(module.total, torch.ones(3))


def test_frozen_modules_and_modules_with_buffers_alone_are_widened() -> None:
    frozen = nn.Linear(3, 2).requires_grad_(False)
    assert wider_version(frozen, single(4, 3))[1] is not None
    assert wider_version(Counting(), single(3))[1] is not None
    assert frozen.weight.dtype == F32


# Products that the hardware rounds.


def tf32(x: Tensor) -> Tensor:
    """Float32 numbers rounded to the ten bits of TF32; float64 as it is."""
    if x.dtype is not F32:
        return x
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(F32)


def difference_of_products(factor: float = 1.0) -> Function:
    """a b - a c: where b and c are close, the rounding of both is large beside the result."""

    def vjp(g: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        of_b = tf32(a).mT @ tf32(g)
        return factor * (tf32(g) @ (tf32(b) - tf32(c)).mT), of_b, -of_b

    return with_vjp(lambda a, b, c: tf32(a) @ tf32(b) - tf32(a) @ tf32(c), vjp)


def test_products_rounded_to_tf32_are_compared_in_that_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, change = normal((9, 40), (40, 7), (40, 7), dtype=F32, seed=0)
    inputs = (a, b, (b + 0.05 * change).detach())
    # On a device that is not known to round so, the rounding is one of the function, over steps that float32 resolves.
    strict = [gradvet.check(difference_of_products(by), inputs, seed=0, points=None) for by in (1.0, 1.03, 1.1)]
    assert not any(report.passed for report in strict)
    assert "the function is a staircase, whose stairs may be rounding inside it" in str(strict[0])
    monkeypatch.setattr(wider_version_module, "TF32_DEVICES", ("cpu",))
    report = gradvet.check(difference_of_products(), inputs, seed=0, points=None)
    assert report.passed, report
    assert AVERAGED not in report.notes
    assert gradvet.check(difference_of_products(1.1), inputs, seed=0, points=None).failures
    assert gradvet.check(torch.matmul, (a, b), seed=0, points=None).verdict is Verdict.PASS
