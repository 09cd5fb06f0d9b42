"""Settings of a check: tolerance, budget, seed, resolution."""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = range(-(2**63), 2**64)
"""Seeds that torch's generators accept."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The tolerance of torch's gradcheck: every entry within `absolute + relative · |numerical|`."""

    absolute: float = 1e-5
    relative: float = 1e-3

    def __post_init__(self) -> None:
        if not (self.absolute >= 0.0 and self.relative >= 0.0):
            raise ValueError(f"atol and rtol must not be negative, but they are {self.absolute} and {self.relative}")


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a check, or of one call in a worker process; None is no limit."""

    seconds: float | None = None
    bytes: int | None = None
    """Memory for the vectors of the comparison, beyond those of the function; for a worker process, all of it."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one check; some are for one policy alone, that of `check` or that of `gradcheck`."""

    seed: int
    step: float = 1e-6
    """Displacement of a single coordinate in the entry-by-entry comparison."""
    tolerance: Tolerance = Tolerance()
    miss: float = 1e-9
    """The largest probability with which an entry just outside the tolerance may go unseen."""
    nondeterminism: float = 0.0
    """By how much two runs of the same derivative may differ."""
    constant_within: float = 0.0
    """By how much an output without derivative may still vary in a function that has no differentiable output."""
    masked: bool = False
    """Whether only the specified elements of sparse tensors count."""
    exhaustive: bool = False
    """Whether every entry is compared, however many there are: no projection replaces it."""
    exact_types: bool = False
    """Whether a derivative must have its value's dtype even where the framework would cast it."""
    explains: bool = True
    """Whether a failure is explained by further entries, a diagnosis and an error bar, which take evaluations."""
    resolution: float = 0.01
    """The relative error of a typical entry that a check without tolerance must be able to see before it may pass."""
    accuracy: float = 0.0
    """Relative error that the derivative under test may have by design, as that of an iterative solver."""
    seconds: float | None = None
    """Seconds that a check without tolerance may take."""
