"""Derivatives in low precision beside those of the wider version."""

from __future__ import annotations

import torch
from torch import Tensor

from gradvet.checks.low_precision_entries import MAX_DRAWS, JvpPair, VjpPair, derivative_pairs
from gradvet.core.context import Context
from tests.core.contexts import context_of


def contexts(function: object, count: int) -> tuple[Context, Context]:
    x = torch.linspace(-1.0, 2.0, count)
    return tuple(context_of(function, x.to(dtype).requires_grad_()) for dtype in (torch.bfloat16, torch.float64))  # type: ignore[return-value, arg-type]


def is_close(found: Tensor | None, expected: Tensor | None, rtol: float) -> bool:
    assert found is not None
    assert expected is not None
    return bool(torch.allclose(found, expected, rtol=rtol, atol=rtol))


def test_both_modes_give_the_derivative_at_the_point_and_next_to_it() -> None:
    given, wide = contexts(torch.sin, 12)
    here = given.problem.zeros(12)
    for mode, kind in (("reverse", VjpPair), ("forward", JvpPair)):
        for pair in derivative_pairs(given, wide, mode):
            assert isinstance(pair, kind)
            assert pair.space.size == 12
            found, expected = pair.both()
            assert is_close(found, expected, 0.02)
            assert is_close(pair.given_at(here), found, 0.0)
            assert is_close(pair.wide_at(here), expected, 1e-12)
            assert is_close(pair.wide_at(here, 1.0), 2.0 * expected, 1e-12)
            assert not is_close(pair.wide_at(here + 0.5), expected, 1e-3)


def test_few_entries_get_more_pairs_and_one_cotangent_is_ones() -> None:
    few, many = (list(derivative_pairs(*contexts(torch.sin, count), "reverse")) for count in (3, 300))
    assert (len(few), len(many)) == (MAX_DRAWS, 2)
    cotangents = [pair.v for pair in few if isinstance(pair, VjpPair)]
    assert [bool((v == 1.0).all()) for v in cotangents] == [number == 1 for number in range(MAX_DRAWS)]


def test_noise_is_one_roundoff_of_outputs_of_size_one() -> None:
    given, wide = contexts(lambda x: 0.0 * x + 1.0, 5)
    for mode in ("reverse", "forward"):
        pair = next(derivative_pairs(given, wide, mode))
        assert float(pair.natural_noise().max()) >= given.problem.eps / 4.0
        assert not bool(pair.inner_noise().any())
