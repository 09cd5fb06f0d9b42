"""Does the gradient depend on how the inputs lie in memory?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradvet.core.context import Context
from gradvet.core.gradient_match import gradient_mismatch
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array
from gradvet.errors import DerivativeError


def input_layouts(context: Context) -> Iterator[Finding]:
    """Transposed, sliced, offset and channels-last inputs with the same values."""
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
    v, expected = context.random_vjp
    variations = dict(problem.variants.input_layouts(v))
    if (shifted := context.shifted) is not None:
        variations["offset"] = lambda: shifted.gradient
    found, left_out = context.record.variations.carried_out(variations)
    gradients = {name: gradient for name, gradient in found.items() if gradient is not None}
    for name, gradient in gradients.items():
        gap = gradient_mismatch(context, v, gradient, expected)
        if gap is not None:
            yield Finding(
                "layouts",
                Verdict.FAIL,
                f"the gradient differs for inputs with the same values that are {name} in memory, {gap}",
                facts={"layout": name},
                advice="Call contiguous() on the inputs, or use their strides.",
            )
            return
    if gradients:
        yield Finding("layouts", Verdict.PASS, f"inputs that are {', '.join(gradients)} give the same gradient")
    yield from _not_tried(context, "layouts", left_out)


GRAD_OUTPUT_ADVICE = (
    "Call contiguous() on the cotangent, or use its strides: torch hands over expanded and transposed ones."
)


def grad_output_layouts(context: Context) -> Iterator[Finding]:
    """Transposed, sliced, offset, channels-last and expanded cotangents with the same values."""
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
    v, expected = context.random_vjp
    gradients, left_out = context.record.variations.carried_out(problem.variants.cotangent_layouts(v))
    cotangents = {name: (found, expected) for name, found in gradients.items()}
    constant, of_constant = context.constant_vjp
    expanded = _expanded(context, constant)
    if expanded is not None:
        cotangents["expanded"] = expanded, of_constant
    for name, (found, reference) in cotangents.items():
        gap = gradient_mismatch(context, v, found, reference)
        if gap is not None:
            yield Finding(
                "cotangents",
                Verdict.FAIL,
                f"the gradient differs for a cotangent with the same values that is {name} in memory, {gap}",
                facts={"layout": name},
                advice=GRAD_OUTPUT_ADVICE,
            )
            return
    yield Finding("cotangents", Verdict.PASS, f"cotangents that are {', '.join(cotangents)} give the same gradient")
    yield from _not_tried(context, "cotangents", left_out)


def _not_tried(context: Context, check: str, layouts: Sequence[str]) -> Iterator[Finding]:
    """What the budget for variations left out."""
    if layouts:
        yield Finding(
            check, Verdict.SKIPPED, f"not tried in memory: {', '.join(layouts)}: {context.record.variations.reason}"
        )


def _expanded(context: Context, v: Array) -> Array | None:
    """The gradient for an expanded cotangent; None where a backward pass that writes to it raises.

    The mutation is named by its own check.
    """
    try:
        return context.problem.variants.expanded_cotangent(v)
    except DerivativeError:
        if context.fresh.changed:
            return None
        raise
