"""The dot-product test: is ⟨v, Ju⟩ = ⟨Jᵀv, u⟩, so that forward and reverse mode agree?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradvet.core import thresholds
from gradvet.core.context import Context
from gradvet.core.gradient_match import derivative_jitter
from gradvet.core.results import Finding, Verdict
from gradvet.core.vectors import all_finite, dot, namespace

AGREE = Finding("duality", Verdict.PASS, "forward and reverse mode agree")


def duality(context: Context) -> Iterator[Finding]:
    """v·(Ju) against (Jᵀv)·u."""
    problem = context.problem
    # In low precision both are compared with differences in double precision instead.
    if not context.is_double or not problem.codomain.size or not problem.domain.size:
        return
    xp = namespace(problem.point)
    u = context.first.displacement
    jvp = context.cached_jvp(u)
    cotangent = context.cotangents[0]
    if not all_finite(jvp):
        cotangent = context.cotangent(xp.where(xp.isfinite(jvp), cotangent.v, xp.zeros_like(cotangent.v)))
    left, right = dot(cotangent.v, jvp), dot(cotangent.vjp, u)
    # Less than the scale of the products, and enough nearly always.
    if abs(left - right) <= thresholds.ADJOINT_RTOL * (abs(left) + abs(right)):
        yield AGREE
        return
    scale = float(xp.sum(xp.abs(cotangent.vjp * u))) + dot(xp.abs(cotangent.v), xp.abs(jvp))
    roundoff = (
        thresholds.ROUNDOFFS
        * problem.eps
        * math.sqrt(dot(cotangent.v * cotangent.v, problem.value[: cotangent.v.shape[0]] ** 2))
    )
    # Saturated outputs: both slopes are below the roundoff of numbers of size one.
    saturated = thresholds.ROUNDOFFS * problem.eps * math.sqrt(dot(cotangent.v, cotangent.v))
    allowed = roundoff + saturated + (thresholds.ADJOINT_RTOL + context.options.accuracy) * scale
    if not abs(left - right) <= allowed:
        allowed += thresholds.RESPONSE_FACTOR * derivative_jitter(context, cotangent.v, u, left - right)
    if not abs(left - right) <= allowed and not context.computes_in_io_dtype:
        allowed += problem.internal_eps() ** thresholds.LOW_PRECISION_POWER * scale
    if cotangent.nonfinite is not None or abs(left - right) <= allowed:
        yield AGREE
    else:
        yield Finding(
            "duality",
            Verdict.FAIL,
            f"forward mode gives a slope of {left:.10g} where reverse mode gives {right:.10g}",
            facts={"forward": left, "reverse": right, "allowed": allowed},
            advice="One of the two is wrong: the findings about each against differences tell which.",
        )
