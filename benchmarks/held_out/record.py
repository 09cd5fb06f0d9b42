"""A record of the held-out set: a function, a point, whether its derivative is wrong there, and how that is shown.

The set measures `gradvet.check`; nothing is tuned on it. `reference` is the same function in plain torch operations:
in float64 its derivative is the true one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

Function: TypeAlias = Callable[..., Any]
Inputs: TypeAlias = tuple[Any, ...]

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
COMPLEX = {"float64": torch.complex128, "float32": torch.complex64}
TOLERANCE = {"float64": 1e-7, "float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}
"""Relative error, against the largest entry of an input's gradient, up to which a derivative counts as right."""

SHOWN_BY = frozenset(
    {
        "gradient",  # one ordinary backward pass
        "strided",  # a cotangent that is a transposed view
        "zero rows",  # a cotangent with zero rows
        "frozen",  # another input does not require grad
        "forward",  # forward mode
        "second",  # the gradient of the gradient
        "often",  # one of many backward passes
        "again",  # a second backward pass through the same graph
        "interleaved",  # another call between the call and its backward pass
    }
)


class Draw:
    """Numbers for the inputs of one record, the same at every call."""

    def __init__(self, precision: str, seed: int) -> None:
        self.precision = precision
        self.dtype = DTYPES[precision]
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        return self.leaf(torch.randn(shape, generator=self.generator, dtype=torch.float64) * scale + shift)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return self.leaf(drawn * (high - low) + low)

    def complex(self, *shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=self.generator, dtype=torch.complex128)
        return drawn.to(COMPLEX[self.precision]).requires_grad_()

    def index(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator)

    def leaf(self, values: Any) -> Tensor:
        """These values in the precision of the record, requiring grad."""
        return torch.as_tensor(values, dtype=torch.float64).to(self.dtype).requires_grad_()

    def constant(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        return self.normal(*shape, scale=scale, shift=shift).detach()

    def module(self, make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
        """A module of this precision with initial weights that depend on the record only."""
        seed = int(torch.randint(1 << 30, (1,), generator=self.generator))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return make().to(self.dtype)


Make: TypeAlias = Callable[[Draw], tuple[Function, Inputs]]


@dataclass(frozen=True)
class Record:
    """One function of the held-out set."""

    name: str
    kind: str
    """The class: what makes a right function awkward, or what is wrong with a wrong one."""
    precision: str
    make: Make = field(repr=False)
    reference: Function = field(repr=False)
    """Takes the inputs in float64; of a module, takes the module and gives the reference of it."""
    is_wrong: bool
    where: str = ""
    """Where the fault is."""
    size: float = 0.0
    """The size of the fault, at least, against a typical entry of the gradient of that input."""
    order: int = 1
    shown_by: str = "gradient"
    tolerance: float = 0.0
    """The error of a right derivative at most; zero: that of the precision."""

    def __post_init__(self) -> None:
        assert self.precision in DTYPES, self.precision
        assert self.shown_by in SHOWN_BY, self.shown_by
        assert self.is_wrong == bool(self.where and self.size), self.name

    def build(self) -> tuple[Function, Inputs]:
        """The function and its inputs, both new at every call."""
        return self.make(Draw(self.precision, zlib.crc32(self.name.encode())))

    @property
    def allowed(self) -> float:
        return self.tolerance or TOLERANCE[self.precision]


def right(name: str, kind: str, precision: str, make: Make, reference: Function, **facts: Any) -> Record:
    return Record(name, kind, precision, make, reference, False, **facts)


def wrong(
    name: str, kind: str, precision: str, make: Make, reference: Function, where: str, size: float, **facts: Any
) -> Record:
    return Record(name, kind, precision, make, reference, True, where, size, **facts)


def wide(x: Tensor) -> Tensor:
    """The precision in which a careful kernel computes: float32 for half precision, else that of the input."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
