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
    if _implied(experiment):
        yield PROPORTIONAL
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


def _implied(experiment: Experiment) -> bool:
    """Whether two passes that are made anyway leave nothing to ask.

    Whatever is added to a gradient breaks its proportion to the cotangent; what goes wrong at zero alone (a division by
    the cotangent's length) shows where there is none, because a derivative rule is given zeros then.
    """
    if not experiment.proportion.kept:
        return False
    try:
        return experiment.without(tuple(range(len(experiment.problem.codomain.leaves)))) is None
    except RuntimeError:  # it is another check's to say
        return False
