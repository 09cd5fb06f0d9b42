"""Passes of a kernel and of its reference for the same grad_outputs, as samples that can be compared.

Every pass is a fresh call on copies, so a backward that can run only once, or that overwrites what it is given, is
sampled like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from gradvet.core.context import Context
from gradvet.core.gradient_match import value_signs
from gradvet.core.problem import Distribution, FreshPass, Problem
from gradvet.core.reference_comparison import Samples
from gradvet.core.reference_errors import Format
from gradvet.core.vectors import Array, Leaf, Space, namespace, peak

GRAD_OUTPUTS = (
    "a random grad_output",
    "a positive grad_output",
    "a grad_output of ones",
    "a grad_output with few nonzero rows",
)
"""The grad_outputs, in the order of the samples. Sums of positive ones do not cancel; few rows show what leaks."""

NEIGHBOURS = 3
"""Number of points one roundoff away at which the reference is run in both precisions."""

NEXT_NUMBER = 0.75
"""Relative change, in spacings, that moves every number to the next one of its format."""

RESPONSE = 0.5
"""Rounding error of a number, at most, in spacings: part of the change to the next one that counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """The reference of a kernel in the kernel's precision, and in float64."""

    plain: Problem
    truth: Problem
    formats: Callable[[Problem, Space], list[Format]]
    precision: str
    """Name of the precision in the ledger."""
    tf32_products: AbstractContextManager[object] | None = None
    """Cuts the factors of float32 products off to TF32 while it is open; None where no product is computed so."""
    around: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Open during the passes of `plain`."""

    def in_format(self, eps: float) -> Reference:
        """The same with numbers of at least this spacing, relative to them."""
        formats = self.formats
        return replace(self, formats=lambda *given: [replace(form, eps=max(form.eps, eps)) for form in formats(*given)])

    def in_tf32(self) -> Reference | None:
        """The same with the products of `plain` and all formats in TF32."""
        if self.tf32_products is None:
            return None
        formats = self.formats
        return replace(
            self, around=self.tf32_products, formats=lambda *given: [form.in_tf32() for form in formats(*given)]
        )


@dataclass(frozen=True, slots=True, eq=False)
class ComparedTensor:
    """An output or a gradient: where it is in the vectors of the kernel's passes."""

    name: str
    leaf: Leaf
    part: slice
    form: Format
    is_output: bool

    def of(self, found: FreshPass) -> Array:
        vector = found.values if self.is_output else found.gradient
        return namespace(vector).reshape(vector[self.part], (1, *self.form.shape))


def outputs_of(problem: Problem, reference: Reference) -> list[ComparedTensor]:
    """The floating-point outputs in the order in which they are returned."""
    found, start = [], 0
    for space in (problem.codomain, problem.nondifferentiable):
        for leaf, form in zip(space.leaves, reference.formats(problem, space), strict=True):
            part = slice(start, start + leaf.coordinates.size)
            start = part.stop
            found.append(ComparedTensor(leaf.name, leaf, part, form, True))
    return sorted(found, key=lambda tensor: tensor.leaf.position)


def gradients_of(problem: Problem, reference: Reference) -> Iterator[ComparedTensor]:
    forms = reference.formats(problem, problem.domain)
    for number, (leaf, form) in enumerate(zip(problem.domain.leaves, forms, strict=True)):
        yield ComparedTensor(f"grad of {leaf.name}", leaf, problem.domain.slices[number], form, False)


class Aligned:
    """The reference in one precision, with vectors in the order of the kernel's inputs and outputs."""

    def __init__(self, kernel: Problem, reference: Reference, other: Problem) -> None:
        self.kernel, self.other = kernel, other
        self._around = reference.around if other is reference.plain else nullcontext()
        pairs = zip(outputs_of(kernel, reference), outputs_of(other, reference), strict=True)
        self._outputs = [(one.part, two.part) for one, two in pairs]
        slices = {leaf.name: other.domain.slices[number] for number, leaf in enumerate(other.domain.leaves)}
        self._inputs = [
            (kernel.domain.slices[number], slices[leaf.name]) for number, leaf in enumerate(kernel.domain.leaves)
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
        with self._around:
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


def samples_of(
    context: Context, reference: Reference, tensors: Sequence[ComparedTensor]
) -> tuple[list[Array], list[Samples]]:
    """The grad_outputs, and for each of them fresh passes of the kernel and of the reference in both precisions."""
    kernel = context.problem
    plain, truth = (Aligned(kernel, reference, one) for one in (reference.plain, reference.truth))
    gathered: list[list[Samples]] = [[] for _ in tensors]
    cotangents: list[Array] = []
    for v in _grad_outputs(kernel, reference):
        if gathered[0] and context.out_of_budget:
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
    yield kernel.random(size, Distribution.NEAR_UNIT)
    yield xp.abs(kernel.random(size, Distribution.NEAR_UNIT))
    yield kernel.zeros(size) + 1.0
    if not size:
        return
    # The last row and another one: rows follow from the last axis.
    v = kernel.zeros(size)
    drawn = kernel.random(size, Distribution.NEAR_UNIT)
    for number, form in enumerate(reference.formats(kernel, kernel.codomain)):
        part = kernel.codomain.slices[number]
        length = form.shape[-1] if form.shape else 1
        rows = (part.stop - part.start) // max(1, length)
        for row in {rows - 1, rows // 2} if rows else ():
            row_part = slice(part.start + row * length, part.start + (row + 1) * length)
            v[row_part] = drawn[row_part]
    yield v


def _near(context: Context, reference: Reference, plain: Aligned, v: Array) -> Iterator[tuple[Array, Array]]:
    """Pairs of a grad_output and a displacement in which every number is the next one of its format."""
    kernel, xp = context.problem, namespace(v)
    for _ in range(NEIGHBOURS):
        changes = []
        # Ties stay ties: their kinks are treated by themselves.
        signs = xp.sign(kernel.random(v.shape[0], Distribution.NEAR_UNIT)), value_signs(context)
        for space, vector, sign in ((kernel.codomain, v, signs[0]), (kernel.domain, kernel.point, signs[1])):
            forms = reference.formats(kernel, space)
            sizes = [leaf.coordinates.size for leaf in space.leaves]
            steps = [xp.full_like(vector[:size], form.eps) for form, size in zip(forms, sizes, strict=True)]
            step = NEXT_NUMBER * sign * xp.concat(steps) if steps else xp.zeros_like(vector)
            changes.append(vector * (1.0 + step))
        yield plain.rounded(changes[0]), kernel.representable(changes[1], kernel.domain) - kernel.point


PassTriple = tuple[FreshPass, FreshPass, FreshPass]
"""A pass of the kernel, of the reference in float64, and of the reference in the kernel's precision."""


def passes_nearby(
    context: Context, reference: Reference, count: int, *, are_positive: bool = False
) -> list[PassTriple]:
    """Passes for random grad_outputs, each at a point of its own, one roundoff away.

    Every element moves by itself, zeros too: ties and kinks at zero are left.
    """
    kernel, xp = context.problem, namespace(context.problem.point)
    truth, plain = (Aligned(kernel, reference, one) for one in (reference.truth, reference.plain))
    parts = [kernel.point[kernel.domain.slices[number]] for number in range(len(kernel.domain.leaves))]
    scale = xp.concat([xp.clip(abs(part), kernel.eps * peak(part)) for part in parts])
    found = []
    for _ in range(count):
        v = kernel.random(kernel.codomain.size, Distribution.NEAR_UNIT)
        moved = kernel.point + kernel.eps * scale * xp.sign(kernel.random(scale.shape[0], Distribution.NEAR_UNIT))
        at = plain.rounded(abs(v) if are_positive else v), kernel.representable(moved, kernel.domain) - kernel.point
        found.append((kernel.variants.fresh_pass(*at), truth.fresh_pass(*at), plain.fresh_pass(*at)))
    return found


def arrays_of(tensor: ComparedTensor, passes: Sequence[PassTriple]) -> tuple[Array, Array, Array]:
    """One tensor in all of these passes: of the kernel, of the truth, of plain torch."""
    own, truth, plain = ([tensor.of(one) for one in some] for some in zip(*passes, strict=True))
    xp = namespace(own[0])
    return xp.concat(own), xp.concat(truth), xp.concat(plain)
