"""The catalogue of checks: one file per question, here in the order in which they run."""

from __future__ import annotations

from gradvet.checks.agreement import forward, reverse
from gradvet.checks.batched import batched_forward, batched_reverse
from gradvet.checks.constancy import constancy, detached
from gradvet.checks.determinism import determinism
from gradvet.checks.metadata import metadata, tangent_types
from gradvet.checks.undefined import undefined_cotangents, undefined_tangents
from gradvet.checks.zero import zero_cotangent

__all__ = [
    "batched_forward",
    "batched_reverse",
    "constancy",
    "detached",
    "determinism",
    "forward",
    "metadata",
    "reverse",
    "tangent_types",
    "undefined_cotangents",
    "undefined_tangents",
    "zero_cotangent",
]
