"""The check that a derivative in low precision is that of the wider version, in float64 or float32, up to roundoff.

Rounding errors are incoherent: they differ from entry to entry. Errors of a formula or of a kernel are not. So each
entry is compared with its own roundoff, and all entries of an input are compared by their common scale, which resolves
far smaller errors: a factor of 0.97 in bfloat16 shows in the scale of a hundred entries, and in none of them alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from gradvet.checks.linearity import disproportion
from gradvet.checks.low_precision_entries import (
    DerivativeSample,
    LeafComparison,
    PieceStatistics,
    Rounded,
    derivative_samples,
    is_framework,
)
from gradvet.core.context import Context
from gradvet.core.frontend import BranchCounts
from gradvet.core.ledger import GIVEN
from gradvet.core.reference_errors import spacing_at_zero
from gradvet.core.results import Finding, Mismatch, Verdict
from gradvet.core.runner import CheckFunction
from gradvet.core.vectors import Location, all_finite, pieces
from gradvet.errors import first_line

OVERFLOWS = "the values themselves overflow in this precision"
AS_GOOD_AS_FORMAT = "the gradient is as good as its precision allows"
CHANGED_BRANCHES = (
    "in {}, {} of {} elements are on another side of a kink by roundoff, or another one is selected: the gradient in "
    "low precision was compared on its own sides"
)
ROUNDED_OPERATORS = (
    "roundoff hides errors in the comparison with {}: the derivative was also compared with one whose operators round"
)
LOW_PRECISION_ADVICE = (
    "The formula is right in {}: look for sums, products or intermediate results kept in low precision."
)
COMMON_ERROR_ADVICE = (
    "The formula is right in {}, and rounding gives no common factor: look for a branch on the dtype, for a hook, and "
    "in half precision for a long sum that stops growing."
)


BranchPair = tuple[Context, Context, BranchCounts]
"""A problem in low precision and its wider version, whose passes take the branches of the problem's last pass."""


SameBranches = Callable[[], BranchPair | None]
"""Makes the pair; None where branches cannot be seen."""


def precision_against(
    wide: Context,
    same_branches: SameBranches = lambda: None,
    rounded: Rounded = lambda call: None,
    modes: Collection[str] = ("reverse", "forward"),
) -> CheckFunction:
    """The check of a problem in low precision against its wider version.

    Where they differ, they are compared once more on the same branches: roundoff may put elements on the other side of
    a kink, so that both gradients are right.
    """

    def precision(context: Context) -> Iterator[Finding]:
        problem, xp = context.problem, context.xp
        if not problem.domain.size:
            yield Finding("precision", Verdict.INCONCLUSIVE, "there is no gradient to compare")
            return
        if bool(xp.any(~xp.isfinite(context.value) & xp.isfinite(wide.value))):
            yield Finding("precision", Verdict.INCONCLUSIVE, OVERFLOWS)
            return
        has_range = not spacing_at_zero(context.eps) or context.problem.rules.are_builtin
        if not has_range and (words := disproportion(wide)) is not None:
            # Float16 has no numbers that small. Needed by `polynomial_of_large_cotangents_alone_in_float16`.
            yield Finding("precision", Verdict.FAIL, f"in {wide.precision}, {words[0]}", advice=words[1])
        for mode in modes:
            finding = _of_mode(context, wide, mode, rounded)
            if finding is None:
                continue
            if not _is_settled(context, finding) and (pair := same_branches()) is not None:
                finding = _on_same_branches(pair, finding, _of_mode(pair[0], pair[1], mode, rounded))
            if not _is_settled(context, finding):
                finding = _with_rounded_operators(context, wide, finding, rounded)
            yield finding

    return precision


def _is_settled(context: Context, finding: Finding) -> bool:
    """Whether the derivatives agree, and every input was compared as sharply as asked for."""
    mode, ledger = str(finding.facts.get("mode")), context.record
    sharpest = [ledger.resolution(leaf.name, mode, GIVEN) for leaf in context.problem.domain.leaves]
    return finding.verdict is Verdict.PASS and max(sharpest, default=0.0) <= context.asked_resolution


def _on_same_branches(pair: BranchPair, before: Finding, after: Finding | None) -> Finding:
    """The second finding, with the number of elements that were on another side; the first one where there is none."""
    given, wide, branches = pair
    count, changed = branches()
    if after is None or not changed:
        return before
    facts = {"changed_branches": changed, "branches": count}
    given.record.note(CHANGED_BRANCHES.format(wide.precision, changed, count))
    return replace(after, facts={**after.facts, **facts})


def _with_rounded_operators(context: Context, wide: Context, before: Finding, rounded: Rounded) -> Finding:
    """The derivatives against those of the wider version in which every operator rounds to the given format.

    Roundoff that later operators enlarge hides errors in the comparison with float64. Here both derivatives have the
    same one. A finding that custom rules are wrong stays. Needed by `pendulum_by_its_own_rule_in_bfloat16` and
    `test_roundoff_that_operators_enlarge_hides_no_error`.
    """
    mode = str(before.facts.get("mode"))
    is_explicable = before.verdict is Verdict.PASS or is_framework(context)
    if not is_explicable or before.verdict is Verdict.SKIPPED or "ratio" not in before.facts:
        return before
    samples = derivative_samples(context, wide, mode, rounded, rounds_operators=True)
    if (shown := _statistics(context, mode, samples)) is None:
        return before
    found, resolutions = shown
    if max(one.severity for one in found) > 1.0 or max(resolutions.values()) > context.asked_resolution:
        return before
    _enter(context, mode, resolutions)
    context.record.note(ROUNDED_OPERATORS.format(wide.precision))
    return Finding("precision", Verdict.PASS, AS_GOOD_AS_FORMAT, facts=before.facts)


def _of_mode(context: Context, wide: Context, mode: str, rounded: Rounded) -> Finding | None:
    """The finding about one mode; None where the function does not have it, which another check reports."""
    if mode == "reverse" and not context.has_reverse:
        return None
    try:
        return _compared(context, wide, mode, rounded)
    except Exception as error:
        rules = context.problem.rules
        if mode == "forward" and rules.is_unsupported(error):
            return None
        if mode == "reverse" or not rules.are_builtin:
            raise
        # Needed by `test_forward_mode_that_raises_under_autocast_counts_as_none`.
        words = f"the framework's own forward mode raises in this precision: {first_line(error)}"
        return Finding("precision", Verdict.SKIPPED, words, facts={"mode": "forward"})


def _statistics(
    context: Context, mode: str, samples: Iterable[DerivativeSample]
) -> tuple[list[LeafComparison], dict[str, float]] | None:
    """What the samples of one mode show about each leaf, in pieces, and the resolution of each input by its name.

    That of its worst piece, or in forward mode that of the worst output. None if operators that round are asked for,
    and their derivative is not known.
    """
    space, leaves = context.problem.domain, context.problem.domain.leaves
    space = space if mode == "reverse" else context.problem.codomain
    statistics = [PieceStatistics(leaf, piece) for leaf, part in enumerate(space.slices) for piece in pieces(part)]
    for sample in samples:
        if sample.rounds_operators and not all_finite(sample.expected):
            return None
        for piece in statistics:
            piece.add(context, sample)
        del sample  # or its vectors would exist beside those of the next one
        if context.is_large:
            context.release()
    found = [piece.comparison(context, space) for piece in statistics]
    if mode == "forward":
        worst = max((one.resolution for one in found), default=math.inf)
        return found, dict.fromkeys((leaf.name for leaf in leaves), worst)
    resolutions: dict[str, float] = {}
    for piece, one in zip(statistics, found, strict=True):
        name = leaves[piece.leaf].name
        resolutions[name] = max(resolutions.get(name, 0.0), one.resolution)
    return found, resolutions


def _compared(context: Context, wide: Context, mode: str, rounded: Rounded) -> Finding:
    """The worst leaf; the resolution of each input is entered in the ledger for the given precision.

    Samples are taken one after the other: each holds several vectors of the size of all inputs.
    """
    shown = _statistics(context, mode, derivative_samples(context, wide, mode, rounded))
    assert shown is not None  # the wider version has a derivative
    found, resolutions = shown
    worst = max(found, key=lambda comparison: comparison.severity, default=None)
    # Squares inside its rules: needed by `test_rules_of_the_framework_that_overflow_do_not_fail`.
    overflows = worst is not None and not math.isfinite(worst.found) and context.problem.rules.are_builtin
    words = f"the framework's own {mode} mode overflows in this precision"
    if overflows and mode == "forward":
        return Finding("precision", Verdict.SKIPPED, words)  # as where there is no forward mode
    if overflows:
        _enter(context, mode, resolutions)
        return Finding("precision", Verdict.INCONCLUSIVE, words)
    finding = _finding(context, wide.precision, mode, worst)
    leaves = _leaf_verdicts(found, mode, resolutions) if finding.verdict is Verdict.FAIL else {}
    undecided = [name for name, verdict in leaves.items() if verdict is Verdict.INCONCLUSIVE]
    _enter(context, mode, {**resolutions, **dict.fromkeys(undecided, math.inf)})
    values = {name: verdict.value for name, verdict in leaves.items()}
    return replace(finding, facts={**finding.facts, "leaves": values}) if leaves else finding


def _leaf_verdicts(found: Iterable[LeafComparison], mode: str, inputs: Collection[str]) -> dict[str, Verdict]:
    """The verdict about each input. A wrong tangent is about all inputs together."""
    if mode == "forward":
        return dict.fromkeys(inputs, Verdict.FAIL if len(inputs) == 1 else Verdict.INCONCLUSIVE)
    severities = dict.fromkeys(inputs, 0.0)
    for one in found:
        severities[one.place.name] = max(severities[one.place.name], one.severity)
    worse = {name: Verdict.FAIL if severity >= 2.0 else Verdict.INCONCLUSIVE for name, severity in severities.items()}
    return {name: verdict if severities[name] > 1.0 else Verdict.PASS for name, verdict in worse.items()}


def _enter(context: Context, mode: str, resolutions: Mapping[str, float]) -> None:
    ledger, sizes = context.record, {leaf.name: leaf.coordinates.size for leaf in context.problem.domain.leaves}
    for name, resolution in resolutions.items():
        ledger.open(name, mode, GIVEN, sizes[name], context.asked_resolution)
        ledger.compared(name, mode, GIVEN, resolution)


def _finding(context: Context, wide: str, mode: str, worst: LeafComparison | None) -> Finding:
    if worst is None:
        return Finding("precision", Verdict.PASS, AS_GOOD_AS_FORMAT)
    facts = {"ratio": worst.ratio, "scale": worst.scale, "epsilon": context.problem.eps, "mode": mode}
    if worst.severity <= 1.0:
        return Finding("precision", Verdict.PASS, AS_GOOD_AS_FORMAT, facts=facts)
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
    advice = COMMON_ERROR_ADVICE if worst.is_scaled else LOW_PRECISION_ADVICE
    return Finding("precision", Verdict.FAIL, words, (mismatch,), facts, advice.format(wide))
