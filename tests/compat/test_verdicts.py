"""Difficult cases in which both modes of the drop-in functions agree with torch's slow mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.core.events import listening
from gradvet.core.results import Report
from tests.functions import with_jvp, with_vjp

MODES = pytest.mark.parametrize("fast_mode", [False, True], ids=["slow", "fast"])


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def hooked(hook: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        y = x.clone()
        y.register_hook(lambda gradient: None if gradient is None else hook(gradient))
        return y * 1

    return function


@MODES
def test_slope_that_is_not_a_number_in_one_direction_is_not_forgotten_in_the_next(fast_mode: bool) -> None:
    wrong = with_jvp(lambda x: torch.stack([x[0].sqrt(), x[1]]), lambda u, x: u.clone())
    options = {"check_forward_ad": True, "check_backward_ad": False, "check_undefined_grad": False}
    with pytest.raises(gradvet.GradcheckError, match="computed with forward mode mismatch"):
        gradvet.gradcheck(wrong, leaf(0.0, 1.0), fast_mode=fast_mode, **options)


@MODES
def test_jitter_in_the_second_of_two_scalar_outputs_is_seen(fast_mode: bool) -> None:
    def vjp(first: Tensor, second: Tensor, x: Tensor) -> Tensor:
        jitter = 1 + 1e-8 * torch.rand((), dtype=torch.float64)
        return first * torch.ones_like(x) + second * 2 * x * jitter

    jittering = with_vjp(lambda x: (x.sum(), (x * x).sum()), vjp)
    with pytest.raises(gradvet.GradcheckError, match="not reentrant"):
        gradvet.gradcheck(jittering, leaf(1.0, 2.0, 3.0), fast_mode=fast_mode)


@MODES
@pytest.mark.parametrize(
    "hook",
    [
        lambda g: g + 1e-17,
        lambda g: torch.where(g == 0, 1e-6, g),
        lambda g: g if g.any() else torch.ones_like(g),
    ],
    ids=["tiny_offset", "filled_zeros", "all_zeros"],
)
def test_gradient_for_a_zero_cotangent_must_be_exactly_zero(fast_mode: bool, hook: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(gradvet.GradcheckError, match="backward not multiplied by grad_output"):
        gradvet.gradcheck(hooked(hook), leaf(*range(1, 13)), fast_mode=fast_mode)


@pytest.mark.parametrize(
    "hook", [lambda g: g + 1e-7, lambda g: torch.where(g == 0, 1e-6, g)], ids=["offset", "filled_zeros"]
)
def test_gradient_for_a_zero_cotangent_must_be_zero_in_large_problems_too(hook: Callable[[Tensor], Tensor]) -> None:
    x = torch.linspace(0.1, 1.0, 20_000, dtype=torch.float64, requires_grad=True)
    with pytest.raises(gradvet.GradcheckError, match="backward not multiplied by grad_output"):
        gradvet.gradcheck(hooked(hook), x, fast_mode=True)


@MODES
def test_hook_that_cannot_do_without_a_gradient_passes_if_undefined_ones_are_left_out(fast_mode: bool) -> None:
    def clipped(x: Tensor) -> Tensor:
        y = x * 1.0
        y.register_hook(lambda gradient: gradient.clamp(-100, 100))
        return y.sin()

    assert gradvet.gradcheck(clipped, leaf(1.0, 2.0, 3.0), fast_mode=fast_mode, check_undefined_grad=False)


@MODES
def test_outputs_whose_gradients_have_several_layouts_are_judged_by_their_sum(fast_mode: bool) -> None:
    weight = torch.linspace(0.1, 1.0, 15, dtype=torch.float64).reshape(5, 3).requires_grad_()

    def both(w: Tensor) -> tuple[Tensor, Tensor]:
        return torch.nn.functional.embedding(torch.tensor([0, 2, 4]), w, sparse=True), w.sin()

    assert gradvet.gradcheck(both, weight, fast_mode=fast_mode, check_undefined_grad=False)


def test_tolerance_that_is_hardly_one_is_no_reason_to_stumble() -> None:
    x = torch.linspace(0.1, 1.0, 40, dtype=torch.float64, requires_grad=True)
    assert gradvet.gradcheck(lambda x: x * 2, x, atol=1e-320)


@MODES
def test_division_by_the_size_of_a_cotangent_is_seen(fast_mode: bool) -> None:
    def vjp(cotangent: Tensor, x: Tensor) -> Tensor:
        return (cotangent / cotangent.norm()) * cotangent.norm() * x.cos()

    with pytest.raises(gradvet.GradcheckError, match="backward not multiplied by grad_output"):
        gradvet.gradcheck(with_vjp(torch.sin, vjp), leaf(1.0, 2.0, 3.0), fast_mode=fast_mode)


@MODES
def test_right_gradient_that_is_no_exact_multiple_passes(fast_mode: bool) -> None:
    """Two parts that are summed in an order that depends on the cotangent: right, but for the last bit."""

    def vjp(cotangent: Tensor, x: Tensor) -> Tensor:
        parts = (0.1, 0.2, 0.7) if float(cotangent.view(-1)[0]) > 0.0 else (0.7, 0.1, 0.2)
        return sum((cotangent * part for part in parts), torch.zeros_like(cotangent)) * x.cos()

    assert gradvet.gradcheck(with_vjp(torch.sin, vjp), leaf(*range(1, 40)), fast_mode=fast_mode)


def test_backward_that_is_wrong_for_single_cotangents_alone_is_seen_in_slow_mode() -> None:
    def vjp(cotangent: Tensor, x: Tensor) -> Tensor:
        return cotangent * x.cos() * (2.0 if int((cotangent != 0).sum()) == 1 else 1.0)

    x = torch.linspace(0.1, 1.0, 20, dtype=torch.float64).requires_grad_()
    with pytest.raises(gradvet.GradcheckError, match="Jacobian mismatch"):
        gradvet.gradcheck(with_vjp(torch.sin, vjp), x)


@MODES
@pytest.mark.parametrize("size", [800, 100_000])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0], ids=["first", "inner", "last"])
def test_one_doubled_entry_of_an_elementwise_function_is_named(fast_mode: bool, size: int, share: float) -> None:
    at = round(share * (size - 1))

    def vjp(cotangent: Tensor, x: Tensor) -> Tensor:
        gradient = cotangent * x.cos()
        gradient[at] *= 2
        return gradient

    x = torch.linspace(-1.0, 1.0, size, dtype=torch.float64).requires_grad_()
    with pytest.raises(gradvet.GradcheckError, match=rf"d output 0 \[{at}\] / d input 0 \[{at}\]"):
        gradvet.gradcheck(with_vjp(torch.sin, vjp), x, fast_mode=fast_mode)


@MODES
@pytest.mark.parametrize("size", [1, 4, 300, 1500])
def test_function_that_ends_just_beyond_the_step_passes(fast_mode: bool, size: int) -> None:
    def square_of_positive(x: Tensor) -> Tensor:
        if bool((x <= 0).any()):
            raise ValueError("outside of the domain")
        return x * x

    x = torch.full((size,), 5e-6, dtype=torch.float64, requires_grad=True)
    assert gradvet.gradcheck(square_of_positive, x, fast_mode=fast_mode)


@MODES
def test_outputs_may_change_their_shape_beyond_the_step(fast_mode: bool) -> None:
    x = torch.full((4,), 0.5 + 5e-6, dtype=torch.float64, requires_grad=True)
    assert gradvet.gradcheck(lambda x: x[x > 0.5] * 2, x, fast_mode=fast_mode)


@MODES
def test_output_without_derivative_may_jump_beyond_the_step(fast_mode: bool) -> None:
    x = torch.full((4,), 0.5 - 5e-6, dtype=torch.float64, requires_grad=True)
    assert gradvet.gradcheck(lambda x: torch.round(x).detach(), x, fast_mode=fast_mode)


@MODES
@pytest.mark.filterwarnings("ignore:Input #0 requires gradient")
def test_each_side_of_a_coarse_step_is_rounded_for_itself(fast_mode: bool) -> None:
    ones = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)  # the spacing of the numbers changes at one
    assert gradvet.gradcheck(lambda x: x * 1, ones, eps=1e-2, atol=1e-1, rtol=1e-1, fast_mode=fast_mode)


@pytest.mark.parametrize("function", [lambda x: None, lambda x: x.sum().item()], ids=["none", "number"])
def test_function_without_any_tensor_among_its_results_is_refused(function: Callable[[Tensor], Any]) -> None:
    with pytest.raises(ValueError, match="returned no tensor"):
        gradvet.gradcheck(function, leaf(1.0))


def test_worst_entry_is_a_wrong_one_also_without_absolute_tolerance() -> None:
    def vjp(cotangent: Tensor, x: Tensor) -> Tensor:
        return 2 * cotangent * torch.tensor([1.0, 1.0, 1.1], dtype=torch.float64)

    with pytest.raises(gradvet.GradcheckError, match=r"worst: d output 0 \[2\] / d input 0 \[2\]"):
        gradvet.gradcheck(with_vjp(lambda x: 2 * x, vjp), leaf(1.0, 2.0, 3.0), atol=0.0)


@pytest.mark.parametrize("is_shown", [False, True], ids=["message", "page"])
@pytest.mark.parametrize("size", [12, 150])
def test_largest_errors_are_shown_and_not_those_of_the_smallest_tolerances(size: int, is_shown: bool) -> None:
    """The error of an entry next to zero exceeds its tolerance by a larger factor than any other.

    A page that listens to reports shows five entries; the message shows one, and each takes evaluations.
    """
    wrong = with_vjp(lambda x: x.square(), lambda dy, x: dy * (3.0 * x + 0.01))
    x = torch.linspace(0.0, 5.0, size, dtype=torch.float64).requires_grad_()
    listener = listening(list[Report]().append) if is_shown else nullcontext()
    with pytest.raises(gradvet.GradcheckError) as caught, listener:
        gradvet.gradcheck(wrong, x)
    assert caught.value.report is not None
    (finding,) = caught.value.report.failures
    errors = [entry.size for entry in finding.mismatches]
    assert f"worst: d output 0 [{size - 1}] / d input 0 [{size - 1}]" in str(caught.value)
    assert errors == sorted(errors, reverse=True)
    assert len(errors) == (5 if is_shown else 1)
    assert errors[0] == pytest.approx(finding.facts["largest"])


@pytest.mark.parametrize("option", [{"eps": 0.0}, {"eps": -1e-6}, {"atol": -1.0}, {"rtol": float("nan")}])
def test_impossible_settings_are_refused_before_the_function_is_called(option: dict[str, float]) -> None:
    def untouched(x: Tensor) -> Tensor:
        raise AssertionError("called")

    with pytest.raises(ValueError, match="must"):
        gradvet.gradcheck(untouched, leaf(1.0), **option)


def test_state_of_numpy_is_as_it_was() -> None:
    before = np.random.get_state()
    gradvet.gradcheck(lambda x: x + 0 * np.random.rand(), leaf(1.0, 2.0, 3.0))
    after = np.random.get_state()
    assert np.array_equal(before[1], after[1])
    assert before[2] == after[2]


class Polynomial(Tensor):
    """Coefficients, whose product is another one than that of torch."""

    def __add__(self, other: object) -> Any:
        raise AttributeError(f"{type(other).__name__} is no polynomial")

    __mul__ = __truediv__ = __sub__ = __add__


def of_polynomials(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x.as_subclass(Tensor)).as_subclass(Polynomial)


@MODES
def test_operators_of_a_subclass_of_tensors_are_not_used_on_its_numbers(fast_mode: bool) -> None:
    wrong = of_polynomials(lambda x: 1.1 * x.sin() - 0.1 * x.sin().detach())
    for x in (leaf(0.3, -1.0, 2.0), leaf(0.3, -1.0, 2.0).detach().as_subclass(Polynomial).requires_grad_()):
        assert gradvet.gradcheck(of_polynomials(torch.sin), x, fast_mode=fast_mode)
        assert gradvet.gradgradcheck(of_polynomials(torch.sin), x, fast_mode=fast_mode)
        assert not gradvet.gradcheck(wrong, x, fast_mode=fast_mode, raise_exception=False)


class OneShot(torch.autograd.Function):
    """sin, with a backward that leaves zeros for the next one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.slope = x.cos()
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        grad_input = grad_output * ctx.slope
        ctx.slope = torch.zeros_like(ctx.slope)
        return grad_input


@pytest.mark.parametrize("checker", [gradvet.gradcheck, torch.autograd.gradcheck])
def test_one_shot_backward_is_not_reentrant_in_fast_mode(checker: Callable[..., bool]) -> None:
    x = torch.linspace(0.1, 1.0, 5, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="Backward is not reentrant"):
        checker(OneShot.apply, (x,), fast_mode=True)
