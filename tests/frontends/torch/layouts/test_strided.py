"""All arguments moved at once: whichever way is quickest must do what each layout does by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gradvet.frontends.torch.layouts import layouts_of, perturbation_of
from gradvet.frontends.torch.layouts.strided import ForeachPerturbation, GenericPerturbation, SinglePerturbation

CPU = torch.device("cpu")


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


def transposed() -> Tensor:
    return numbers(3, 4).t()


KINDS = {
    "ordinary": lambda: [numbers(3), numbers(2, 2), numbers()],
    "strides": lambda: [transposed(), numbers(6)[::2], numbers(0, 3)],
    "one": lambda: [numbers(2, 3)],
    "single precision": lambda: [numbers(3), numbers(2, 2).float()],
    "complex": lambda: [numbers(3), torch.complex(numbers(2), numbers(2))],
    "infinite": lambda: [numbers(3), torch.tensor([1.0, torch.inf], dtype=torch.float64)],
    "negated": lambda: [numbers(3), torch._neg_view(numbers(3))],
}


@pytest.mark.parametrize("kind", KINDS)
def test_moving_together_is_moving_one_by_one(kind: str) -> None:
    together, apart = ([tensor.clone() if kind != "negated" else tensor for tensor in KINDS[kind]()] for _ in range(2))
    ways = perturbation_of(layouts_of(together, False, CPU)), GenericPerturbation(layouts_of(apart, False, CPU))
    vector = 1e-3 * numbers(sum(layout.coordinates.size for layout in layouts_of(apart, False, CPU)))
    moves = [scheme.move(vector) for scheme in ways]
    assert torch.equal(moves[0].vector, moves[1].vector)
    for scheme, move in zip(ways, moves, strict=True):
        scheme.place(move, -2.0)
    assert not all(torch.equal(a, b) for a, b in zip(together, KINDS[kind](), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))
    for scheme in ways:
        scheme.restore()
    for tensors in (together, apart):
        assert all(torch.equal(a, b) for a, b in zip(tensors, KINDS[kind](), strict=True))


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        ("one", SinglePerturbation),
        ("ordinary", ForeachPerturbation),
        ("strides", ForeachPerturbation),
        ("single precision", GenericPerturbation),
        ("complex", GenericPerturbation),
        ("negated", GenericPerturbation),
    ],
)
def test_way_to_move_depends_on_the_arguments(kind: str, scheme: type) -> None:
    assert type(perturbation_of(layouts_of(KINDS[kind](), False, CPU))) is scheme


@pytest.mark.parametrize("kind", KINDS)
def test_place_does_not_depend_on_where_the_last_one_was(kind: str) -> None:
    once, twice = ([tensor.clone() if kind != "negated" else tensor for tensor in KINDS[kind]()] for _ in range(2))
    ways = [perturbation_of(layouts_of(tensors, False, CPU)) for tensors in (once, twice)]
    vector = 1e-3 * numbers(sum(layout.coordinates.size for layout in layouts_of(once, False, CPU)))
    moves = [scheme.move(vector) for scheme in ways]
    ways[1].place(moves[1], 3.0)
    for scheme, move in zip(ways, moves, strict=True):
        scheme.place(move, -1.0)
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))


def test_tensor_that_is_given_twice_is_moved_by_both() -> None:
    x = numbers(2)
    scheme = perturbation_of(layouts_of([x, x], False, CPU))
    before = x.clone()
    scheme.place(scheme.move(torch.tensor([0.25, 0.0, 0.5, 1.0], dtype=torch.float64)), 1.0)
    assert torch.allclose(x, before + torch.tensor([0.75, 1.0], dtype=torch.float64))
    scheme.restore()
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("gradients", "at_once"),
    [
        ([numbers(3), numbers(2, 2), numbers()], True),
        ([numbers(3), None, numbers()], False),
        ([numbers(3).float(), numbers(2, 2), numbers()], False),
    ],
)
def test_gradients_are_gathered_at_once_only_if_all_are_ordinary(
    gradients: Sequence[Tensor | None], at_once: bool
) -> None:
    gathered = perturbation_of(layouts_of(KINDS["ordinary"](), False, CPU)).gathered(gradients)
    assert (gathered is not None) is at_once
    if gathered is not None:
        assert torch.equal(gathered, torch.cat([g.reshape(-1) for g in gradients if g is not None]))
