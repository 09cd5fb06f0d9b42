"""Samples of PyTorch's operators with the options of PyTorch's gradient tests, for checkers with torch's signature."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from gradvet.frontends.torch.arguments import tensors_of
from gradvet.frontends.torch.opdb import Variant, coordinates, dtype_name, samples_of
from gradvet.frontends.torch.random_state import seeded

DTYPES = (torch.float64, torch.complex128)


class Derivative(Enum):
    """A derivative to check."""

    REVERSE = "reverse"
    FORWARD = "forward"
    REVERSE_OVER_REVERSE = "reverse-over-reverse"
    FORWARD_OVER_REVERSE = "forward-over-reverse"

    @property
    def is_second_order(self) -> bool:
        return self in (Derivative.REVERSE_OVER_REVERSE, Derivative.FORWARD_OVER_REVERSE)


@dataclass(frozen=True)
class Sample:
    """One call of one operator, ready for `gradcheck(function, inputs, **options)`."""

    operator: str
    variant: Variant
    index: int
    dtype: torch.dtype
    check: Derivative
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    options: Mapping[str, object]

    @property
    def label(self) -> str:
        return f"{self.operator} {self.variant.value} {dtype_name(self.dtype)} sample {self.index}"

    def entries(self) -> int:
        """Entries of the Jacobian; 0 if the function raises. Calls the function."""
        try:
            with seeded(0):
                outputs = tensors_of(self.function(*self.inputs))
        except Exception:
            return 0
        return coordinates(self.inputs) * coordinates(outputs)


def draw(
    operator: Any,
    dtype: torch.dtype,
    variant: Variant = Variant.FUNCTION,
    check: Derivative = Derivative.REVERSE,
) -> list[Sample]:
    """Every sample of the operator in that dtype; none where PyTorch declares no such derivative."""
    if not is_declared(operator, check):
        return []
    options = options_of(operator, variant, check)
    return [
        Sample(operator.full_name, variant, number, dtype, check, function, inputs, options)
        for number, (function, inputs) in samples_of(operator, dtype, variant).items()
    ]


def is_declared(operator: Any, check: Derivative) -> bool:
    declared: dict[Derivative, bool] = {
        Derivative.REVERSE: True,
        Derivative.FORWARD: operator.supports_forward_ad,
        Derivative.REVERSE_OVER_REVERSE: operator.supports_gradgrad,
        Derivative.FORWARD_OVER_REVERSE: operator.supports_fwgrad_bwgrad,
    }
    return declared[check]


def small(samples: Sequence[Sample], count: int, max_entries: int, seed: int = 0) -> list[Sample]:
    """At most `count` of the samples, taken at random from those whose Jacobian has at most `max_entries` numbers.

    Samples with an empty Jacobian come last.
    """
    shuffled = random.Random(seed).sample(samples, len(samples))
    chosen: list[Sample] = []
    empty: list[Sample] = []
    for sample in shuffled:
        if len(chosen) == count:
            break
        # A function of more inputs is not called to find out that its Jacobian is too large.
        entries = sample.entries() if coordinates(sample.inputs) <= max_entries else max_entries + 1
        if entries <= max_entries:
            (chosen if entries else empty).append(sample)
    return sorted((chosen + empty)[:count], key=lambda sample: sample.index)


def options_of(operator: Any, variant: Variant, check: Derivative) -> dict[str, object]:
    """The flags with which PyTorch's tests check this operator; the mode, slow or fast, is left to the caller."""
    options: dict[str, object] = {"check_grad_dtypes": True, "nondet_tol": operator.gradcheck_nondet_tol}
    if check is Derivative.REVERSE:
        options |= {"check_batched_grad": operator.check_batched_grad, "check_undefined_grad": True}
    elif check is Derivative.FORWARD:
        is_inplace = variant is Variant.INPLACE
        options |= {
            "check_forward_ad": True,
            "check_backward_ad": False,
            "check_batched_grad": False,
            "check_undefined_grad": True,
            "check_batched_forward_grad": operator.check_inplace_batched_forward_grad
            if is_inplace
            else operator.check_batched_forward_grad,
        }
    elif check is Derivative.REVERSE_OVER_REVERSE:
        options |= {"check_batched_grad": operator.check_batched_gradgrad}
    else:
        options |= {
            "check_fwd_over_rev": True,
            "check_rev_over_rev": False,
            "check_batched_grad": False,
            "check_undefined_grad": False,
        }
    return options
