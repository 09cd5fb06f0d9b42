"""Are second derivatives right: each composition of the two modes against differences, and are they symmetric?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gradvet.checks import slopes
from gradvet.core.arithmetic import dot, namespace
from gradvet.core.results import Finding, Verdict
from gradvet.core.spaces import Array
from gradvet.core.survey import TrialCheck
from gradvet.core.trial import Trial

STILL = 1e-6
"""A derivative without a derivative of its own may vary by this part of its size: that is roundoff."""

FORGIVEN = 1e5
"""Roundoffs by which the two sides of a symmetric form may differ."""

OF_OUTPUTS = 100.0
"""Roundoffs of the outputs by which they may differ as well."""

Derive = Callable[[], Trial]


def composition(mode: str, derive: Derive) -> TrialCheck:
    """The check of one composition; `derive` gives the first derivative on trial."""

    def second_order(trial: Trial) -> Iterator[Finding]:
        derived = derive()
        missing = _missing(derived)
        if missing is not None:
            yield missing
            return
        yield from (slopes.reverse if mode == "reverse" else slopes.forward)(derived)

    return second_order


def _missing(derived: Trial) -> Finding | None:
    """A first derivative that varies although it says that it has no derivative."""
    subject = derived.subject
    silent = subject.silent
    if not silent.size:
        return None
    xp = namespace(subject.value)
    rows = subject.codomain.size
    step = 1e-3 * derived.direction_of_all()
    change = xp.abs(subject.displaced(step).values - subject.value)[rows:]
    size = xp.abs(subject.value[rows:])
    moved = (change > STILL * size) & (change > STILL * float(xp.max(size))) & xp.isfinite(change)
    if not bool(xp.any(moved)):
        return None
    place = silent.locate(int(xp.argmax(xp.astype(moved, xp.int64))))
    return Finding(
        "second order",
        Verdict.FAIL,
        f"{place} varies with the inputs but has no derivative: the second derivative is silently zero",
        advice="Look for a detach, a no_grad block or a plain number inside the derivative.",
    )


def symmetry(derive: Derive, inputs: int) -> TrialCheck:
    """u₁·(H u₂) against u₂·(H u₁), by reverse over reverse; the first `inputs` leaves are the function's own."""

    def symmetric(trial: Trial) -> Iterator[Finding]:
        derived = derive()
        subject = derived.subject
        if not subject.codomain.size:
            return
        first, second = _hessian_form(derived, inputs), _hessian_form(derived, inputs)
        left, right = dot(first[0], second[1]), dot(second[0], first[1])
        xp = namespace(subject.point)
        scale = float(xp.sum(xp.abs(first[0] * second[1])) + xp.sum(xp.abs(second[0] * first[1])))
        # Both sides are changes of a combination of outputs: where they cancel, the roundoff of the outputs remains.
        outputs = float(xp.sum(xp.abs(trial.subject.value)))
        allowed = subject.epsilon * (FORGIVEN * scale + OF_OUTPUTS * outputs)
        if not scale < float("inf") or abs(left - right) <= allowed:
            yield Finding("symmetry", Verdict.PASS, "the second derivative is symmetric")
            return
        yield Finding(
            "symmetry",
            Verdict.FAIL,
            f"the second derivative is not symmetric: {left:.10g} one way, {right:.10g} the other",
            facts={"left": left, "right": right, "allowed": allowed},
            advice="The derivative of the gradient is wrong, or the gradient is not the gradient of anything.",
        )

    return symmetric


def _hessian_form(derived: Trial, inputs: int) -> tuple[Array, Array]:
    """A direction u of the inputs, and H u, both as vectors of the derived domain."""
    subject = derived.subject
    domain, codomain = subject.domain, subject.codomain
    u = subject.zeros(domain.size)
    direction = derived.direction_of_all()
    codirection = subject.zeros(codomain.size)
    for number in range(inputs):
        u[domain.slice(number)] = direction[domain.slice(number)]
    for number, leaf in enumerate(codomain.leaves):
        codirection[codomain.slice(number)] = u[domain.slice(leaf.position)]
    product = subject.reverse.pull(codirection)
    for number in range(inputs, len(domain.leaves)):
        product[domain.slice(number)] = 0.0
    return u, product
