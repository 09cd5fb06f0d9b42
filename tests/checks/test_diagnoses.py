"""Ordinary mistakes in a backward: the report says what is true of each, and which inputs and outputs are wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gradvet
from gradvet.checks.jacobian import BUILTIN_RULES, TORCH_TO_BLAME
from gradvet.reports.ledger_table import ledger_lines
from tests.functions import with_vjp


class Mistake(NamedTuple):
    func: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    words: str
    """Part of the advice."""
    tensors: Mapping[str, str] = MappingProxyType({})
    """What the table says of inputs and outputs, where there are several."""


def softmax_in_the_wrong_dimension(dy: Tensor, x: Tensor) -> Tensor:
    y = x.softmax(-1)
    return y * (dy - (dy * y).sum(0, keepdim=True))


def normalised(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)


def normalised_without_mean(dy: Tensor, x: Tensor) -> Tensor:
    y = normalised(x)
    return (dy - y * (dy * y).mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


def attention_without_sum(dy: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weights = (q @ k.mT).softmax(-1)
    scores = weights * (dy @ v.mT)
    return scores @ k, scores.mT @ q, weights.mT @ dy


def halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def tanh_gelu_slope(dy: Tensor, x: Tensor) -> Tensor:
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        y = F.gelu(z, approximate="tanh")
    return torch.autograd.grad(y, z, dy)[0]


def silu_slope(x: Tensor) -> Tensor:
    s = x.sigmoid()
    return s * (1 + x * (1 - s))


RIGHT, WRONG = "right", "wrong"
TARGET = torch.tensor([1, 0, 4])

MISTAKES = {
    "swapped gradients": Mistake(
        with_vjp(lambda a, b: a * b, lambda dy, a, b: (dy * a, dy * b)),
        ((3,), (3,)),
        "The gradients of input 0 and input 1 are swapped",
        {"input 0": WRONG, "input 1": WRONG},
    ),
    "no transpose of a square matrix": Mistake(
        with_vjp(lambda a, b: a @ b, lambda dy, a, b: (dy @ b, a.T @ dy)),
        ((3, 3), (3, 3)),
        "The derivative is the transpose of the function's Jacobian",
        {"input 0": WRONG, "input 1": RIGHT},
    ),
    "missing factor": Mistake(
        with_vjp(lambda x: x * x, lambda dy, x: dy * x),
        ((5,),),
        "The ratio is 0.5 everywhere: look for a wrong constant factor.",
    ),
    "factor of the other operand missing": Mistake(
        with_vjp(lambda a, b: F.silu(a) * b, lambda dy, a, b: (dy * silu_slope(a) * b, dy * a.sigmoid())),
        ((2, 4), (2, 4)),
        "The slope is the derivative times input 0: look for a factor that the derivative lacks.",
        {"input 0": RIGHT, "input 1": WRONG},
    ),
    "weight missing": Mistake(
        with_vjp(lambda x, w: x.sin() * w, lambda dy, x, w: (2 * dy * x.cos(), (dy * x.sin()).sum(0))),
        ((3, 4), (4,)),
        "The slope is the derivative times input 1, apart from the constant factor 2: look for a factor",
        {"input 0": WRONG, "input 1": RIGHT},
    ),
    "second factor of a logistic function missing": Mistake(
        with_vjp(lambda x: x.sigmoid(), lambda dy, x: dy * x.sigmoid()),
        ((3, 4),),
        "The slope is the derivative times (1 - output): look for a factor that the derivative lacks.",
    ),
    "one power too many": Mistake(
        with_vjp(lambda x: x.sin(), lambda dy, x: dy * x * x.cos()),
        ((6,),),
        "The derivative is the slope times input 0: look for a factor that the derivative has too many.",
    ),
    "result not used": Mistake(
        with_vjp(lambda x: x.square().exp(), lambda dy, x: dy * 2 * x),
        ((6,),),
        "The slope is the derivative times output: look for a factor that the derivative lacks.",
    ),
    "wrong operand saved": Mistake(
        with_vjp(lambda a, b: a.sin() * b, lambda dy, a, b: (dy * a * a.cos(), dy * a.sin())),
        ((5,), (5,)),
        "The derivative has the factor input 0 where the slope has input 1: look for a wrong saved tensor.",
        {"input 0": WRONG, "input 1": RIGHT},
    ),
    "sign of one half": Mistake(
        with_vjp(halves, lambda dy, x: torch.cat([dy.chunk(2, -1)[1], dy.chunk(2, -1)[0]], -1)),
        ((4, 6),),
        "The sign is wrong in all the wrong entries",
    ),
    "sign of one operand": Mistake(
        with_vjp(lambda a, b: a - b, lambda dy, a, b: (dy, dy)),
        ((5,), (5,)),
        "The sign is wrong everywhere",
        {"input 0": RIGHT, "input 1": WRONG},
    ),
    "first row in place of the sum": Mistake(
        with_vjp(lambda x, b: x + b, lambda dy, x, b: (dy, dy[0])),
        ((4, 3), (3,)),
        "The wrong entries are zero: look for a term, a row or a branch that the derivative leaves out.",
        {"input 0": RIGHT, "input 1": WRONG},
    ),
    "mean in place of the sum": Mistake(
        with_vjp(lambda x, b: x + b, lambda dy, x, b: (dy, dy.mean(0))),
        ((4, 3), (3,)),
        "as dimension 0 of the output has 4 elements, a mean over it that should be a sum",
        {"input 0": RIGHT, "input 1": WRONG},
    ),
    "mean over a batch forgotten": Mistake(
        with_vjp(
            lambda x: F.cross_entropy(x, TARGET), lambda dy, x: dy * (x.softmax(-1) - F.one_hot(TARGET, 5).to(x.dtype))
        ),
        ((3, 5),),
        "as dimension 0 of the input has 3 elements, a missing mean over it",
    ),
    "mean over all elements forgotten": Mistake(
        with_vjp(torch.mean, lambda dy, x: dy.expand(x.shape)),
        ((4, 3),),
        "as there are 12 input elements, a missing mean or a sum too many",
    ),
    "wrong axis of a sum": Mistake(
        with_vjp(lambda x: x.sum(1), lambda dy, x: dy[:3].unsqueeze(0).expand(x.shape)),
        ((4, 3),),
        "look for a wrong axis, reshape, permutation or index",
    ),
    "softmax in the wrong dimension": Mistake(
        with_vjp(lambda x: x.softmax(-1), softmax_in_the_wrong_dimension),
        ((4, 5),),
        "look for a wrong axis, reshape, permutation or index",
    ),
    "softmax without its sum": Mistake(
        with_vjp(lambda x: x.softmax(-1), lambda dy, x: dy * x.softmax(-1) * (1 - x.softmax(-1))),
        ((4, 5),),
        "its off-diagonal terms are missing",
    ),
    "normalisation without its mean": Mistake(
        with_vjp(normalised, normalised_without_mean),
        ((4, 6),),
        "The error is the same for all elements along dimension 1 of the input: look for a mean or a sum over it",
    ),
    "normalisation over a batch without its mean": Mistake(
        with_vjp(lambda x: normalised(x.T).T, lambda dy, x: normalised_without_mean(dy.T, x.T).T),
        ((7, 3),),
        "The error is the same for all elements along dimension 0 of the input",
    ),
    "reshape in place of a permutation": Mistake(
        with_vjp(lambda x: x.permute(2, 0, 1).contiguous(), lambda dy, x: dy.reshape(x.shape)),
        ((2, 3, 4),),
        "in another order: look for a wrong axis, reshape or index",
    ),
    "approximate formula": Mistake(
        with_vjp(F.gelu, tanh_gelu_slope), ((6,),), "the derivative is nearly right. Look for an approximate formula"
    ),
    "running sum from the wrong end": Mistake(
        with_vjp(lambda x: x.cumsum(1), lambda dy, x: dy.cumsum(1)),
        ((3, 4),),
        "the transpose of the function's Jacobian",
    ),
    "repeated index": Mistake(
        with_vjp(
            lambda x: x[[0, 0, 3, 5]], lambda dy, x: torch.zeros_like(x).index_put((torch.tensor([0, 0, 3, 5]),), dy)
        ),
        ((6,),),
        "A single entry is wrong",
    ),
    "branches confused": Mistake(
        with_vjp(lambda x: torch.where(x > 0, x, 0.1 * x), lambda dy, x: torch.where(x > 0, 0.1 * dy, dy)),
        ((6,),),
        "The ratios of the wrong entries are 0.1 or 10: look for two cases that are confused.",
    ),
    "None returned": Mistake(
        with_vjp(lambda a, b: a * b, lambda dy, a, b: (dy * b, None)),
        ((6,), (6,)),
        "look for a detach, a returned None, or an input that the derivative forgets",
        {"input 0": RIGHT, "input 1": WRONG},
    ),
    "output forgotten": Mistake(
        with_vjp(lambda x: (x.sin(), x.cos()), lambda a, b, x: a * x.cos()),
        ((4,),),
        "The gradient does not depend on the grad_output of output 1",
        {"input 0": WRONG, "output 0": RIGHT, "output 1": WRONG},
    ),
    "mask forgotten": Mistake(
        with_vjp(lambda x, w: (x @ w).relu(), lambda dy, x, w: (dy @ w.T, x.T @ dy)),
        ((4, 3), (3, 5)),
        "The wrong entries should be zero: look for a mask, a clamp or a branch that the derivative leaves out.",
        {"input 0": WRONG, "input 1": WRONG},
    ),
    "attention without the sum of its softmax": Mistake(
        with_vjp(attention, attention_without_sum),
        ((2, 3, 4), (2, 5, 4), (2, 5, 4)),
        "no common factor",
        {"input 0": WRONG, "input 1": WRONG, "input 2": RIGHT},
    ),
    "kernel not flipped": Mistake(
        with_vjp(
            lambda x, w: F.conv1d(x, w, padding=1),
            lambda dy, x, w: (F.conv1d(dy, w, padding=1), torch.nn.grad.conv1d_weight(x, w.shape, dy, padding=1)),
        ),
        ((1, 1, 8), (1, 1, 3)),
        "the transpose of the function's Jacobian",
        {"input 0": WRONG, "input 1": RIGHT},
    ),
    "detached factor": Mistake(lambda x: x * x.detach(), ((5,),), BUILTIN_RULES),
    "factor from .data": Mistake(lambda x: x * x.data, ((5,),), BUILTIN_RULES),
    "factor from .item()": Mistake(lambda x: x * x.item(), ((),), BUILTIN_RULES),
    "detached norm": Mistake(lambda x: x / x.norm(dim=-1, keepdim=True).detach(), ((2, 5),), BUILTIN_RULES),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_advice_is_true_and_tensors_are_told_apart(name: str) -> None:
    mistake = MISTAKES[name]
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(shape, dtype=torch.float64, generator=generator) for shape in mistake.shapes)
    report = gradvet.check(mistake.func, inputs, seed=1, modes="reverse")
    assert mistake.words in report.failures[0].advice
    lines = {line.input: line.verdict for line in ledger_lines(report)}
    assert {name: lines[name] for name in mistake.tensors} == dict(mistake.tensors)


def without_last_rows(count: int, shape: tuple[int, ...]) -> gradvet.Report:
    """A product of matrices, the lower triangle of one of them, whose backward loses the last rows of a gradient."""

    def backward(dy: Tensor, p: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        dv = p.mT @ dy
        dv[..., v.shape[-2] - count :, :] = 0
        return dy @ v.mT, dv

    generator = torch.Generator().manual_seed(0)
    p, v = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    return gradvet.check(with_vjp(torch.matmul, backward), (p.tril(), v), seed=1, modes="reverse")


@pytest.mark.parametrize(("count", "rows"), [(1, "7"), (2, "6:"), (3, "5:"), (4, "4:")])
@pytest.mark.parametrize("shape", [(8, 8), (2, 2, 8, 8)], ids=str)
def test_rows_without_a_gradient_are_named(count: int, rows: str, shape: tuple[int, ...]) -> None:
    where = ", ".join((*":" * (len(shape) - 2), rows, ":"))
    advice = without_last_rows(count, shape).failures[0].advice
    assert advice.startswith(f"The gradient is zero in [{where}] although the function varies there")


def test_gradient_without_any_row_is_zero_everywhere() -> None:
    assert "zero everywhere" in without_last_rows(8, (2, 2, 8, 8)).failures[0].advice


def test_zeros_in_all_of_a_window_are_not_said_to_be_everywhere() -> None:
    mask = torch.ones(20, 20, dtype=torch.float64)
    mask[[5, 12]] = 0.0
    x = torch.randn(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    advice = gradvet.check(with_vjp(torch.sin, lambda dy, x: dy * mask * x.cos()), x, seed=1).failures[0].advice
    assert "zero in all entries that were compared" in advice


class SavedExponential(torch.autograd.Function):
    """x exp(x), whose backward uses an exponential that forward computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        exponential = x.exp()
        ctx.save_for_backward(x, exponential)
        return x * exponential

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        x, exponential = ctx.saved_tensors
        return dy * (x * exponential + exponential)


def test_operators_inside_a_backward_are_not_blamed_for_a_wrong_second_derivative() -> None:
    x = torch.linspace(-1.0, 2.0, 5, dtype=torch.float64)
    report = gradvet.check(SavedExponential, x, order=2, seed=1)
    (finding,) = [one for one in report.failures if one.check == "reverse-over-reverse"]
    assert TORCH_TO_BLAME not in finding.advice
    assert "a tensor that forward computed and saved" in finding.advice
    lines = [(line.input, line.precision, line.verdict) for line in ledger_lines(report)]
    assert ("input 0", "given, reverse-over-reverse", WRONG) in lines
    assert ("the grad_output of output", "given, reverse-over-reverse", RIGHT) in lines
    assert ("input 0", "given", RIGHT) in lines


def test_error_of_an_entry_that_is_zero_has_no_percentage() -> None:
    wrong = with_vjp(lambda x: x.clamp(-0.5, 0.5), lambda dy, x: dy * (x > -0.5))
    finding = gradvet.check(wrong, torch.tensor([0.1, 0.9], dtype=torch.float64), seed=1).failures[0]
    assert finding.headline.endswith("the largest error is 1")


def test_backward_that_writes_to_grad_output_is_said_to_do_so() -> None:
    wrong = with_vjp(torch.sin, lambda dy, x: dy.mul_(x.cos()))
    (finding,) = gradvet.check(wrong, torch.ones(3, dtype=torch.float64), seed=1).failures
    assert finding.headline == "backward modifies the grad_output of output in place"


def test_diagnosis_of_the_frameworks_own_rules_looks_for_no_mistake_in_a_backward() -> None:
    x = torch.tensor([0.3, 0.7, 1.1], dtype=torch.float64)
    advice = gradvet.check(lambda x: x * x.detach(), x, seed=0, points=None).failures[0].advice
    assert advice.startswith(
        "The ratio is 0.5 everywhere. All derivatives in the graph are the framework's own: look for"
    )


def test_gradient_that_is_not_finite_is_not_called_non_zero() -> None:
    wrong = with_vjp(torch.sin, lambda dy, x: dy * x.cos() / 0.0 * 0.0)
    x = torch.tensor([0.3, 0.7, 1.1], dtype=torch.float64)
    failures = gradvet.check(wrong, x, seed=0, points=None).failures
    assert failures[0].check == "reverse"
    assert "is not finite at" in failures[0].headline
    assert all(finding.check != "none_grad_output" for finding in failures)


def test_straight_through_rounding_is_told_of_surrogates() -> None:
    x = torch.tensor([0.3, 1.8], dtype=torch.float64)
    advice = gradvet.check(lambda x: x + (x.round() - x).detach(), x, seed=0).failures[0].advice
    assert "pass the function whose derivative it should have as surrogate=. All derivatives in the graph" in advice
