"""Do forward and reverse mode agree with each other?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradvet.core.arithmetic import all_finite, dot, namespace
from gradvet.core.likeness import COARSE_SHARE
from gradvet.core.noise import jitter
from gradvet.core.results import Finding, Verdict
from gradvet.core.trial import Trial

FORGIVEN = 1e-5
"""Part of the scale of the products: a function may be less precise inside than outside."""

AGREE = Finding("duality", Verdict.PASS, "forward and reverse mode agree")


def duality(trial: Trial) -> Iterator[Finding]:
    """v·(Ju) against (Jᵀv)·u."""
    subject = trial.subject
    # In low precision both are compared with differences in double precision instead.
    if not trial.is_fine or not subject.codomain.size or not subject.domain.size:
        return
    xp = namespace(subject.point)
    u = trial.first.displacement
    pushed = trial.pushed(u)
    look = trial.looks[0]
    if not all_finite(pushed):
        look = trial.look(xp.where(xp.isfinite(pushed), look.v, xp.zeros_like(look.v)))
    left, right = dot(look.v, pushed), dot(look.w, u)
    # Less than the scale of the products, and enough nearly always.
    if abs(left - right) <= FORGIVEN * (abs(left) + abs(right)):
        yield AGREE
        return
    scale = float(xp.sum(xp.abs(look.w * u))) + dot(xp.abs(look.v), xp.abs(pushed))
    grain = 64.0 * subject.epsilon * math.sqrt(dot(look.v * look.v, subject.value[: look.v.shape[0]] ** 2))
    allowed = grain + FORGIVEN * scale
    if not abs(left - right) <= allowed:
        allowed += 16.0 * jitter(trial, look.v, u, left - right)
    if not abs(left - right) <= allowed and not trial.is_rough_as_it_looks:
        allowed += subject.roughness() ** COARSE_SHARE * scale
    if bool(xp.any(look.broken)) or abs(left - right) <= allowed:
        yield AGREE
    else:
        yield Finding(
            "duality",
            Verdict.FAIL,
            f"forward mode gives a slope of {left:.10g} where reverse mode gives {right:.10g}",
            facts={"forward": left, "reverse": right, "allowed": allowed},
            advice="One of the two is wrong: the findings about each against differences tell which.",
        )
