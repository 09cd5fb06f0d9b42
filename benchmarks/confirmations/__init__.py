"""Mistakes in torch 2.13 that were judged one by one. Each file shows one with torch alone, and fails if it is mended.

`CONFIRMED` says which failures of the audit a file explains, `MEANT` which failures are no mistakes, and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SLOPES = ("reverse", "forward", "duality", "cotangents", "frozen", "layouts", "linearity", "undefined")
OVER_FORWARD = ("reverse-over-forward", "forward-over-forward")


@dataclass(frozen=True)
class Confirmed:
    """A mistake: the file that shows it, and the failures that it explains."""

    name: str
    operators: tuple[str, ...]
    checks: tuple[str, ...]

    @property
    def path(self) -> Path:
        return Path(__file__).parent / f"{self.name}.py"

    def code(self) -> str:
        return self.path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Meant:
    """Failures that are no mistakes of torch's, and why."""

    operators: tuple[str, ...]
    checks: tuple[str, ...]
    why: str


CONFIRMED = (
    Confirmed("as_strided_scatter", ("as_strided_scatter",), SLOPES),
    Confirmed("cholesky_inverse", ("cholesky_inverse",), ("forward", "duality")),
    Confirmed("logcumsumexp", ("logcumsumexp",), ("forward", "duality")),
)

MEANT = (
    Meant(
        ("normal", "normal.*"),
        SLOPES,
        "Torch declares the derivative of a random draw to be zero. gradvet fixes the random state, and then the draw "
        "moves with its mean and its standard deviation.",
    ),
    Meant(
        ("nn.functional.max_unpool*",),
        SLOPES,
        "The samples have indices that repeat. The documentation leaves open which of the values wins then.",
    ),
    Meant(
        ("linalg.norm.subgradients_at_zero",),
        SLOPES,
        "The smallest singular value at a matrix of zeros. It does not vary along any single entry, yet torch's answer "
        "is a mean of gradients nearby, as good as any there.",
    ),
    Meant(
        ("sparse.mm.reduce", "sparse.sampled_addmm"),
        SLOPES,
        "The gradient of a sparse argument is that of its stored elements alone: masked semantics. With `masked=True` "
        "the check passes.",
    ),
)
