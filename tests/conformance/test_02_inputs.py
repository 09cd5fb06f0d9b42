"""Entries 12 to 34: which inputs are checked, how they are perturbed, and that they are left as they were found.

Also tests `frontends/torch/layouts/dense.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .checker import Checker
from .functions import PlantedError, product, with_gradient_hook, with_offset_gradient
from .points import leaf, numbers
from .tensorlike import TensorLike

MISMATCH = "Jacobian mismatch for output 0 with respect to input 0"
NO_INPUT = "at least one input tensor to require gradient"


def test_012_bare_tensor_is_accepted(checker: Checker) -> None:
    checker.accepts(torch.sin, leaf(3))
    checker.second_order.accepts(torch.sin, leaf(3))


def test_013_list_of_inputs_is_accepted(checker: Checker) -> None:
    checker.accepts(product, [leaf(3), leaf(3, seed=2)])
    checker.second_order.accepts(product, [leaf(3), leaf(3, seed=2)])


def test_014_no_input_requires_grad_is_a_value_error(checker: Checker) -> None:
    checker.refuses(ValueError, NO_INPUT, torch.sin, numbers(3))
    checker.refuses(ValueError, NO_INPUT, torch.sin, (numbers(3),))


def test_015_input_below_double_precision_is_warned_about_and_checked(checker: Checker) -> None:
    warning = "Input #0 requires gradient and is not a double precision"
    with pytest.warns(UserWarning, match=warning):
        checker.accepts(torch.sin, leaf(3, dtype=torch.float32), atol=1e-1)
    doubled = with_gradient_hook(lambda gradient: 2 * gradient, torch.sin)
    with pytest.warns(UserWarning, match=warning):
        checker.rejects(MISMATCH, doubled, leaf(3, dtype=torch.float32), atol=1e-1)


def test_016_expanded_input_is_a_runtime_error(checker: Checker) -> None:
    expanded = numbers(1).expand(3).requires_grad_()
    checker.refuses(RuntimeError, "The 0th input has a dimension with stride 0", torch.sin, expanded)


def test_017_stride_zero_in_a_dimension_of_size_one_passes(checker: Checker) -> None:
    x = numbers(3).as_strided((3, 1), (1, 0)).requires_grad_()
    assert x.stride() == (1, 0)
    checker.accepts(torch.sin, x)


@pytest.mark.parametrize(
    "overlapping", [lambda: numbers(4).as_strided((3, 2), (1, 1)), lambda: numbers(4).unfold(0, 2, 1)]
)
def test_018_self_overlapping_input_is_a_mismatch(checker: Checker, overlapping: Callable[[], Tensor]) -> None:
    checker.rejects("Jacobian mismatch", torch.sin, overlapping().requires_grad_())


def test_019_arguments_that_are_not_differentiable_pass_through_untouched(checker: Checker) -> None:
    index, fixed = torch.tensor([2, 0]), numbers(3, seed=2)
    rest = (5, True, None, index, fixed)
    copies = index.clone(), fixed.clone()

    def func(x: Tensor, *others: Any) -> Tensor:
        if not all(got is given for got, given in zip(others, rest, strict=True)):
            raise PlantedError("an argument was replaced")
        return (x * others[4])[others[3]] * others[0]  # type: ignore[no-any-return]

    checker.accepts(func, (leaf(3), *rest))
    assert index.equal(copies[0])
    assert fixed.equal(copies[1])


def test_019_gradient_of_an_input_without_requires_grad_is_not_checked(checker: Checker) -> None:
    checker.accepts(lambda x, y: x + with_offset_gradient()(y), (leaf(3), numbers(3, seed=2)))


def test_020_differentiable_input_that_is_not_used_passes(checker: Checker) -> None:
    inputs = (leaf(3), leaf(2, seed=2))
    checker.accepts(lambda x, unused: x.sin(), inputs)
    checker.second_order.accepts(lambda x, unused: x.sin(), inputs)


@pytest.mark.parametrize("nest", [lambda x: [x], lambda x: (x,), lambda x: {"x": x}], ids=["list", "tuple", "dict"])
def test_021_tensor_inside_a_container_is_not_seen(checker: Checker, nest: Callable[[Tensor], Any]) -> None:
    checker.refuses(ValueError, NO_INPUT, lambda nested: numbers(3), (nest(leaf(3)),))


class Subclass(Tensor):
    """A tensor subclass without behaviour of its own."""


INPUT_KINDS: dict[str, Callable[[], Tensor]] = {
    "empty": lambda: leaf(0, 3),
    "scalar": lambda: leaf(),
    "transposed": lambda: numbers(2, 3).t().requires_grad_(),
    "strided": lambda: numbers(6)[::2].requires_grad_(),
    "offset": lambda: numbers(6)[2:].requires_grad_(),
    "channels_last": lambda: numbers(1, 2, 2, 3).to(memory_format=torch.channels_last).requires_grad_(),
    "conj_view": lambda: numbers(3, dtype=torch.complex128).conj().requires_grad_(),
    "neg_view": lambda: numbers(3, dtype=torch.complex128).conj().imag.requires_grad_(),
    "non_leaf": lambda: leaf(3) * 2,
    "parameter": lambda: nn.Parameter(numbers(3)),
    "subclass": lambda: numbers(3).as_subclass(Subclass).requires_grad_(),
}


@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_022_every_kind_of_dense_tensor_is_checked(checker: Checker, kind: str) -> None:
    make = INPUT_KINDS[kind]
    checker.accepts(torch.sin, make())
    checker.second_order.accepts(torch.sin, make())
    if make().numel():
        checker.rejects(MISMATCH, with_offset_gradient(), make())


def test_023_same_tensor_twice_moves_in_both_places(checker: Checker) -> None:
    x = leaf(3)
    checker.accepts(torch.add, (x, x))


@pytest.mark.upstream_differs("fast mode stops at an internal comparison of float32 with float64", mode="fast")
def test_024_mixed_precision_is_a_mismatch_of_the_lower_one(checker: Checker) -> None:
    inputs = (leaf(3), leaf(3, dtype=torch.float32, seed=2))
    with pytest.warns(UserWarning, match="Input #1 requires gradient and is not a double precision"):
        checker.rejects("Jacobian mismatch for output 0 with respect to input 1", product, inputs)


def test_025_function_receives_the_very_tensors_with_grad_mode_on(checker: Checker) -> None:
    inputs = (leaf(3), leaf(3, seed=2))

    def strict(*received: Tensor) -> Tensor:
        """Refuses to compute anything else; a checker may try other ways, but must come back to this one."""
        same = all(got is given for got, given in zip(received, inputs, strict=True))
        if not (same and torch.is_grad_enabled() and all(each.requires_grad for each in received)):
            raise TypeError("only the caller's own tensors are accepted")
        return product(*received)

    checker.accepts(strict, inputs)


def test_025_captured_tensor_is_checked_in_backward_mode(checker: Checker) -> None:
    layer = nn.Linear(3, 2, dtype=torch.float64)
    x, parameters = leaf(4, 3), tuple(layer.parameters())
    wrong = with_offset_gradient(lambda y: y @ layer.weight.t() + layer.bias)
    checker.accepts(lambda *_: layer(x).sin(), (x, *parameters))
    checker.rejects(MISMATCH, lambda *_: wrong(x), (x, *parameters))


def test_026_captured_tensor_is_a_mismatch_in_forward_mode(checker: Checker) -> None:
    x = leaf(3)
    checker.rejects("Jacobian computed with forward mode mismatch", lambda _: x.sin(), x, check_forward_ad=True)


def test_027_inputs_are_left_as_they_were(checker: Checker) -> None:
    inputs = (leaf(3), leaf(3, seed=2))
    copies = [each.detach().clone() for each in inputs]
    versions = [each._version for each in inputs]
    for check in (checker, checker.second_order):
        check.accepts(product, inputs)
        assert all(each.equal(copy) for each, copy in zip(inputs, copies, strict=True))
        assert all(each.grad is None for each in inputs)
        assert [each._version for each in inputs] == versions


@pytest.mark.upstream_differs("the exception leaves the input perturbed")
def test_028_inputs_are_restored_when_the_function_raises(checker: Checker) -> None:
    inputs = (leaf(3), leaf(3, seed=2))
    copies = [each.detach().clone() for each in inputs]
    for check in (checker, checker.second_order):
        raised = 0
        for last in range(1, 30):
            try:
                check(_raising_in_call(last), inputs)
            except PlantedError:
                raised += 1
            assert all(each.equal(copy) for each, copy in zip(inputs, copies, strict=True))
            assert all(each.grad is None for each in inputs)
        assert raised >= 3, "no check can do with fewer calls: the point and two steps"


def _raising_in_call(last: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A right function that raises when it is called the `last` time and ever after."""
    calls = 0

    def func(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls >= last:
            raise PlantedError(f"call {calls}")
        return product(x, y)

    return func


def test_029_random_state_is_untouched_by_a_check(checker: Checker) -> None:
    before = _random_states()
    checker.accepts(torch.sin, leaf(3))
    checker.accepts(torch.sin, leaf(3, dtype=torch.complex128), check_forward_ad=True)
    assert _random_states() == before


@pytest.mark.upstream_differs("random vectors come from the global generator")
def test_030_random_state_is_untouched_by_the_batched_check(checker: Checker) -> None:
    before = _random_states()
    checker.accepts(torch.sin, leaf(3), check_batched_grad=True)
    checker.accepts(torch.sin, leaf(3), check_forward_ad=True, check_batched_forward_grad=True)
    assert _random_states() == before


def _random_states() -> tuple[list[int], object]:
    return torch.get_rng_state().tolist(), random.getstate()


# What the catalogue lists, and the three names that torch 2.13 uses besides (numel took the place of nelement).
TENSOR_LIKE_NAMES = {
    *("data", "dtype", "is_complex", "is_floating_point", "is_sparse", "layout", "nelement", "new_zeros"),
    *("requires_grad", "retain_grad", "size", "stride", "torch.autograd.grad"),
    *("numel", "requires_grad_", "device"),
}


def test_031_tensor_likes_need_few_attributes(checker: Checker) -> None:
    inputs = (TensorLike(leaf(2)), TensorLike(leaf(2, seed=2)))
    for check in (checker, checker.second_order):
        verdict = check(torch.add, inputs, raise_exception=False, check_batched_grad=False)
        assert type(verdict) is bool
    used = inputs[0].names | inputs[1].names
    assert "torch.add" in used, "the function was not called with the tensor-likes"
    assert used - {"torch.add"} <= TENSOR_LIKE_NAMES


@pytest.mark.upstream_differs("gradients that are no torch.Tensor count as missing, so that right functions fail")
def test_031_right_function_of_tensor_likes_is_accepted(checker: Checker) -> None:
    inputs = (TensorLike(leaf(2)), TensorLike(leaf(2, seed=2)))
    checker.accepts(torch.add, inputs, check_batched_grad=False)


needs_mkldnn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without mkldnn")


@needs_mkldnn
def test_032_mkldnn_input_is_checked(checker: Checker) -> None:
    inputs = (leaf(3, dtype=torch.float32), numbers(3, dtype=torch.float32, seed=2).to_mkldnn().requires_grad_())
    with pytest.warns(UserWarning, match="is not a double precision"):
        checker.accepts(lambda x, y: x + y.to_dense(), inputs, atol=1e-1)
    with pytest.warns(UserWarning, match="is not a double precision"):
        checker.rejects("with respect to input 1", lambda x, y: x + y.to_dense().detach() * 2, inputs, atol=1e-1)


@needs_mkldnn
def test_033_mkldnn_input_is_refused_by_forward_mode(checker: Checker) -> None:
    x = numbers(3, dtype=torch.float32).to_mkldnn().requires_grad_()
    options = {"check_forward_ad": True, "atol": 1e-1, "rtol": 1e-1}
    phrase = "MKLDNN inputs are not support for forward AD gradcheck"
    with pytest.warns(UserWarning, match="is not a double precision"):
        checker.refuses(ValueError, phrase, lambda y: y.to_dense(), x, **options)


def test_034_under_no_grad_nothing_is_differentiable(checker: Checker) -> None:
    with torch.no_grad():
        checker.rejects("Numerical gradient for function expected to be zero", torch.sin, leaf(3))
