"""Do forward and reverse mode agree with each other?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradvet.core.context import Context
from gradvet.core.gradient_match import COARSE_SHARE, jitter
from gradvet.core.results import Finding, Verdict
from gradvet.core.vectors import all_finite, dot, namespace

FORGIVEN = 1e-5
"""Part of the scale of the products: a function may be less precise inside than outside."""

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
    left, right = dot(cotangent.v, jvp), dot(cotangent.w, u)
    # Less than the scale of the products, and enough nearly always.
    if abs(left - right) <= FORGIVEN * (abs(left) + abs(right)):
        yield AGREE
        return
    scale = float(xp.sum(xp.abs(cotangent.w * u))) + dot(xp.abs(cotangent.v), xp.abs(jvp))
    grain = 64.0 * problem.eps * math.sqrt(dot(cotangent.v * cotangent.v, problem.value[: cotangent.v.shape[0]] ** 2))
    allowed = grain + FORGIVEN * scale
    if not abs(left - right) <= allowed:
        allowed += 16.0 * jitter(context, cotangent.v, u, left - right)
    if not abs(left - right) <= allowed and not context.computes_in_io_dtype:
        allowed += problem.internal_eps() ** COARSE_SHARE * scale
    if bool(xp.any(cotangent.broken)) or abs(left - right) <= allowed:
        yield AGREE
    else:
        yield Finding(
            "duality",
            Verdict.FAIL,
            f"forward mode gives a slope of {left:.10g} where reverse mode gives {right:.10g}",
            facts={"forward": left, "reverse": right, "allowed": allowed},
            advice="One of the two is wrong: the findings about each against differences tell which.",
        )
