"""What PyTorch says of an operator's derivatives: which it declares, and which of its own tests it lets off.

A mark is a test of PyTorch's that is skipped or expected to fail. The database holds decorators; what one does is
learnt by decorating a function with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gradvet.frontends.torch.opdb.database import Check, Variant, supports

TESTS: dict[tuple[Variant, Check], tuple[str, str]] = {
    (Variant.FUNCTION, Check.REVERSE): ("TestBwdGradients", "test_fn_grad"),
    (Variant.FUNCTION, Check.FORWARD): ("TestFwdGradients", "test_forward_mode_AD"),
    (Variant.FUNCTION, Check.REVERSE_OVER_REVERSE): ("TestBwdGradients", "test_fn_gradgrad"),
    (Variant.FUNCTION, Check.FORWARD_OVER_REVERSE): ("TestFwdGradients", "test_fn_fwgrad_bwgrad"),
    (Variant.INPLACE, Check.REVERSE): ("TestBwdGradients", "test_inplace_grad"),
    (Variant.INPLACE, Check.FORWARD): ("TestFwdGradients", "test_inplace_forward_mode_AD"),
    (Variant.INPLACE, Check.REVERSE_OVER_REVERSE): ("TestBwdGradients", "test_inplace_gradgrad"),
}
"""Class and name of PyTorch's test of each derivative."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One of PyTorch's gradient tests that this operator is let off."""

    check: Check
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
    for decorate in decorators:

        def test(self: object) -> None: ...

        try:
            decorated = decorate(test)
        except Exception:
            continue  # one that wants a class or a real test; it does not let the operator off
        if getattr(decorated, "__unittest_skip__", False):
            yield "skipped", str(getattr(decorated, "__unittest_skip_why__", ""))
        elif getattr(decorated, "__unittest_expecting_failure__", False):
            yield "expected to fail", ""


def settings(operator: Any, variant: Variant) -> dict[str, Any]:
    """What `gradvet.check` is asked for, given what PyTorch declares the operator to have."""
    is_inplace = variant is Variant.INPLACE
    batched = operator.check_inplace_batched_forward_grad if is_inplace else operator.check_batched_forward_grad
    checks = {
        "batched": bool(operator.check_batched_grad and (batched or not operator.supports_forward_ad)),
        "reverse-over-reverse": supports(operator, Check.REVERSE_OVER_REVERSE),
        "symmetry": supports(operator, Check.REVERSE_OVER_REVERSE),
        "forward-over-reverse": supports(operator, Check.FORWARD_OVER_REVERSE),
    }
    undeclared = {name: False for name, declared in checks.items() if not declared}
    modes = ("reverse", "forward") if supports(operator, Check.FORWARD) else ("reverse",)
    return {"modes": modes, **({"checks": undeclared} if undeclared else {})}
