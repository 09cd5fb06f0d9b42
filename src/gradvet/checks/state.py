"""Checks that a gradient depends neither on memory layout nor on state, frozen inputs or other passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeAlias

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.gradient_match import agreement, gradient_mismatch
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import by_framework
from gradvet.core.vectors import Array, equal
from gradvet.errors import DerivativeError, OtherValuesError, UnsupportedError, first_line


def mutation(context: Context) -> Iterator[Finding]:
    """Inputs and cotangents before and after one forward and one backward pass."""
    problem = context.problem
    fresh = context.fresh
    changed = [name for name in fresh.changed if name not in fresh.reused]
    names = ", ".join(fresh.reused)
    if fresh.reused:
        context.record.note(
            f"the gradient of {names} is returned in the memory of {names}: backward runs once for each forward pass, "
            "and functions that use or saved the same tensor get wrong numbers; everything was checked on copies"
        )
    if changed:
        own = {leaf.name for leaf in problem.domain.leaves}
        where = "forward or backward modifies" if own.intersection(changed) else "backward modifies"
        headline, facts = f"{where} {', '.join(changed)} in place", {"changed": changed}
        advice = "Write to a copy: other parts of the graph may use the same tensor."
        yield Finding("mutation", Verdict.FAIL, headline, facts=facts, advice=advice)
    elif fresh.reused:
        headline = f"the memory of {names} holds the gradient after the passes, the rest is unchanged"
        yield Finding("mutation", Verdict.PASS, headline, facts={"reused": fresh.reused})
    else:
        yield Finding("mutation", Verdict.PASS, "inputs and grad_outputs are left as they were")


def reentrancy(context: Context) -> Iterator[Finding]:
    """The gradient with another forward pass before the backward pass, and after both passes at other inputs."""
    if context.interleaved.changed:
        return  # passes that write to their inputs disagree anyway, and the mutation is named
    v, _ = context.random_vjp
    # Not with the graph of the point, which later calls may have changed.
    gap = gradient_mismatch(context, v, context.interleaved.gradient, context.fresh.gradient)
    differs = "passes at other inputs before the backward pass change the gradient"
    advice = "Save what backward needs in its own context, not in a global, a module or a shared workspace."
    yield agreement("reentrancy", gap, "passes at other inputs change nothing", differs, advice)


MAX_INPUTS_ALONE = 16
"""Largest number of inputs of which each is differentiated alone: one forward and one backward pass each."""


def partial_requires_grad(context: Context) -> Iterator[Finding]:
    """The gradient of each input while the others do not require grad."""
    domain, xp = context.problem.domain, context.xp
    if len(domain.leaves) < 2 or not context.problem.codomain.size:
        return
    v, expected = context.random_vjp
    for number, (leaf, part) in enumerate(islice(domain.sections, MAX_INPUTS_ALONE)):
        try:
            alone = context.problem.variants.of_one_input(number, v)
        except DerivativeError as error:
            headline = f"{error} (when only {leaf.name} requires grad)"
            yield Finding("partial_requires_grad", Verdict.FAIL, headline, facts={"input": leaf.name})
            return
        except RuntimeError as error:
            headline = f"the function cannot be called when only {leaf.name} requires grad: {first_line(error)}"
            if isinstance(error.__cause__, DerivativeError):
                # In a model: its gradients are right, and freezing parameters fails with a message.
                headline = f"{first_line(error)} (when only {leaf.name} requires grad): other layers cannot be frozen"
                context.record.note(headline)
            yield Finding("partial_requires_grad", Verdict.SKIPPED, headline, facts={"input": leaf.name})
            return
        found = xp.zeros_like(expected[part]) if alone is None else alone
        if equal(found, expected[part]):
            continue
        whole = xp.concat([expected[: part.start], found, expected[part.stop :]])
        gap = gradient_mismatch(context, v, whole, expected)
        if gap is not None:
            headline = f"the gradient of {leaf.name} changes when the other inputs do not require grad, {gap}"
            advice = "Look at how backward uses needs_input_grad, and at what forward saves."
            yield Finding("partial_requires_grad", Verdict.FAIL, headline, facts={"input": leaf.name}, advice=advice)
            return
    headline = "every input alone gets the gradient that it gets with the others"
    yield Finding("partial_requires_grad", Verdict.PASS, headline)


def accumulation(context: Context) -> Iterator[Finding]:
    """`backward()` must add to gradients that `.grad` holds already."""
    v, expected = context.random_vjp
    gap: str | None = ""
    try:
        # First with the graph of the point, which later calls may have changed; then with a fresh one.
        for found in context.problem.variants.accumulated(v):
            # `.grad` starts at 2, so the sum is accurate to a roundoff of 2.
            roundoff = thresholds.ROUNDOFFS * context.problem.eps
            is_close = abs(found - expected) <= roundoff * (2.0 + abs(expected))
            gap = gradient_mismatch(context, v, context.xp.where(is_close, expected, found), expected)
            if gap is None:
                break
    except UnsupportedError as error:
        # Gradients come from torch.autograd.grad otherwise, which runs no hook on `.grad`.
        words = f"`.grad` was not compared after `backward()`: {error}"
        context.record.note(words)
        yield Finding("accumulation", Verdict.SKIPPED, words)
        return
    if gap != "":  # something was accumulated
        differs = "`.grad` does not gain the gradient when it held something before"
        advice = "Backward must return the gradient and leave `.grad` alone."
        yield agreement("accumulation", gap, "gradients add up in `.grad`", differs, advice)


def checkpoint(context: Context) -> Iterator[Finding]:
    """The gradient under torch.utils.checkpoint, which runs the forward pass again in the backward pass."""
    v, expected = context.random_vjp
    gap = gradient_mismatch(context, v, context.problem.variants.checkpointed(v), expected)
    same, differs = "recomputation does not change the gradient", "recomputing the forward pass changes the gradient"
    advice = "Look for state that a call leaves behind: counters, caches, random numbers of its own."
    found = agreement("checkpoint", gap, same, differs, advice)
    words = f"torch's own operators are not to be trusted under torch.utils.checkpoint here, {gap}"
    yield found if gap is None or _is_stateful(context, v, expected) else by_framework(context, found, words)


def _is_stateful(context: Context, v: Array, expected: Array) -> bool:
    """Whether custom rules, or a second call that differs from the first, may explain it. One VJP."""
    problem = context.problem
    again = problem.vjp_at(problem.zeros(problem.domain.size), v)
    return problem.rules.has_custom or gradient_mismatch(context, v, again, expected) is not None


OTHER_VALUES = (
    "the function returns other values for inputs with the same numbers that are {} in memory, and the gradient was "
    "not compared there: unless it draws random numbers, it reads or writes such tensors as if they were contiguous"
)


def input_layout(context: Context) -> Iterator[Finding]:
    """Transposed, sliced, offset and channels-last inputs with the same values."""
    problem = context.problem
    v, expected = context.random_vjp
    layouts: dict[str, Callable[[], Array | None]] = dict(context.problem.variants.input_layouts(v))
    if (shifted := context.shifted) is not None:
        layouts["offset"] = lambda: shifted.gradient
    found, others, left_out = _in_other_layouts(context, layouts)
    pairs = {name: (gradient, expected) for name, gradient in found.items() if gradient is not None}
    what, advice = "inputs with the same values that are", "Call contiguous() on the inputs, or use their strides."
    while (failure := _different_layout(context, "input_layout", pairs, what, advice)) is not None:
        name = failure.facts["layout"]
        if name == "offset" or not context.problem.variants.draws_random_numbers():
            # Needed by `test_strided_weight_of_batch_norm_is_the_fault_of_the_framework`.
            yield failure if _is_stateful(context, v, expected) else by_framework(context, failure)
            return
        # Masks of dropout are drawn in the order of the memory; the values need not show it.
        others.append(name)
        found[name] = None
        del pairs[name]
    if others and not problem.rules.are_builtin:
        context.record.note(OTHER_VALUES.format(" or ".join(others)))
    words = "the function refuses inputs with the same numbers in this memory layout, or returns other values for them"
    yield from _without_failure(context, "input_layout", "inputs", found, left_out, words)


Layouts: TypeAlias = Mapping[str, Callable[[], Array | None]]
"""The gradient in other memory layouts, by name."""


def _in_other_layouts(context: Context, layouts: Layouts) -> tuple[dict[str, Array | None], list[str], Sequence[str]]:
    """The gradients by layout, the layouts with other values, and those that the budget left out.

    None where the values are other ones, or where backward refuses the layout, which is noted.
    """
    others: list[str] = []
    refusals: list[DerivativeError] = []

    def tried(name: str) -> Array | None:
        try:
            return layouts[name]()
        except OtherValuesError:
            others.append(name)
        except DerivativeError as error:
            if not error.is_layout_refusal:
                raise
            refusals.append(error)
        return None

    found, left_out = context.record.variations.carried_out({name: partial(tried, name) for name in layouts})
    if refusals:
        context.record.note(f"{refusals[0]}: it asks for another memory layout, and nothing was compared there")
    return found, others, left_out


GRAD_OUTPUT_ADVICE = (
    "Call contiguous() on grad_output, or use its strides: torch hands over expanded and transposed ones."
)


def grad_output_layout(context: Context) -> Iterator[Finding]:
    """Transposed, sliced, offset, channels-last and expanded cotangents with the same values."""
    v, expected = context.random_vjp
    constant, of_constant = context.constant_vjp
    # Expanded first: `output.sum().backward()` hands over such a cotangent.
    layouts: dict[str, Callable[[], Array | None]] = {"expanded": lambda: _expanded(context, constant)}
    layouts |= context.problem.variants.cotangent_layouts(v)
    found, _, left_out = _in_other_layouts(context, layouts)
    pairs = {
        name: (gradient, of_constant if name == "expanded" else expected)
        for name, gradient in found.items()
        if gradient is not None
    }
    what = "a grad_output with the same values that is"
    if (failure := _different_layout(context, "grad_output_layout", pairs, what, GRAD_OUTPUT_ADVICE)) is not None:
        yield failure
        return
    words = "backward refuses a grad_output with the same numbers in this memory layout"
    yield from _without_failure(context, "grad_output_layout", "grad_outputs", found, left_out, words)


def _different_layout(
    context: Context, check: str, pairs: Mapping[str, tuple[Array, Array]], what: str, advice: str
) -> Finding | None:
    """The failure for the first layout whose gradient is not the expected one beside it; None if there is none."""
    v, _ = context.random_vjp
    for name, (gradient, expected) in pairs.items():
        gap = gradient_mismatch(context, v, gradient, expected)
        if gap is not None:
            headline = f"the gradient differs for {what} {name} in memory, {gap}"
            return Finding(check, Verdict.FAIL, headline, facts={"layout": name}, advice=advice)
    return None


def _without_failure(
    context: Context, check: str, what: str, found: Mapping[str, Array | None], left_out: Sequence[str], refusal: str
) -> Iterator[Finding]:
    """The findings where no layout fails: those that agree, those refused, and those that the time budget left out."""
    if same := [name for name, gradient in found.items() if gradient is not None]:
        yield Finding(check, Verdict.PASS, f"{what} that are {', '.join(same)} give the same gradient")
    if none := [name for name, gradient in found.items() if gradient is None]:
        yield Finding(check, Verdict.SKIPPED, f"{refusal}: {', '.join(none)}")
    if left_out:
        words = f"not tried in memory: {', '.join(left_out)}: {context.record.variations.reason}"
        yield Finding(check, Verdict.SKIPPED, words)


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
