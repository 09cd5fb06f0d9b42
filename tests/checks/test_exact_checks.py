"""Every check that needs no differences has a right function that passes it and a wrong one that it reports.

Also tests `checks/__init__.py` and `checks/state.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.results import Report, Verdict

Backward = Callable[[Any, Tensor], Any]


def rule(backward: Backward, forward: Callable[..., Tensor] = torch.square) -> Any:
    """An operator with a backward of its own."""

    class Rule(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Tensor:
            ctx.save_for_backward(*inputs)
            return forward(*inputs)

    Rule.backward = staticmethod(backward)  # type: ignore[assignment]
    return Rule


def right(ctx: Any, v: Tensor) -> Tensor:
    return 2 * v * ctx.saved_tensors[0]


def one_for_expanded(ctx: Any, v: Tensor) -> Tensor:
    return right(ctx, v if any(v.stride()) else torch.ones_like(v))


def by_memory(ctx: Any, v: Tensor) -> Tensor:
    return right(ctx, v.as_strided(v.shape, (v.shape[1], 1), v.storage_offset()))


def input_by_memory(ctx: Any, v: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return 2 * v * x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset())


def in_place(ctx: Any, v: Tensor) -> Tensor:
    return v.mul_(2 * ctx.saved_tensors[0])


def clipped(ctx: Any, v: Tensor) -> Tensor:
    return right(ctx, v.clamp(-0.3, 0.3))


def fresh_noise(ctx: Any, v: Tensor) -> Tensor:
    return right(ctx, v) * torch.rand_like(v)


def single(ctx: Any, v: Tensor) -> Tensor:
    return right(ctx, v).sum(0)


WORKSPACE: list[Tensor] = []


def remembering(x: Tensor) -> Tensor:
    WORKSPACE[:] = [x.detach().clone()]
    return x * x


def from_workspace(ctx: Any, v: Tensor) -> Tensor:
    return 2 * v * WORKSPACE[0]


def product_if_both(ctx: Any, v: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, y = ctx.saved_tensors
    both = all(ctx.needs_input_grad)
    return (v * y, v * x) if both else (torch.zeros_like(x), torch.zeros_like(y))


def product(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor]:
    x, y = ctx.saved_tensors
    return v * y, v * x


def by_grad_mode(x: Tensor) -> Tensor:
    return x * x if torch.is_grad_enabled() else 1.01 * x * x


class WrongTangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        return right(ctx, v)

    @staticmethod
    def jvp(ctx: Any, u: Tensor) -> Tensor:
        return 3 * u * ctx.saved_tensors[0]


def report_on(function: Any, check: str, count: int = 1) -> Report:
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(3, 4, dtype=torch.float64, generator=generator) for _ in range(count))
    return gradvet.check(function, inputs, checks=[check], seed=0)


CASES = [
    ("values", torch.square, by_grad_mode, 1),
    ("determinism", rule(right), rule(fresh_noise), 1),
    ("linearity", rule(right), rule(clipped), 1),
    ("grad_output_layout", rule(right), rule(one_for_expanded), 1),
    ("grad_output_layout", rule(right), rule(by_memory), 1),
    ("mutation", rule(right), rule(in_place), 1),
    ("reentrancy", rule(right), rule(from_workspace, remembering), 1),
    ("partial_requires_grad", rule(product, torch.mul), rule(product_if_both, torch.mul), 2),
    ("input_layout", rule(right), rule(input_by_memory), 1),
    ("jvp_vjp_agree", torch.square, WrongTangent, 1),
    ("forward", torch.square, WrongTangent, 1),
]


@pytest.mark.parametrize(("check", "sound", "faulty", "count"), CASES)
def test_right_function_passes(check: str, sound: Any, faulty: Any, count: int) -> None:
    report = report_on(sound, check, count)
    assert report.verdict is Verdict.PASS
    assert {finding.check for finding in report.findings} == {check}
    assert all(finding.verdict is Verdict.PASS for finding in report.findings)


@pytest.mark.parametrize(("check", "sound", "faulty", "count"), CASES)
def test_wrong_function_is_reported_by_that_check(check: str, sound: Any, faulty: Any, count: int) -> None:
    report = report_on(faulty, check, count)
    assert [finding.check for finding in report.failures] == [check]
    assert report.failures[0].headline


def sizes_alone(ctx: Any, v: Tensor) -> Tensor:
    return right(ctx, v.abs())


@pytest.mark.parametrize("seed", range(8))
def test_derivative_that_ignores_the_sign_of_a_single_cotangent_is_never_taken_for_linear(seed: int) -> None:
    x = torch.tensor(1.5, dtype=torch.float64)
    report = gradvet.check(rule(sizes_alone), x, checks=["linearity"], seed=seed)
    assert [finding.check for finding in report.failures] == ["linearity"]


def test_graph_that_an_earlier_backward_pass_used_up_is_a_note_and_blamed_on_no_check() -> None:
    def spent(ctx: Any, v: Tensor) -> Tensor:
        ctx.times = getattr(ctx, "times", 0) + 1
        return right(ctx, v) / ctx.times

    report = gradvet.check(rule(spent), torch.ones(3, dtype=torch.float64), seed=0)
    assert report.verdict is Verdict.PASS
    assert sum("retain_graph=True must not be used" in note for note in report.notes) == 1


def test_backward_that_writes_to_its_input_is_blamed_for_that_and_not_for_what_it_remembers() -> None:
    def writing(ctx: Any, v: Tensor) -> Tensor:
        gradient = right(ctx, v)
        ctx.saved_tensors[0].data.mul_(1.001)
        return gradient

    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = {f.check: f.verdict for f in gradvet.check(rule(writing), x, seed=0).findings}
    assert found["mutation"] is Verdict.FAIL
    assert "reentrancy" not in found
