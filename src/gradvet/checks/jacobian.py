"""Compares derivatives with finite differences by error bars, for `check`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.decision import Decision, Entry, Reason
from gradvet.core.diagnosis import ZERO
from gradvet.core.ledger import FLOAT32, GIVEN, suggested_resolution
from gradvet.core.localise import leaf_verdicts
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.neighbourhood import (
    Study,
    ignored_output,
    study,
    swapped_inputs,
    zero_slices,
)
from gradvet.core.probe_plans import Plan, miss_probability
from gradvet.core.refinement import refusal_beside
from gradvet.core.results import Finding, Mismatch, Verdict
from gradvet.core.slope_test import decide_slopes
from gradvet.core.vectors import Location, peak

MISS_RATIO = 0.01
"""`Report.miss` is the probability to miss an error of 1 / MISS_RATIO times what the screen allows."""

KINK = "The point is at a kink: the derivative must lie between the slopes on its two sides, and does not."
TORCH_TO_BLAME = "The function is one operator of the framework: its own derivative is wrong at this point."
BY_AVERAGES = (
    "Roundoff hides single entries in this precision. To see which are wrong, compare with the same function in plain "
    "torch, check(..., reference=...), or check a version of the function that runs in float64."
)
REJECTION = "numbers are drawn by rejection: their derivative is right on average, not for the draws of one seed"
REJECTION_ADVICE = "Make the sample an input of the function, and check the rest."
BUILTIN_RULES = (
    "All derivatives in the graph are the framework's own: look for a detach, .data, .item(), a no_grad block or an "
    "in-place change in the function; without any, one of the framework's operators is to blame."
)
SUSPICION = re.compile("[.:] [Ll]ook (?:for|at) ")
"""Separates the pattern that a diagnosis describes from the mistake that it suspects in a backward written by hand."""
STAIRS_ADVICE = (
    "Check at another point. For the gradient of a straight-through estimator, name the function that it is about: "
    "surrogate="
)
REFERENCE_ADVICE = "Try check(..., reference=...) with the same function in plain torch."
REASONS = {
    Reason.JUMP: "the function jumps at the point, so it has no derivative there",
    Reason.STAIRS: "the function is a staircase, whose stairs may be rounding inside it",
    Reason.STEEP: "the function has a vertical tangent at the point",
    Reason.NOT_FINITE: "the derivative is not finite at the point, and no slope there fits into its format",
    Reason.DOMAIN: "the function is not defined on either side of the point",
    Reason.PRECISION: "the differences are too noisy to decide",
    Reason.KINK: "the function has kinks at the point that cannot be separated",
    Reason.BUDGET: "the time budget was spent",
    Reason.NO_SIGNAL: "the function's response to some inputs is too small to compare",
}


ROUNDED_INSIDE = "roundoff of larger numbers inside the function hides the slope of its outputs"
ROUNDED_INSIDE_ADVICE = (
    "Try inputs at which outputs are not small differences of larger numbers: 1 + erf(x) is at -5.5, and not at -3."
)


def reverse(context: Context) -> Iterator[Finding]:
    """VJPs against differences."""
    yield from compared(context, REVERSE)


def forward(context: Context) -> Iterator[Finding]:
    """JVPs against differences."""
    yield from compared(context, FORWARD)


def compared(context: Context, mode: Mode, subject: str = "", blamed: str = "") -> Iterator[Finding]:
    """The derivative of one mode against differences.

    `subject` is what findings call it, and `blamed` where they look for the cause if all rules are builtin.
    """
    problem, subject = context.problem, subject or f"{mode.name} mode"
    if not problem.codomain.size or not problem.domain.size:
        yield Finding(mode.name, Verdict.INCONCLUSIVE, "there is no entry to compare")
        return
    decision, context = decide_slopes(context, mode)
    if decision.verdict is Verdict.FAIL and problem.rules.draws_by_rejection:
        # Needed by `test_sample_of_a_beta_distribution_does_not_fail`.
        yield Finding(mode.name, Verdict.INCONCLUSIVE, f"{REJECTION} ({mode.name} mode)", advice=REJECTION_ADVICE)
    elif decision.verdict is Verdict.FAIL:
        yield failure(context, mode, decision, subject, blamed)
    elif decision.verdict is Verdict.INCONCLUSIVE:
        raised = refusal_beside(context) if decision.reason is Reason.DOMAIN else ""
        words = REASONS.get(decision.reason, decision.reason.value)
        if decision.reason is Reason.PRECISION and _accuracy_hides_errors(context):
            words = f"accuracy={context.options.accuracy:g} hides errors that resolution= asks for"
        elif decision.reason is Reason.PRECISION and _is_rounded_inside(context):
            words = ROUNDED_INSIDE
        facts, advice = _facts(decision), _advice(context, mode, decision)
        yield Finding(mode.name, Verdict.INCONCLUSIVE, f"{words}{raised} ({mode.name} mode)", (), facts, advice)
    else:
        miss = miss_probability(MISS_RATIO, Plan(2, 2 if problem.codomain.size > 1 else None), spread=1.0)
        facts = {"reason": decision.reason.value, "miss": miss, "resolution": _resolutions(context, mode)}
        yield Finding(mode.name, Verdict.PASS, f"{subject} agrees with finite differences", facts=facts)


def failure(context: Context, mode: Mode, decision: Decision, subject: str = "", blamed: str = "") -> Finding:
    """The finding about a wrong derivative, with the entries around the wrong one. Calls function and derivative."""
    entry = decision.entry
    if decision.reason is Reason.NOT_FINITE and entry is not None:
        place = entry.output or entry.input
        headline = f"the derivative in {mode.name} mode is not finite at {place}, where the function has a slope"
        advice = "Look for 0/0, 0·inf, or a branch that is masked only after it was computed."
        return Finding(mode.name, Verdict.FAIL, headline, (_mismatch(context, entry),), _facts(decision), advice)
    headline = f"{subject or f'{mode.name} mode'} disagrees with finite differences"
    if entry is None or entry.row < 0:
        return _failure_of_averages(context, mode, decision, headline)
    if not context.options.explains:
        return Finding(mode.name, Verdict.FAIL, headline, (_mismatch(context, entry),), _facts(decision))
    found = study(context, mode, entry)
    facts = {**_facts(decision), "wrong": found.wrong, "entries": found.entries, **found.block, "sweep": entry.sweep}
    facts["leaves"] = _leaf_verdicts(context, mode)
    mismatches = [_mismatch(context, one) for one in (entry, *found.others)]
    mismatches.sort(key=attrgetter("size"), reverse=True)
    if found.entries > 1:
        headline += f" in {_share(found)} that were compared"
    headline += f"; the largest error is {_amount(mismatches[0])}"
    if context.options.accuracy:
        headline += f", and accuracy= allows {_percentage(context.options.accuracy)}"
    advice = KINK if decision.reason is Reason.OUTSIDE else _cause(context, mode, entry, found.diagnosis, blamed)
    return Finding(mode.name, Verdict.FAIL, headline, tuple(mismatches), facts, advice)


def _failure_of_averages(context: Context, mode: Mode, decision: Decision, headline: str) -> Finding:
    """The finding where no single entry was compared: the factor of all of them, or the size of their error."""
    entry, advice = decision.entry, "" if context.is_double else BY_AVERAGES
    if entry is None:
        return Finding(mode.name, Verdict.FAIL, headline, facts=_facts(decision), advice=advice)
    if mode.by_rows and (where := zero_slices(context, entry.input.leaf)):
        advice = f"The gradient of {entry.input.name} is zero in {where}: does the function vary there? {advice}"
    facts = {**_facts(decision), "leaves": {entry.input.name: Verdict.FAIL.value}}
    if not entry.derivative and not entry.input.label:
        return Finding(mode.name, Verdict.FAIL, f"{headline}: it is zero for {entry.input}", (), facts, ZERO)
    mismatches = () if math.isnan(entry.numerical) else (_mismatch(context, entry),)
    if not entry.input.label:
        found = f"off by about {_percentage(abs(decision.error))} of its size"
        if mismatches and entry.numerical:  # a loss in half precision may not change at all
            found = f"{entry.derivative / entry.numerical:.3g} times the function's slope"
        headline += f": over all entries of {entry.input}, the derivative is {found}"
    return Finding(mode.name, Verdict.FAIL, headline, mismatches, facts, advice)


def _leaf_verdicts(context: Context, mode: Mode) -> dict[str, str]:
    """Verdicts by name of inputs and outputs; none where the function refuses."""
    with suppress(Exception):  # the finding holds without it
        return {name: verdict.value for name, verdict in leaf_verdicts(context, mode).items()}
    return {}


def _amount(entry: Mismatch) -> str:
    """`0.0012 (0.5 % of the entry)`, without the percentage where the entry is nearly zero beside the error."""
    size = entry.size
    if not abs(entry.numerical) > max(entry.error, thresholds.EQUAL_RATIO * size) or not math.isfinite(size):
        return f"{size:.2g}"
    return f"{size:.2g} ({_percentage(size / abs(entry.numerical))} of the entry)"


def _share(found: Study) -> str:
    """`at least 2 of the 8 nonzero entries (25 %)`: zeros that are right say little about a derivative."""
    kind = "entries" if found.nonzero == found.entries else "nonzero entries"
    if found.wrong >= found.nonzero:
        return f"all {found.nonzero} {kind}"
    return f"at least {found.wrong} of the {found.nonzero} {kind} ({_percentage(found.wrong / found.nonzero)})"


def _percentage(fraction: float) -> str:
    """Two digits, without an exponent."""
    number = 100.0 * fraction
    return f"{number:.2g} %" if number < 99.5 else f"{number:.0f} %"


def _cause(context: Context, mode: Mode, entry: Entry, diagnosis: str, blamed: str) -> str:
    """The likely cause: swapped gradients, an output left out, or the diagnosis and where to look in torch's rules."""
    try:
        known = swapped_inputs(context, mode, entry) or ignored_output(context, mode, entry)
        if known:
            return known
        if context.problem.rules.are_builtin and "detach" not in diagnosis:
            if not blamed:
                blamed = TORCH_TO_BLAME if context.problem.rules.calls_one_operator() else BUILTIN_RULES
            pattern = SUSPICION.split(diagnosis)[0].rstrip(".:")
            return f"{pattern}. {blamed}" if pattern else blamed
    except Exception:  # the function may refuse other inputs; the finding holds without it
        pass
    return diagnosis


def _mismatch(context: Context, entry: Entry) -> Mismatch:
    output = entry.output or Location(0, "a combination of outputs", "")
    granted = context.options.accuracy * abs(entry.derivative)
    allowed = thresholds.CLEAR * (entry.error + granted)
    return Mismatch(output, entry.input, entry.derivative, entry.numerical, entry.error, allowed)


def _facts(decision: Decision) -> dict[str, object]:
    return {"reason": decision.reason.value, "error": decision.error, "bar": decision.bar}


def _resolutions(context: Context, mode: Mode) -> dict[str, float]:
    ledger, leaves = context.record, context.problem.domain.leaves
    return {leaf.name: ledger.resolution(leaf.name, mode.name, context.precision) for leaf in leaves}


def _accuracy_hides_errors(context: Context) -> bool:
    """Whether accuracy= hides errors of the size that resolution= asks for, in the input with the most elements."""
    most = max(leaf.coordinates.size for leaf in context.problem.domain.leaves)
    return context.options.accuracy * math.sqrt(most) >= context.options.resolution


def _is_rounded_inside(context: Context) -> bool:
    """Needed by `test_roundoff_inside_is_named_as_the_reason`."""
    return context.inner_roundoff is not None and bool(peak(context.inner_roundoff))


def _advice(context: Context, mode: Mode, decision: Decision) -> str:
    if decision.reason is Reason.STAIRS:
        return STAIRS_ADVICE
    if decision.reason not in (Reason.PRECISION, Reason.KINK):
        return ""
    # A first derivative that is compared below float64 is that of a function that does not run in it.
    is_kernel = mode is REVERSE and not context.is_double and context.precision in (GIVEN, FLOAT32)
    advice = REFERENCE_ADVICE if is_kernel else "Try inputs of moderate size, or a point away from kinks."
    advice = ROUNDED_INSIDE_ADVICE if _is_rounded_inside(context) else advice
    if peak(context.repeat_noise) > context.eps * peak(context.problem.value):
        advice = "Make the function return the same values for the same inputs: it gives others in each call."
    if _accuracy_hides_errors(context):
        hides = f"accuracy={context.options.accuracy:g} hides smaller errors"
        advice = f"{hides}: pass a smaller accuracy=, or check fewer elements at once."
    seen = max(_resolutions(context, mode).values(), default=math.inf)
    enough = suggested_resolution(seen)
    if enough is None or seen <= context.options.resolution:
        return advice
    return (
        f"What was compared agrees within {seen:.1g} of a typical entry: resolution={enough:g} accepts that. {advice}"
    )
