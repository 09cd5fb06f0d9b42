"""Private names and their public fallbacks do the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradvet.frontends.torch import private
from gradvet.frontends.torch.derivatives import run_backward


@pytest.fixture(params=["private", "public"])
def names(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "private" and private.PUBLIC_ONLY:
        pytest.skip("private names are switched off")
    if request.param == "public":
        monkeypatch.setattr(private, "PUBLIC_ONLY", True)
        monkeypatch.setattr(private, "ENGINE", None)
    return str(request.param)


def numbers(*shape: int) -> Tensor:
    return torch.linspace(0.5, 2.0, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


@pytest.mark.usefixtures("names")
def test_backward_pass_gives_gradients_and_none_for_unused_sources() -> None:
    x, unused = numbers(3).requires_grad_(), numbers(2).requires_grad_()
    y = x.sin()
    for _ in range(2):  # the graph is kept
        gradient, nothing = run_backward((y,), (x, unused), (torch.ones(3, dtype=torch.float64),))
        assert torch.equal(gradient, x.detach().cos())
        assert nothing is None


class Looking(torch.autograd.Function):
    """Notes whether its backward pass received a cotangent."""

    seen: bool | None = None

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)  # type: ignore[attr-defined]
        return x * 2.0

    @staticmethod
    def backward(ctx: object, *cotangents: Tensor | None) -> Tensor | None:
        Looking.seen = cotangents[0] is not None
        return cotangents[0]


def test_output_without_cotangent_passes_an_undefined_one_on() -> None:
    x = numbers(3).requires_grad_()
    y = Looking.apply(x)  # type: ignore[no-untyped-call]
    cut = private.without_cotangent(y)
    assert torch.equal(cut, y)
    run_backward((cut,), (x,), (torch.zeros(3, dtype=torch.float64),))
    assert Looking.seen is False


@pytest.mark.usefixtures("names")
def test_stored_numbers_of_a_coo_tensor_share_its_memory() -> None:
    x = numbers(2, 2).to_sparse()
    private.coo_values(x).mul_(2.0)
    assert torch.equal(x.to_dense(), 2.0 * numbers(2, 2))
    assert private.coo_indices(x).shape == (2, 4)


def test_unknown_version_equals_nothing(names: str) -> None:
    x = numbers(3)
    assert (private.version(x) == private.version(x)) is (names == "private")


def test_unknown_hooks_are_assumed(names: str) -> None:
    x = numbers(3).requires_grad_()
    before = private.hook_count()
    assert private.has_hooks([x], since=before) is (names == "public")
    assert (private.hook_count() == before) is (names == "private")


@pytest.mark.usefixtures("names")
def test_buffers_of_a_module_are_its_own() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2))
    assert not private.buffers_of(module)
    assert set(private.buffers_of(module[0])) == {"running_mean", "running_var", "num_batches_tracked"}
