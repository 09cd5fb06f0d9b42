"""The check that values and gradients of a kernel are those of a reference, as far as its precision allows.

The truth is the reference in float64 at the same inputs and for the same grad_output. The error bar is that of the
reference in the kernel's own precision; `reference_passes` runs both, `core.reference_comparison` compares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradvet.checks.reference_passes import (
    GRAD_OUTPUTS,
    ComparedTensor,
    Reference,
    arrays_nearby,
    displacement_to,
    samples_of,
)
from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.gradient_match import value_signs
from gradvet.core.ledger import ACCEPTED, suggested_resolution
from gradvet.core.problem import Distribution
from gradvet.core.reference_comparison import (
    ACCURACY,
    TensorDecision,
    decide_tensor,
    less_accurate,
    outside_kinks,
)
from gradvet.core.reference_errors import (
    TF32_EPS,
    an_entry_persists,
    error_map,
    errors_persist,
    largest_part,
    region,
    steady_error,
)
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import CheckFunction
from gradvet.core.vectors import Array, namespace, peak

NAME = "reference"
"""Name of the check, and of its mode in the ledger."""

KINK_PATTERNS = 8
"""Number of random displacements, each with its opposite, that decide kinks in different ways."""

REFERENCE_IS_TRUTH = (
    "The reference is the truth here: look at the kernel's formula, loads, stores and masks at these entries."
)
COMMON_FACTOR_ADVICE = "The factor is common to all entries: look for a wrong constant, or a sum taken once too often."
ZERO_ADVICE = "The gradient is zero: look for a returned None, a detach, or memory that the kernel does not write."
FORMULA_ADVICE = "Rounding does not explain it: compare the kernel's formula, constants and counts with the reference."
LOSS_ADVICE = "Look for sums, products or intermediate results in low precision"
TF32_ADVICE = (
    "Products in TF32, the default of tl.dot for float32, have errors of this size: input_precision='ieee' avoids them"
)
TF32_NOTE = (
    "the kernel rounds products to TF32, the default of tl.dot for float32; it was compared with plain torch that does "
    "the same, so errors below 0.4 % are not seen"
)
STEADY = "with the same errors at other inputs"
STEADY_FACTOR = "for all grad_outputs at all points nearby"
DRAWS_DIFFER = (
    "kernel and reference draw random numbers and draw them differently from the same seed, so they were not compared"
)
DRAWS_ADVICE = "Make the mask an input of both, or switch the random part off."


def compared_with(given: Reference) -> CheckFunction:
    """The check of a kernel against its reference; one that computes float64 in float32 is compared as float32.

    The latter is needed by `test_kernel_that_computes_float64_in_float32_is_compared_in_that_precision`.
    """

    def check(context: Context) -> Iterator[Finding]:
        coarser = context.in_internal_format() if context.is_double else None
        reference = given if coarser is None else given.in_format(coarser.eps)
        outputs = reference.outputs_of(reference.kernel)
        if difference := next(_differences(outputs, reference.outputs_of(reference.plain)), ""):
            yield Finding(NAME, Verdict.FAIL, difference, advice="Make kernel and reference return the same.")
            return
        tensors = [*outputs, *reference.gradients()]
        for tensor in tensors:
            _enter(context, reference, tensor)
        yield from _findings(context, reference, tensors)

    return check


def _differences(kernel: Sequence[ComparedTensor], reference: Sequence[ComparedTensor]) -> Iterator[str]:
    """In which respect kernel and reference return different things."""
    found, expected = len(kernel), len(reference)
    if found != expected:
        yield f"the kernel returns {_count(found)}, and the reference {_count(expected)}"
        return
    for one, other in zip(kernel, reference, strict=True):
        if one.form.shape != other.form.shape:
            shapes = f"{list(one.form.shape)} in the kernel and {list(other.form.shape)} in the reference"
            yield f"{one.name} has the shape {shapes}"


def _count(number: int) -> str:
    return f"{number} floating-point tensor{'' if number == 1 else 's'}"


Decided = Sequence[tuple[ComparedTensor, TensorDecision]]


def _findings(context: Context, reference: Reference, tensors: Sequence[ComparedTensor]) -> Iterator[Finding]:
    """All tensors at the point, then again what looks less accurate or, in half precision, right."""
    decided = _decided(context, reference, tensors)
    has_wrong_values = any(decision.verdict is Verdict.FAIL and tensor.is_output for tensor, decision in decided)
    if has_wrong_values and any(p.variants.draws_random_numbers() for p in (reference.kernel, reference.plain)):
        for tensor in tensors:
            context.record.withdraw(tensor.name, NAME, reference.precision)
        yield Finding(NAME, Verdict.INCONCLUSIVE, DRAWS_DIFFER, advice=DRAWS_ADVICE)
        return
    for compare_again in (_for_other_grad_outputs, _with_steady_errors):
        if any(decision.verdict is Verdict.INCONCLUSIVE for _, decision in decided):
            decided = compare_again(context, reference, decided)
    decided = _without_steady_errors(context, reference, decided)
    for tensor, decision in decided:
        _enter(context, reference, tensor, decision)
        if decision.verdict is not Verdict.PASS:
            yield _bad(context, reference, tensor, decision)
    if all(decision.verdict is Verdict.PASS for _, decision in decided):
        yield _good(reference, decided)


def _decided(context: Context, reference: Reference, tensors: Sequence[ComparedTensor]) -> Decided:
    """Samples of all tensors and what they show."""
    cotangents, samples = samples_of(context, reference, tensors)
    decided: Decided = [
        (tensor, decide_tensor(known, tensor.form, context.options.accuracy))
        for tensor, known in zip(tensors, samples, strict=True)
    ]
    if any(decision.verdict is not Verdict.PASS and not tensor.is_output for tensor, decision in decided):
        decided = _without_kinks(context, reference, decided, cotangents)
    return [(tensor, _unless_rounded(context, reference, tensor, decision)) for tensor, decision in decided]


def _unless_rounded(
    context: Context, reference: Reference, tensor: ComparedTensor, decision: TensorDecision
) -> TensorDecision:
    """The decision; less accurate in place of wrong if a coarse format inside explains its errors, and they are of
    either sign for other positive grad_outputs at points nearby, as those of rounding.

    Needed by `test_sum_of_many_rows_in_bfloat16_is_less_accurate_and_not_wrong`, and of losses, whose gradients for all
    grad_outputs are rounded alike, by `test_loss_that_sums_in_bfloat16_is_not_wrong`. Nine passes of each.
    """
    error = abs(decision.found - decision.expected)
    times = tensor.form.most * error / decision.allowed if decision.allowed else math.inf
    is_wrong = decision.verdict is Verdict.FAIL and decision.extent != "common" and not tensor.is_output
    if not is_wrong or not times <= tensor.form.wrong_loss or context.out_of_budget:
        return decision
    known, (own, truths, _) = decision.samples, arrays_nearby(reference, [tensor], are_positive=True)[0]
    if an_entry_persists((known.found - known.truth)[decision.draw, ...], own - truths, truths):
        return decision
    words = f"{less_accurate(times)} in some entries" if decision.extent == "some" else less_accurate(times)
    return replace(decision, verdict=Verdict.INCONCLUSIVE, evidence=words)


def _for_other_grad_outputs(context: Context, reference: Reference, decided: Decided) -> Decided:
    """The decisions, with those that are less accurate made again for other grad_outputs: a sum in low precision is off
    by a few spacings now and then. Where the device may multiply in TF32, beside plain torch with such products.

    Needed by `test_sum_in_low_precision_is_not_doubted_for_one_entry`.
    """
    coarse = reference.in_tf32()
    if context.out_of_budget:
        return decided
    tensors = [tensor for tensor, _ in decided]
    if coarse is not None:
        tensors = [replace(tensor, form=tensor.form.in_tf32()) for tensor in tensors]
    again = _decided(context, coarse or reference, tensors)
    if coarse is not None and all(decision.verdict is not Verdict.INCONCLUSIVE for _, decision in again):
        context.record.note(TF32_NOTE)
    return [
        new if old[1].verdict is Verdict.INCONCLUSIVE and (coarse or new[1].verdict is Verdict.PASS) else old
        for old, new in zip(decided, again, strict=True)
    ]


def _with_steady_errors(context: Context, reference: Reference, decided: Decided) -> Decided:
    """The decisions, with those wrong whose errors are the same at other inputs: rounding errors differ there.

    Needed by `test_formula_that_is_slightly_wrong_everywhere_is_not_taken_for_rounding`.
    """
    kernel = reference.kernel
    v = reference.rounded(kernel.random(kernel.codomain.size, Distribution.NEAR_UNIT))
    # So far away that sums in a coarse format are rounded in other ways.
    signs = namespace(v).sign(kernel.random(v.shape[0], Distribution.NEAR_UNIT))
    other = reference.rounded(v * (1.0 + thresholds.NEARBY_PART * signs))
    inside = max(tensor.form.internal_eps for tensor, _ in decided)
    moved = kernel.point * (1.0 + thresholds.OPERATION_EPS * inside * value_signs(context))
    places = (v, None), (other, displacement_to(kernel, moved))
    pairs = [(kernel.variants.fresh_pass(*at), reference.true_pass(*at)) for at in places]

    def again(tensor: ComparedTensor, decision: TensorDecision) -> TensorDecision:
        here, there = (tensor.of(one) - tensor.of(other) for one, other in pairs)
        is_doubtful = decision.verdict is Verdict.INCONCLUSIVE
        if not is_doubtful or not errors_persist(here, there, tensor.of(pairs[0][1]), tensor.form):
            return decision
        words = f"wrong: {decision.evidence}, {STEADY}"
        return replace(decision, verdict=Verdict.FAIL, evidence=words, extent="all")

    return [(tensor, again(tensor, decision)) for tensor, decision in decided]


def _without_steady_errors(context: Context, reference: Reference, decided: Decided) -> Decided:
    """The decisions in half precision, with those wrong that have the same factor for all grad_outputs nearby.

    Where plain torch loses many digits, its errors hide those of a kernel that computes in float32. Needed by
    `test_error_that_plain_torch_hides_is_seen_by_its_constant_factor`. Nine passes; as many more to confirm.
    """
    steady: dict[int, tuple[Array, float]] = {}
    numbers = [
        number
        for number, (tensor, decision) in enumerate(decided)
        if not tensor.is_output and tensor.form.is_half_precision and decision.verdict is not Verdict.FAIL
    ]
    for is_again in (False, True):
        if not numbers or context.out_of_budget:
            return decided
        tensors = [decided[number][0] for number in numbers]
        for number, tensor, arrays in zip(numbers, tensors, arrays_nearby(reference, tensors), strict=True):
            own, truths, plain = arrays
            error = steady_error(own - truths, plain - truths, truths, tensor.form, context.options.accuracy)
            marked_before = steady.pop(number)[0] if is_again else None
            if error is not None and (marked_before is None or namespace(own).any(error[0] & marked_before)):
                steady[number] = error
        numbers = list(steady)
    return [
        (tensor, _steadily_wrong(decision, *steady[number]) if number in steady else decision)
        for number, (tensor, decision) in enumerate(decided)
    ]


def _steadily_wrong(decision: TensorDecision, marked: Array, factor: float) -> TensorDecision:
    xp, known, size = namespace(marked), decision.samples, math.prod(marked.shape)
    count = int(xp.count_nonzero(marked))
    words = f"{factor:.4g} times the reference"
    if count < size:
        words = f"wrong in {count} of {size} entries{region(marked)}: there it is {words}"
    error = xp.where(marked, abs(known.found - known.truth), -xp.ones_like(known.truth))
    return replace(
        decision,
        verdict=Verdict.FAIL,
        evidence=f"{words}, {STEADY_FACTOR}",
        extent="some" if count < size else "common",
        scale=factor - 1.0,
        position=int(xp.argmax(xp.reshape(error, (-1,)))),
    )


def _without_kinks(context: Context, reference: Reference, decided: Decided, cotangents: Sequence[Array]) -> Decided:
    """The decisions, with those that a kink explains made again: there the derivative may be that of either side."""
    kernel, xp = reference.kernel, namespace(reference.kernel.point)
    parts = [kernel.point[part] for part in kernel.domain.slices]
    size = xp.concat([xp.zeros_like(part) + (peak(part) or 1.0) for part in parts])
    patterns = [abs(kernel.random(size.shape[0], Distribution.NEAR_UNIT))]
    patterns += [kernel.random(size.shape[0], Distribution.NEAR_UNIT) for _ in range(KINK_PATTERNS - 1)]
    step = min(tensor.form.kink_step for tensor, _ in decided)
    steps = [sign * step * size * pattern for pattern in patterns for sign in (1.0, -1.0)]
    passes = [[reference.true_pass(v, step) for step in steps] for v in cotangents]
    again, places = [], 0
    for tensor, decision in decided:
        if decision.verdict is not Verdict.PASS and not tensor.is_output:
            sides = [xp.stack([tensor.of(one)[0, ...] for one in near]) for near in passes]
            low, high = (xp.stack([bound(side, axis=0) for side in sides]) for bound in (xp.min, xp.max))
            known, count = outside_kinks(decision.samples, low, high, tensor.form)
            if count:
                decision, places = decide_tensor(known, tensor.form, context.options.accuracy), places + count
        again.append((tensor, decision))
    if places:
        context.record.note(
            f"the function has a kink at {places} entries, where kernel and reference may differ: both are valid"
        )
    return again


def _enter(
    context: Context, reference: Reference, tensor: ComparedTensor, decision: TensorDecision | None = None
) -> None:
    """Expect a comparison, or enter its result."""
    ledger, row = context.record, (tensor.name, NAME, reference.precision)
    asked = _asked(context, decision)
    if decision is not None:
        ledger.withdraw(*row)
    ledger.open(*row, tensor.leaf.coordinates.size, asked)
    if decision is not None:
        ledger.compared(*row, decision.resolution)
        if asked < decision.resolution <= context.options.accuracy:
            ledger.left_out(*row, 0, ACCEPTED)
        if decision.left_out:
            ledger.left_out(*row, decision.left_out, "not finite in plain torch either")


def _asked(context: Context, decision: TensorDecision | None) -> float:
    """The resolution asked for. More than a few errors of plain torch cannot be."""
    asked = context.asked_resolution
    return asked if decision is None else min(1.0, max(asked, thresholds.OPERATION_EPS * decision.plain))


def _good(reference: Reference, decided: Decided) -> Finding:
    tensor, decision = max(decided, key=lambda one: one[1].loss)
    words = f"values and gradients are {ACCURACY[Verdict.PASS]}"
    details = f"the largest error is {decision.loss:.2g} times that of plain torch ({tensor.name})"
    return Finding(NAME, Verdict.PASS, f"{words}; {details}", facts=_facts(reference, tensor, decision))


def _bad(context: Context, reference: Reference, tensor: ComparedTensor, decision: TensorDecision) -> Finding:
    is_doubtful = decision.verdict is Verdict.INCONCLUSIVE
    place = f"{tensor.name} {tensor.leaf.coordinates.label(decision.index)}".rstrip()
    bar = f" ± {decision.allowed:.2g}" if decision.allowed > 1e-12 * abs(decision.found - decision.expected) else ""
    if is_doubtful:
        most = f", and plain torch is off by {decision.allowed / tensor.form.most:.2g} at most"
        bar = most if decision.extent == "some" else ""
    entry = f"worst: {place} is {decision.found:.6g} instead of {decision.expected:.6g}{bar}"
    words = f"{tensor.name} is {decision.evidence}; {entry}, for {GRAD_OUTPUTS[decision.draw]}"
    if tensor.is_output:
        words = words.rpartition(", for")[0]
    common = ZERO_ADVICE if decision.scale == -1.0 else COMMON_FACTOR_ADVICE
    advice = {"some": REFERENCE_IS_TRUTH, "all": FORMULA_ADVICE, "common": common}[decision.extent]
    if is_doubtful:
        advice = TF32_ADVICE if tensor.form.may_use_tf32 and decision.loss > 1.0 / TF32_EPS else LOSS_ADVICE
        advice = f"{advice}{_acceptance(context, decision)}."
    return Finding(NAME, decision.verdict, words, facts=_facts(reference, tensor, decision), advice=advice)


def _acceptance(context: Context, decision: TensorDecision) -> str:
    """The value of accuracy= that accepts the errors, and that of resolution= if it has to be larger too."""
    accuracy = suggested_resolution(largest_part(decision.samples.found, decision.samples.truth))
    if accuracy is None:
        return ""
    resolution = f" with resolution={accuracy:g}" if accuracy > _asked(context, decision) else ""
    return f"; accuracy={accuracy:g}{resolution} accepts errors of this size"


def _facts(reference: Reference, tensor: ComparedTensor, decision: TensorDecision) -> dict[str, object]:
    known = decision.samples
    return {
        "tensor": tensor.name,
        "precision": reference.precision,
        "status": ACCURACY[decision.verdict],
        "entry": tensor.leaf.coordinates.label(decision.index),
        "found": decision.found,
        "expected": decision.expected,
        "allowed": decision.allowed,
        "factor": 1.0 + decision.scale,
        "loss": decision.loss,
        "errors": error_map(*(array[decision.draw, ...] for array in (known.found, known.truth, known.plain))),
    }


def undecided(finding: Finding) -> Finding:
    """A finding about the kernel beside a wrong reference."""
    words = f"the reference is wrong, so this says nothing about the kernel: {finding.headline}"
    return finding if finding.verdict is not Verdict.FAIL else Finding(NAME, Verdict.INCONCLUSIVE, words)


def about_reference(finding: Finding) -> Finding:
    """The comparison of the reference's own gradients with differences, in the words of this check."""
    words = {
        Verdict.PASS: "the reference is right: its gradients agree with finite differences in float64",
        Verdict.FAIL: f"the reference itself is wrong: {finding.headline}",
        Verdict.INCONCLUSIVE: f"the reference could not be decided: {finding.headline}",
        Verdict.SKIPPED: f"the reference was not compared with finite differences: {finding.headline}",
    }
    return replace(finding, headline=words[finding.verdict])
