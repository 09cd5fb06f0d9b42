"""A torch function at a point: which inputs are perturbed, and which outputs are compared.

Also tests `core/problem.py` and `frontends/torch/arguments.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradvet import GradcheckError, gradcheck, gradgradcheck
from gradvet.core.frontend import Frontend
from gradvet.core.problem import DerivativeRules, GradientVariants, Problem
from gradvet.errors import InvalidProblemError, OutputsChangedError
from gradvet.frontends.torch import TorchFrontend
from gradvet.frontends.torch.arguments import tensors_in
from gradvet.frontends.torch.autograd_graph import TorchRules
from gradvet.frontends.torch.binding import drop_in_binding, is_differentiable
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.frontends.torch.variants import TorchVariants
from tests.core.wrong_jacobians import numbers
from tests.functions import with_vjp

FAST = pytest.mark.parametrize("fast_mode", [False, True])


def problem(function: Callable[..., Any], *arguments: Any, seed: int = 0) -> TorchProblem:
    return TorchProblem(drop_in_binding(function, arguments), seed)


def accepts(function: Callable[..., Any], inputs: Any, fast_mode: bool, **options: Any) -> bool:
    return gradcheck(function, inputs, fast_mode=fast_mode, raise_exception=False, **options)


half = with_vjp(lambda x: x * 2.0, lambda v, x: v)
"""x · 2, whose derivative is 1."""


# Inputs of every kind: a right function of them passes, a wrong one fails.


def non_leaf() -> Tensor:
    return numbers((2, 3), 0).requires_grad_() * 2.0


def parameter() -> Tensor:
    return nn.Parameter(numbers((2, 3), 0))


def transposed() -> Tensor:
    return numbers((3, 2), 0).T.requires_grad_()


def strided() -> Tensor:
    return numbers((4, 9), 0)[::2, ::3].requires_grad_()


def channels_last() -> Tensor:
    return numbers((2, 3, 2, 2), 0).to(memory_format=torch.channels_last).requires_grad_()


def conjugated() -> Tensor:
    return numbers((2, 3), 0, torch.complex128).conj().requires_grad_()


def negated() -> Tensor:
    tensor = numbers((2, 3), 0, torch.complex128).conj().imag.detach()
    assert tensor.is_neg()
    return tensor.requires_grad_()


def scalar() -> Tensor:
    return torch.tensor(0.7, dtype=torch.float64, requires_grad=True)


def single_column_of_stride_zero() -> Tensor:
    return numbers((3, 1), 0).as_strided((3, 1), (1, 0)).requires_grad_()


KINDS = (
    non_leaf,
    parameter,
    transposed,
    strided,
    channels_last,
    conjugated,
    negated,
    scalar,
    single_column_of_stride_zero,
)


@FAST
@pytest.mark.parametrize("kind", KINDS)
def test_input_of_every_kind_is_moved_and_put_back(kind: Callable[[], Tensor], fast_mode: bool) -> None:
    x = kind()
    values, described = x.detach().clone(), (x.stride(), x.is_conj(), x.is_neg(), x.is_leaf, x._version)
    assert accepts(lambda x: x.sin() * x.sum(), x, fast_mode, check_forward_ad=True)
    assert not accepts(half, x, fast_mode)
    assert gradgradcheck(lambda x: x.sin() * x.sum(), x, fast_mode=fast_mode)
    assert torch.equal(x.detach(), values)
    assert (x.stride(), x.is_conj(), x.is_neg(), x.is_leaf, x._version) == described


@FAST
def test_same_tensor_given_twice_moves_in_both_places(fast_mode: bool) -> None:
    x = numbers((3,), 0).requires_grad_()
    assert accepts(lambda a, b: a * b.sin(), (x, x), fast_mode)
    assert not accepts(lambda a, b: a * half(b), (x, x), fast_mode)
    assert torch.equal(x.detach(), numbers((3,), 0))


@FAST
def test_views_of_one_storage_that_do_not_overlap_are_moved_apart(fast_mode: bool) -> None:
    storage = numbers((7,), 0)
    a, b = storage[:3].requires_grad_(), storage[4:].requires_grad_()
    assert accepts(lambda a, b: a * b.sin(), (a, b), fast_mode)
    assert not accepts(lambda a, b: a * half(b), (a, b), fast_mode)
    assert torch.equal(storage, numbers((7,), 0))


@FAST
def test_views_of_one_storage_that_overlap_are_put_back(fast_mode: bool) -> None:
    storage = numbers((6,), 0)
    a, b = storage[:4].requires_grad_(), storage[2:].requires_grad_()
    # Elements that move together have slopes that no derivative by one of them alone has.
    assert not accepts(lambda a, b: a * b.sin(), (a, b), fast_mode)
    assert torch.equal(storage, numbers((6,), 0))


@FAST
def test_elements_that_share_memory_are_refused(fast_mode: bool) -> None:
    x = numbers((4,), 0).unfold(0, 3, 1).requires_grad_()
    assert not accepts(torch.sin, x, fast_mode)


def test_coordinates_are_independent_unless_elements_share_memory() -> None:
    assert all(problem(torch.sin, kind()).independent for kind in KINDS)
    assert not problem(torch.sin, numbers((4,), 0).unfold(0, 3, 1).requires_grad_()).independent
    assert not problem(torch.add, numbers((4,), 0).as_strided((3, 2), (1, 1)).requires_grad_(), 1.0).independent


@FAST
def test_captured_tensor_moves_with_the_input(fast_mode: bool) -> None:
    layer = nn.Linear(3, 2).double()
    x = numbers((4, 3), 0).requires_grad_()
    assert accepts(lambda *_: layer(x), (x, *layer.parameters()), fast_mode)
    assert not accepts(lambda *_: half(layer(x)), (x, *layer.parameters()), fast_mode)


@FAST
def test_arguments_of_any_kind_pass_through_untouched(fast_mode: bool) -> None:
    seen = []

    def function(x: Tensor, flag: bool, frozen: Tensor, index: Tensor, nothing: None, text: str) -> Tensor:
        seen.append((flag, frozen, index, nothing, text))
        return x[index] * frozen

    rest = (True, numbers((2,), 1), torch.tensor([2, 0]), None, "text")
    assert accepts(function, (numbers((3,), 0).requires_grad_(), *rest), fast_mode)
    assert all(given is kept for call in seen for given, kept in zip(call, rest, strict=True))


# Outputs


def test_outputs_are_sorted_into_those_with_a_derivative_and_silent_ones() -> None:
    found = problem(
        lambda x: (torch.arange(2), x.detach(), x * 2.0, None, {"a": x.sum(), "b": 3.0}),
        numbers((3,), 0).requires_grad_(),
    )
    assert [leaf.name for leaf in found.codomain.leaves] == ["output 2", "output 3"]
    assert [leaf.name for leaf in found.nondifferentiable.leaves] == ["output 1"]
    assert (found.domain.size, found.codomain.size, found.nondifferentiable.size) == (3, 4, 3)


def test_tensors_of_a_result_are_found_in_any_container() -> None:
    a, b = torch.ones(1), torch.zeros(2)
    for result in (a, [a], (a,), {"k": a}, [None, {"x": (a,)}], (a, 3.0, "text")):
        (found,) = tensors_in(result)
        assert found is a
    assert [id(t) for t in tensors_in((a, [b, a]))] == [id(a), id(b), id(a)]
    assert tensors_in(()) == []
    for nothing in (None, 3.0, {"x": None}):
        with pytest.raises(InvalidProblemError, match="returned no tensor"):
            tensors_in(nothing)


def test_only_numbers_that_require_grad_are_differentiable() -> None:
    assert is_differentiable(numbers((2,), 0).requires_grad_())
    assert is_differentiable(numbers((2,), 0, torch.complex128).requires_grad_())
    assert not is_differentiable(numbers((2,), 0))
    assert not is_differentiable(torch.arange(2))


def switching(what: str) -> Callable[[Tensor], Any]:
    point = numbers((3,), 0)

    def function(x: Tensor) -> Any:
        moved = not torch.equal(x.detach(), point)
        changed = {"shape": x[1:], "dtype": x.float(), "number": (x, x)}
        return changed[what] if moved else x * 1.0

    return function


@FAST
@pytest.mark.parametrize("what", ["shape", "dtype", "number"])
def test_outputs_that_change_with_the_inputs_are_refused(what: str, fast_mode: bool) -> None:
    x = numbers((3,), 0).requires_grad_()
    with pytest.raises(OutputsChangedError, match=f"the same {what} when inputs are perturbed"):
        gradcheck(switching(what), x, fast_mode=fast_mode)
    assert torch.equal(x.detach(), numbers((3,), 0))


# Moves and evaluations


def test_evaluation_is_at_the_point_plus_scaled_displacements() -> None:
    found = problem(lambda x, y: (x**2, y * 3.0), numbers((2,), 0).requires_grad_(), numbers((3,), 1).requires_grad_())
    perturbation = found.perturbation(torch.full((5,), 0.5, dtype=torch.float64))
    for scale, values in zip((1.0, -2.0, 0.0), found.evaluate(perturbation, (1.0, -2.0, 0.0)), strict=True):
        x, y = numbers((2,), 0) + 0.5 * scale, numbers((3,), 1) + 0.5 * scale
        assert torch.allclose(values, torch.cat([x**2, 3.0 * y]))


def test_values_do_not_alias_what_the_function_returns() -> None:
    x = numbers((3,), 0).requires_grad_()
    found = problem(lambda x: x, x)
    first, second = found.evaluate(found.perturbation(torch.ones(3, dtype=torch.float64)), (1.0, 2.0))
    assert torch.allclose(second - first, torch.ones(3, dtype=torch.float64))


def test_every_call_of_the_function_is_counted() -> None:
    calls = 0

    def function(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x.sin()

    found = problem(function, numbers((3,), 0).requires_grad_())
    found.evaluate(found.perturbation(torch.ones(3, dtype=torch.float64)), (1.0, -1.0))
    found.jvp(torch.ones(3, dtype=torch.float64))
    found.vjp(torch.ones(3, dtype=torch.float64))
    assert calls == found.cost.forwards == 4
    assert (found.cost.jvps, found.cost.vjps) == (1, 1)


def test_step_rounding_is_what_rounding_may_do_to_a_step() -> None:
    for value, dtype in ((1.0, torch.float64), (300.0, torch.float64), (10.0, torch.float32)):
        x = torch.tensor([0.1, value], dtype=dtype).requires_grad_()
        found = problem(torch.sin, x)
        step = 1e-4
        worst = max(
            abs(
                float(found.perturbation(torch.tensor([0.0, part * step], dtype=torch.float64)).vector[1]) - part * step
            )
            for part in torch.linspace(0.5, 1.5, 50).tolist()
        )
        assert worst / step <= 1.01 * found.step_rounding(step)
        assert found.step_rounding(step) == pytest.approx(torch.finfo(dtype).eps / 2 * value / step)


def test_wrong_leaf_is_named_as_the_caller_counts_differentiable_inputs() -> None:
    with pytest.raises(GradcheckError, match="output 0 with respect to input 1"):
        gradcheck(
            lambda a, flag, b: a * half(b),
            (numbers((3,), 0).requires_grad_(), 7, numbers((3,), 1).requires_grad_()),
        )


def test_convolution_in_channels_last_is_accepted() -> None:
    x, w = channels_last(), numbers((4, 3, 2, 2), 1).to(memory_format=torch.channels_last).requires_grad_()
    assert gradcheck(F.conv2d, (x, w), check_forward_ad=True)


def test_released_graph_is_made_again_by_the_next_backward_pass() -> None:
    calls: list[int] = []

    def function(weight: Tensor) -> Tensor:
        calls.append(1)
        return weight.exp()

    own = problem(function, nn.Parameter(torch.ones(3, dtype=torch.float64)))
    v = torch.ones(3, dtype=torch.float64)
    expected, before = own.vjp(v), len(calls)
    own.release_graph()
    assert not any(output.requires_grad for output in own.differentiable_outputs)
    assert torch.equal(own.vjp(v), expected)
    assert torch.equal(own.vjp(v), expected)
    assert len(calls) == before + 1


@pytest.mark.parametrize(
    ("general", "own"),
    [
        (Problem, TorchProblem),
        (GradientVariants, TorchVariants),
        (DerivativeRules, TorchRules),
        (Frontend, TorchFrontend),
    ],
)
def test_torch_leaves_nothing_to_the_defaults_of_a_frontend(general: type, own: type) -> None:
    # A method under a misspelt name would leave its check to a default that skips it.
    members = {name for name, value in vars(general).items() if callable(value) or isinstance(value, property)}
    assert {name for name in members if not name.startswith("_")} <= set(vars(own))
