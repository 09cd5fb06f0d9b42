"""What a checker says of a sample, as data that can be compared.

A refusal is told by the phrase that existing tests match on; any other exception by its class. Whether the checker left
the inputs as it found them is recorded beside it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import torch

from gradvet.frontends.torch.random_state import seeded
from tests.differential.samples import Sample


class Kind(Enum):
    """The closed set of answers; the value is the phrase in a refusal's message that tells it."""

    PASS = "pass"
    MISMATCH = "Jacobian mismatch"
    FORWARD_MISMATCH = "computed with forward mode mismatch"
    ZERO_EXPECTED = "expected to be zero"
    NOT_REENTRANT = "not reentrant"
    NOT_MULTIPLIED = "not multiplied by grad_output"
    WRONG_ATTRIBUTE = "grad is "
    UNDEFINED = "undefined"
    BATCHED = "batched gradient computation"
    TANGENT = "tangent values"
    DTYPE = "dtype mismatch"
    UNTOLD = "another refusal"
    RAISED = "raised"


# Told in this order: a longer phrase stands before one that could occur beside it in the same message.
REFUSALS = (
    Kind.BATCHED,
    Kind.FORWARD_MISMATCH,
    Kind.MISMATCH,
    Kind.ZERO_EXPECTED,
    Kind.NOT_REENTRANT,
    Kind.NOT_MULTIPLIED,
    Kind.TANGENT,
    Kind.DTYPE,
    Kind.WRONG_ATTRIBUTE,
    Kind.UNDEFINED,
)


@dataclass(frozen=True)
class Verdict:
    """An answer: its kind, the classes of the exception if one was raised (its own first), its message, its traces."""

    kind: Kind
    classes: tuple[str, ...] = ()
    message: str = ""
    disturbed: bool = False

    def __str__(self) -> str:
        return f"raised {self.classes[0]}" if self.kind is Kind.RAISED else self.kind.name.lower().replace("_", " ")

    def means(self, expected: Verdict) -> bool:
        """Whether a caller who is prepared for the expected verdict is served by this one: a subclass is caught too."""
        return self.kind is expected.kind and set(expected.classes[:1]) <= set(self.classes)


@dataclass(frozen=True)
class Checker:
    """A checker in one of its modes. Both functions have the signature of torch's."""

    name: str
    gradcheck: Callable[..., bool]
    gradgradcheck: Callable[..., bool]
    fast_mode: bool

    def run(self, sample: Sample) -> bool:
        checker = self.gradgradcheck if sample.check.is_second_order else self.gradcheck
        return checker(sample.function, sample.inputs, fast_mode=self.fast_mode, **sample.options)


def torch_checker(*, fast_mode: bool) -> Checker:
    name = f"torch {'fast' if fast_mode else 'slow'}"
    return Checker(name, torch.autograd.gradcheck, torch.autograd.gradgradcheck, fast_mode)


def gradvet_checker(*, fast_mode: bool) -> Checker:
    import gradvet

    return Checker(f"gradvet {'fast' if fast_mode else 'slow'}", gradvet.gradcheck, gradvet.gradgradcheck, fast_mode)


def verdict_of(checker: Checker, sample: Sample) -> Verdict:
    """Run the checker from the same random state as every other, then put the inputs back if it has not."""
    before = [stored(tensor).clone() for tensor in sample.inputs]
    verdict = answer(lambda: checker.run(sample))
    disturbed = False
    for tensor, values in zip(sample.inputs, before, strict=True):
        if tensor.is_leaf and tensor.grad is not None:
            disturbed, tensor.grad = True, None
        if not same_bits(stored(tensor), values):
            disturbed = True
            stored(tensor).copy_(values)
    return replace(verdict, disturbed=disturbed)


def answer(check: Callable[[], bool]) -> Verdict:
    """The verdict of one call of a checker, whatever it does."""
    with warnings.catch_warnings(), seeded(0):
        warnings.simplefilter("ignore")
        try:
            result = check()
        except Exception as error:
            return refusal(error)
    return Verdict(Kind.PASS) if result is True else Verdict(Kind.UNTOLD, message=f"returned {result!r}")


def refusal(error: Exception) -> Verdict:
    message = " ".join(str(argument) for argument in error.args)
    classes = tuple(ancestor.__name__ for ancestor in type(error).__mro__)
    if "GradcheckError" not in classes:
        return Verdict(Kind.RAISED, classes, message)
    for kind in REFUSALS:
        if kind.value in message:
            return Verdict(kind, message=message)
    return Verdict(Kind.UNTOLD, message=message)


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers that the tensor holds, as a strided tensor over the same memory."""
    tensor = tensor.detach()
    if tensor.layout is torch.strided:
        return tensor
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equality of every bit, so that a NaN is equal to itself and -0.0 is not 0.0."""
    return torch.equal(bits(left), bits(right))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
