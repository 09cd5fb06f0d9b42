"""PyTorch's operator database: which derivatives each operator declares, and from which gradient tests it is exempt."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch

from gradvet.errors import InvalidProblemError

DTYPES = (torch.float64, torch.complex128)


class Variant(Enum):
    """The operator as a function, or in place."""

    FUNCTION = "function"
    INPLACE = "inplace"


class Derivative(Enum):
    """A derivative to check."""

    REVERSE = "reverse"
    FORWARD = "forward"
    REVERSE_OVER_REVERSE = "reverse-over-reverse"
    FORWARD_OVER_REVERSE = "forward-over-reverse"

    @property
    def is_second_order(self) -> bool:
        return self in (Derivative.REVERSE_OVER_REVERSE, Derivative.FORWARD_OVER_REVERSE)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def database() -> tuple[Any, ...]:
    """All operators of PyTorch's tests. The first call takes seconds."""
    try:
        found = _database_of_torch()
    except ImportError as error:
        raise InvalidProblemError(
            f"PyTorch's operator database does not load ({error}): pip install 'gradvet[ops]'"
        ) from error
    # It is never freed, and the garbage collector would spend most of the time on it.
    gc.collect()
    gc.freeze()
    return tuple(found)


def _database_of_torch() -> list[Any]:
    """There is no public way; the import takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    # The import forbids `torch.backends.x.flag = value` in the whole process.
    torch.backends.__allow_nonbracketed_mutation_flag = True
    return list(op_db)


def operators(glob: str = "*") -> list[Any]:
    """The operators whose full name, such as `div.floor_rounding`, matches the glob."""
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


def supports(operator: Any, check: Derivative) -> bool:
    supported: dict[Derivative, bool] = {
        Derivative.REVERSE: True,
        Derivative.FORWARD: operator.supports_forward_ad,
        Derivative.REVERSE_OVER_REVERSE: operator.supports_gradgrad,
        Derivative.FORWARD_OVER_REVERSE: operator.supports_fwgrad_bwgrad,
    }
    return supported[check]


TESTS: dict[tuple[Variant, Derivative], tuple[str, str]] = {
    (Variant.FUNCTION, Derivative.REVERSE): ("TestBwdGradients", "test_fn_grad"),
    (Variant.FUNCTION, Derivative.FORWARD): ("TestFwdGradients", "test_forward_mode_AD"),
    (Variant.FUNCTION, Derivative.REVERSE_OVER_REVERSE): ("TestBwdGradients", "test_fn_gradgrad"),
    (Variant.FUNCTION, Derivative.FORWARD_OVER_REVERSE): ("TestFwdGradients", "test_fn_fwgrad_bwgrad"),
    (Variant.INPLACE, Derivative.REVERSE): ("TestBwdGradients", "test_inplace_grad"),
    (Variant.INPLACE, Derivative.FORWARD): ("TestFwdGradients", "test_inplace_forward_mode_AD"),
    (Variant.INPLACE, Derivative.REVERSE_OVER_REVERSE): ("TestBwdGradients", "test_inplace_gradgrad"),
}
"""Class and name of PyTorch's test of each derivative."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A gradient test of PyTorch that is skipped or expected to fail for an operator."""

    check: Derivative
    test: str
    means: str
    """`skipped` or `expected to fail`."""
    why: str = ""

    def __str__(self) -> str:
        return f"{self.check.value} {self.means}"


def marks(operator: Any, dtype: torch.dtype, variant: Variant, device: str = "cpu") -> list[Mark]:
    """The gradient tests of an operator that PyTorch skips or expects to fail."""
    found = []
    for (face, check), (group, test) in TESTS.items():
        if face is variant:
            decorators = operator.get_decorators(group, test, torch.device(device).type, dtype, {})
            found += [Mark(check, test, *meaning) for meaning in _meanings(decorators)][:1]
    return found


def _meanings(decorators: list[Callable[..., Any]]) -> Iterator[tuple[str, str]]:
    """What decorators do to a test, found by decorating one."""
    for decorate in decorators:

        def test(self: object) -> None: ...

        try:
            decorated = decorate(test)
        except Exception:
            continue  # a decorator of classes or of real tests, which exempts from nothing
        if getattr(decorated, "__unittest_skip__", False):
            yield "skipped", str(getattr(decorated, "__unittest_skip_why__", ""))
        elif getattr(decorated, "__unittest_expecting_failure__", False):
            yield "expected to fail", ""


def settings(operator: Any, variant: Variant) -> dict[str, Any]:
    """Settings of `gradvet.check` for the derivatives that PyTorch declares for the operator."""
    is_inplace = variant is Variant.INPLACE
    batched = operator.check_inplace_batched_forward_grad if is_inplace else operator.check_batched_forward_grad
    checks = {
        "batched": bool(operator.check_batched_grad and (batched or not operator.supports_forward_ad)),
        "reverse-over-reverse": supports(operator, Derivative.REVERSE_OVER_REVERSE),
        "symmetry": supports(operator, Derivative.REVERSE_OVER_REVERSE),
        "forward-over-reverse": supports(operator, Derivative.FORWARD_OVER_REVERSE),
    }
    undeclared = {name: False for name, declared in checks.items() if not declared}
    modes = ("reverse", "forward") if supports(operator, Derivative.FORWARD) else ("reverse",)
    return {"modes": modes, **({"checks": undeclared} if undeclared else {})}
