"""Floating-point formats, and errors of a kernel: what a format explains of them, which persist, where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradvet.core import thresholds
from gradvet.core.vectors import Array, namespace, nonzero_rms, peak, quantile, rms

TF32_EPS = 2.0**-10
"""Spacing of TF32, in which kernels for float32 may multiply."""

FLOAT16_EPS = 2.0**-10
"""Spacing of float16, the only format whose range is much smaller than that of float32."""


def overflow_size(eps: float) -> float:
    """Size from which a derivative may overflow: half the largest float16, or nearly the largest of other formats."""
    return 32752.0 if eps == FLOAT16_EPS else 1e38


def spacing_at_zero(eps: float) -> float:
    """Distance of the smallest numbers of a format: 6e-8 in float16, which gradients reach, and 0 for other formats.

    Needed by `test_gradients_next_to_the_smallest_number_are_linear_in_float16`.
    """
    return 2.0**-24 if eps == FLOAT16_EPS else 0.0


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point format, and how the numbers of one tensor are arranged."""

    shape: tuple[int, ...]
    eps: float
    """Relative spacing."""
    smallest: float
    """Spacing of the numbers next to zero."""
    largest: float
    cuts_off: bool = False
    """Whether numbers are cut off to this format rather than rounded, so that products lose some spacings on one side.
    """
    may_use_tf32: bool = False
    """Whether the device may multiply numbers of this format in TF32."""

    def in_tf32(self) -> Format:
        """The same with the spacing of TF32 if it is that of float32."""
        is_single = thresholds.DOUBLE_EPS < self.eps <= thresholds.HALF_PRECISION_EPS
        return replace(self, eps=TF32_EPS, cuts_off=True) if is_single else self

    @property
    def is_half_precision(self) -> bool:
        """Whether it is a format of half precision, whose values are computed in float32 and rounded once."""
        return self.eps > thresholds.HALF_PRECISION_EPS

    @property
    def most(self) -> float:
        """Errors from which a result is doubtful: in error bars, or in those of plain torch."""
        return thresholds.COHERENT if self.is_half_precision else thresholds.PRECISION_DOUBT

    @property
    def wrong_loss(self) -> float:
        """Typical error, in those of plain torch, that neither a coarser format inside nor sums in this one explain."""
        if self.is_half_precision:
            return thresholds.MATERIAL_MAX / (thresholds.NOISE_FLOOR * self.eps)
        return thresholds.CLEAR * self.most * self.internal_eps / self.eps

    @property
    def common_error(self) -> float:
        """Relative error that all entries may share by rounding alone.

        Kernels in half precision may take products in TF32, to which tensor cores cut numbers off. Needed by
        `test_half_precision_with_products_cut_off_to_tf32_is_as_accurate_as_plain_torch`.
        """
        if self.cuts_off:
            return thresholds.OPERATION_EPS * self.eps
        if self.is_half_precision:
            return max(thresholds.NOISE_FLOOR * self.eps, TF32_EPS)
        return thresholds.PRECISION_SCALE_EPS * self.eps

    @property
    def kink_step(self) -> float:
        """Displacement that decides a kink of the truth, relative to the inputs: smooth functions hardly change."""
        return min(2.0**-26, self.eps / 8.0)

    @property
    def internal_eps(self) -> float:
        """Spacing of the coarsest format in which a kernel of this format may compute inside."""
        return max(self.eps, TF32_EPS) if self.eps > thresholds.DOUBLE_EPS else self.eps

    @property
    def constants(self) -> float:
        """Relative error, the same at all inputs, that constants explain which are rounded inside: a spacing of this
        format, or some of TF32.

        Needed by `test_mean_over_a_power_of_two_of_columns_is_wrong`.
        """
        return max(self.eps, thresholds.OPERATION_EPS * min(self.internal_eps, TF32_EPS))


def errors_persist(here: Array, there: Array, truth: Array, form: Format) -> bool:
    """Whether errors are the same at two points everywhere, but for those of constants that are rounded."""
    xp = namespace(truth)
    some = xp.isfinite(here) & xp.isfinite(there) & (truth != 0.0)
    size, error = (quantile(xp.abs(array)[some], 0.5) for array in (truth, here))
    change = rms((here - there)[some]) if bool(xp.any(some)) else math.inf
    return error > form.constants * size and rms(here[some]) > thresholds.COHERENT * change


def an_entry_persists(here: Array, errors: Array, truths: Array) -> bool:
    """Whether one of the largest errors is there for other grad_outputs too: on average, or in proportion to the truth.

    The grad_outputs are along the first axis. Errors that are not finite persist, and single ones far above the others
    that are a large part of their entry.
    """
    xp = namespace(here)
    if not bool(xp.all(xp.isfinite(here)) & xp.all(xp.isfinite(errors))):
        return True
    size = xp.sqrt(xp.mean(truths * truths, axis=0))
    parts = xp.abs(here) / (size + nonzero_rms(xp.reshape(size, (-1,))) + 1e-300)
    usual = quantile(parts[parts > 0.0], 0.5)
    if peak(parts) > max(2.0 * thresholds.INTERVAL_WIDTH * usual, thresholds.LOW_PRECISION_PART):
        return True
    large, persists = xp.abs(here) >= 0.5 * peak(here), xp.zeros_like(here, dtype=xp.bool)
    for weights in (truths, xp.ones_like(truths)):
        square = xp.clip(xp.sum(weights * weights, axis=0), 1e-300)
        part = xp.sum(errors * weights, axis=0) / square
        error_of_part = xp.std(errors - part * weights, axis=0, correction=1) / xp.sqrt(square)
        persists = persists | (xp.abs(part) > thresholds.PRECISION_SCALE_WIDTH * error_of_part)
    return bool(xp.any(large & persists))


def steady_error(
    errors: Array, plain: Array, truths: Array, form: Format, accuracy: float = 0.0
) -> tuple[Array, float] | None:
    """Where errors are the same part of the truth in all samples, and the kernel's result over the truth there.

    Single entries are marked, else slices of an axis, else all entries together.

    Samples at different points and for different grad_outputs are along the first axis. A formula or a lost part gives
    the same factor in all of them; rounding does not, be it that of the kernel or the larger one of plain torch, which
    has a factor too where both lose the same. Errors below the roundoff of a typical entry, or below a quarter of a
    slice or of an entry, are left out; so are those up to `accuracy`, relative to the truth.
    """
    xp, axes = namespace(truths), tuple(range(1, truths.ndim))
    known = xp.isfinite(errors) & xp.isfinite(plain) & xp.isfinite(truths)
    errors, plain, truths = (xp.where(known, array, xp.zeros_like(array)) for array in (errors, plain, truths))
    size = xp.reshape(xp.sqrt(xp.mean(truths * truths, axis=0)), (-1,))
    limit = max(max(form.constants, accuracy) * nonzero_rms(size), thresholds.ROUNDOFFS * form.smallest)
    partitions = [(), *(tuple(other for other in axes if other != axis) for axis in axes), axes]
    for summed in dict.fromkeys(partitions):
        part, width = _shared_part(errors, truths, summed)
        usual, usual_width = _shared_part(plain, truths, summed)
        usual = abs(usual) + usual_width / thresholds.PRECISION_SCALE_WIDTH
        least = max(accuracy, form.constants if summed == axes else thresholds.LOW_PRECISION_PART)
        error = xp.sqrt(xp.mean(xp.mean(errors * errors, axis=0), axis=tuple(a - 1 for a in summed), keepdims=True))
        is_steady = (abs(part) > least) & (abs(part) > width) & (abs(part) > thresholds.COHERENT * usual)
        marked = is_steady & (error > limit)
        if bool(xp.any(marked)):
            worst = xp.max(xp.where(marked, error, xp.zeros_like(error)))
            factor = 1.0 + float(xp.reshape(part[marked & (error == worst)], (-1,))[0])
            return marked & xp.ones_like(known[0, ...]), factor
    return None


def _shared_part(errors: Array, truths: Array, summed: tuple[int, ...]) -> tuple[Array, Array]:
    """The part of the truth that the errors of each group of entries are, and half the width of its interval.

    A group has the entries along these axes. The samples are independent of each other.
    """
    xp = namespace(truths)
    products, squares = (xp.sum(some * truths, axis=summed, keepdims=True) for some in (errors, truths))
    total, count = xp.clip(xp.sum(squares, axis=0), 1e-300), truths.shape[0]
    part = xp.sum(products, axis=0) / total
    rest = products - part * squares
    width = xp.sqrt(xp.sum(rest * rest, axis=0) * count / (count - 1)) / total
    # A few samples may be at a tie that is decided in another way.
    is_there = squares > thresholds.NEARBY_PART**2 * xp.max(squares, axis=0)
    width = xp.where(2 * xp.sum(xp.astype(is_there, xp.int64), axis=0) > count, width, xp.full_like(width, math.inf))
    return part, thresholds.PRECISION_SCALE_WIDTH * width


MAP_CELLS = 24
"""Rows and columns of an error map at most."""

ErrorMap = dict[str, Sequence[Sequence[float]] | Sequence[str]]


def region(wrong: Array) -> str:
    """`, all in [0:8, 60:64]`: the smallest box around the marked entries; empty for one entry and for all of them."""
    xp = namespace(wrong)
    parts, is_all = [], True
    for axis in range(wrong.ndim):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        places = xp.nonzero(xp.any(wrong, axis=others) if others else wrong)[0]
        if not places.shape[0]:
            return ""
        first, last = int(places[0]), int(places[-1]) + 1
        is_whole = (first, last) == (0, wrong.shape[axis])
        is_all = is_all and is_whole
        parts.append(":" if is_whole else str(first) if last == first + 1 else f"{first}:{last}")
    return "" if is_all or all(part.isdecimal() for part in parts) else f", all in [{', '.join(parts)}]"


def factor_there(found: Array, truth: Array, wrong: Array) -> str:
    """`: there it is 0.5 times the reference`, if the marked entries have one factor; empty otherwise."""
    xp = namespace(wrong)
    usable = wrong & xp.isfinite(found) & xp.isfinite(truth)
    found, truth = (xp.where(usable, array, xp.zeros_like(array)) for array in (found, truth))
    square = float(xp.sum(truth * truth))
    if not square > 0.0 or int(xp.count_nonzero(usable)) < 2:
        return ""
    factor = float(xp.sum(found * truth)) / square
    rest = found - factor * truth
    if float(xp.sum(rest * rest)) > (thresholds.PLATEAU_RTOL * (factor - 1.0)) ** 2 * square:
        return ""
    return f": there it is {factor:.4g} times the reference"


def largest_part(found: Array, truth: Array) -> float:
    """The largest error of an entry, relative to it, or to a typical one if that is larger.

    The grad_outputs are along the first axis. Infinite where an entry is not finite.
    """
    xp, parts = namespace(truth), [0.0]
    for draw in range(truth.shape[0]):
        known, own = (xp.reshape(array[draw, ...], (-1,)) for array in (truth, found))
        error = xp.where(own == known, xp.zeros_like(known), xp.abs(own - known))
        parts.append(float(xp.max(error / (xp.maximum(xp.abs(known), nonzero_rms(known) + 0.0 * known) + 1e-300))))
    return max(parts) if all(map(math.isfinite, parts)) else math.inf


def error_map(found: Array, truth: Array, plain: Array) -> ErrorMap:
    """Largest errors by position, of the kernel and of plain torch, in at most `MAP_CELLS` rows and columns.

    Columns are positions along the last axis; rows are all others.
    """
    xp = namespace(truth)
    columns = truth.shape[-1] if truth.ndim else 1
    rows = math.prod(truth.shape) // max(1, columns)
    edges = _edges(rows), _edges(columns)
    names = ([str(a) if b == a + 1 else f"{a}:{b}" for a, b in parts] for parts in edges)
    matrices = (xp.reshape(array, (rows, columns)) for array in (xp.abs(found - truth), plain))
    kernel, usual = (
        [[float(xp.max(matrix[top:bottom, left:right])) for left, right in edges[1]] for top, bottom in edges[0]]
        for matrix in matrices
    )
    return {"kernel": kernel, "plain": usual, **dict(zip(("rows", "columns"), names, strict=True))}


def _edges(length: int) -> list[tuple[int, int]]:
    cells = min(length, MAP_CELLS)
    return [(length * k // cells, length * (k + 1) // cells) for k in range(cells)]
