"""The gradient as a function of arguments and cotangents."""

from __future__ import annotations

import torch
from torch import Tensor

from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.frontends.torch.second_order import drop_in_gradient, random_cotangents
from tests.core.wrong_jacobians import numbers


def cube(x: Tensor, flag: bool, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x**3 * y, x.detach(), y.sum()


def arguments() -> tuple[Tensor, bool, Tensor]:
    return numbers((3,), 0).requires_grad_(), True, numbers((3,), 1).requires_grad_()


def test_gradient_is_that_of_the_differentiable_arguments() -> None:
    x, flag, y = arguments()
    v, w = numbers((3,), 2).requires_grad_(), numbers((), 3).requires_grad_()
    by_x, by_y = drop_in_gradient(cube, (x, flag, y), (v, w))(x, flag, y, v, w)
    assert torch.allclose(by_x, 3.0 * x**2 * y * v)
    assert torch.allclose(by_y, x**3 * v + w)
    assert by_x.requires_grad
    assert by_y.requires_grad


def test_gradient_can_be_pushed_forward() -> None:
    x, flag, y = arguments()
    v, w = numbers((3,), 2).requires_grad_(), numbers((), 3).requires_grad_()
    found = TorchProblem(drop_in_binding(drop_in_gradient(cube, (x, flag, y), (v, w)), (x, flag, y, v, w)), 0)
    u = torch.zeros(found.domain.size, dtype=torch.float64)
    u[:3] = 1.0
    with torch.no_grad():
        expected = torch.cat([6.0 * x * y * v, 3.0 * x**2 * v])
    assert torch.allclose(found.jvp(u), expected)


def test_frozen_cotangents_stay_frozen() -> None:
    x, flag, y = arguments()
    v, w = numbers((3,), 2), numbers((), 3).requires_grad_()
    found = TorchProblem(drop_in_binding(drop_in_gradient(cube, (x, flag, y), (v, w)), (x, flag, y, v, w)), 0)
    assert [leaf.position for leaf in found.domain.leaves] == [0, 2, 4]
    assert not v.requires_grad


def test_arguments_without_a_gradient_are_left_out() -> None:
    x, y = numbers((3,), 0).requires_grad_(), numbers((3,), 1).requires_grad_()
    v = numbers((3,), 2).requires_grad_()
    (only,) = drop_in_gradient(lambda x, y: x.sin(), (x, y), (v,))(x, y, v)
    assert torch.allclose(only, x.cos() * v)


def test_random_cotangents_fit_the_differentiable_outputs() -> None:
    for noncontiguous in (False, True):
        cotangents = random_cotangents(cube, arguments(), noncontiguous=noncontiguous)
        assert [tuple(v.shape) for v in cotangents] == [(3,), ()]
        assert all(v.requires_grad and v.dtype == torch.float64 for v in cotangents)
        assert all(float(v.detach().abs().max()) <= 1.0 for v in cotangents)
    wide = random_cotangents(lambda x: x.expand(4, 3), (numbers((3,), 0).requires_grad_(),), noncontiguous=True)
    assert not wide[0].is_contiguous()
    (complex_,) = random_cotangents(lambda x: x * 1j, (numbers((3,), 0).requires_grad_(),), noncontiguous=False)
    assert complex_.dtype == torch.complex128


def test_random_cotangents_come_from_the_global_random_state() -> None:
    def drawn() -> Tensor:
        torch.manual_seed(5)
        return random_cotangents(cube, arguments(), noncontiguous=False)[0].detach()

    assert torch.equal(drawn(), drawn())
