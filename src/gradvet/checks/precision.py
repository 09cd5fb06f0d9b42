"""The check that a derivative in low precision is that of the reference in float64 or float32, up to roundoff.

Rounding errors are incoherent: they differ from entry to entry. Errors of a formula or of a kernel are not. So each
entry is compared with its own roundoff, and all entries of an input are compared by their common scale, which resolves
far smaller errors: a factor of 0.97 in bfloat16 shows in the scale of a hundred entries, and in none of them alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gradvet.checks.low_precision_entries import (
    JITTERS,
    LeafComparison,
    PairNearby,
    PieceStatistics,
    Sample,
    distance,
    is_framework,
)
from gradvet.core import thresholds
from gradvet.core.context import GIVEN, Context
from gradvet.core.frontend import BranchCounts
from gradvet.core.gradient_match import inner_noise, natural_noise, smoothed_noise, value_roundoff
from gradvet.core.problem import Distribution
from gradvet.core.results import Finding, Mismatch, Verdict
from gradvet.core.runner import CheckFunction
from gradvet.core.spaces import Array, Location, Space
from gradvet.core.vectors import all_finite, finite_part, namespace, peak, pieces
from gradvet.errors import first_line

MAX_DRAWS, ENOUGH_ENTRIES = 8, 256
"""Number of random cotangents: as many as give this many entries in the smallest input, between 2 and the maximum."""

OVERFLOWS = "the values themselves overflow in this precision"
RIGHT = "the gradient is as good as its precision allows"
CHANGED_BRANCHES = (
    "in {}, {} of {} elements are on another side of a kink by roundoff, or another one is selected: the gradient in "
    "low precision was compared on its own sides"
)
ROUNDED_OPERATORS = (
    "roundoff hides errors in the comparison with {}: the derivative was also compared with one whose operators round"
)
ADVICE = "The formula is right in {}: look for sums, products or intermediate results kept in low precision."


@dataclass(frozen=True, slots=True)
class BranchPair:
    """A problem in low precision and its reference, whose passes take the branches of the problem's last pass."""

    given: Context
    reference: Context
    branches: BranchCounts


SameBranches = Callable[[], BranchPair | None]
"""Makes the pair; None where branches cannot be seen."""

Rounded = Callable[[Callable[[], Array]], Array | None]
"""The result of a call of the reference in which every operator rounds to the given format; None where unknown."""


def precision_against(
    reference: Context,
    same_branches: SameBranches = lambda: None,
    rounded: Rounded = lambda call: None,
) -> CheckFunction:
    """The check of a problem in low precision against its reference in float64 or float32.

    Where they differ, they are compared once more on the same branches: roundoff may put elements on the other side of
    a kink, so that both gradients are right.
    """

    def precision(context: Context) -> Iterator[Finding]:
        problem, rows = context.problem, context.problem.codomain.size
        if not problem.domain.size:
            yield Finding("precision", Verdict.INCONCLUSIVE, "there is no gradient to compare")
            return
        xp = namespace(problem.value)
        low, high = problem.value[:rows], reference.problem.value[:rows]
        if bool(xp.any(~xp.isfinite(low) & xp.isfinite(high))):
            yield Finding("precision", Verdict.INCONCLUSIVE, OVERFLOWS)
            return
        for compare in (_reverse, _forward):
            finding = compare(context, reference, rounded)
            if finding is not None and not _is_settled(context, finding) and (pair := same_branches()) is not None:
                finding = _on_same_branches(pair, finding, compare(pair.given, pair.reference, rounded))
            if finding is not None and not _is_settled(context, finding):
                finding = _with_rounded_operators(context, reference, finding, rounded)
            if finding is not None:
                yield finding

    return precision


def _is_settled(context: Context, finding: Finding) -> bool:
    """Whether the derivatives agree, and every input was compared as sharply as asked for."""
    mode, ledger = str(finding.facts.get("mode")), context.record.ledger
    sharpest = [ledger.resolution(leaf.name, mode, GIVEN) for leaf in context.problem.domain.leaves]
    return finding.verdict is Verdict.PASS and max(sharpest, default=0.0) <= context.asked_resolution


def _on_same_branches(pair: BranchPair, before: Finding, after: Finding | None) -> Finding:
    """The second finding, with the number of elements that were on another side; the first one where there is none."""
    if after is None or not pair.branches.changed:
        return before
    changed = {"changed_branches": pair.branches.changed, "branches": pair.branches.count}
    pair.given.record.note(CHANGED_BRANCHES.format(pair.reference.precision, *changed.values()))
    return replace(after, facts={**after.facts, **changed})


def _with_rounded_operators(context: Context, reference: Context, before: Finding, rounded: Rounded) -> Finding:
    """The derivatives against those of the reference in which every operator rounds to the given format.

    Roundoff that later operators enlarge hides errors in the comparison with float64. Here both derivatives have the
    same one. A finding that custom rules are wrong stays.
    Needed by `test_roundoff_that_operators_enlarge_hides_no_error`.
    """
    mode = str(before.facts.get("mode"))
    is_explicable = before.verdict is Verdict.PASS or is_framework(context)
    if not is_explicable or before.verdict is Verdict.SKIPPED or "ratio" not in before.facts:
        return before
    statistics = _Statistics(context, mode)
    for _ in range(_draws(statistics.space)):
        sample = _rounded_sample(context, reference, mode, rounded)
        if sample is None:
            return before
        statistics.add(sample)
    found = statistics.comparisons()
    resolutions = statistics.resolutions(found)
    if max(one.severity for one in found) > 1.0 or max(resolutions.values()) > context.asked_resolution:
        return before
    _enter(context, mode, resolutions)
    context.record.note(ROUNDED_OPERATORS.format(reference.precision))
    return Finding("precision", Verdict.PASS, RIGHT, facts=before.facts)


def _rounded_sample(context: Context, reference: Context, mode: str, rounded: Rounded) -> Sample | None:
    problem = context.problem
    if mode == "reverse":
        v, here = problem.random(problem.codomain.size, Distribution.NEAR_UNIT), problem.zeros(problem.domain.size)
        v = problem.representable(v)
        found, expected = problem.vjp_at(here, v), rounded(lambda: reference.problem.vjp_at(here, v))
        space, natural = problem.domain, natural_noise(context, v)
    else:
        u = problem.representable(context.joint_direction(), problem.domain)
        found, expected = problem.jvp(u), rounded(lambda: reference.problem.jvp(u))
        space, natural = problem.codomain, _natural_tangent_noise(context)
    if expected is None or not all_finite(expected):
        return None
    noise = problem.eps * namespace(found).abs(expected)
    parts = [expected[space.slice(number)] for number in range(len(space.leaves))]
    responses = [[0.0] * len(parts)] * JITTERS
    squares = [float(part @ part) for part in parts]
    return Sample(found, expected, noise, natural, lambda: noise, responses, squares, lambda: None)


def _reverse(context: Context, reference: Context, rounded: Rounded) -> Finding | None:
    if not context.has_reverse:
        return None
    problem, rows = context.problem, context.problem.codomain.size
    # Random signs, and ones, whose sums do not cancel.
    cotangents = (
        problem.zeros(rows) + 1.0 if number == 1 else problem.random(rows, Distribution.NEAR_UNIT)
        for number in range(_draws(problem.domain))
    )

    samples = (_vjp_sample(context, reference, problem.representable(v), rounded) for v in cotangents)
    return _compared(context, reference, "reverse", samples)


def _forward(context: Context, reference: Context, rounded: Rounded) -> Finding | None:
    """JVPs in the given precision; nothing where there is no forward mode, which the check `forward` reports."""
    problem = context.problem
    samples = (_jvp_sample(context, reference, rounded) for _ in range(_draws(problem.codomain)))
    try:
        return _compared(context, reference, "forward", samples)
    except Exception as error:
        if problem.rules.is_unsupported(error):
            return None
        if not problem.rules.are_builtin:
            raise
        # Needed by `test_forward_mode_that_raises_under_autocast_counts_as_none`.
        words = f"the framework's own forward mode raises in this precision: {first_line(error)}"
        return Finding("precision", Verdict.SKIPPED, words, facts={"mode": "forward"})


def _draws(space: Space) -> int:
    smallest = min((leaf.coordinates.size for leaf in space.leaves if leaf.coordinates.size), default=1)
    return max(2, min(MAX_DRAWS, math.ceil(ENOUGH_ENTRIES / smallest)))


def _vjp_sample(context: Context, reference: Context, v: Array, rounded: Rounded) -> Sample:
    problem, wide = context.problem, reference.problem
    found, expected = problem.vjp(v), wide.vjp(v)
    # Gradients next to the point have graphs of their own.
    wide.release_graph()

    def changed(displacement: Array, changes: Array) -> Array:
        response = wide.vjp_at(displacement, v * (1.0 + changes))
        response -= expected
        return response

    def inner() -> Array:
        again = rounded(lambda: wide.vjp_at(problem.zeros(found.shape[0]), v))
        return _inner_noise(inner_noise(context, v), again, expected, problem.domain)

    def elsewhere() -> tuple[Array, Array]:
        place = _nearby(context)
        return problem.vjp_at(place, v), wide.vjp_at(place, v)

    known = found, expected, lambda: natural_noise(context, v), inner
    return _sample(context, known, changed, problem.domain, elsewhere)


def _jvp_sample(context: Context, reference: Context, rounded: Rounded) -> Sample:
    problem, wide = context.problem, reference.problem
    u = problem.representable(context.joint_direction(), problem.domain)
    found, expected = problem.jvp(u), wide.jvp(u)

    def changed(displacement: Array, changes: Array) -> Array:
        response = wide.jvp_at(displacement, u * (1.0 + changes))
        return (wide.jvp(u * (1.0 + changes)) if response is None else response) - expected

    natural = _natural_tangent_noise(context)
    is_small = peak(finite_part(problem.value[: natural.shape[0]])) <= problem.eps**thresholds.PRECISION_SCALE_POWER

    def inner() -> Array:
        floor = natural * 0.0 + (problem.eps if is_small else 0.0)
        return _inner_noise(floor, rounded(lambda: wide.jvp(u)), expected, problem.codomain)

    def elsewhere() -> tuple[Array, Array] | None:
        place = _nearby(context)
        pair = problem.jvp_at(place, u), wide.jvp_at(place, u)
        return None if pair[0] is None or pair[1] is None else (pair[0], pair[1])

    return _sample(context, (found, expected, lambda: natural, inner), changed, problem.codomain, elsewhere)


def _natural_tangent_noise(context: Context) -> Array:
    """Noise of each entry of Ju if an output, or a typical one, changes by one roundoff."""
    problem, xp = context.problem, namespace(context.problem.value)
    value = xp.abs(finite_part(problem.value[: problem.codomain.size]))
    typical = peak(value) / max(1, value.shape[0]) ** 0.5
    # Saturated outputs, as in `natural_noise`: needed by `gelu_at_minus_nine` in float32.
    return problem.eps * xp.clip(value, 1.0 if typical <= thresholds.DOUBLE_EPS else typical)


def _inner_noise(floor: Array, again: Array | None, expected: Array, space: Space) -> Array:
    """The noise of each entry by roundoff inside the function, by a derivative whose operators all round.

    Needed by `test_gradient_that_consists_of_the_roundoff_of_each_operator_does_not_fail`.
    """
    if again is None:
        return floor
    return namespace(floor).maximum(floor, smoothed_noise(finite_part(abs(again - expected)), space))


def _nearby(context: Context) -> Array:
    """A displacement by some roundoffs of the inputs, as their format represents it."""
    return context.problem.perturbation(distance(context.problem.eps) * value_roundoff(context)).vector


def _sample(
    context: Context,
    known: tuple[Array, Array, Callable[[], Array], Callable[[], Array]],
    changed: Callable[[Array, Array], Array],
    space: Space,
    elsewhere: PairNearby,
) -> Sample:
    """Found and expected derivative with the roundoff of each entry.

    The roundoff is the response of the reference to one roundoff, or the rounding of the entry. Of the
    responses to a change and to its opposite the smaller one counts: one of them may move an element off a kink.
    """
    found, expected, natural, inner = known
    problem, xp = context.problem, namespace(expected)
    size = problem.codomain.size if space is problem.domain else problem.domain.size
    parts = [space.slice(number) for number in range(len(space.leaves))]
    finite = finite_part(expected)
    responses, noise = [], xp.zeros_like(expected)
    for _ in range(JITTERS):
        displacement = value_roundoff(context)
        signs = 0.5 * problem.eps * xp.sign(problem.random(size, Distribution.NEAR_UNIT))
        above = finite_part(changed(displacement, signs))
        displacement *= -1.0
        below = finite_part(changed(displacement, -signs))
        del displacement
        products = [0.0] * len(parts)
        for number, piece in ((number, piece) for number, part in enumerate(parts) for piece in pieces(part)):
            smaller = xp.where(xp.abs(above[piece]) <= xp.abs(below[piece]), above[piece], below[piece])
            products[number] += float(smaller @ finite[piece])
            noise[piece] += smaller * smaller / JITTERS
        responses.append(products)
        del above, below
    for piece in pieces(slice(0, noise.shape[0])):
        noise[piece] = xp.maximum(xp.sqrt(noise[piece]), problem.eps * xp.abs(finite[piece]))
    squares = [float(finite[part] @ finite[part]) for part in parts]
    noise, floor, inner = smoothed_noise(noise, space), smoothed_noise(natural(), space), functools.cache(inner)
    return Sample(found, expected, noise, floor, inner, responses, squares, functools.cache(elsewhere))


class _Statistics:
    """What the samples of one mode show about each leaf of the derivative, in pieces."""

    def __init__(self, context: Context, mode: str) -> None:
        self.context, self.mode = context, mode
        self.space = space = context.problem.domain if mode == "reverse" else context.problem.codomain
        leaves = range(len(space.leaves))
        self._pieces = [PieceStatistics(leaf, piece) for leaf in leaves for piece in pieces(space.slice(leaf))]

    def add(self, sample: Sample) -> None:
        for piece in self._pieces:
            piece.add(self.context, sample)

    def comparisons(self) -> list[LeafComparison]:
        return [piece.comparison(self.context, self.space) for piece in self._pieces]

    def resolutions(self, found: Sequence[LeafComparison]) -> dict[str, float]:
        """By name of the input: that of its worst piece, or in forward mode that of the worst output."""
        leaves = self.context.problem.domain.leaves
        if self.mode == "forward":
            return dict.fromkeys(
                (leaf.name for leaf in leaves), max((one.resolution for one in found), default=math.inf)
            )
        worst: dict[str, float] = {}
        for piece, one in zip(self._pieces, found, strict=True):
            name = leaves[piece.leaf].name
            worst[name] = max(worst.get(name, 0.0), one.resolution)
        return worst


def _compared(context: Context, reference: Context, mode: str, samples: Iterable[Sample]) -> Finding:
    """The worst leaf; the resolution of each input is entered in the ledger for the given precision.

    Samples are taken one after the other: each holds several vectors of the size of all inputs.
    """
    statistics = _Statistics(context, mode)
    for sample in samples:
        statistics.add(sample)
        del sample  # before the next one is made
    found = statistics.comparisons()
    worst = max(found, key=lambda comparison: comparison.severity, default=None)
    # Squares inside its rules: needed by `test_rules_of_the_framework_that_overflow_do_not_fail`.
    overflows = worst is not None and not math.isfinite(worst.found) and context.problem.rules.are_builtin
    words = f"the framework's own {mode} mode overflows in this precision"
    if overflows and mode == "forward":
        return Finding("precision", Verdict.SKIPPED, words)  # as where there is no forward mode
    _enter(context, mode, statistics.resolutions(found))
    if overflows:
        return Finding("precision", Verdict.INCONCLUSIVE, words)
    return _finding(context, reference.precision, mode, worst)


def _enter(context: Context, mode: str, resolutions: Mapping[str, float]) -> None:
    ledger, sizes = context.record.ledger, {leaf.name: leaf.coordinates.size for leaf in context.problem.domain.leaves}
    for name, resolution in resolutions.items():
        ledger.open(name, mode, GIVEN, sizes[name], context.asked_resolution)
        ledger.compared(name, mode, GIVEN, resolution)


def _finding(context: Context, wide: str, mode: str, worst: LeafComparison | None) -> Finding:
    if worst is None:
        return Finding("precision", Verdict.PASS, RIGHT)
    facts = {"ratio": worst.ratio, "scale": worst.scale, "epsilon": context.problem.eps, "mode": mode}
    if worst.severity <= 1.0:
        return Finding("precision", Verdict.PASS, RIGHT, facts=facts)
    what = "gradient" if mode == "reverse" else "tangent"
    if abs(worst.scale) > worst.scale_bar:
        words = f"the {what} of {worst.place.name} in low precision is {1.0 + worst.scale:.4f} times the one in {wide}"
    else:
        words = (
            f"the {what} in low precision is {worst.found:.6g} instead of {worst.expected:.6g} at {worst.place}, "
            f"{worst.ratio:.1f} times its roundoff"
        )
    if worst.severity < 2.0 or is_framework(context):
        return Finding("precision", Verdict.INCONCLUSIVE, words, facts=facts)
    combination = Location(0, "a combination of outputs", "")
    mismatch = Mismatch(combination, worst.place, worst.found, worst.expected, worst.limit, worst.limit)
    return Finding("precision", Verdict.FAIL, words, (mismatch,), facts, ADVICE.format(wide))
