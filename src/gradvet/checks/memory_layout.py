"""Does the gradient depend on how the inputs lie in memory?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.context import Context
from gradvet.core.gradient_match import gradient_mismatch
from gradvet.core.results import Finding, Verdict


def input_layouts(context: Context) -> Iterator[Finding]:
    """Transposed, sliced, offset and channels-last inputs with the same values."""
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
    v, expected = context.random_vjp
    known = {} if context.shifted is None else {"offset": context.shifted.gradient}
    found = problem.variants.input_layouts(v, known)
    for name, gradient in found.items():
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
    if found:
        yield Finding("layouts", Verdict.PASS, f"inputs that are {', '.join(found)} give the same gradient")


GRAD_OUTPUT_ADVICE = (
    "Call contiguous() on the cotangent, or use its strides: torch hands over expanded and transposed ones."
)


def grad_output_layouts(context: Context) -> Iterator[Finding]:
    """Transposed, sliced, offset, channels-last and expanded cotangents with the same values."""
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
    v, expected = context.random_vjp
    cotangents = {name: (found, expected) for name, found in problem.variants.cotangent_layouts(v).items()}
    constant, of_constant = context.constant_vjp
    expanded = problem.variants.expanded_cotangent(constant)
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
