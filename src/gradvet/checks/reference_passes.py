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
from gradvet.core.problem import Distribution, Problem
from gradvet.core.reference_comparison import Samples
from gradvet.core.reference_errors import Format
from gradvet.core.vectors import Array, Leaf, Space, namespace, nan_as_inf, peak

GRAD_OUTPUTS = (
    "a random grad_output",
    "a positive grad_output",
    "a grad_output of ones",
    "a grad_output with few nonzero rows",
)
"""The grad_outputs, in the order of the samples. Sums of positive ones do not cancel; few rows show what leaks."""

NEIGHBOURS = 3
"""Number of points one roundoff away at which the reference is run in both precisions."""

DRAWN = 9
"""Number of grad_outputs for which wrong entries are compared again."""


Pass = tuple[Array, Array]
"""Values and gradient of a fresh pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A kernel, and its reference in the kernel's precision and in float64.

    Passes of the reference have their vectors in the order of the kernel's inputs and outputs.
    """

    kernel: Problem
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
        return self._with_formats(lambda form: replace(form, eps=max(form.eps, eps)))

    def in_tf32(self) -> Reference | None:
        """The same with the products of `plain` and all formats in TF32."""
        if self.tf32_products is None:
            return None
        return replace(self._with_formats(Format.in_tf32), around=self.tf32_products)

    def _with_formats(self, changed: Callable[[Format], Format]) -> Reference:
        formats = self.formats
        return replace(self, formats=lambda *given: list(map(changed, formats(*given))))

    def outputs_of(self, problem: Problem) -> list[ComparedTensor]:
        """The floating-point outputs of kernel or reference in the order in which they are returned."""
        found, start = [], 0
        for space in (problem.codomain, problem.nondifferentiable):
            for leaf, form in zip(space.leaves, self.formats(problem, space), strict=True):
                part = slice(start, start + leaf.coordinates.size)
                start = part.stop
                found.append(ComparedTensor(leaf.name, leaf, part, form, True))
        return sorted(found, key=lambda tensor: tensor.leaf.position)

    def gradients(self) -> Iterator[ComparedTensor]:
        domain = self.kernel.domain
        for (leaf, part), form in zip(domain.sections, self.formats(self.kernel, domain), strict=True):
            yield ComparedTensor(f"grad of {leaf.name}", leaf, part, form, False)

    def rounded(self, v: Array) -> Array:
        """A cotangent of the kernel, rounded to the formats of kernel and reference."""
        v, outputs = self.kernel.representable(v), self._outputs(self.plain)
        there = _moved(v, outputs, self.plain.zeros(self.plain.codomain.size))
        return self.kernel.representable(_moved(self.plain.representable(there), outputs, v, reverse=True))

    def passes(self, v: Array, displacement: Array | None = None) -> tuple[Pass, Pass, Pass]:
        """A pass of the kernel, of the reference in float64, and of the reference in the kernel's precision."""
        return (
            self.kernel.variants.fresh_pass(v, displacement),
            self.true_pass(v, displacement),
            self.plain_pass(v, displacement),
        )

    def true_pass(self, v: Array, displacement: Array | None = None) -> Pass:
        return self._pass(self.truth, v, displacement)

    def plain_pass(self, v: Array, displacement: Array | None = None) -> Pass:
        with self.around:
            return self._pass(self.plain, v, displacement)

    def _pass(self, other: Problem, v: Array, displacement: Array | None) -> Pass:
        """Outputs that only kernel or reference can differentiate have no cotangent."""
        kernel, outputs = self.kernel, self._outputs(other)
        slices = {leaf.name: part for leaf, part in other.domain.sections}
        inputs = [(part, slices[leaf.name]) for leaf, part in kernel.domain.sections]
        if displacement is not None:
            displacement = _moved(displacement, inputs, other.zeros(other.domain.size))
        v = _moved(v, outputs, other.zeros(other.codomain.size))
        values, gradient = other.variants.fresh_pass(v, displacement)
        everything = kernel.zeros(kernel.codomain.size + kernel.nondifferentiable.size)
        return (
            _moved(values, outputs, everything, reverse=True),
            _moved(gradient, inputs, kernel.zeros(kernel.domain.size), reverse=True),
        )

    def _outputs(self, other: Problem) -> list[tuple[slice, slice]]:
        pairs = zip(self.outputs_of(self.kernel), self.outputs_of(other), strict=True)
        return [(one.part, two.part) for one, two in pairs]


@dataclass(frozen=True, slots=True, eq=False)
class ComparedTensor:
    """An output or a gradient: where it is in the vectors of the kernel's passes."""

    name: str
    leaf: Leaf
    part: slice
    form: Format
    is_output: bool

    def of(self, found: Pass) -> Array:
        values, gradient = found
        vector = values if self.is_output else gradient
        return namespace(vector).reshape(vector[self.part], (1, *self.form.shape))


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
    gathered: list[list[Samples]] = [[] for _ in tensors]
    cotangents: list[Array] = []
    for v in map(reference.rounded, _grad_outputs(reference)):
        if gathered[0] and context.out_of_budget:
            break
        cotangents.append(v)
        own, *here = reference.passes(v)
        near = [(reference.true_pass(*at), reference.plain_pass(*at)) for at in _near(context, reference, v)]
        for known, tensor in zip(gathered, tensors, strict=True):
            known.append(_sample(tensor.of(own), [tuple(map(tensor.of, pair)) for pair in (here, *near)]))
    chosen = [known[:1] if tensor.is_output else known for tensor, known in zip(tensors, gathered, strict=True)]
    return cotangents, [_stacked(known) for known in chosen]


def _sample(found: Array, pairs: Sequence[tuple[Array, ...]]) -> Samples:
    """One sample from the truth and plain torch at the point and next to it."""
    xp, truth = namespace(found), pairs[0][0]
    worst, squares, responses = (xp.zeros_like(truth) for _ in range(3))
    for here, rounded in pairs:
        error = nan_as_inf(xp.abs(rounded - here))
        worst, squares, responses = xp.maximum(worst, error), squares + error**2, responses + (here - truth) ** 2
    # A number is rounded by half of the way to the next one.
    response = 0.5 * xp.sqrt(responses / max(1, len(pairs) - 1))
    return Samples(found, truth, worst, xp.sqrt(squares / len(pairs)), response)


def _stacked(known: Sequence[Samples]) -> Samples:
    xp = namespace(known[0].truth)
    names = ("found", "truth", "plain", "usual", "response")
    return Samples(*(xp.concat([getattr(sample, name) for sample in known]) for name in names))


def _grad_outputs(reference: Reference) -> Iterator[Array]:
    kernel, size = reference.kernel, reference.kernel.codomain.size
    yield kernel.random(size, Distribution.NEAR_UNIT)
    yield abs(kernel.random(size, Distribution.NEAR_UNIT))
    yield kernel.zeros(size) + 1.0
    # The last row of each output and another one: rows follow from the last axis.
    v, drawn = kernel.zeros(size), kernel.random(size, Distribution.NEAR_UNIT)
    for part, form in zip(kernel.codomain.slices, reference.formats(kernel, kernel.codomain), strict=True):
        length = form.shape[-1] if form.shape else 1
        rows = (part.stop - part.start) // max(1, length)
        for row in {rows - 1, rows // 2} if rows else ():
            row_part = slice(part.start + row * length, part.start + (row + 1) * length)
            v[row_part] = drawn[row_part]
    if size:
        yield v


def _near(context: Context, reference: Reference, v: Array) -> Iterator[tuple[Array, Array]]:
    """Pairs of a grad_output and a displacement in which every number is the next one of its format."""
    kernel, xp = context.problem, namespace(v)
    for _ in range(NEIGHBOURS):
        changes = []
        # Ties stay ties: their kinks are treated by themselves.
        signs = xp.sign(kernel.random(v.shape[0], Distribution.NEAR_UNIT)), value_signs(context)
        for space, vector, sign in ((kernel.codomain, v, signs[0]), (kernel.domain, kernel.point, signs[1])):
            step = xp.zeros_like(vector)
            for part, form in zip(space.slices, reference.formats(kernel, space), strict=True):
                step[part] = 0.75 * form.eps  # of any number, more than half a spacing and less than two
            changes.append(vector * (1.0 + sign * step))
        yield reference.rounded(changes[0]), displacement_to(kernel, changes[1])


def displacement_to(kernel: Problem, point: Array) -> Array:
    """From the point of a kernel to another one, as its formats represent it."""
    return kernel.representable(point, kernel.domain) - kernel.point


def arrays_nearby(
    reference: Reference, tensors: Sequence[ComparedTensor], *, are_positive: bool = False
) -> list[tuple[Array, Array, Array]]:
    """Of each tensor kernel, truth and plain torch for random grad_outputs, each at a point one roundoff away.

    Every element moves by itself, zeros too: ties and kinks at zero are left.
    """
    kernel, xp = reference.kernel, namespace(reference.kernel.point)
    parts = [kernel.point[part] for part in kernel.domain.slices]
    scale = xp.concat([xp.clip(abs(part), kernel.eps * peak(part)) for part in parts])
    passes = []
    for _ in range(DRAWN):
        v = kernel.random(kernel.codomain.size, Distribution.NEAR_UNIT)
        moved = kernel.point + kernel.eps * scale * xp.sign(kernel.random(scale.shape[0], Distribution.NEAR_UNIT))
        passes.append(
            reference.passes(reference.rounded(abs(v) if are_positive else v), displacement_to(kernel, moved))
        )
    own, truths, plain = (
        [xp.concat([tensor.of(one) for one in some]) for tensor in tensors] for some in zip(*passes, strict=True)
    )
    return list(zip(own, truths, plain, strict=True))
