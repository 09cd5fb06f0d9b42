"""The same function in double precision, where it accepts that: its formula can be checked there far more sharply."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.binding import Request, bind
from gradvet.frontends.torch.bound_problem import BoundProblem

ALIKE = 0.05
"""Values in low precision that are further from the shadow's than this part of the largest, or than four times the root
of their roundoff, are another function's."""


def reference_of(problem: BoundProblem, request: Request, seed: int) -> BoundProblem | None:
    """The subject in double precision, or None where the function does not accept it or does something else there."""
    try:
        reference = BoundProblem(bind(request, widened=True), seed, problem.masked)
    except InvalidProblemError:
        raise
    except Exception:
        return None
    same_shape = [leaf.coordinates.size for leaf in reference.codomain.leaves] == [
        leaf.coordinates.size for leaf in problem.codomain.leaves
    ]
    if not same_shape or any(y.dtype not in (torch.float64, torch.complex128) for y in reference.live):
        return None
    return reference if _alike(problem.value, reference.value, problem.eps) else None


def _alike(low: Tensor, high: Tensor, eps: float) -> bool:
    known = torch.isfinite(low) & torch.isfinite(high)
    if not bool(known.any()):
        return False
    size = float(high[known].abs().max())
    return float((low - high)[known].abs().max()) <= min(ALIKE, 4.0 * math.sqrt(eps)) * size
