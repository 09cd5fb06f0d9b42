"""What an entry of the gallery is: a function, a point at which to check it, and what a checker owes us about it.

A wrong function shows that the checker can fail, a right one that it does not cry wolf. `twin` is the same function in
plain torch operations: its derivative is the truth that the entry is measured against, without gradvet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

Function: TypeAlias = Callable[..., Any]
Inputs: TypeAlias = tuple[Any, ...]
Build: TypeAlias = Callable[[], tuple[Function, Inputs]]

CHECKS = frozenset(
    {
        "reverse",
        "forward",
        "duality",
        "determinism",
        "metadata",
        "linearity",
        "cotangents",
        "mutation",
        "interleaving",
        "frozen",
        "layouts",
        "batched",
        "undefined",
        "values",
        "accumulation",
        "checkpoint",
        "points",
        "shapes",
        "reverse-over-reverse",
        "forward-over-reverse",
        "reverse-over-forward",
        "forward-over-forward",
        "symmetry",
        "precision",
    }
)
FAULTS = frozenset(f"F{number}" for number in (*range(1, 20), 22, 23))
"""The classes of faults that a CPU can show."""

PRECISION = {
    torch.float64: 1e-6,
    torch.complex128: 1e-6,
    torch.float32: 1e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
"""Relative error up to which a gradient of that dtype counts as right."""


@dataclass(frozen=True)
class Evidence:
    """The derivative that the function gives and the one that it should give, under the condition of the case."""

    found: Tensor
    true: Tensor

    @property
    def error(self) -> float:
        """The largest difference over the largest true number; infinite where something is NaN or infinite."""
        difference = (self.found - self.true).abs()
        if not bool(torch.isfinite(difference).all()):
            return float("inf")
        scale = float(self.true.abs().max()) or float(self.found.abs().max()) or 1.0
        return float(difference.max()) / scale


@dataclass(frozen=True)
class Case:
    """One function of the gallery."""

    name: str
    fault: str | None
    """The class of the planted fault; None for a right function."""
    build: Build
    """Gives the function and its inputs, both new at every call."""
    why: str
    """What a reader learns from it."""
    twin: Function | None = None
    dtype: torch.dtype = torch.float64
    order: int = 1
    """The order of derivative at which the fault shows; for a right function the highest one that is right."""
    findings: frozenset[str] = frozenset({"reverse"})
    """At least one of these checks must report FAIL."""
    drop_in: bool = True
    """Does the classical check of every entry (slow mode, default flags) give the right verdict here?"""
    beyond: bool = False
    """A right function that the drop-in functions must accept although torch's own slow mode does not."""
    special: str = ""
    """The condition under which the fault shows, if it does not show in every call."""
    witness: Callable[[Case], Evidence] | None = None
    """How the fault is shown; None: by one ordinary backward pass."""
    shown_at: Callable[[], Inputs] | None = None
    """Inputs at which the fault shows, if it does not at those of `build`."""
    resolution: float | None = None
    """Relative error that separates right from wrong, where the dtype's usual one does not."""

    @property
    def threshold(self) -> float:
        return PRECISION[self.dtype] if self.resolution is None else self.resolution

    def subject(self) -> tuple[Function, Inputs]:
        """The function and inputs at which the fault shows."""
        function, inputs = self.build()
        return function, inputs if self.shown_at is None else self.shown_at()

    def __str__(self) -> str:
        return self.name


def right(name: str, why: str, build: Build, **facts: Any) -> Case:
    """A right function: no check may report it."""
    return Case(name, None, build, why, findings=frozenset(), **facts)
