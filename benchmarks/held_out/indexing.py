"""Lookups, segments, tables, scans and sparse products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from benchmarks.held_out.record import right, wide, wrong


def embedding(fault: str = "") -> Any:
    class Embedding(Function):
        @staticmethod
        def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
            ctx.save_for_backward(index)
            ctx.shape = table.shape
            return table[index]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (index,) = ctx.saved_tensors
            grad = torch.zeros(ctx.shape, dtype=wide(g).dtype)
            flat, rows = index.reshape(-1), wide(g).reshape(-1, ctx.shape[1])
            if fault == "overwrites":
                grad[flat] = rows
            else:
                grad.index_add_(0, flat, rows)
            return grad.to(g.dtype), None

    return Embedding.apply


def segment_mean(fault: str = "") -> Any:
    class SegmentMean(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, segment: Tensor, count: int) -> Tensor:
            sizes = torch.bincount(segment, minlength=count).clamp(min=1).to(x.dtype)
            ctx.save_for_backward(segment, sizes)
            total = torch.zeros(count, x.shape[1], dtype=x.dtype).index_add_(0, segment, x)
            return total / sizes[:, None]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            segment, sizes = ctx.saved_tensors
            grad = g[segment]
            if fault != "sum":
                grad = grad / sizes[segment, None]
            return grad, None, None

    return SegmentMean.apply


def plain_segment_mean(x: Tensor, segment: Tensor, count: int) -> Tensor:
    one_hot = (segment == torch.arange(count)[:, None]).to(x.dtype)
    return one_hot @ x / one_hot.sum(1, keepdim=True).clamp(min=1)


def interpolate(fault: str = "") -> Any:
    """Linear interpolation in a table with unit spacing."""

    class Interpolate(Function):
        @staticmethod
        def forward(ctx: Any, table: Tensor, x: Tensor) -> Tensor:
            i = x.floor().long().clamp(0, len(table) - 2)
            t = x - i
            ctx.save_for_backward(table, i, t)
            return table[i] * (1 - t) + table[i + 1] * t

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            table, i, t = ctx.saved_tensors
            dtable = torch.zeros_like(table)
            dtable.index_add_(0, i, g * (1 - t))
            if fault != "one side":
                dtable.index_add_(0, i + 1, g * t)
            return dtable, g * (table[i + 1] - table[i])

    return Interpolate.apply


def plain_interpolate(table: Tensor, x: Tensor) -> Tensor:
    i = x.detach().floor().long().clamp(0, len(table) - 2)
    return table[i] + (table[i + 1] - table[i]) * (x - i)


def hermite(knots: Tensor, fault: str = "") -> Any:
    """Cubic spline (Catmull–Rom) through captured knots."""

    def coefficients(x: Tensor) -> tuple[Tensor, ...]:
        k = knots.to(x.dtype)
        i = x.detach().floor().long().clamp(1, len(k) - 3)
        p, q, r, s = k[i - 1], k[i], k[i + 1], k[i + 2]
        return x - i, q, (r - p) / 2, p - 2.5 * q + 2 * r - s / 2, (s - p) / 2 + 1.5 * (q - r)

    class Spline(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            t, a, b, c, d = coefficients(x)
            return a + t * (b + t * (c + t * d))

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            t, _, b, c, d = coefficients(ctx.saved_tensors[0])
            slope = b + t * (2 * c + 3 * t * d)
            if fault == "second":
                return Slope.apply(g, t, c, d, slope.detach())
            return g * slope

    class Slope(Function):
        @staticmethod
        def forward(ctx: Any, g: Tensor, t: Tensor, c: Tensor, d: Tensor, slope: Tensor) -> Tensor:
            ctx.save_for_backward(g, t, c, d, slope)
            return g * slope

        @staticmethod
        def backward(ctx: Any, h: Tensor) -> Any:
            g, t, c, d, slope = ctx.saved_tensors
            return h * slope, h * g * (2 * c + 3 * t * d), None, None, None

    return Spline.apply


def plain_hermite(knots: Tensor) -> Any:
    def spline(x: Tensor) -> Tensor:
        k = knots.to(x.dtype)
        i = x.detach().floor().long().clamp(1, len(k) - 3)
        t, p, q, r, s = x - i, k[i - 1], k[i], k[i + 1], k[i + 2]
        return q + t * (r - p) / 2 + t**2 * (p - 2.5 * q + 2 * r - s / 2) + t**3 * ((s - p) / 2 + 1.5 * (q - r))

    return spline


def knots() -> Tensor:
    return torch.tensor([0.0, 1.0, -0.5, 2.0, 1.5, -1.0, 0.5, 0.25], dtype=torch.float64)


def cumulative_product(fault: str = "") -> Any:
    class CumProd(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = torch.cumprod(wide(x), -1)
            ctx.save_for_backward(x, y)
            return y.to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            x, y = ctx.saved_tensors
            tail = (wide(g) * y).flip(-1).cumsum(-1).flip(-1)
            if fault == "tail":
                tail = tail - wide(g) * y
            return (tail / wide(x)).to(g.dtype)

    return CumProd.apply


def sparse_product(rows: Tensor, columns: Tensor, height: int, fault: str = "") -> Any:
    """A matrix in coordinates times a dense one; positions may repeat."""

    class SparseProduct(Function):
        @staticmethod
        def forward(ctx: Any, values: Tensor, dense: Tensor) -> Tensor:
            ctx.save_for_backward(values, dense)
            out = torch.zeros(height, dense.shape[1], dtype=dense.dtype)
            return out.index_add_(0, rows, values[:, None] * dense[columns])

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            values, dense = ctx.saved_tensors
            dvalues = (g[rows] * dense[columns]).sum(1)
            if fault == "tail":
                dvalues[len(dvalues) // 64 * 64 :] = 0.0
            if fault == "one":
                dvalues[5] *= 2.0
            ddense = torch.zeros_like(dense).index_add_(0, columns, values[:, None] * g[rows])
            return dvalues, ddense

    return SparseProduct.apply


def plain_sparse_product(rows: Tensor, columns: Tensor, height: int) -> Any:
    def product(values: Tensor, dense: Tensor) -> Tensor:
        matrix = torch.zeros(height * len(dense), dtype=values.dtype)
        matrix = matrix.index_add(0, rows * len(dense) + columns, values)
        return matrix.reshape(height, -1) @ dense

    return product


def places(count: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    i = torch.arange(count)
    return (i * 7 + i // 5) % height, (i * 3 + i // 4) % width


class Windows(Function):
    """Overlapping windows of a signal, as a view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.length = len(x)
        return x.unfold(0, 4, 1) * 1.0

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        grad = torch.zeros(ctx.length, dtype=g.dtype)
        for offset in range(4):
            grad[offset : offset + len(g)] += g[:, offset]
        return grad


def segment_max(x: Tensor, segment: Tensor) -> Tensor:
    low = torch.full((int(segment.max()) + 1, x.shape[1]), float("-inf"), dtype=x.dtype)
    return low.scatter_reduce(0, segment[:, None].expand_as(x), x, "amax")


RECORDS = [
    right(
        "embedding with repeated words",
        "plain",
        "float16",
        lambda d: (embedding(), (d.normal(12, 8), d.index(12, 3, 7))),
        lambda table, index: table[index],
    ),
    right(
        "embedding of a large table",
        "plain",
        "float32",
        lambda d: (embedding(), (d.normal(2500, 40), d.index(2500, 50))),
        lambda table, index: table[index],
    ),
    right(
        "segment means, one segment empty",
        "plain",
        "float64",
        lambda d: (segment_mean(), (d.normal(15, 3), torch.arange(15) % 4, 5)),
        plain_segment_mean,
    ),
    right(
        "segment maxima with ties",
        "kink",
        "float64",
        lambda d: (
            segment_max,
            (d.leaf([[1.0, 2.0], [1.0, 0.5], [3.0, 2.0], [-1.0, 2.0]]), torch.tensor([0, 0, 1, 1])),
        ),
        segment_max,
    ),
    right(
        "largest of equal numbers",
        "kink",
        "bfloat16",
        lambda d: (lambda x: x.amax(-1), (d.leaf([[1.0, 1.0, 0.5], [2.0, -1.0, 2.0], [0.25, 0.5, 3.0]]),)),
        lambda x: x.amax(-1),
    ),
    right(
        "linear interpolation on the knots",
        "kink",
        "float32",
        lambda d: (interpolate(), (d.normal(8), d.leaf([0.0, 1.0, 2.5, 3.0, 4.75, 6.5]))),
        plain_interpolate,
    ),
    right(
        "spline with captured knots",
        "captured table",
        "float32",
        lambda d: (hermite(knots()), (d.uniform(1.1, 5.9, 20),)),
        plain_hermite(knots()),
    ),
    right(
        "cumulative products",
        "plain",
        "bfloat16",
        lambda d: (cumulative_product(), (d.uniform(0.6, 1.4, 4, 8),)),
        lambda x: torch.cumprod(x, -1),
    ),
    right(
        "sparse times dense, positions repeat",
        "plain",
        "float64",
        lambda d: (sparse_product(*places(60, 9, 11), 9), (d.normal(60), d.normal(11, 4))),
        plain_sparse_product(*places(60, 9, 11), 9),
    ),
    right(
        "overlapping windows",
        "views",
        "float32",
        lambda d: (Windows.apply, (d.normal(40),)),
        lambda x: torch.stack([x[i : i + 4] for i in range(37)]),
    ),
    wrong(
        "embedding that overwrites",
        "lost",
        "bfloat16",
        lambda d: (embedding("overwrites"), (d.normal(6, 8), d.index(6, 14))),
        lambda table, index: table[index],
        "rows looked up more than once",
        0.5,
    ),
    wrong(
        "segment means, sums in the backward",
        "factor",
        "float16",
        lambda d: (segment_mean("sum"), (d.normal(12, 5), torch.arange(12) % 4, 4)),
        plain_segment_mean,
        "gradient times the size of the segment, 3",
        1.5,
    ),
    wrong(
        "interpolation that feeds one neighbour",
        "missing term",
        "float32",
        lambda d: (interpolate("one side"), (d.normal(8), d.uniform(0.1, 6.9, 20))),
        plain_interpolate,
        "right neighbour in the gradient of the table",
        0.3,
    ),
    wrong(
        "spline, second derivative",
        "order 2",
        "float64",
        lambda d: (hermite(knots(), "second"), (d.uniform(1.1, 5.9, 8),)),
        plain_hermite(knots()),
        "3td instead of 6td in the second derivative",
        0.1,
        order=2,
        shown_by="second",
    ),
    wrong(
        "cumulative products lose their own place",
        "missing term",
        "float64",
        lambda d: (cumulative_product("tail"), (d.uniform(0.6, 1.4, 3, 6),)),
        lambda x: torch.cumprod(x, -1),
        "the sum over later places starts one late",
        0.3,
    ),
    wrong(
        "sparse product loses the last block of values",
        "lost",
        "float64",
        lambda d: (sparse_product(*places(2000, 90, 70), 90, "tail"), (d.normal(2000), d.normal(70, 8))),
        plain_sparse_product(*places(2000, 90, 70), 90),
        "the last 16 values",
        0.5,
    ),
    wrong(
        "sparse product, one value twice",
        "one entry",
        "float32",
        lambda d: (sparse_product(*places(150, 12, 10), 12, "one"), (d.normal(150), d.normal(10, 6))),
        plain_sparse_product(*places(150, 12, 10), 12),
        "entry 5 of the gradient of the values is doubled",
        0.05,
    ),
]
