"""The checks as records, in the order in which they run; each answers one question about a function's derivatives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Flag, auto

from gradvet.checks import determinism, jacobian, linearity, outputs, reference, state, transformations
from gradvet.core.context import Context
from gradvet.core.runner import CheckFunction


class Needs(Flag):
    """What a check needs of the function."""

    NOTHING = 0
    REVERSE = auto()
    """A reverse mode."""
    SUBSTITUTION = auto()
    """That the function reads its arguments: the check passes other tensors."""
    OWN_VALUES = auto()
    """That the values are the function's own, not a surrogate's."""
    ELEMENTS = auto()
    """At least one number among the inputs, and one among the outputs."""
    GRADIENT = REVERSE | ELEMENTS


@dataclass(frozen=True, slots=True)
class Check:
    """A check with its public name."""

    name: str
    run: CheckFunction
    needs: Needs = Needs.GRADIENT


EXACT = (
    Check("constancy", outputs.constancy, Needs.OWN_VALUES),
    Check("detached", outputs.detached, Needs.OWN_VALUES),
    Check("values", outputs.values, Needs.OWN_VALUES),
    Check("determinism", determinism.determinism),
    Check("metadata", outputs.metadata, Needs.REVERSE),
    Check("linearity", linearity.linearity),
    Check("none_grad_output", linearity.none_grad_output, Needs.REVERSE),
    Check("grad_output_layout", state.grad_output_layout),
    Check("mutation", state.mutation),
    Check("reentrancy", state.reentrancy, Needs.GRADIENT | Needs.SUBSTITUTION),
    Check("partial_requires_grad", state.partial_requires_grad, Needs.REVERSE | Needs.SUBSTITUTION),
    Check("input_layout", state.input_layout, Needs.GRADIENT | Needs.SUBSTITUTION),
    Check("batched", transformations.batched, Needs.SUBSTITUTION | Needs.ELEMENTS),
    Check("accumulation", state.accumulation),
    Check("checkpoint", state.checkpoint),
    Check("jvp_vjp_agree", linearity.jvp_vjp_agree, Needs.GRADIENT | Needs.SUBSTITUTION),
)
"""Checks that need no differences. They run in the precision that the user gave."""

SLOPES = (
    Check("reverse", jacobian.reverse, Needs.NOTHING),
    Check("forward", jacobian.forward, Needs.SUBSTITUTION),
)
"""Derivatives against differences, in the wider version where there is one."""

SECOND_ORDER = ("reverse-over-reverse", "forward-over-reverse", "reverse-over-forward", "forward-over-forward")
HIGHER_ORDER = "higher-order"
POINT_CHECKS = ("points", "shapes")
"""The comparison at other values and other lengths."""

PRECISION, SYMMETRY, REGISTRATION, COMPILE = "precision", "symmetry", "opcheck", "compile"
REFERENCE = reference.NAME

CHECK_NAMES = (
    *(check.name for check in (*EXACT, *SLOPES)),
    PRECISION,
    REFERENCE,
    *SECOND_ORDER,
    SYMMETRY,
    HIGHER_ORDER,
    *POINT_CHECKS,
    REGISTRATION,
    COMPILE,
)
"""Public names of all checks."""


def runnable(checks: Iterable[Check], context: Context, *, has_surrogate: bool) -> dict[str, CheckFunction]:
    """The checks whose needs the function meets. Calls the function if one of them passes other tensors."""
    kept = [check for check in checks if context.has_reverse or Needs.REVERSE not in check.needs]
    if not context.problem.codomain.size or not context.problem.domain.size:
        kept = [check for check in kept if Needs.ELEMENTS not in check.needs]
    kept = [check for check in kept if not has_surrogate or Needs.OWN_VALUES not in check.needs]
    if any(Needs.SUBSTITUTION in check.needs for check in kept) and context.reads_captured:
        context.record.note("the function reads tensors that it captured instead of its arguments: they were perturbed")
        kept = [check for check in kept if Needs.SUBSTITUTION not in check.needs]
    return {check.name: check.run for check in kept}
