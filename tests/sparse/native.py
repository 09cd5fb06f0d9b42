"""A problem run through the engine as it is, without the refusals of the drop-in functions: sparse outputs count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradvet.checks import determinism, drop_in, linearity, outputs
from gradvet.core.context import Context
from gradvet.core.results import Report
from gradvet.core.runner import make_report, run_until_failure
from gradvet.frontends.torch import semantics
from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.options import Options

CATALOGUE = (
    semantics,
    outputs.constancy,
    determinism.drop_in_determinism,
    drop_in.drop_in_reverse,
    outputs.drop_in_metadata,
    linearity.drop_in_zero_cotangent,
    linearity.undefined_cotangents,
)


def run_pipeline(function: Callable[..., Any], *inputs: Any, masked: bool, miss: float = 1e-9) -> Report:
    """What the checks of a backward pass find."""
    problem = TorchProblem(drop_in_binding(function, inputs), seed=1, masked=masked)
    context = Context.of(problem, Options(seed=1, masked=masked, miss=miss))
    return make_report("", context, run_until_failure(context, CATALOGUE))
