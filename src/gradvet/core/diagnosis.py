"""The likely cause of wrong entries, from the pattern that they form.

A pattern is a function that returns its sentence, or nothing where the entries do not fit. The first that fits, in the
order of `PATTERNS`, is reported; the most specific come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gradvet.core import thresholds
from gradvet.core.vectors import Array, distinct_values, namespace

MAX_PERMUTED = 100
"""Largest number of rows or columns that are compared with permutations of each other."""

ZERO = (
    "The derivative is zero everywhere although the function varies: look for a detach, a returned None, or an input "
    "that the derivative forgets."
)


def diagnose(
    numerical: Array,
    derivative: Array,
    tolerance: float,
    *,
    parts: tuple[int, int] = (1, 1),
    alike: float | None = None,
    lengths: Mapping[str, Sequence[int]] | None = None,
    corner: tuple[int, int] = (0, 0),
) -> str:
    """One sentence about a block of outputs × inputs whose two versions disagree.

    `parts` are the numbers of coordinates of one number of the output and of the input: 2 where it is complex. `alike`
    is the relative difference up to which ratios and entries count as equal. `lengths` has the lengths of the
    dimensions of the output and of the input, by these names; `corner` is the place of the first entry in them.
    """
    xp = namespace(numerical)
    if not bool(xp.all(xp.isfinite(derivative))):
        if bool(xp.all(xp.isfinite(numerical))):
            return "The derivative is not finite where the function has a finite slope: look for 0/0 or 0·inf in it."
        return "Both the derivative and the function's differences are not finite at this point."
    if not bool(xp.all(xp.isfinite(numerical))):
        return "The function itself is not finite close to this point: choose inputs inside its domain."
    alike = thresholds.EQUAL_RATIO if alike is None else alike
    case = _Case(xp, numerical, derivative, tolerance, parts, alike, lengths or {}, corner)
    if not bool(xp.any(case.wrong)):
        return ""
    return next((sentence for pattern in PATTERNS if (sentence := pattern(case))), "")


@dataclass
class _Case:
    """Two versions of one matrix, and where they differ; `xp` has the functions for them."""

    xp: Array
    numerical: Array
    derivative: Array
    tolerance: float
    parts: tuple[int, int]
    alike: float
    lengths: Mapping[str, Sequence[int]]
    corner: tuple[int, int]

    @cached_property
    def wrong(self) -> Array:
        return self.xp.abs(self.derivative - self.numerical) > self.tolerance + self.alike * self.xp.abs(self.numerical)

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.numerical.shape[0]), int(self.numerical.shape[1])

    @property
    def is_square(self) -> bool:
        return self.shape[0] == self.shape[1] > 1

    def same(self, found: Array, expected: Array) -> bool:
        return bool(self.xp.all(self.xp.abs(found - expected) <= self.tolerance + self.alike * self.xp.abs(expected)))

    @cached_property
    def largest(self) -> float:
        return max(float(self.xp.max(self.xp.abs(one))) for one in (self.numerical, self.derivative))

    def zeros(self, entries: Array, relative: float) -> Array:
        """Which entries are zero: beside a large error, the tolerance is wider than entries that are not."""
        return self.xp.abs(entries) <= min(self.tolerance, relative * self.largest)

    def is_zero(self, entries: Array) -> bool:
        return bool(self.xp.all(self.zeros(entries, thresholds.EQUAL_RATIO)))

    @cached_property
    def off_diagonal(self) -> Array:
        return 1.0 - self.xp.eye(self.shape[0], dtype=self.numerical.dtype, device=self.numerical.device)


def _absent(case: _Case) -> str:
    if not bool(case.xp.any(case.derivative != 0.0)):
        return ZERO
    if case.is_zero(case.numerical):
        return (
            "The outputs do not change when this input does, yet its derivative is not zero. If the function rounds on "
            "purpose, pass the function whose derivative it should have as surrogate=. Look for an input that the "
            "function ignores, an effect below the roundoff of the outputs, or state that is kept between calls."
        )
    return ""


def _indifferent(case: _Case) -> str:
    for side, found, expected, cause in (
        ("output", case.derivative, case.numerical, "a grad_output that is ignored or summed up"),
        ("input", case.derivative.T, case.numerical.T, "a sum, a mean or a broadcast over them"),
    ):
        is_same = len(found) > 1 and _spread(case, found) <= case.alike * float(case.xp.max(case.xp.abs(found)))
        if is_same and not case.same(expected, expected[:1, :]):
            return (
                f"The derivative is the same for every {side} element, the function's slope is not: look for {cause}."
            )
    return ""


def _diagonal(case: _Case) -> str:
    if not case.is_square or max(case.parts) > 1 or _order(case)[0] is not None:
        return ""
    if case.is_zero(case.derivative * case.off_diagonal) and not case.is_zero(case.numerical * case.off_diagonal):
        return (
            "The derivative is diagonal although the function couples its elements: its off-diagonal terms are missing."
        )
    difference = case.derivative - case.numerical
    if case.is_zero(difference * case.off_diagonal):
        return _on_diagonal(case, case.xp.linalg.diagonal(difference))
    if case.is_zero(case.numerical * case.off_diagonal):
        return (
            "The derivative couples elements that the function treats one by one: look for an extra sum or a broadcast "
            "in it."
        )
    return ""


def _on_diagonal(case: _Case, amounts: Array) -> str:
    """The sentence for a wrong diagonal beside right entries that are not zero."""
    alone = case.is_zero(case.numerical * case.off_diagonal)
    if alone or case.is_zero(amounts[:1]) or not case.same(amounts, amounts[:1]):
        return ""
    return (
        f"The diagonal, and nothing else, is off by {float(amounts[0]):.6g}: look for an identity that is missing or "
        "too many, such as a residual connection."
    )


def _conjugated(case: _Case) -> str:
    """Entries between a real and an imaginary part change their sign under conjugation, the others do not."""
    if max(case.parts) == 1:
        return ""
    xp, device = case.xp, case.numerical.device
    rows, columns = (xp.arange(size, device=device) % parts for size, parts in zip(case.shape, case.parts, strict=True))
    mixed = (rows[:, None] + columns[None, :]) % 2 == 1
    if case.same(xp.where(mixed, -case.derivative, case.derivative), case.numerical):
        return "The derivative is the complex conjugate of what it should be: look for a missing or an extra conj."
    return ""


def _factor(case: _Case) -> str:
    xp, wrong = case.xp, case.wrong
    a, n = case.derivative[wrong], case.numerical[wrong]
    weight = float(xp.sum(n * n))
    if not weight or (a.shape[0] < 2 and math.prod(case.shape) > 1):
        return ""
    if case.is_zero(a):
        return "The wrong entries are zero: look for a term, a row or a branch that the derivative leaves out."
    ratio = float(xp.sum(a * n)) / weight
    noise = thresholds.EXACT_RATIO * float(xp.max(xp.abs(a)))
    if bool(xp.any(xp.abs(a - ratio * n) > case.alike * xp.abs(a) + noise)):
        return ""
    where = "everywhere" if case.same(case.derivative, ratio * case.numerical) else "in all the wrong entries"
    is_exact = not bool(xp.any(xp.abs(a - ratio * n) > noise))
    if math.isclose(ratio, -1.0, rel_tol=case.alike):
        return f"The sign is wrong {where}: the derivative is the negative of the function's slope."
    shown = f"{ratio:.6g}" if is_exact else f"about {ratio:.3g}"
    return f"The ratio is {shown} {where}: look for {_cause(case, ratio)}."


def _cause(case: _Case, ratio: float) -> str:
    """The likely cause of a factor: a number of elements, or its inverse, suggests a mean or a sum."""
    known = [
        (
            size,
            f"there are {size} {side} elements",
            "a missing mean or a sum too many",
            "a missing sum or a mean too many",
        )
        for side, size in zip(("output", "input"), case.shape, strict=True)
    ]
    has_reduction = len({tuple(lengths) for lengths in case.lengths.values()}) > 1
    for side, lengths in case.lengths.items() if has_reduction else ():
        for number, size in enumerate(lengths):
            words = f"dimension {number} of the {side} has {size} elements"
            known.append((size, words, "a missing mean over it", "a mean over it that should be a sum"))
    for size, words, if_large, if_small in known:
        for expected, cause in ((size, if_large), (1.0 / max(size, 1), if_small)):
            if size > 1 and math.isclose(ratio, expected, rel_tol=case.alike):
                return f"a wrong constant factor, or, as {words}, {cause}"
    return "a wrong constant factor"


def _offset(case: _Case) -> str:
    difference = case.derivative - case.numerical
    amount = float(case.xp.mean(difference))
    if math.prod(case.shape) < 3 or float(case.xp.max(case.xp.abs(difference - amount))) > case.alike * abs(amount):
        return ""
    return f"Every entry is off by the same amount, {amount:.6g}: look for a constant, mean or sum too few or too many."


def _shared(case: _Case) -> str:
    """Errors that are the same along a dimension: the term that is missing does not depend on the place in it."""
    both = case.derivative - case.numerical, case.numerical
    limit = case.alike * float(case.xp.max(case.xp.abs(both[0])))
    for side, number, of in (("input", 1, ""), ("output", 0, " of grad_output")):
        error, slope = (one.T if number else one for one in both)
        lengths = case.lengths.get(side, ()) if max(case.parts) == 1 else ()
        for axis in reversed(range(len(lengths))):
            groups = _along(axis, lengths, range(case.corner[number], case.corner[number] + len(error)))
            seen = [group for group in groups if float(case.xp.max(case.xp.abs(error[group, :]))) > limit]
            if (
                min(map(len, seen)) > 2
                and all(_spread(case, error[group, :]) <= limit for group in groups)
                and any(_spread(case, slope[group, :]) > case.tolerance for group in seen)
            ):
                cause = f"a mean or a sum{of} over it that the derivative lacks or has too many"
                return f"The error is the same for all elements along dimension {axis} of the {side}: look for {cause}."
    return ""


def _along(axis: int, lengths: Sequence[int], places: range) -> list[list[int]]:
    """Which of the elements in these places differ along one dimension alone, by their numbers in the range."""
    stride, groups = math.prod(lengths[axis + 1 :]), dict[int, list[int]]()
    for number, place in enumerate(places):
        groups.setdefault(place - place // stride % lengths[axis] * stride, []).append(number)
    return list(groups.values())


def _spread(case: _Case, rows: Array) -> float:
    """The largest difference between rows."""
    return float(case.xp.max(case.xp.abs(rows - rows[:1, :])))


def _transposed(case: _Case) -> str:
    if case.is_square and case.same(case.derivative.T, case.numerical):
        return "The derivative is the transpose of the function's Jacobian: look for swapped operands or axes."
    return ""


def _permuted(case: _Case) -> str:
    order, side = _order(case)
    if order is None:
        return ""
    size = len(order)
    if sum(place != number for number, place in enumerate(order)) == 2:
        return f"Two {side} elements are exchanged in the derivative: look for swapped operands or indices."
    shift = (order[0] + size // 2) % size - size // 2
    if all(place == (number + shift) % size for number, place in enumerate(order)):
        return f"The derivative is shifted by {abs(shift)} along the {side} elements: look for an index that is off."
    if order == list(range(size))[::-1]:
        return f"The derivative has the {side} elements in reverse order: look for a flip that is missing or too many."
    return f"The derivative has the {side} elements in another order: look for a wrong axis, reshape or index."


def _order(case: _Case) -> tuple[list[int] | None, str]:
    """The order of the elements of one side in the derivative, if only their order is wrong."""
    inputs = _matching(case, case.derivative.T, case.numerical.T)
    if inputs is not None:
        return inputs, "input"
    return _matching(case, case.derivative, case.numerical), "output"


def _matching(case: _Case, found: Array, expected: Array) -> list[int] | None:
    """For each row of `found` the row of `expected` that it equals, each used once; None if there is no such order."""
    xp, size = case.xp, int(found.shape[0])
    if not 2 <= size <= MAX_PERMUTED:
        return None
    allowed = case.tolerance + case.alike * xp.abs(expected)
    order: list[int] = []
    for number in range(size):
        alike = xp.all(xp.abs(found[number, :] - expected) <= allowed, axis=1)
        # The row itself first, so that right rows keep their place.
        candidates = [number, *range(size)]
        place = next((place for place in candidates if bool(alike[place]) and place not in order), None)
        if place is None:
            return None
        order.append(place)
    return order


def _nearly_factor(case: _Case) -> str:
    """Ratios that differ a little: a part of the derivative has a wrong factor."""
    ratios = _ratios(case)
    if (
        len(ratios) < 2
        or not max(map(abs, ratios)) <= (1.0 + thresholds.NEAR_RATIO) * min(map(abs, ratios))
        or min(ratios) * max(ratios) <= 0.0
    ):
        return ""
    spread = _range_of(ratios, "wrong")
    if max(abs(ratio - 1.0) for ratio in ratios) <= thresholds.NEAR_RATIO:
        return (
            f"{spread}: the derivative is nearly right. Look for an approximate formula, a constant with too few "
            "digits, or a small term that is missing or has a wrong factor."
        )
    return f"{spread}: look for a wrong factor of one term among several."


def _ratios(case: _Case) -> list[float]:
    """Derivative over slope of the wrong entries that are not zero."""
    xp = case.xp
    telling = case.wrong & (xp.abs(case.numerical) > case.tolerance)
    return [float(ratio) for ratio in case.derivative[telling] / case.numerical[telling]]


def _misplaced(case: _Case) -> str:
    """Entries where the function has none, and none where it has some: both, so that no factor explains them."""
    # Among many entries some are small by chance.
    exact = thresholds.EXACT_RATIO
    extra, lost = (case.wrong & case.zeros(entries, exact) for entries in (case.numerical, case.derivative))
    if min(int(case.xp.count_nonzero(entries)) for entries in (extra, lost)) < 2:
        return ""
    return (
        "The derivative is zero where the function varies, and not zero where it does not: look for a wrong axis, "
        "reshape, permutation or index."
    )


def _unmasked(case: _Case) -> str:
    """Wrong entries alone where the function does not vary."""
    wrong = case.numerical[case.wrong]
    if int(wrong.shape[0]) < 2 or case.is_zero(case.numerical) or not case.is_zero(wrong):
        return ""
    return "The wrong entries should be zero: look for a mask, a clamp or a branch that the derivative leaves out."


def _place(case: _Case) -> str:
    xp, wrong = case.xp, case.wrong
    # Rows and columns without any entry have nothing that could be wrong.
    entries = wrong | (xp.abs(case.numerical) > case.tolerance)
    rows, columns = xp.any(entries, axis=1), xp.any(entries, axis=0)
    sides = {"output": xp.any(wrong, axis=1)[rows], "input": xp.any(wrong, axis=0)[columns]}
    if int(xp.count_nonzero(wrong)) == 1 and math.prod(case.shape) > 1:
        others = case.derivative - xp.where(wrong, case.derivative, case.numerical)
        what = "A single entry is wrong" if case.is_zero(others) else "One entry has by far the largest error"
        return f"{what}: look at how the derivative treats that element, its boundary or its index."
    for side, affected in sides.items():
        if int(xp.count_nonzero(affected)) == 1 and len(affected) > 1:
            return (
                f"Only one {side} element is affected: look at how the derivative treats that element or its boundary."
            )
    for side, affected in sides.items():
        number = int(xp.count_nonzero(affected))
        if 2 * number > len(affected):
            continue  # a tail is the smaller part
        if bool(xp.all(affected[len(affected) - number :])):
            return f"Only the last {number} {side} elements are affected: look for a tail that is handled apart."
        if bool(xp.all(affected[:number])):
            return f"Only the first {number} {side} elements are affected: look for a start that is handled apart."
    ratios = [ratio + 0.0 for ratio in _ratios(case)]
    distinct = distinct_values(ratios, case.alike)
    if len(ratios) > 2 and len(distinct) == 2:
        low, high = distinct
        return f"The ratios of the wrong entries are {low:.4g} or {high:.4g}: look for two cases that are confused."
    if len(distinct) < 2:
        return ""
    return f"{_range_of(ratios, 'larger wrong')}: no common factor, sign, order, row or column explains them."


def _range_of(ratios: Sequence[float], which: str) -> str:
    """Where the ratios of the wrong entries lie, with as many digits as they differ in."""
    low, high = (f"{bound:.4g}" for bound in (min(ratios), max(ratios)))
    if low == high == "1":
        low, high = (f"1{bound - 1.0:+.2g}" for bound in (min(ratios), max(ratios)))
    return f"The ratios of the {which} entries are {f'about {low}' if low == high else f'between {low} and {high}'}"


PATTERNS: tuple[Callable[[_Case], str], ...] = (
    _absent,
    _indifferent,
    _diagonal,
    _conjugated,
    _factor,
    _offset,
    _shared,
    _transposed,
    _permuted,
    _nearly_factor,
    _misplaced,
    _unmasked,
    _place,
)
