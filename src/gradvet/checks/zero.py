"""Does a zero cotangent give a zero gradient?"""

from __future__ import annotations

from collections.abc import Iterator

from gradvet.core.arithmetic import namespace
from gradvet.core.experiment import Experiment
from gradvet.core.results import Finding, Verdict

NEARLY = 1e-8
"""What counts as zero under masked semantics."""

PROPORTIONAL = Finding("zero cotangent", Verdict.PASS, "a zero cotangent gives a zero gradient")


def zero_cotangent(experiment: Experiment) -> Iterator[Finding]:
    """A backward that forgets to multiply by its cotangent shows itself here, however small the gradient."""
    if not experiment.problem.codomain.leaves:
        return
    gradient = experiment.at_zero.gradient
    if gradient is None or experiment.problem.vanishes(gradient):
        yield PROPORTIONAL
        return
    xp = namespace(gradient)
    limit = NEARLY if experiment.options.masked else 0.0
    if not (largest := float(xp.max(xp.abs(gradient)))) <= limit:
        yield Finding(
            "zero cotangent",
            Verdict.FAIL,
            f"a zero cotangent gives a gradient of size {largest:.3g}",
            facts={"largest": largest},
            advice="The derivative must be multiplied by the incoming cotangent, and nothing may be added to it.",
        )
    else:
        yield PROPORTIONAL
