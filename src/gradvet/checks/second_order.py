"""Checks of second derivatives (every composition of the modes, symmetry) and of higher orders against differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from gradvet.checks.jacobian import compared
from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.modes import FORWARD, REVERSE, Mode
from gradvet.core.results import Finding, Verdict
from gradvet.core.runner import CheckFunction
from gradvet.core.vectors import Array, dot, first_true, namespace

Derive = Callable[[], Context]


def composition(name: str, derive: Derive) -> CheckFunction:
    """The check of one composition; `derive` gives the context of the first derivative."""

    def second_order(context: Context) -> Iterator[Finding]:
        outer = REVERSE if name.startswith("reverse") else FORWARD
        yield from _compared(context, derive(), outer, f"second derivative ({name})")

    return second_order


def higher_orders(highest: int, second: Derive, derive: Callable[[Context, int], Context]) -> CheckFunction:
    """The derivatives of order 3 and more by reverse mode, up to the first that is wrong.

    `second` gives the problem whose derivative is the second one, `derive` the next problem, for a derivative of the
    order given.
    """

    def higher(context: Context) -> Iterator[Finding]:
        derived = second()
        for order in range(3, highest + 1):
            derived = derive(derived, order)
            if not derived.problem.codomain.size:
                yield Finding("higher-order", Verdict.SKIPPED, f"the derivative of order {order - 1} is constant")
                return
            for finding in _compared(context, derived, REVERSE, f"derivative of order {order}"):
                yield replace(finding, facts={**finding.facts, "order": order})
                if finding.verdict is Verdict.FAIL:
                    return

    return higher


def _compared(context: Context, derived: Context, mode: Mode, name: str) -> Iterator[Finding]:
    """A derivative compared with differences in one mode; operators of torch in the user's backward are not blamed."""
    missing = _missing(derived, name)
    if missing is not None:
        yield missing
        return
    yield from compared(derived, mode, f"the {name}", "" if context.problem.rules.are_builtin else SAVED_ADVICE)


SAVED_ADVICE = (
    "Look in backward for a tensor that forward computed and saved: backward does not differentiate it. Compute it "
    "from the inputs there."
)


def _missing(derived: Context, name: str) -> Finding | None:
    """A derivative that varies although it says that it has no derivative."""
    problem, nondifferentiable = derived.problem, derived.problem.nondifferentiable
    if not nondifferentiable.size:
        return None
    xp, rows = derived.xp, problem.codomain.size
    step = 1e-3 * derived.joint_direction()
    change = xp.abs(problem.evaluate_at(step).values - problem.value)[rows:]
    # Material beside the largest of these outputs.
    moved = (change > thresholds.SCREEN_RTOL * float(xp.max(xp.abs(problem.value[rows:])))) & xp.isfinite(change)
    if not bool(xp.any(moved)):
        return None
    place, what = nondifferentiable.locate(first_true(moved)), name.partition(" (")[0]
    headline = f"{place} varies with the inputs but has no derivative: the {what} is silently zero"
    advice = "Look for a detach, a no_grad block or a plain number inside the derivative."
    return Finding("second order", Verdict.FAIL, headline, advice=advice)


def symmetry(derive: Derive, inputs: int) -> CheckFunction:
    """u₁·(H u₂) against u₂·(H u₁), by reverse over reverse; the first `inputs` leaves are the function's own."""

    def symmetric(context: Context) -> Iterator[Finding]:
        derived = derive()
        problem = derived.problem
        if not problem.codomain.size:
            return
        first, second = _hessian_form(derived, inputs), _hessian_form(derived, inputs)
        left, right = dot(first[0], second[1]), dot(second[0], first[1])
        xp = namespace(problem.point)
        scale = float(xp.sum(xp.abs(first[0] * second[1])) + xp.sum(xp.abs(second[0] * first[1])))
        # Both sides are changes of a combination of outputs: where they cancel, the roundoff of the outputs remains.
        outputs = float(xp.sum(xp.abs(context.problem.value)))
        allowed = problem.eps**thresholds.LOW_PRECISION_POWER * scale + thresholds.ROUNDOFFS * problem.eps * outputs
        if not scale < float("inf"):
            yield Finding("symmetry", Verdict.INCONCLUSIVE, "the second derivative is not finite")
            return
        if abs(left - right) <= allowed:
            yield Finding("symmetry", Verdict.PASS, "the second derivative is symmetric")
            return
        headline = f"the second derivative is not symmetric: {left:.10g} one way, {right:.10g} the other"
        facts = {"left": left, "right": right, "allowed": allowed}
        advice = "The derivative of the gradient is wrong, or the gradient is not the gradient of anything."
        yield Finding("symmetry", Verdict.FAIL, headline, facts=facts, advice=advice)

    return symmetric


def _hessian_form(derived: Context, inputs: int) -> tuple[Array, Array]:
    """A direction u of the inputs, and H u, both as vectors of the derived domain."""
    problem, domain = derived.problem, derived.problem.domain
    u, cotangent = derived.joint_direction(), problem.zeros(problem.codomain.size)
    u[domain.offsets[inputs] :] = 0.0
    for leaf, part in problem.codomain.sections:
        cotangent[part] = u[domain.slices[leaf.position]]
    product = problem.vjp(cotangent)
    product[domain.offsets[inputs] :] = 0.0
    return u, product
