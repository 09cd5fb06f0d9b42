"""Sparse inputs are moved in place where they are the caller's own, and are bit for bit the same after the check.

Also tests `frontends/torch/layouts/sparse.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet.frontends.torch.layouts import layouts_of
from tests.sparse.functions import decision, sine
from tests.sparse.tensors import KINDS, LAYOUTS, coo, full, holed, numbers, specified

HOME = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
both_semantics = pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])
every_kind = pytest.mark.parametrize("kind", KINDS)


def bits(tensor: Tensor) -> bytes:
    """The stored numbers, to the last bit (a zero has a sign)."""
    values = tensor.detach()._values() if tensor.layout is torch.sparse_coo else tensor.detach().values()
    return bytes(values.contiguous().reshape(-1).view(torch.uint8).tolist())


@every_kind
@both_semantics
def test_placing_moves_exactly_the_coordinates_and_restoring_puts_every_bit_back(kind: str, masked: bool) -> None:
    x = KINDS[kind]().requires_grad_()
    before, dense = bits(x), x.detach().to_dense()
    (layout,) = layouts_of([x], masked, HOME)
    u = torch.randn(layout.coordinates.size, dtype=torch.float64)
    part, difference_along = layout.rounded(u)
    moved = layout.place(part, 0.5)
    assert moved.layout is x.layout
    assert moved.requires_grad
    displacement = (moved.detach().to_dense() - dense)[specified(x.detach()) if masked else ...].reshape(-1)
    found = torch.view_as_real(displacement).reshape(-1) if x.is_complex() else displacement
    assert torch.allclose(found, 0.5 * u[: len(found)])
    assert torch.allclose(difference_along, u)
    layout.restore()
    assert bits(x) == before
    assert torch.equal(layout.place(part, 0.0).detach().to_dense(), dense)
    layout.restore()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["slow", "fast"])
@pytest.mark.parametrize(("point", "masked"), [(holed, True), (full, True), (full, False)])
def test_captured_reference_sees_the_moves(
    layout: str, mode: str, point: Callable[[str], Tensor], masked: bool
) -> None:
    x = point(layout).requires_grad_()
    options = {"masked": masked, "fast_mode": mode == "fast"}
    assert gradvet.gradcheck(lambda _: sine(masked)(x), x, **options)
    assert decision(gradvet.gradcheck, lambda _: sine(masked, 1.01)(x), x, **options) == "fail"


@every_kind
@both_semantics
def test_check_leaves_numbers_indices_gradient_and_version_as_they_were(kind: str, masked: bool) -> None:
    x = KINDS[kind]()
    factor = 1.5  # of a wrong function every entry is compared, and the wrong one is located
    pattern, before, version = specified(x), bits(x), x._version
    gradvet.gradcheck(sine(masked, factor), x.requires_grad_(), masked=masked, raise_exception=False)
    assert bits(x) == before
    assert torch.equal(specified(x.detach()), pattern)
    assert (x._version, x.grad, x.is_leaf, x.requires_grad) == (version, None, True, True)


@pytest.mark.parametrize("layout", LAYOUTS)
@both_semantics
def test_function_that_raises_in_the_middle_leaves_the_input_as_it_was(layout: str, masked: bool) -> None:
    x = holed(layout).requires_grad_()
    before, calls = bits(x), []

    def function(x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise KeyError("in the middle")
        return sine(masked)(x)

    with pytest.raises(KeyError, match="in the middle"):
        gradvet.gradcheck(function, x, masked=masked)
    assert bits(x) == before


@pytest.mark.parametrize("layout", LAYOUTS)
@both_semantics
def test_tensor_that_is_given_twice_moves_in_both_places(layout: str, masked: bool) -> None:
    x = holed(layout).requires_grad_()

    def function(first: Tensor, second: Tensor) -> Tensor:
        return sine(masked)(first) + 3.0 * sine(masked)(second)

    assert decision(gradvet.gradcheck, function, x, x, masked=masked) == "pass"


def test_only_the_first_of_several_entries_at_one_place_moves() -> None:
    x = coo([[0, 0, 1], [1, 1, 0]], (2, 3)).requires_grad_()
    (layout,) = layouts_of([x], True, HOME)
    # Places [0, 1] and [1, 0], and the unspecified rest.
    part, _ = layout.rounded(torch.tensor([0.25, 0.5, 0.125], dtype=torch.float64))
    before = x.detach()._values().clone()
    layout.place(part, 1.0)
    assert torch.allclose(x.detach()._values() - before, torch.tensor([0.25, 0.0, 0.5], dtype=torch.float64))
    layout.restore()


def test_numbers_that_share_memory_are_refused() -> None:
    shared = numbers(1).expand(2)
    tensors = [
        torch.sparse_coo_tensor(torch.tensor([[0, 2]]), shared, (4,), check_invariants=True),
        torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), shared, (2, 2), check_invariants=True),
    ]
    for x in tensors:
        with pytest.raises(RuntimeError, match="The 1th input has a dimension with stride 0"):
            gradvet.gradcheck(lambda y, x: x.to_dense(), (numbers(2), x.requires_grad_()), raise_exception=False)
