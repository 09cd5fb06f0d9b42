"""A case of the gallery: a function, a point at which it is checked, and the expected result.

A wrong function must be reported, a right one must not. `reference` is the same function in plain torch operations: its
derivative is the reference for the case, without gradvet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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
        "jvp_vjp_agree",
        "determinism",
        "metadata",
        "linearity",
        "grad_output_layout",
        "mutation",
        "reentrancy",
        "partial_requires_grad",
        "input_layout",
        "batched",
        "none_grad_output",
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
FAULTS = frozenset(f"F{number}" for number in (*range(1, 20), *range(22, 34)))
"""The classes of faults that a CPU can show."""

NOT_CLASSICAL = "torch's slow mode cannot be called, or not with its tolerance"
"""What `Case.special` says where no verdict of torch's checker is expected."""

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
    reference: Function | None = None
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
    proof: Callable[[Case], Evidence] | None = None
    """How the fault is shown; None: by one ordinary backward pass."""
    shown_at: Callable[[], Inputs] | None = None
    """Inputs at which the fault shows, if it does not at those of `build`."""
    resolution: float | None = None
    """Relative error that separates right from wrong, where the dtype's usual one does not."""
    accuracy: float | None = None
    """Relative error that the author of a right function grants its gradient, which is approximate on purpose."""
    step: float = 1e-4
    """Step of the differences that prove the reference; a large offset in the value needs a large one."""

    @classmethod
    def wrong(
        cls,
        name: str,
        fault: str,
        build: Build,
        reference: Function | None,
        why: str,
        *,
        finds: Iterable[str] = ("reverse",),
        **facts: Any,
    ) -> Case:
        """A wrong function: at least one of the checks `finds` must report it."""
        return cls(name, fault, build, why, reference, findings=frozenset(finds), **facts)

    @classmethod
    def right(cls, name: str, why: str, build: Build, **facts: Any) -> Case:
        """A right function: no check may report it."""
        return cls(name, None, build, why, findings=frozenset(), **facts)

    @property
    def threshold(self) -> float:
        given = (self.resolution, self.accuracy, PRECISION[self.dtype])
        return next(bound for bound in given if bound is not None)

    def subject(self) -> tuple[Function, Inputs]:
        """The function and inputs at which the fault shows."""
        function, inputs = self.build()
        return function, inputs if self.shown_at is None else self.shown_at()

    def __str__(self) -> str:
        return self.name


class Family:
    """Wrong functions of one class of faults; `facts` are those arguments of `Case.wrong` that most of them share.

    `wrong = Family("F5", finds={"grad_output_layout"}, drop_in=False)`, then
    `wrong("name", "Why it is wrong.").at(function, reference, normal, (3, 4))` for each case.
    """

    def __init__(self, fault: str, **facts: Any) -> None:
        self.fault, self.facts = fault, facts

    def __call__(self, name: str, why: str, **facts: Any) -> Draft:
        """A case without its function; `facts` override those of the family."""
        return Draft(name, self.fault, why, {**self.facts, **facts})


@dataclass(frozen=True)
class Draft:
    """A case of a wrong function before the function is given."""

    name: str
    fault: str
    why: str
    facts: dict[str, Any]

    def of(self, build: Build, reference: Function | None) -> Case:
        return Case.wrong(self.name, self.fault, build, reference, self.why, **self.facts)

    def at(
        self, function: Function, reference: Function | None, inputs: Callable[..., Inputs], *args: Any, **kw: Any
    ) -> Case:
        """A function without state at `inputs(*args, **kw)`; the dtype of the case is that of the inputs."""
        dtype = {"dtype": kw["dtype"]} if "dtype" in kw else {}
        draft = replace(self, facts={**self.facts, **dtype})
        return draft.of(lambda: (function, inputs(*args, **kw)), reference)


right = Case.right
