"""A problem run through the engine as it is, without the refusals of the drop-in functions: sparse outputs count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradvet import checks
from gradvet.core.context import Context
from gradvet.core.results import Report
from gradvet.core.runner import run
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.frontends.torch.semantics import semantics
from gradvet.options import Options

CATALOGUE = (
    semantics,
    checks.constancy,
    checks.determinism,
    checks.reverse,
    checks.metadata,
    checks.zero_cotangent,
    checks.undefined_cotangents,
)


def run_pipeline(function: Callable[..., Any], *inputs: Any, masked: bool, miss: float = 1e-9) -> Report:
    """What the checks of a backward pass find."""
    problem = TorchProblem(function, inputs, seed=1, masked=masked)
    return run("native", Context(problem, Options(seed=1, masked=masked, miss=miss)), CATALOGUE)
