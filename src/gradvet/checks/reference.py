"""Are the values and gradients of a kernel those of a reference, as far as its precision allows?

The truth is the reference in float64 at the same inputs and for the same grad_output. The error bar is that of the
reference in the kernel's own precision; `core.reference_comparison` compares. Every pass of the kernel is a fresh call
on copies, so a backward that can run only once, or that overwrites what it is given, is compared like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.error_positions import error_map
from gradvet.core.gradient_match import value_signs
from gradvet.core.problem import Distribution, Problem
from gradvet.core.reference_comparison import TF32_EPS, Format, Judgement, Samples, Status, judge, outside_kinks
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import CheckFunction
from gradvet.core.spaces import Array, Leaf, Space
from gradvet.core.variants import FreshPass
from gradvet.core.vectors import namespace, peak

NAME = "reference"
"""Name of the check, and of its mode in the ledger."""

GRAD_OUTPUTS = ("random", "positive", "ones", "of few rows")
"""The grad_outputs, in the order of the samples. Sums of positive ones do not cancel; few rows show what leaks."""

NEIGHBOURS = 3
"""Number of points one roundoff away at which the reference is run in both precisions."""

NEXT_NUMBER = 0.75
"""Relative change, in spacings, that moves every number to the next one of its format."""

RESPONSE = 0.5
"""Rounding error of a number, at most, in spacings: part of the change to the next one that counts."""

KINK_STEP = 2.0**-26
"""Displacement that decides a kink in float64, relative to the inputs: no smooth function changes visibly."""

KINK_PATTERNS = 8
"""Number of random displacements, each with its opposite, that decide kinks in different ways."""

ADVICE = "The reference is the truth here: look at the kernel's loads, stores and masks at these positions."
SCALE_ADVICE = "The factor is common to all entries: look for a wrong constant, or a sum taken once too often."
LOSS_ADVICE = "Look for sums, products or intermediate results in low precision; accuracy= accepts a relative error."
TF32_ADVICE = (
    "Products in TF32, the default of tl.dot for float32, have errors of this size: input_precision='ieee' avoids "
    "them, accuracy=0.01 accepts them."
)
DRAWS = (
    "kernel and reference draw random numbers and draw them differently from the same seed, so they were not compared"
)
DRAWS_ADVICE = "Make the mask an input of both, or switch the random part off."


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The reference of a kernel in the kernel's precision, and in float64."""

    plain: Problem
    truth: Problem
    formats: Callable[[Problem, Space], list[Format]]
    draw_randomly: Callable[[], bool]
    """Whether kernel or reference draw random numbers."""
    precision: str
    """Name of the precision in the ledger."""


@dataclass(frozen=True, slots=True, eq=False)
class _Tensor:
    """An output or a gradient: where it is in the vectors of the kernel's passes."""

    name: str
    leaf: Leaf
    part: slice
    form: Format
    is_output: bool

    def of(self, found: FreshPass) -> Array:
        vector = found.values if self.is_output else found.gradient
        return namespace(vector).reshape(vector[self.part], (1, *self.form.shape))


def compared_with(reference: Reference) -> CheckFunction:
    """The check of a kernel against its reference."""

    def check(context: Context) -> Iterator[Finding]:
        problem = context.problem
        outputs = _Outputs.of(problem, reference.formats)
        if differences := list(_differences(outputs, _Outputs.of(reference.plain, reference.formats))):
            yield Finding(NAME, Verdict.FAIL, differences[0], advice="Make kernel and reference return the same.")
            return
        tensors = [*outputs.tensors, *_gradients(problem, reference)]
        for tensor in tensors:
            _enter(context, reference, tensor)
        yield from _findings(context, reference, tensors)

    return check


@dataclass(frozen=True, slots=True, eq=False)
class _Outputs:
    """The floating-point outputs of a problem in the order in which they are returned."""

    tensors: Sequence[_Tensor]
    differentiable: Sequence[bool]

    @classmethod
    def of(cls, problem: Problem, formats: Callable[[Problem, Space], list[Format]]) -> _Outputs:
        found, start = [], 0
        for space in (problem.codomain, problem.nondifferentiable):
            for leaf, form in zip(space.leaves, formats(problem, space), strict=True):
                part = slice(start, start + leaf.coordinates.size)
                start = part.stop
                found.append((_Tensor(leaf.name, leaf, part, form, True), space is problem.codomain))
        found.sort(key=lambda pair: pair[0].leaf.position)
        return cls([tensor for tensor, _ in found], [known for _, known in found])


def _differences(kernel: _Outputs, reference: _Outputs) -> Iterator[str]:
    """In which respect kernel and reference return different things."""
    found, expected = len(kernel.tensors), len(reference.tensors)
    if found != expected:
        yield f"the kernel returns {_count(found)}, and the reference {_count(expected)}"
        return
    for one, other in zip(kernel.tensors, reference.tensors, strict=True):
        if one.form.shape != other.form.shape:
            shapes = f"{list(one.form.shape)} in the kernel and {list(other.form.shape)} in the reference"
            yield f"{one.name} has the shape {shapes}"


def _count(number: int) -> str:
    return f"{number} floating-point tensor{'' if number == 1 else 's'}"


def _gradients(problem: Problem, reference: Reference) -> Iterator[_Tensor]:
    forms = reference.formats(problem, problem.domain)
    for number, (leaf, form) in enumerate(zip(problem.domain.leaves, forms, strict=True)):
        yield _Tensor(f"grad of {leaf.name}", leaf, problem.domain.slice(number), form, False)


class _Aligned:
    """The reference in one precision, with vectors in the order of the kernel's inputs and outputs."""

    def __init__(self, kernel: Problem, other: Problem, formats: Callable[[Problem, Space], list[Format]]) -> None:
        self.kernel, self.other = kernel, other
        pairs = zip(_Outputs.of(kernel, formats).tensors, _Outputs.of(other, formats).tensors, strict=True)
        self._outputs = [(one.part, two.part) for one, two in pairs]
        slices = {leaf.name: other.domain.slice(number) for number, leaf in enumerate(other.domain.leaves)}
        self._inputs = [
            (kernel.domain.slice(number), slices[leaf.name]) for number, leaf in enumerate(kernel.domain.leaves)
        ]

    def rounded(self, v: Array) -> Array:
        """A cotangent of the kernel, rounded to the formats of both."""
        v = self.kernel.representable(v)
        back = _moved(self.other.representable(self._cotangent(v)), self._outputs, v, reverse=True)
        return self.kernel.representable(back)

    def fresh_pass(self, v: Array, displacement: Array | None = None) -> FreshPass:
        if displacement is not None:
            zeros = self.other.zeros(self.other.domain.size)
            displacement = _moved(displacement, self._inputs, zeros)
        found = self.other.variants.fresh_pass(self._cotangent(v), displacement)
        kernel = self.kernel
        values = kernel.zeros(kernel.codomain.size + kernel.nondifferentiable.size)
        return FreshPass(
            _moved(found.values, self._outputs, values, reverse=True),
            _moved(found.gradient, self._inputs, kernel.zeros(kernel.domain.size), reverse=True),
        )

    def _cotangent(self, v: Array) -> Array:
        """Outputs that only one of the two can differentiate have none."""
        return _moved(v, self._outputs, self.other.zeros(self.other.codomain.size))


def _moved(vector: Array, pairs: Sequence[tuple[slice, slice]], into: Array, *, reverse: bool = False) -> Array:
    """A copy of `into` with the parts of a vector at their places; parts outside of either are left out."""
    xp = namespace(into)
    result = xp.asarray(into, copy=True)
    for pair in pairs:
        source, target = reversed(pair) if reverse else pair
        if source.stop <= vector.shape[0] and target.stop <= result.shape[0]:
            result[target] = vector[source]
    return result


Judged = Sequence[tuple[_Tensor, Judgement, Samples]]


def _findings(context: Context, reference: Reference, tensors: Sequence[_Tensor]) -> Iterator[Finding]:
    cotangents, samples = _samples(context, reference, tensors)
    judged: Judged = [
        (tensor, judge(known, tensor.form, context.options.accuracy), known)
        for tensor, known in zip(tensors, samples, strict=True)
    ]
    if any(found.status is not Status.AS_ACCURATE and not tensor.is_output for tensor, found, _ in judged):
        judged = _without_kinks(context, reference, judged, cotangents)
    has_wrong_values = any(found.status is Status.WRONG and tensor.is_output for tensor, found, _ in judged)
    if has_wrong_values and reference.draw_randomly():
        for tensor in tensors:
            context.record.ledger.withdraw(tensor.name, NAME, reference.precision)
        yield Finding(NAME, Verdict.INCONCLUSIVE, DRAWS, advice=DRAWS_ADVICE)
        return
    for tensor, found, known in judged:
        _enter(context, reference, tensor, found)
        if found.status is not Status.AS_ACCURATE:
            yield _bad(reference, tensor, found, known)
    if all(found.status is Status.AS_ACCURATE for _, found, _ in judged):
        yield _good(reference, judged)


def _without_kinks(context: Context, reference: Reference, judged: Judged, cotangents: Sequence[Array]) -> Judged:
    """The judgements, with those that a kink explains made again: there the derivative may be that of either side."""
    kernel = context.problem
    truth = _Aligned(kernel, reference.truth, reference.formats)
    xp = namespace(kernel.point)
    size = xp.concat([xp.zeros_like(part) + (peak(part) or 1.0) for part in _parts(kernel.domain, kernel.point)])
    patterns = [abs(kernel.random(size.shape[0], Distribution.SHARP))]
    patterns += [kernel.random(size.shape[0], Distribution.SHARP) for _ in range(KINK_PATTERNS - 1)]
    steps = [sign * KINK_STEP * size * pattern for pattern in patterns for sign in (1.0, -1.0)]
    passes = [[truth.fresh_pass(v, step) for step in steps] for v in cotangents]
    again, places = [], 0
    for tensor, found, known in judged:
        if found.status is not Status.AS_ACCURATE and not tensor.is_output:
            sides = [xp.stack([tensor.of(one)[0, ...] for one in near]) for near in passes]
            low, high = (xp.stack([bound(side, axis=0) for side in sides]) for bound in (xp.min, xp.max))
            known, count = outside_kinks(known, low, high, tensor.form)
            if count:
                found, places = judge(known, tensor.form, context.options.accuracy), places + count
        again.append((tensor, found, known))
    if places:
        context.record.note(
            f"the function has a kink at {places} entries, where kernel and reference may differ: both are valid"
        )
    return again


def _parts(space: Space, vector: Array) -> Iterator[Array]:
    yield from (vector[space.slice(number)] for number in range(len(space.leaves)))


def _enter(context: Context, reference: Reference, tensor: _Tensor, found: Judgement | None = None) -> None:
    """Expect a comparison, or enter its result. More than a few errors of plain torch cannot be asked for."""
    ledger, row = context.record.ledger, (tensor.name, NAME, reference.precision)
    asked = context.asked_resolution
    if found is not None:
        asked = min(1.0, max(asked, thresholds.INTERVAL_WIDTH * found.plain))
        ledger.withdraw(*row)
    ledger.open(*row, tensor.leaf.coordinates.size, asked)
    if found is not None:
        ledger.compared(*row, found.resolution)
        if found.left_out:
            ledger.left_out(*row, found.left_out, "not finite in plain torch either")


def _good(reference: Reference, judged: Judged) -> Finding:
    tensor, found, known = max(judged, key=lambda one: one[1].loss)
    words = f"values and gradients are {Status.AS_ACCURATE.value}"
    details = f"the largest error is {found.loss:.2g} times that of plain torch ({tensor.name})"
    return Finding(NAME, Verdict.PASS, f"{words}; {details}", facts=_facts(reference, tensor, found, known))


def _bad(reference: Reference, tensor: _Tensor, found: Judgement, samples: Samples) -> Finding:
    place = f"{tensor.name} {tensor.leaf.coordinates.label(found.index)}".rstrip()
    entry = f"worst: {place} is {found.found:.6g} instead of {found.expected:.6g} ± {found.allowed:.2g}"
    words = f"{tensor.name} is {found.evidence}; {entry}, for grad_output {GRAD_OUTPUTS[found.draw]}"
    if tensor.is_output:
        words = words.rpartition(", for")[0]
    facts = _facts(reference, tensor, found, samples)
    if found.status is Status.LESS_ACCURATE:
        advice = (
            TF32_ADVICE if tensor.form.internal_eps > tensor.form.eps and found.loss > 1.0 / TF32_EPS else LOSS_ADVICE
        )
        return Finding(NAME, Verdict.INCONCLUSIVE, words, facts=facts, advice=advice)
    is_common = found.evidence.endswith("times the reference") and not found.evidence.startswith("wrong")
    return Finding(NAME, Verdict.FAIL, words, facts=facts, advice=SCALE_ADVICE if is_common else ADVICE)


def _facts(reference: Reference, tensor: _Tensor, found: Judgement, samples: Samples) -> dict[str, object]:
    return {
        "tensor": tensor.name,
        "precision": reference.precision,
        "status": found.status.value,
        "entry": tensor.leaf.coordinates.label(found.index),
        "found": found.found,
        "expected": found.expected,
        "allowed": found.allowed,
        "factor": 1.0 + found.scale,
        "loss": found.loss,
        "errors": error_map(*(array[found.draw, ...] for array in (samples.found, samples.truth, samples.plain))),
    }


def _samples(context: Context, reference: Reference, tensors: Sequence[_Tensor]) -> tuple[list[Array], list[Samples]]:
    """The grad_outputs, and for each of them fresh passes of the kernel and of the reference in both precisions."""
    kernel = context.problem
    plain, truth = (_Aligned(kernel, one, reference.formats) for one in (reference.plain, reference.truth))
    gathered: list[list[Samples]] = [[] for _ in tensors]
    cotangents: list[Array] = []
    for v in _grad_outputs(kernel, reference):
        if gathered[0] and context.out_of_time:
            break
        v = plain.rounded(v)
        cotangents.append(v)
        own, expected, usual = kernel.variants.fresh_pass(v), truth.fresh_pass(v), plain.fresh_pass(v)
        points = [(truth.fresh_pass(*near), plain.fresh_pass(*near)) for near in _near(context, reference, plain, v)]
        for known, tensor in zip(gathered, tensors, strict=True):
            pairs = [(tensor.of(one), tensor.of(other)) for one, other in ((expected, usual), *points)]
            known.append(_sample(tensor.of(own), pairs))
    chosen = [known[:1] if tensor.is_output else known for tensor, known in zip(tensors, gathered, strict=True)]
    return cotangents, [_stacked(known) for known in chosen]


def _sample(found: Array, pairs: Sequence[tuple[Array, Array]]) -> Samples:
    """One sample from the truth and plain torch at the point and next to it."""
    xp, truth = namespace(found), pairs[0][0]
    worst, squares, responses = (xp.zeros_like(truth) for _ in range(3))
    for here, rounded in pairs:
        error = xp.abs(rounded - here)
        error = xp.where(xp.isnan(error), xp.full_like(error, float("inf")), error)
        worst, squares, responses = xp.maximum(worst, error), squares + error**2, responses + (here - truth) ** 2
    response = RESPONSE * xp.sqrt(responses / max(1, len(pairs) - 1))
    return Samples(found, truth, worst, xp.sqrt(squares / len(pairs)), response)


def _stacked(known: Sequence[Samples]) -> Samples:
    xp = namespace(known[0].truth)
    names = ("found", "truth", "plain", "usual", "response")
    return Samples(*(xp.concat([getattr(sample, name) for sample in known]) for name in names))


def _grad_outputs(kernel: Problem, reference: Reference) -> Iterator[Array]:
    size = kernel.codomain.size
    xp = namespace(kernel.zeros(0))
    yield kernel.random(size, Distribution.SHARP)
    yield xp.abs(kernel.random(size, Distribution.SHARP))
    yield kernel.zeros(size) + 1.0
    if not size:
        return
    # The last row and another one: rows follow from the last axis.
    v = kernel.zeros(size)
    drawn = kernel.random(size, Distribution.SHARP)
    for number, form in enumerate(reference.formats(kernel, kernel.codomain)):
        part = kernel.codomain.slice(number)
        length = form.shape[-1] if form.shape else 1
        rows = (part.stop - part.start) // max(1, length)
        for row in {rows - 1, rows // 2} if rows else ():
            row_part = slice(part.start + row * length, part.start + (row + 1) * length)
            v[row_part] = drawn[row_part]
    yield v


def _near(context: Context, reference: Reference, plain: _Aligned, v: Array) -> Iterator[tuple[Array, Array]]:
    """Pairs of a grad_output and a displacement in which every number is the next one of its format."""
    kernel, xp = context.problem, namespace(v)
    for _ in range(NEIGHBOURS):
        changes = []
        # Ties stay ties: their kinks are treated by themselves.
        signs = xp.sign(kernel.random(v.shape[0], Distribution.SHARP)), value_signs(context)
        for space, vector, sign in ((kernel.codomain, v, signs[0]), (kernel.domain, kernel.point, signs[1])):
            forms = reference.formats(kernel, space)
            sizes = [leaf.coordinates.size for leaf in space.leaves]
            steps = [xp.full_like(vector[:size], form.eps) for form, size in zip(forms, sizes, strict=True)]
            step = NEXT_NUMBER * sign * xp.concat(steps) if steps else xp.zeros_like(vector)
            changes.append(vector * (1.0 + step))
        yield plain.rounded(changes[0]), kernel.representable(changes[1], kernel.domain) - kernel.point


def about_reference(finding: Finding) -> Finding:
    """The comparison of the reference's own gradients with differences, in the words of this check."""
    words = {
        Verdict.PASS: "the reference is right: its gradients agree with finite differences in float64",
        Verdict.FAIL: f"the reference itself is wrong: {finding.headline}",
        Verdict.INCONCLUSIVE: f"the reference could not be decided: {finding.headline}",
        Verdict.SKIPPED: f"the reference was not compared with finite differences: {finding.headline}",
    }
    return replace(finding, headline=words[finding.verdict])
