"""The block of the Jacobian around a wrong entry, for the diagnosis and for figures; causes that further calls show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.decision import Entry
from gradvet.core.diagnosis import ZERO, diagnose
from gradvet.core.finite_differences import middle_step
from gradvet.core.localise import decide_entry
from gradvet.core.modes import Mode
from gradvet.core.problem import Distribution, Problem
from gradvet.core.vectors import Array, Space, as_lists, distinct_values, dot, namespace, nan_as_inf, peak, window

SIDE = 48
"""Number of rows, and of columns, of the block around a wrong entry."""

SIDE_IN_LARGE = 8
"""The same in spaces of more than `LARGE_SPACE` coordinates."""

LARGE_SPACE = 256

COUNTED_PART = 1.0 / 16.0
"""Errors from this part of the largest one on are counted as wrong entries."""

ZERO_IN_PART = (
    "The derivative is zero in all entries that were compared although the function varies there: look for a term, a "
    "row or a branch that the derivative leaves out, or a detach."
)

FEW_RATIOS = 2
"""Number of distinct values of a factor that some tensor has by chance."""

MAX_LISTED = 4
"""Wrong entries that are listed beside the worst."""


@dataclass(frozen=True, slots=True)
class Study:
    """The entries around a wrong one, and their diagnosis."""

    wrong: int
    nonzero: int
    """Entries at which the derivative or the differences are not zero."""
    entries: int
    others: tuple[Entry, ...]
    diagnosis: str
    block: Mapping[str, Any] = field(default_factory=dict)
    """Both versions of the block, for a figure."""


def study(context: Context, mode: Mode, entry: Entry) -> Study:
    """Compare the block of the Jacobian around an entry, within its input and its output."""
    problem = context.problem
    rows, columns = around(problem.codomain, entry.row), around(problem.domain, entry.column)
    rows, of_output = _in_whole_numbers(problem.codomain, rows)
    columns, of_input = _in_whole_numbers(problem.domain, columns)
    if context.out_of_budget:
        return Study(1, 1, 1, (), "")
    slopes, bends = _slopes(context, rows, columns)
    derivative = mode.block(problem, rows, columns)
    numerical, xp = _closest(derivative, slopes, bends), namespace(slopes)
    top = peak(numerical)
    ratio = thresholds.EXACT_RATIO if context.is_double else thresholds.EQUAL_RATIO
    limit = max(ratio * top, COUNTED_PART * abs(entry.derivative - entry.numerical))
    wrong = ~(xp.abs(derivative - numerical) <= limit + context.options.accuracy * xp.abs(derivative))
    is_zero = xp.maximum(xp.abs(derivative), xp.abs(numerical)) <= thresholds.EXACT_RATIO * top
    count = max(1, int(xp.count_nonzero(wrong)))
    others = [
        _measured(context, (rows.start + i, columns.start + j), float(derivative[i, j]))
        for i, j in _places(wrong, xp.abs(derivative - numerical))
        if (rows.start + i, columns.start + j) != (entry.row, entry.column)
    ]
    alike = _ratio_tolerance(entry)
    factor = wrong_factor(problem, rows, columns, numerical, derivative, wrong, alike)
    diagnosis = (
        _lost_slices(context, mode, entry)
        or factor
        or diagnose(
            numerical,
            derivative,
            limit,
            parts=(of_output, of_input),
            alike=alike,
            lengths={
                "output": _lengths(problem.codomain, rows.start),
                "input": _lengths(problem.domain, columns.start),
            },
            corner=(
                rows.start - _section(problem.codomain, rows.start).start,
                columns.start - _section(problem.domain, columns.start).start,
            ),
        )
    )
    return Study(
        count,
        max(count, int(xp.count_nonzero(~is_zero))),
        wrong.shape[0] * wrong.shape[1],
        tuple(other for other in others if not abs(other.derivative - other.numerical) <= other.error),
        ZERO_IN_PART if diagnosis == ZERO and not _is_zero_everywhere(context, mode, rows, columns) else diagnosis,
        block(numerical, derivative, names(problem.codomain, rows), names(problem.domain, columns)),
    )


def wrong_factor(
    problem: Problem, rows: range, columns: range, numerical: Array, derivative: Array, wrong: Array, alike: float
) -> str:
    """A sentence if derivative and slope of a block differ by a factor that is an input or output, element by element.

    Small entries, which are not counted as wrong, are compared too: one large entry alone would match some tensor.
    """
    xp = namespace(numerical)
    differs = xp.abs(derivative - numerical) > alike * xp.abs(numerical)
    differs = wrong | (differs & (xp.abs(numerical) > thresholds.EQUAL_RATIO * peak(numerical)))
    a, n = derivative[differs], numerical[differs]
    if a.shape[0] <= FEW_RATIOS:
        return ""
    factors = {"": xp.ones_like(a)}
    factors |= {name: values[differs] for name, values in _operands(problem, rows, columns).items()}
    names, lines = list(factors), xp.stack(list(factors.values()))
    left, right = lines * a, lines * n
    lengths, weights = (xp.sum(vectors * vectors, axis=1).tolist() for vectors in (left, right))
    ratios = (left @ right.T / xp.sum(right * right, axis=1)).tolist()
    for i, j in sorted(permutations(range(len(names)), 2), key=all):  # one factor before two
        ratio = ratios[i][j]
        # By Cauchy and Schwarz, a projection is about as long as the vector only if both are nearly parallel.
        if not ratio or not ratio * ratio * weights[j] >= (1.0 - alike) * lengths[i]:
            continue
        is_same = bool(xp.all(xp.abs(left[i, :] - ratio * right[j, :]) <= alike * abs(ratio) * xp.abs(right[j, :])))
        if is_same and len(distinct_values((lines[j, :] / lines[i, :]).tolist(), thresholds.NEAR_RATIO)) > FEW_RATIOS:
            break
    else:
        return ""
    lacks, has = names[i], names[j]
    times = "" if math.isclose(ratio, 1.0, rel_tol=alike) else f", apart from the constant factor {ratio:.6g}"
    if lacks and has:
        return f"The derivative has the factor {has} where the slope has {lacks}{times}: look for a wrong saved tensor."
    if lacks:
        return f"The slope is the derivative times {lacks}{times}: look for a factor that the derivative lacks."
    return f"The derivative is the slope times {has}{times}: look for a factor that the derivative has too many."


def _operands(problem: Problem, rows: range, columns: range) -> dict[str, Array]:
    """Real inputs and outputs with an element for each row or column of a block, by name, broadcast to the block.

    They have the last dimensions of the output or of the input that the block belongs to. One minus each is a factor
    of the slopes of logistic functions and gates.
    """
    found = {}
    domain, codomain = problem.domain, problem.codomain
    for own, places, axis in ((codomain, rows, 1), (domain, columns, 0)):
        start, lengths = _section(own, places.start).start, _lengths(own, places.start)
        for space, values in ((domain, problem.point), (codomain, problem.value)):
            for leaf, part in space.sections:
                shape, size = getattr(leaf.coordinates, "shape", ()), part.stop - part.start
                if size > 1 and lengths[-len(shape) :] == tuple(shape) and math.prod(shape) == size:
                    xp = namespace(values)
                    line = xp.stack([values[part.start + (place - start) % size] for place in places])
                    found[leaf.name] = xp.broadcast_to(xp.expand_dims(line, axis=axis), (len(rows), len(columns)))
    return found | {f"(1 - {name})": 1.0 - values for name, values in found.items()}


def _closest(derivative: Array, slopes: Array, bends: Array) -> Array:
    """The slopes; at a kink, the value between the one-sided slopes that is closest to the derivative."""
    xp = namespace(slopes)
    nearest = slopes + xp.clip(derivative - slopes, -xp.abs(bends), xp.abs(bends))
    return xp.where(xp.abs(bends) > thresholds.EQUAL_RATIO * xp.abs(slopes), nearest, slopes)


def _lost_slices(context: Context, mode: Mode, entry: Entry) -> str:
    """A sentence if the gradient is zero in all of the slices around the entry, where the function varies."""
    leaf = context.problem.domain.leaf_of(entry.column)
    where = zero_slices(context, leaf, entry.column) if mode.by_rows and not entry.derivative else ""
    return where and (
        f"The gradient is zero in {where} although the function varies there: look for a row, a tail or a branch that "
        "the derivative leaves out."
    )


def zero_slices(context: Context, leaf: int, column: int | None = None) -> str:
    """The neighbouring slices along a dimension in which the whole gradient of an input is zero, if there are any.

    If `column` is given, it lies in one of them. A window around an entry does not show how far its zeros reach.
    """
    domain = context.problem.domain
    section, lengths = domain.slices[leaf], _lengths(domain, domain.offsets[leaf])
    parts = domain.leaves[leaf].coordinates.parts
    if math.prod(lengths) * parts != section.stop - section.start:
        return ""
    gradient = context.random_vjp[1][section]
    xp = namespace(gradient)
    filled = xp.reshape(gradient != 0.0, (*lengths, parts))
    for axis, length in enumerate(lengths):
        kept = xp.any(filled, axis=tuple(other for other in range(len(lengths) + 1) if other != axis))
        zeros = [number for number in range(length) if not bool(kept[number])]
        if column is not None:
            index = (column - section.start) // parts // math.prod(lengths[axis + 1 :]) % length
            zeros = zeros if index in zeros else []
        if zeros and zeros[-1] - zeros[0] + 1 == len(zeros) < length:
            return named_slices(range(zeros[0], zeros[-1] + 1), axis, lengths)
    return ""


def named_slices(places: range, axis: int, lengths: Sequence[int]) -> str:
    """`[:, 6:]`, for neighbouring slices along one dimension."""
    shown = f"{places.start or ''}:{places.stop if places.stop < lengths[axis] else ''}"
    shown = str(places.start) if len(places) == 1 else shown
    return f"[{', '.join(shown if other == axis else ':' for other in range(len(lengths)))}]"


def _is_zero_everywhere(context: Context, mode: Mode, rows: range, columns: range) -> bool:
    """Whether the derivative is zero by all of an input, of which a window has zeros alone."""
    domain, codomain = context.problem.domain, context.problem.codomain
    section = _section(domain, columns.start)
    if mode.by_rows:
        return not peak(context.random_vjp[1][section])
    outputs = _section(codomain, rows.start)
    return (len(rows), len(columns)) == (outputs.stop - outputs.start, section.stop - section.start)


def _section(space: Space, index: int) -> slice:
    """Where the leaf of a coordinate lies."""
    return space.slices[space.leaf_of(index)]


def _lengths(space: Space, index: int) -> tuple[int, ...]:
    """Lengths of the dimensions of the leaf of a coordinate, where it has any."""
    return tuple(getattr(space.leaves[space.leaf_of(index)].coordinates, "shape", ()))


def _ratio_tolerance(entry: Entry) -> float:
    """Tolerance for equal ratios: a part of the relative error, within limits."""
    smallest, largest = thresholds.EXACT_RATIO, thresholds.EQUAL_RATIO
    if not entry.numerical:
        return largest
    off = abs(entry.derivative - entry.numerical)
    return min(largest, max(smallest, thresholds.NEAR_RATIO * off / abs(entry.numerical)))


def _in_whole_numbers(space: Space, window: range) -> tuple[range, int]:
    """The window extended to whole complex numbers, and the number of coordinates of a number."""
    leaf = space.locate(window.start).leaf
    parts, section = space.leaves[leaf].coordinates.parts, space.slices[leaf]
    start = window.start - (window.start - section.start) % parts
    stop = window.stop + (section.start - window.stop) % parts
    return range(start, min(stop, section.stop)), parts


def _measured(context: Context, place: tuple[int, int], derivative: float) -> Entry:
    """One more entry, with the change from one step to its half and the roundoff as error bar."""
    row, column = place
    problem, step, slopes = context.problem, middle_step(context.eps), []
    for part in (1.0, 0.5):
        found = context.wide_difference(context.column(column), part)
        slopes.append(float(found.odd[row]) / (float(found.displacement[column]) or 1.0))
    noise = 2.0 * float(context.value_noise[row]) / (step * (float(context.lengths[column]) or 1.0))
    bar = abs(slopes[1] - slopes[0]) + noise
    output, source = problem.codomain.locate(row), problem.domain.locate(column)
    return Entry(output, source, derivative, slopes[1], bar, row=row, column=column)


def _slopes(context: Context, rows: range, columns: range) -> tuple[Array, Array]:
    """Central differences of a block, and half the change of slope from one side of the point to the other."""
    slopes, bends = [], []
    for column in columns:
        found = context.wide_difference(context.column(column))
        size = float(found.displacement[column]) or 1.0
        slopes.append(found.odd[rows.start : rows.stop] / size)
        bends.append(found.even[rows.start : rows.stop] / size)
    xp = namespace(slopes[0])
    return xp.stack(slopes, axis=1), xp.stack(bends, axis=1)


def _places(wrong: Array, errors: Array) -> list[tuple[int, int]]:
    """The wrong entries with the largest errors, and those that are not finite before them."""
    xp = namespace(wrong)
    sizes = xp.where(wrong, nan_as_inf(errors), xp.full_like(errors, -1.0))
    order = xp.argsort(xp.reshape(sizes, (-1,)), descending=True)
    width, count = int(wrong.shape[1]), min(MAX_LISTED + 1, int(xp.count_nonzero(wrong)))
    return [divmod(int(place), width) for place in order[:count]]


def swapped_inputs(context: Context, mode: Mode, entry: Entry) -> str:
    """A sentence if the gradient of the input is that of another one of the same size. Calls function and VJP."""
    problem = context.problem
    wrong = problem.domain.locate(entry.column).leaf
    sections = problem.domain.slices
    sizes = [section.stop - section.start for section in sections]
    partners = [leaf for leaf, size in enumerate(sizes) if size == sizes[wrong] and leaf != wrong]
    if not mode.by_rows or not partners or context.out_of_budget:
        return ""
    v = problem.random(problem.codomain.size, Distribution.OFF_ZERO)
    gradient = problem.vjp(v)
    direction = problem.random(sizes[wrong], Distribution.OFF_ZERO) * context.lengths[sections[wrong]]

    def slope(leaf: int) -> float:
        u = problem.zeros(problem.domain.size)
        u[sections[leaf]] = direction
        found = context.wide_difference(u)
        return dot(v, found.odd) / (dot(found.displacement, u) / dot(u, u))

    def predicted(leaf: int) -> float:
        return dot(gradient[sections[leaf]], direction)

    def is_same(found: float, expected: float) -> bool:
        return abs(found - expected) <= thresholds.EQUAL_RATIO * abs(expected)

    own = slope(wrong)
    for partner in partners[:MAX_LISTED]:
        other = slope(partner)
        if not is_same(own, other) and is_same(predicted(wrong), other) and is_same(predicted(partner), own):
            names = (problem.domain.leaves[leaf].name for leaf in (wrong, partner))
            return (
                f"The gradients of {' and '.join(names)} are swapped: look at the order in which backward returns them."
            )
    return ""


def ignored_output(context: Context, mode: Mode, entry: Entry) -> str:
    """A sentence if the gradient of an input counts other outputs but not that of a wrong entry. Calls the VJP."""
    problem = context.problem
    if not mode.by_rows or len(problem.codomain.leaves) < 2:
        return ""
    output = problem.codomain.locate(entry.row).leaf
    column = problem.domain.slices[problem.domain.locate(entry.column).leaf]

    def has_gradient(v: Array) -> bool:
        return bool(peak(problem.vjp(v)[column]))

    v = problem.random(problem.codomain.size, Distribution.OFF_ZERO)
    own = window(v, problem.codomain.slices[output])
    if has_gradient(own) or not has_gradient(v - own):
        return ""
    name = problem.codomain.leaves[output].name
    return f"The gradient does not depend on the grad_output of {name}: look for an argument that backward ignores."


MAX_BLOCK_ENTRIES = SIDE * SIDE
"""Largest number of entries of a block that is kept."""


def around(space: Space, index: int) -> range:
    """Coordinates of the leaf around one of them, all if they are few."""
    section, most = space.slices[space.leaf_of(index)], SIDE if space.size <= LARGE_SPACE else SIDE_IN_LARGE
    start = max(section.start, min(index - most // 2, section.stop - most))
    return range(start, min(section.stop, start + most))


def figures(context: Context, mode: Mode, place: tuple[int, int]) -> dict[str, Any]:
    """The block around an entry and the sweep along its column, for a page. Calls the function and its derivative."""
    problem = context.problem
    rows, columns = around(problem.codomain, place[0]), around(problem.domain, place[1])
    numerical, derivative = _slopes(context, rows, columns)[0], mode.block(problem, rows, columns)
    shown = block(numerical, derivative, names(problem.codomain, rows), names(problem.domain, columns))
    return {"block": shown, "sweep": decide_entry(context, mode, *place).sweep}


def block(numerical: Array, derivative: Array, rows: Sequence[str], columns: Sequence[str]) -> dict[str, Any]:
    """Both versions of a block of outputs × inputs, with the names of its rows and columns; nothing if it is large."""
    if len(rows) * len(columns) > MAX_BLOCK_ENTRIES:
        return {}
    return {
        "numerical": as_lists(numerical),
        "derivative": as_lists(derivative),
        "rows": list(rows),
        "columns": list(columns),
    }


def names(space: Space, indices: range) -> list[str]:
    return [str(space.locate(index)) for index in indices]
