"""Samples of PyTorch's operators, prepared as PyTorch's own gradient tests prepare them.

A sample is a function of tensors alone, the tensors to differentiate at, and the options of the operator. Each operator
and dtype has its own seed, so a sample has the same values in every run and order. Groups have names such as
`addmm/float64` and `addmm/inplace/float64`. Nothing is checked here.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import optree
import torch

from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.arguments import Slot
from gradvet.frontends.torch.inputs import differentiable_dtype
from gradvet.frontends.torch.opdb import (
    Derivative,
    Mark,
    Variant,
    dtype_name,
    is_differentiable,
    marks,
    operator_named,
    operators,
    settings,
    supports,
    variants,
)
from gradvet.frontends.torch.state import seeded


@contextmanager
def _quick_samples() -> Iterator[None]:
    """Draw samples without the search for the calling test and without seeding absent GPUs, which dominate the cost."""
    from torch.testing._internal import common_utils

    with ExitStack() as stack:
        stack.enter_context(patch.object(common_utils, "extract_test_fn", lambda: None, create=True))
        if not torch.cuda.is_available():
            stack.enter_context(patch.object(torch.cuda, "manual_seed_all", lambda seed: None))
        yield


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
                outputs = optree.tree_leaves(self.function(*self.inputs))
        except Exception:
            return 0
        return coordinates(self.inputs) * coordinates(o for o in outputs if isinstance(o, torch.Tensor))


def coordinates(tensors: Iterable[torch.Tensor]) -> int:
    """The number of real coordinates of the floating-point and complex tensors."""
    return sum(
        tensor.numel() * (2 if tensor.is_complex() else 1)
        for tensor in tensors
        if tensor.is_complex() or tensor.is_floating_point()
    )


def draw(
    operator: Any,
    dtype: torch.dtype,
    variant: Variant = Variant.FUNCTION,
    check: Derivative = Derivative.REVERSE,
    device: str = "cpu",
) -> list[Sample]:
    """Every sample of the operator in that dtype; none where PyTorch declares no such derivative."""
    if (
        not is_differentiable(operator, dtype, device)
        or variant not in variants(operator)
        or not supports(operator, check)
    ):
        return []
    with seeded(zlib.crc32(f"{operator.full_name} {dtype_name(dtype)}".encode())), _quick_samples():
        # All at once: values drawn lazily would depend on the code between two draws.
        calls = list(
            operator.sample_inputs(
                device,
                dtype,
                requires_grad=True,
                include_conjugated_inputs=operator.test_conjugated_samples and dtype.is_complex,
                small_inputs_only=True,
                set_seed=False,
            )
        )
    options = options_of(operator, variant, check)
    samples = []
    for index, call in enumerate(calls):
        if variant is Variant.INPLACE and call.broadcasts_input:
            continue  # the result would not fit into the input
        function, inputs = unknowns(operator, variant, call)
        if inputs:
            samples.append(Sample(operator.full_name, variant, index, dtype, check, function, inputs, options))
    return samples


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


def unknowns(operator: Any, variant: Variant, call: Any) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """Turn a call with lists and keywords into a function of the tensors that require grad, and those tensors."""
    inputs: list[torch.Tensor] = []

    def mark(leaf: Any) -> Any:
        if not (isinstance(leaf, torch.Tensor) and leaf.requires_grad):
            return leaf
        inputs.append(leaf)
        return Slot(len(inputs) - 1)

    # The keywords as a list: a tree of dictionaries would sort them, and so reorder the inputs.
    arguments: Any = ((call.input, *call.args), list(call.kwargs.values()))
    template = optree.tree_map(mark, arguments, none_is_leaf=True)
    target = operator.get_op() if variant is Variant.FUNCTION else on_a_copy(operator.get_inplace())

    def function(*tensors: torch.Tensor) -> Any:
        def fill(leaf: Any) -> Any:
            return tensors[leaf.index] if isinstance(leaf, Slot) else leaf

        positional, values = optree.tree_map(fill, template, none_is_leaf=True)
        keywords = dict(zip(call.kwargs, values, strict=True))
        return call.output_process_fn_grad(operator.gradcheck_wrapper(target, *positional, **keywords))

    return function, tuple(inputs)


def on_a_copy(inplace: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place operator applied to a copy: a leaf that requires grad may not be written to."""

    def function(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        return inplace(tensor.clone(), *arguments, **keywords)

    return function


@dataclass(frozen=True, slots=True)
class Group:
    """One operator in one variant and dtype, on one device."""

    operator: str
    variant: Variant
    dtype: torch.dtype
    device: str

    def __str__(self) -> str:
        inplace = "/inplace" if self.variant is Variant.INPLACE else ""
        return f"{self.operator}{inplace}/{dtype_name(self.dtype)}"

    def indices(self, limit: int | None) -> list[int]:
        """The numbers of its samples, or of `limit` random ones; samples without coordinates come last."""
        samples = _samples_of(self)
        if limit is None or len(samples) <= limit:
            return list(samples)
        shuffled = random.Random(0).sample(list(samples), len(samples))
        return sorted(sorted(shuffled, key=lambda index: not coordinates(samples[index].inputs))[:limit])

    def sample(self, index: int) -> Sample | None:
        return _samples_of(self).get(index)

    def settings(self) -> dict[str, Any]:
        """The arguments of `gradvet.check` for all of its samples."""
        return settings(operator_named(self.operator), self.variant)

    def marks(self) -> list[Mark]:
        """The gradient tests of PyTorch from which this operator is exempt."""
        return marks(operator_named(self.operator), self.dtype, self.variant, self.device)


def groups(glob: str, dtypes: Sequence[str], device: str) -> list[Group]:
    """The operators that match and are declared to be differentiable for dtype and device."""
    kinds = [differentiable_dtype(name) for name in dtypes]
    return [
        Group(operator.full_name, variant, dtype, device)
        for operator in operators(glob)
        for dtype in kinds
        if is_differentiable(operator, dtype, device)
        for variant in variants(operator)
    ]


def group_named(name: str, device: str) -> Group:
    """The group with this `str`."""
    operator, *rest = name.split("/")
    variant = Variant.INPLACE if rest[:-1] == ["inplace"] else Variant.FUNCTION
    if not rest or not operators(operator):
        raise InvalidProblemError(f"the operator database has no {name!r}: a name is such as addmm/float64")
    return Group(operator, variant, differentiable_dtype(rest[-1]), device)


@lru_cache(maxsize=8)
def _samples_of(group: Group) -> dict[int, Sample]:
    """The samples of a group by number. Cases of one operator follow each other, so a few groups are cached."""
    samples = draw(operator_named(group.operator), group.dtype, group.variant, device=group.device)
    return {sample.index: sample for sample in samples}
