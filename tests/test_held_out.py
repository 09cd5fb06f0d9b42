"""The held-out functions, proved without gradvet: right ones have the derivative of plain torch in float64, wrong ones
miss it by more than is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwd
from torch import Tensor

from benchmarks.held_out import RECORDS, Record

pytestmark = pytest.mark.gallery

WRONG = [record for record in RECORDS if record.is_wrong]
RIGHT = [record for record in RECORDS if not record.is_wrong]


def as_tuple(value: Any) -> tuple[Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def doubled(value: Any) -> Any:
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    wide = torch.complex128 if value.is_complex() else torch.float64
    return value.detach().to(wide).requires_grad_(value.requires_grad)


def called(function: Any, inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return as_tuple(function(*inputs))


def sources(function: Any, inputs: Sequence[Any]) -> list[Tensor]:
    given = [value for value in inputs if isinstance(value, Tensor)]
    if isinstance(function, torch.nn.Module):
        given += list(function.parameters())
    return [value for value in given if value.requires_grad]


def cotangents(record: Record, outputs: Sequence[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    found = []
    for y in outputs:
        v = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
        if record.shown_by == "zero rows":
            v[1], v[3] = 0.0, 0.0
        if record.shown_by == "strided":
            v = v.mT.contiguous().mT
        found.append(v)
    return found


def gradients(outputs: Sequence[Tensor], at: Sequence[Tensor], vs: Sequence[Tensor], **more: Any) -> list[Tensor]:
    vs = [v.to(y.dtype) for v, y in zip(vs, outputs, strict=True)]
    return list(torch.autograd.grad(outputs, at, vs, materialize_grads=True, **more))


def forward_derivative(function: Any, inputs: Sequence[Any]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    with fwd.dual_level():
        duals = [
            fwd.make_dual(x.detach(), torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype))
            for x in inputs
        ]
        return [fwd.unpack_dual(y).tangent for y in as_tuple(function(*duals))]


def second_derivative(function: Any, inputs: Sequence[Any], vs: Sequence[Tensor]) -> list[Tensor]:
    at = sources(function, inputs)
    first = gradients(called(function, inputs), at, vs, create_graph=True)
    generator = torch.Generator().manual_seed(3)
    ws = [torch.randn(g.shape, generator=generator, dtype=torch.float64).to(g.dtype) for g in first]
    live = [(g, w) for g, w in zip(first, ws, strict=True) if g.requires_grad]
    return gradients([g for g, _ in live], at, [w for _, w in live])


def frozen(inputs: Sequence[Any]) -> list[Any]:
    """Only the first input requires grad."""
    return [x.detach().requires_grad_(i == 0) if isinstance(x, Tensor) else x for i, x in enumerate(inputs)]


def shown(record: Record) -> tuple[list[Tensor], list[Tensor]]:
    """The derivative that the function gives and the true one, under the condition of the record."""
    function, inputs = record.build()
    reference = record.reference(function) if isinstance(function, torch.nn.Module) else record.reference
    if record.shown_by == "frozen":
        inputs = tuple(frozen(inputs))
    true_inputs = [doubled(value) for value in inputs]
    if record.shown_by == "forward":
        return forward_derivative(function, inputs), forward_derivative(reference, true_inputs)
    outputs = called(function, inputs)
    vs = cotangents(record, outputs)
    if record.shown_by == "second":
        return second_derivative(function, inputs, vs), second_derivative(reference, true_inputs, vs)
    expected = called(reference, true_inputs)
    for y, z in zip(outputs, expected, strict=True):
        scale = float(z.detach().abs().max())
        assert float((y - z).detach().abs().max()) <= 5 * record.allowed * scale, (
            "the values are those of another function"
        )
    true = gradients(expected, sources(reference, true_inputs), vs)
    at = sources(function, inputs)
    if record.shown_by == "again":
        gradients(outputs, at, vs, retain_graph=True)
    if record.shown_by == "interleaved":
        called(function, [x.detach() + 1 for x in inputs])
    found = gradients(outputs, at, vs, retain_graph=record.shown_by == "often")
    if record.shown_by == "often":
        tries = [gradients(outputs, at, vs, retain_graph=True) for _ in range(400)]
        bad = [tried for tried in tries if fault(tried, true) >= record.size]
        assert 4 <= len(bad) <= 60
        found = bad[0]
    return found, true


def difference(found: Tensor, true: Tensor) -> float:
    assert found.shape == true.shape
    wide = torch.complex128 if true.is_complex() else torch.float64
    gap = (found.to(wide) - true).abs()
    return float(gap.max()) if bool(torch.isfinite(gap).all()) else float("inf")


def largest(gradients: Sequence[Tensor]) -> float:
    return max(float(g.abs().max()) for g in gradients)


def error(found: Sequence[Tensor], true: Sequence[Tensor]) -> float:
    """The largest difference in an input over the largest entry of its gradient, or of all of them if that is zero."""
    overall = largest(true)
    worst = 0.0
    for f, t in zip(found, true, strict=True):
        own = float(t.abs().max())
        worst = max(worst, difference(f, t) / (own if own > 1e-12 * overall else overall))
    return worst


def fault(found: Sequence[Tensor], true: Sequence[Tensor]) -> float:
    """The largest difference in an input over the root mean square of its gradient's nonzero entries."""
    overall = largest(true)
    sizes = [0.0]
    for f, t in zip(found, true, strict=True):
        entries = t[t.abs() > 1e-12 * overall].abs()
        if len(entries):
            sizes.append(difference(f, t) / float(entries.square().mean().sqrt()))
    return max(sizes)


@pytest.mark.parametrize("record", RIGHT, ids=lambda record: record.name)
def test_right(record: Record) -> None:
    found, true = shown(record)
    assert all(f.dtype == x.dtype for f, x in zip(found, sources(*record.build()), strict=True))
    assert error(found, true) <= record.allowed
    if record.order == 2:
        function, inputs = record.build()
        vs = cotangents(record, called(function, inputs))
        wide = [doubled(value) for value in inputs]
        assert error(second_derivative(function, inputs, vs), second_derivative(record.reference, wide, vs)) <= 1e-7


@pytest.mark.parametrize("record", WRONG, ids=lambda record: record.name)
def test_wrong(record: Record) -> None:
    found, true = shown(record)
    assert fault(found, true) >= record.size * (1 - 1e-6)


@pytest.mark.parametrize("record", WRONG, ids=lambda record: record.name)
def test_faults_are_large_enough(record: Record) -> None:
    least = 0.1 if record.precision in ("bfloat16", "float16") else 0.01
    assert (record.size < least) == (record.kind == "below")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_builds_the_same_every_time(record: Record) -> None:
    first, second = record.build(), record.build()
    for x, y in zip(first[1], second[1], strict=True):
        assert torch.equal(x, y) if isinstance(x, Tensor) else x == y


def test_names_are_unique() -> None:
    assert max(Counter(record.name for record in RECORDS).values()) == 1


def test_halves_and_precisions() -> None:
    share = Counter(record.precision for record in RECORDS)
    assert 0.4 <= len(WRONG) / len(RECORDS) <= 0.6
    assert all(share[precision] >= 0.12 * len(RECORDS) for precision in ("float64", "float32", "bfloat16", "float16"))
