"""The operators that PyTorch's tests know, and which derivatives each of them declares to have."""

from __future__ import annotations

import gc
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch

from gradvet.errors import InvalidProblemError

DTYPES = (torch.float64, torch.complex128)


class Variant(Enum):
    """Which of the operator's two differentiable faces is called."""

    FUNCTION = "function"
    INPLACE = "inplace"


class Check(Enum):
    """Which derivative a sample is to be checked for."""

    REVERSE = "reverse"
    FORWARD = "forward"
    REVERSE_OVER_REVERSE = "reverse-over-reverse"
    FORWARD_OVER_REVERSE = "forward-over-reverse"

    @property
    def is_second_order(self) -> bool:
        return self in (Check.REVERSE_OVER_REVERSE, Check.FORWARD_OVER_REVERSE)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def database() -> tuple[Any, ...]:
    """All operators that PyTorch's tests know. The import takes seconds, so it waits for the first call."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise InvalidProblemError(
            f"PyTorch's operator database does not load ({error}): pip install 'gradvet[ops]'"
        ) from error
    # The import forbids `torch.backends.x.flag = value` for the whole process; that is not ours to forbid.
    torch.backends.__allow_nonbracketed_mutation_flag = True
    # It stays for good: looking through it for garbage again and again would take most of the time.
    gc.collect()
    gc.freeze()
    return tuple(op_db)


def operators(glob: str = "*") -> list[Any]:
    """The operators whose full name, such as `div.floor_rounding`, fits the glob."""
    return [operator for operator in database() if fnmatchcase(operator.full_name, glob)]


def operator_named(name: str) -> Any:
    return _by_name()[name]


@cache
def _by_name() -> dict[str, Any]:
    return {operator.full_name: operator for operator in database()}


def is_differentiable(operator: Any, dtype: torch.dtype, device: str = "cpu") -> bool:
    kind = torch.device(device).type
    supported: set[torch.dtype] = operator.supported_backward_dtypes(kind)
    return dtype in supported and dtype in operator.supported_dtypes(kind)


def variants(operator: Any) -> list[Variant]:
    has_inplace = operator.get_inplace() is not None and operator.supports_inplace_autograd
    return [Variant.FUNCTION, Variant.INPLACE] if has_inplace else [Variant.FUNCTION]


def supports(operator: Any, check: Check) -> bool:
    supported: dict[Check, bool] = {
        Check.REVERSE: True,
        Check.FORWARD: operator.supports_forward_ad,
        Check.REVERSE_OVER_REVERSE: operator.supports_gradgrad,
        Check.FORWARD_OVER_REVERSE: operator.supports_fwgrad_bwgrad,
    }
    return supported[check]
