"""Does the gradient depend on how the inputs lie in memory?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from gradvet.core.context import Context
from gradvet.core.gradient_match import gradient_mismatch
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array
from gradvet.errors import DerivativeError, OtherValuesError

OTHER_VALUES = (
    "the function returns other values for inputs with the same numbers that are {} in memory, and the gradient was "
    "not compared there: unless it draws random numbers, it reads or writes such tensors as if they were contiguous"
)


def input_layouts(context: Context) -> Iterator[Finding]:
    """Transposed, sliced, offset and channels-last inputs with the same values."""
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
    v, expected = context.random_vjp
    others: list[str] = []
    layouts = problem.variants.input_layouts(v)
    variations = {name: partial(_unless_other_values, name, variation, others) for name, variation in layouts.items()}
    if (shifted := context.shifted) is not None:
        variations["offset"] = partial(_unless_other_values, "offset", lambda: shifted.gradient, others)
    found, left_out = context.record.variations.carried_out(variations)
    if others and not problem.rules.are_builtin:
        context.record.note(OTHER_VALUES.format(" or ".join(others)))
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
    if none := [name for name, gradient in found.items() if gradient is None]:
        words = (
            "the function refuses inputs with the same numbers in this memory layout, or returns other values for them"
        )
        yield Finding("layouts", Verdict.SKIPPED, f"{words}: {', '.join(none)}")
    yield from _not_tried(context, "layouts", left_out)


def _unless_other_values(name: str, variation: Callable[[], Array | None], others: list[str]) -> Array | None:
    """The gradient in another layout; None where the values are other ones, whose name is added to the list."""
    try:
        return variation()
    except OtherValuesError:
        others.append(name)
        return None


GRAD_OUTPUT_ADVICE = (
    "Call contiguous() on grad_output, or use its strides: torch hands over expanded and transposed ones."
)


def grad_output_layouts(context: Context) -> Iterator[Finding]:
    """Transposed, sliced, offset, channels-last and expanded cotangents with the same values."""
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
    v, expected = context.random_vjp
    constant, of_constant = context.constant_vjp
    # Expanded first: `output.sum().backward()` hands over such a cotangent.
    variations: dict[str, Callable[[], Array | None]] = {"expanded": lambda: _expanded(context, constant)}
    found, left_out = context.record.variations.carried_out(variations | dict(problem.variants.cotangent_layouts(v)))
    cotangents = {
        name: (gradient, of_constant if name == "expanded" else expected)
        for name, gradient in found.items()
        if gradient is not None
    }
    for name, (gradient, reference) in cotangents.items():
        gap = gradient_mismatch(context, v, gradient, reference)
        if gap is not None:
            yield Finding(
                "grad_outputs",
                Verdict.FAIL,
                f"the gradient differs for a grad_output with the same values that is {name} in memory, {gap}",
                facts={"layout": name},
                advice=GRAD_OUTPUT_ADVICE,
            )
            return
    yield Finding("grad_outputs", Verdict.PASS, f"grad_outputs that are {', '.join(cotangents)} give the same gradient")
    yield from _not_tried(context, "grad_outputs", left_out)


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
