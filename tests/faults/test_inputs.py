"""Inputs without usable values are refused in one sentence before any call (`frontends/torch/inputs.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
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


@pytest.mark.parametrize("check", [gradvet.check, gradvet.numerical_jacobian])
def test_array_in_place_of_a_tensor_is_named(check: Callable[..., Any]) -> None:
    with pytest.raises(InvalidProblemError, match=r"found input 0: ndarray\. .* torch\.as_tensor\(array\)\.$"):
        check(torch.sin, numpy.ones(3))


def freed() -> Tensor:
    tensor = numbers(3)
    tensor.untyped_storage().resize_(0)
    return tensor


def too_small() -> Tensor:
    tensor = numbers(3)
    tensor.untyped_storage().resize_(8)
    return tensor


def with_cut_memory(index: slice) -> Tensor:
    """A view of six numbers whose memory has as many bytes as the view, but not where the view is."""
    numbers_ = numbers(6)
    view = numbers_[index]
    numbers_.untyped_storage().resize_(view.nbytes)
    return view


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


def escaped_from_vmap() -> Tensor:
    kept: list[Tensor] = []
    torch.func.vmap(lambda x: (kept.append(x), x)[1])(numbers(3))
    return kept[0]


def with_gradient_of_another_shape() -> Tensor:
    tensor = numbers(3).requires_grad_()
    tensor.grad = torch.zeros(3, dtype=torch.float64)
    tensor.grad.data = torch.zeros(5, dtype=torch.float64)
    return tensor


def compressed(rows: list[int], columns: list[int]) -> Tensor:
    parts = torch.tensor(rows), torch.tensor(columns), numbers(2)
    return torch.sparse_csr_tensor(*parts, (2, 2), check_invariants=False)


def with_index(index: int) -> Tensor:
    return torch.sparse_coo_tensor([[0, index, 1]], numbers(3), (4,), check_invariants=False)


class Opaque(Tensor):
    """No operator takes it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.equal:
            raise TypeError("no such operator")
        return super().__torch_function__(func, types, args, kwargs or {})


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "meta tensor": (lambda: torch.ones(3, dtype=torch.float64, device="meta"), "is a meta tensor"),
    "fake tensor": (fake, "is a fake tensor"),
    "functional tensor": (lambda: torch._to_functional_tensor(torch.ones(3)), "torch's functionalisation"),
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
    "view behind the end of its memory": (lambda: with_cut_memory(slice(3, None)), "was freed"),
    "view across the end of its memory": (lambda: with_cut_memory(slice(None, None, 2)), "was freed"),
    "tensor that escaped from vmap": (escaped_from_vmap, "belongs to a transform such as vmap"),
    "index behind the end": (lambda: with_index(9), "wrong indices (size is inconsistent with indices"),
    "negative index": (lambda: with_index(-9), "wrong indices (found negative index -9"),
    "rows that do not end": (lambda: compressed([0, 5, 9], [0, 1]), "wrong indices"),
    "column behind the end": (lambda: compressed([0, 1, 2], [0, 7]), "wrong indices"),
    "more elements than memory": (lambda: numbers(1).expand(10**6, 10**6), "is expanded to 1000000000000 elements"),
    "gradient of another shape": (with_gradient_of_another_shape, "the .grad of input 0 has shape (5,)"),
    "subclass without comparison": (lambda: numbers(3).as_subclass(Opaque), "is a Opaque, whose values"),
}
CYCLIC = {"cyclic list": cyclic, "cyclic dataclass": cyclic_dataclass}


def never(*arguments: Any) -> Tensor:
    raise AssertionError("the function was called")


def blame(function: Callable[..., Any], inputs: Any) -> Any:
    """`gradvet.blame` of a model that calls the function."""

    class Model(nn.Linear):
        def forward(self, *arguments: Any) -> Tensor:
            return function(*arguments)  # type: ignore[no-any-return]

    return gradvet.blame(Model(2, 2), inputs)


CHECKS = (gradvet.check, gradvet.numerical_jacobian, gradvet.gradcheck, gradvet.gradgradcheck, blame)


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.filterwarnings("ignore")
def test_tensor_without_usable_values_is_refused(kind: str, check: Callable[..., Any]) -> None:
    make, words = REFUSED[kind]
    tensor = make()
    if check in (gradvet.gradcheck, gradvet.gradgradcheck) and tensor.is_leaf:
        tensor.requires_grad_()
    if check is blame and kind == "float8":
        pytest.skip("an input of a model may have any format")
    with pytest.raises(InvalidProblemError) as refusal:
        check(never, (tensor,))
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", CYCLIC)
@pytest.mark.parametrize("check", [gradvet.check, gradvet.numerical_jacobian, blame])
def test_container_that_contains_itself_is_refused(kind: str, check: Callable[..., Any]) -> None:
    with pytest.raises(InvalidProblemError, match="input 0 contains itself"):
        check(never, (CYCLIC[kind](),))
    if check is blame:
        return
    with pytest.raises(InvalidProblemError, match="kwargs contains itself"):
        check(never, (numbers(3),), kwargs={"more": CYCLIC[kind]()})


class Wrong(torch.autograd.Function):
    """A square without the factor 2 in its derivative; it takes anything else, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Any) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        return ctx.saved_tensors[0] * grad_outputs[0], None


class Returning(nn.Linear):
    """Returns its second argument beside the result."""

    def forward(self, x: Tensor, other: Any) -> Any:
        return super().forward(x), other


UNKEPT = {**CYCLIC, **{kind: REFUSED[kind][0] for kind in ("jagged nested tensor", "freed memory", "meta tensor")}}


@pytest.mark.parametrize("kind", UNKEPT)
@pytest.mark.filterwarnings("ignore")
def test_watched_code_runs_with_arguments_that_cannot_be_kept(kind: str) -> None:
    x, other = numbers(3).requires_grad_(), UNKEPT[kind]()
    with gradvet.watch() as step:
        Wrong.apply(x, 1.0)  # type: ignore[no-untyped-call]
    assert step.report().verdict is gradvet.Verdict.FAIL
    with gradvet.watch() as step:
        Wrong.apply(x, other)  # type: ignore[no-untyped-call]
    assert step.report().verdict is gradvet.Verdict.INCONCLUSIVE
    assert any("the arguments of 1 call were not kept: " in note for note in step.report().notes)
    module = Returning(3, 2).double()
    with gradvet.watch(module) as step:
        assert module(x, other)[1] is other
    assert step.report().verdict is gradvet.Verdict.INCONCLUSIVE


def test_model_with_a_sparse_result_is_searched() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    x = torch.sparse_coo_tensor([[0, 2]], numbers(2), (4,), check_invariants=True).coalesce()
    assert not gradvet.blame(Scale(), x, seed=0).culprits


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


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (freed, "the memory of output(?: 0)? was freed: return a tensor with values"),
        (lambda: numbers(3).to("meta"), "output(?: 0)? is a meta tensor, which has a shape but no values: return"),
        (cyclic, "the function returned a container that contains itself: return tensors"),
    ],
)
@pytest.mark.parametrize("check", [gradvet.check, gradvet.numerical_jacobian, gradvet.gradcheck])
def test_output_without_values_is_refused(check: Callable[..., Any], result: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        check(lambda x: result(), numbers(3).requires_grad_())


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("small", [5e-324, 1e-300, 1e-44, 1e-40, 1e-30, 6e-8, 1e-5])
@pytest.mark.parametrize("other", [None, 1.0])
def test_error_bars_of_a_numerical_jacobian_hold_at_small_and_subnormal_numbers(
    dtype: torch.dtype, small: float, other: float | None
) -> None:
    x = torch.tensor([small, small if other is None else other], dtype=dtype)
    found = gradvet.numerical_jacobian(lambda x: 2.0 * x, x)
    value, error = found.value.diagonal(), found.error.diagonal()
    assert bool((((value - 2.0).abs() <= error) | error.isinf()).all()), (value, error)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.bits8])
def test_argument_that_torch_does_not_compare_is_restored(dtype: torch.dtype) -> None:
    x, other = numbers(3).requires_grad_(), torch.zeros(4, dtype=torch.uint8).view(dtype)
    assert gradvet.check(lambda x, other: x.sin(), (x, other)).passed


def test_many_dimensions_of_length_one_do_not_take_all_memory() -> None:
    assert gradvet.check(torch.sin, numbers(*[1] * 30)).passed


def test_state_is_restored_though_one_part_of_it_cannot_be() -> None:
    x, weight = numbers(3), numbers(3).requires_grad_()
    weight.grad = torch.zeros(3, dtype=torch.float64)

    def function(x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        torch.rand(3)
        assert weight.grad is not None
        weight.grad.data = torch.zeros(5, dtype=torch.float64)
        weight.grad = None
        return x.sin() * weight

    before = torch.get_default_dtype(), torch.get_rng_state().tolist()
    with pytest.raises((RuntimeError, AssertionError)):
        gradvet.check(function, x)
    assert (torch.get_default_dtype(), torch.get_rng_state().tolist()) == before
