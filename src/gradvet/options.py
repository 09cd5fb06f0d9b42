"""Settings of a check: the only way in which they travel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The classical promise: every entry within `absolute + relative · |numerical|`."""

    absolute: float = 1e-5
    relative: float = 1e-3

    def __post_init__(self) -> None:
        if not (self.absolute >= 0.0 and self.relative >= 0.0):
            raise ValueError(f"atol and rtol must not be negative, but they are {self.absolute} and {self.relative}")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a check may spend; None is no limit."""

    seconds: float | None = None
    bytes: int | None = None
    """Memory for the vectors of the comparison, beyond what the function itself needs."""

    @classmethod
    def of(cls, given: float | Budget | None) -> Budget:
        """A number is seconds."""
        budget = given if isinstance(given, Budget) else cls(seconds=given)
        if not all(limit is None or limit > 0 for limit in (budget.seconds, budget.bytes)):
            raise ValueError(f"a budget must be positive, or nothing would be checked; found {given}")
        return budget


@dataclass(frozen=True, slots=True)
class Options:
    """How to check."""

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
    """Whether every entry is compared, however many there are: no projection stands for it."""
    exact_types: bool = False
    """Whether a derivative must have its value's dtype even where the framework would cast it."""
    power: float = 0.01
    """The relative error that a check without tolerance must be able to see before it may pass."""
    accuracy: float = 0.0
    """Relative error that the derivative under test may have by design, as that of an iterative solver."""
    seconds: float | None = None
    """How long a check without tolerance may go on looking."""

    def __post_init__(self) -> None:
        if isinstance(self.power, bool) or not isinstance(self.power, (int, float)) or not 0.0 < self.power <= 1.0:
            raise ValueError(f"power is a relative error between 0 and 1 such as 0.01, found {self.power!r}")
        if (
            isinstance(self.accuracy, bool)
            or not isinstance(self.accuracy, (int, float))
            or not 0.0 <= self.accuracy < 1.0
        ):
            raise ValueError(f"accuracy is a relative error from 0 up to 1 such as 1e-5, found {self.accuracy!r}")
