"""Derivatives in low precision beside those of the wider version."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradvet.checks.low_precision_entries import MAX_DRAWS, derivative_samples
from gradvet.core.context import Context
from tests.core.contexts import context_of


def contexts(function: object, count: int) -> tuple[Context, Context]:
    x = torch.linspace(-1.0, 2.0, count)
    return tuple(context_of(function, x.to(dtype).requires_grad_()) for dtype in (torch.bfloat16, torch.float64))  # type: ignore[return-value, arg-type]


def is_close(found: Tensor | None, expected: Tensor | None, rtol: float) -> bool:
    assert found is not None
    assert expected is not None
    return bool(torch.allclose(found, expected, rtol=rtol, atol=rtol))


def unknown(_: Callable[[], Tensor]) -> None:
    """Operators do not round."""


def test_both_modes_give_the_derivative_at_the_point_and_next_to_it() -> None:
    given, wide = contexts(torch.sin, 12)
    for mode in ("reverse", "forward"):
        for sample in derivative_samples(given, wide, mode, unknown):
            assert sample.space.size == 12
            assert is_close(sample.found, sample.expected, 0.02)
            assert sample.nearby is not None
            assert is_close(*sample.nearby, 0.02)
            assert not is_close(sample.nearby[1], sample.expected, 1e-4)


def test_few_entries_get_more_samples_and_one_cotangent_is_ones() -> None:
    few, many = (list(derivative_samples(*contexts(torch.sin, count), "reverse", unknown)) for count in (3, 300))
    assert (len(few), len(many)) == (MAX_DRAWS, 2)
    assert [bool((sample.vector == 1.0).all()) for sample in few] == [number == 1 for number in range(MAX_DRAWS)]


def test_noise_is_one_roundoff_of_outputs_of_size_one() -> None:
    given, wide = contexts(lambda x: 0.0 * x + 1.0, 5)
    for mode in ("reverse", "forward"):
        sample = next(derivative_samples(given, wide, mode, unknown))
        assert float(sample.natural.max()) >= given.problem.eps / 4.0
        assert sample.inner is not None
        assert not bool(sample.inner.any())
