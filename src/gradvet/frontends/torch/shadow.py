"""The same function in double precision, where it accepts that: its formula can be checked there far more sharply."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.binding import Request, bind
from gradvet.frontends.torch.subject import TorchSubject

ALIKE = 0.05
"""Values in low precision that are further from the shadow's than this part of the largest, or than four times the root
of their roundoff, are another function's."""


def shadow_of(subject: TorchSubject, request: Request, seed: int) -> TorchSubject | None:
    """The subject in double precision, or None where the function does not accept it or does something else there."""
    try:
        shadow = TorchSubject(bind(request, widened=True), seed, subject.masked)
    except InvalidProblemError:
        raise
    except Exception:
        return None
    same_shape = [leaf.coordinates.size for leaf in shadow.codomain.leaves] == [
        leaf.coordinates.size for leaf in subject.codomain.leaves
    ]
    if not same_shape or any(y.dtype not in (torch.float64, torch.complex128) for y in shadow.live):
        return None
    return shadow if _alike(subject.value, shadow.value, subject.epsilon) else None


def _alike(low: Tensor, high: Tensor, epsilon: float) -> bool:
    known = torch.isfinite(low) & torch.isfinite(high)
    if not bool(known.any()):
        return False
    size = float(high[known].abs().max())
    return float((low - high)[known].abs().max()) <= min(ALIKE, 4.0 * math.sqrt(epsilon)) * size
