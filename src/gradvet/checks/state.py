"""Checks that state, frozen inputs and earlier gradients do not change a gradient, and that passes change no input."""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.gradient_match import gradient_mismatch
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array
from gradvet.core.vectors import equal, namespace
from gradvet.errors import DerivativeError


def mutation(context: Context) -> Iterator[Finding]:
    """Inputs and cotangents before and after one forward and one backward pass."""
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
    fresh = context.fresh
    changed = [name for name in fresh.changed if name not in fresh.reused]
    if fresh.reused:
        names = ", ".join(fresh.reused)
        context.record.note(
            f"the gradient of {names} is returned in the memory of {names}: backward runs once for each forward pass, "
            "and functions that use or saved the same tensor get wrong numbers; everything was checked on copies"
        )
    if changed:
        own = {leaf.name for leaf in problem.domain.leaves}
        where = "forward or backward modifies" if own.intersection(changed) else "backward modifies"
        yield Finding(
            "mutation",
            Verdict.FAIL,
            f"{where} {', '.join(changed)} in place",
            facts={"changed": changed},
            advice="Write to a copy: other parts of the graph may use the same tensor.",
        )
    else:
        headline = "inputs and grad_outputs are left as they were"
        if fresh.reused:
            headline = (
                f"the memory of {', '.join(fresh.reused)} holds the gradient after the passes, the rest is unchanged"
            )
        yield Finding("mutation", Verdict.PASS, headline, facts={"reused": fresh.reused} if fresh.reused else {})


def interleaving(context: Context) -> Iterator[Finding]:
    """The gradient with another forward pass before the backward pass: a later call may overwrite state."""
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
    if context.interleaved.changed:
        return  # passes that write to their inputs disagree anyway, and the mutation is named
    v, _ = context.random_vjp
    # Not with the graph of the point, which later calls may have changed.
    gap = gradient_mismatch(context, v, context.interleaved.gradient, context.fresh.gradient)
    if gap is not None:
        yield Finding(
            "interleaving",
            Verdict.FAIL,
            f"a forward pass at other inputs before the backward pass changes the gradient, {gap}",
            advice="Save what backward needs in its own context, not in a global, a module or a shared workspace.",
        )
    else:
        yield Finding("interleaving", Verdict.PASS, "another forward pass in between changes nothing")


MAX_INPUTS_ALONE = 16
"""Largest number of inputs of which each is differentiated alone: one forward and one backward pass each."""


def frozen(context: Context) -> Iterator[Finding]:
    """The gradient of each input while the others do not require grad."""
    problem = context.problem
    domain = problem.domain
    if len(domain.leaves) < 2 or not problem.codomain.size:
        return
    v, expected = context.random_vjp
    xp = namespace(expected)
    for number, leaf in enumerate(domain.leaves[:MAX_INPUTS_ALONE]):
        part = domain.slice(number)
        try:
            alone = problem.variants.alone(number, v)
        except DerivativeError as error:
            headline = f"{error} (when only {leaf.name} requires grad)"
            yield Finding("frozen", Verdict.FAIL, headline, facts={"input": leaf.name})
            return
        except RuntimeError as error:
            headline = (
                f"the function cannot be called when only {leaf.name} requires grad: {str(error).splitlines()[0]}"
            )
            yield Finding("frozen", Verdict.SKIPPED, headline[:300], facts={"input": leaf.name})
            return
        found = xp.zeros_like(expected[part]) if alone is None else alone
        if equal(found, expected[part]):
            continue
        whole = xp.concat([expected[: part.start], found, expected[part.stop :]])
        gap = gradient_mismatch(context, v, whole, expected)
        if gap is not None:
            yield Finding(
                "frozen",
                Verdict.FAIL,
                f"the gradient of {leaf.name} changes when the other inputs do not require grad, {gap}",
                facts={"input": leaf.name},
                advice="Look at how backward uses needs_input_grad, and at what forward saves.",
            )
            return
    yield Finding("frozen", Verdict.PASS, "every input alone gets the gradient that it gets with the others")


def accumulation(context: Context) -> Iterator[Finding]:
    """`backward()` must add to gradients that `.grad` holds already."""
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
    v, expected = context.random_vjp
    gap = None
    # First with the graph of the point, which later calls may have changed; then with a fresh one.
    for found in problem.variants.accumulated(v):
        # `.grad` starts at 2, so the sum is accurate to a roundoff of 2.
        gap = gradient_mismatch(context, v, found, (expected + 2.0) - 2.0)
        roundoff = thresholds.ROUNDOFFS * problem.eps
        if gap is None or abs(gap.found - gap.expected) <= roundoff * (2.0 + abs(gap.expected)):
            yield Finding("accumulation", Verdict.PASS, "gradients add up in `.grad`")
            return
    if gap is not None:
        yield Finding(
            "accumulation",
            Verdict.FAIL,
            f"`.grad` does not gain the gradient when it held something before, {gap}",
            advice="Backward must return the gradient and leave `.grad` alone.",
        )


def checkpoint(context: Context) -> Iterator[Finding]:
    """The gradient under torch.utils.checkpoint, which runs the forward pass again in the backward pass."""
    problem = context.problem
    if not problem.codomain.size or not problem.domain.size:
        return
    v, expected = context.random_vjp
    gap = gradient_mismatch(context, v, problem.variants.checkpointed(v), expected)
    if gap is not None and not _is_stateful(context, v, expected):
        words = f"torch's own operators are not to be trusted under torch.utils.checkpoint here, {gap}"
        context.record.note(words)
        yield Finding("checkpoint", Verdict.SKIPPED, words)
    elif gap is not None:
        yield Finding(
            "checkpoint",
            Verdict.FAIL,
            f"recomputing the forward pass changes the gradient, {gap}",
            advice="Look for state that a call leaves behind: counters, caches, random numbers of its own.",
        )
    else:
        yield Finding("checkpoint", Verdict.PASS, "recomputation does not change the gradient")


def _is_stateful(context: Context, v: Array, expected: Array) -> bool:
    """Whether custom rules, or a second call that differs from the first, may explain it. One VJP."""
    problem = context.problem
    again = problem.vjp_at(problem.zeros(problem.domain.size), v)
    return problem.rules.has_custom or gradient_mismatch(context, v, again, expected) is not None
