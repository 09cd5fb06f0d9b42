"""Mistakes in torch 2.13 that were judged one by one. Each file shows one with torch alone, and fails if it is mended.

`CONFIRMED` says which failures of the audit a file explains, `MEANT` which failures are no mistakes, and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

FIRST = (
    "reverse",
    "forward",
    "jvp_vjp_agree",
    "grad_output_layout",
    "partial_requires_grad",
    "input_layout",
    "linearity",
    "none_grad_output",
    "points",
    "shapes",
)
SECOND = ("reverse-over-reverse", "forward-over-reverse", "reverse-over-forward", "forward-over-forward", "symmetry")
OVER_FORWARD = ("reverse-over-forward", "forward-over-forward")


@dataclass(frozen=True)
class Failing:
    """Failures by the globs of their operators and the names of their checks."""

    operators: tuple[str, ...]
    checks: tuple[str, ...]

    def holds(self, operator: str, check: str) -> bool:
        return check in self.checks and any(fnmatchcase(operator, glob) for glob in self.operators)


@dataclass(frozen=True)
class Confirmed:
    """A mistake: the file that shows it, and the failures that it explains."""

    name: str
    failing: tuple[Failing, ...]

    @property
    def path(self) -> Path:
        return Path(__file__).parent / f"{self.name}.py"

    def code(self) -> str:
        return self.path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Meant:
    """Failures that are no mistakes of torch's, and why."""

    failing: tuple[Failing, ...]
    why: str


WRONG_OVER_FORWARD = Failing(
    (
        "linalg.det",
        "linalg.slogdet",
        "logdet",
        "linalg.solve",
        "linalg.solve_ex",
        "linalg.tensorsolve",
        "linalg.householder_product",
        "nn.functional.layer_norm",
        "native_layer_norm",
        "nn.functional.batch_norm",
        "nn.functional.batch_norm.*",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "nn.functional.instance_norm",
        "cumprod",
    ),
    OVER_FORWARD,
)
RAISES_OVER_FORWARD = Failing(
    (
        "softmax",
        "softmax.*",
        "log_softmax",
        "log_softmax.*",
        "nn.functional.softmin",
        "nn.functional.softmin.*",
        "torch.ops.aten._safe_softmax.default",
        "masked.softmax",
        "masked.log_softmax",
        "masked.softmin",
        "logsumexp",
        "masked.logsumexp",
        "logcumsumexp",
        "nn.functional.cross_entropy",
        "nn.functional.linear_cross_entropy",
        "nn.functional.multi_head_attention_forward",
        "linalg.norm",
        "linalg.norm.*",
        "linalg.matrix_norm",
        "linalg.vector_norm",
        "linalg.eigh",
        "linalg.eig",
    ),
    ("reverse-over-forward",),
)

CONFIRMED = (
    Confirmed("as_strided_scatter", (Failing(("as_strided_scatter",), FIRST + SECOND),)),
    Confirmed(
        "cholesky_inverse", (Failing(("cholesky_inverse",), ("forward", "jvp_vjp_agree", "points", *SECOND[1:])),)
    ),
    Confirmed("pow", (Failing(("pow", "float_power", "__rpow__"), ("reverse", "forward", "jvp_vjp_agree", "points")),)),
    Confirmed("logcumsumexp", (Failing(("logcumsumexp",), ("forward", "jvp_vjp_agree", "points")),)),
    Confirmed("second_order", (WRONG_OVER_FORWARD, RAISES_OVER_FORWARD, Failing(("triangular_solve",), SECOND[1:4]))),
    Confirmed("logaddexp", (Failing(("logaddexp", "masked.logaddexp"), SECOND),)),
    Confirmed(
        "linear_cross_entropy", (Failing(("nn.functional.linear_cross_entropy.chunked*",), ("reverse-over-reverse",)),)
    ),
)

MEANT = (
    Meant(
        (Failing(("normal", "normal.*"), FIRST + SECOND),),
        "Torch declares the derivative of a random draw to be zero. gradvet fixes the random state, and then the draw "
        "moves with its mean and its standard deviation.",
    ),
    Meant(
        (Failing(("nn.functional.max_unpool*",), FIRST + SECOND),),
        "The samples have indices that repeat. The documentation leaves open which of the values wins then.",
    ),
    Meant(
        (Failing(("linalg.norm.subgradients_at_zero",), FIRST + SECOND),),
        "The smallest singular value at a matrix of zeros. It does not vary along any single entry, yet torch's answer "
        "is a mean of gradients nearby, as good as any there.",
    ),
    Meant(
        (Failing(("sparse.mm.reduce", "sparse.sampled_addmm"), FIRST + SECOND),),
        "The gradient of a sparse argument is that of its stored elements alone: masked semantics. With `masked=True` "
        "the check passes.",
    ),
)
