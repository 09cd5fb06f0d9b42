"""What a function is made of: which operators are in its graph, and how many calls of torch it makes."""

from __future__ import annotations

import re
import sys
from collections.abc import Set
from types import FrameType
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

DECOMPOSITIONS = ("LinalgEig", "LinalgSvd", "LinalgQr")
"""Beginnings of the names of operators whose derivatives divide by differences of eigenvalues or by pivots."""


SMOOTH = re.compile(
    r"""
    AccumulateGrad | Add | Addbmm | Addcdiv | Addcmul | Addmm | Addmv | AsStrided | Atan | Atanh | Asinh | Baddbmm |
    Bmm | Cat | Clone | Complex | Conj | ConjPhysical | Convolution | CopySlices | Cos | Cosh | Cumsum | Diagonal |
    Digamma | Div | Dot | Erf | Erfc | Exp | Exp2 | Expand | Expm1 | Flip | Imag | IndexSelect | Index |
    Lgamma | Log | Log10 | Log1P | Log2 | LogSigmoid | LogSoftmax | Logaddexp | Logcumsumexp | Logsumexp | Mean |
    Mm | Mul | Mv | Neg | Permute | Polygamma | Pow | Real | Reciprocal | Repeat | ReshapeAlias | Roll |
    Rsqrt | Rsub | Select | Sigmoid | Silu | Sin | Sinc | Sinh | Slice | Softmax | Softplus | SpecialErfcx | Split |
    SplitWithSizes | Sqrt | Squeeze | Stack | Sub | Sum | T | Tan | Tanh | ToCopy | Trace | Transpose |
    Tril | Triu | Unbind | UnsafeView | Unsqueeze | Var | View | ViewAsComplex | ViewAsReal | Where
    """,
    re.VERBOSE,
)
"""Operators without kinks: what is wrong with a graph of these is not their convention."""


ROUNDING = frozenset({"DivBackward2", "DivBackward3"})
"""Division with a `rounding_mode`."""


def branches_smoothly(names: Set[str]) -> bool:
    """Whether somebody chose between formulas (`torch.where`) that are smooth themselves, by the names of all nodes.

    The choice is the function's own, and a constant that is right at one value has no slope there.
    """
    return "WhereBackward0" in names and all(SMOOTH.fullmatch(_kind(name)) for name in names) and not names & ROUNDING


def _kind(name: str) -> str:
    """What a node is a derivative of: `Exp` of `ExpBackward0`."""
    return name.removeprefix("torch::autograd::").rstrip("0123456789").removesuffix("Backward")


def has_decomposition(names: Set[str]) -> bool:
    """Whether a matrix is decomposed: torch documents that there is no derivative at equal eigenvalues."""
    return any(name.startswith(DECOMPOSITIONS) for name in names)


class Calls(TorchFunctionMode):
    """The calls of torch that somebody's own code makes for values that have a derivative.

    What a function of torch's, such as a loss or a module, calls in turn belongs to the call of that function.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: set[object] = set()

    @property
    def count(self) -> int:
        return len(self._made)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        parts = result if isinstance(result, (tuple, list)) else (result,)
        if any(isinstance(part, Tensor) and part.requires_grad for part in parts):
            self._made.add(_outermost(sys._getframe(1)) or object())
        return result


def _outermost(frame: FrameType | None) -> FrameType | None:
    """The function of torch's that was called from outside of torch; None where the call came from there itself."""
    found = None
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith("torch."):
        found, frame = frame, frame.f_back
    return found
