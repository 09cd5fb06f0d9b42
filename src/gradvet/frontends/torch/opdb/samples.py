"""Samples of PyTorch's operator database, prepared as PyTorch's own gradient tests prepare them.

A sample is a function of tensors alone, the tensors to differentiate at, and the options that the operator asks for.
The same sample has the same values in every run and in any order: each operator and dtype has its own seed.
Nothing is checked here.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import optree
import torch

from gradvet.frontends.torch.inputs import seeded
from gradvet.frontends.torch.opdb.database import Check, Variant, dtype_name, is_differentiable, supports, variants


@dataclass(frozen=True)
class Sample:
    """One call of one operator, ready for `gradcheck(function, inputs, **options)`."""

    operator: str
    variant: Variant
    index: int
    dtype: torch.dtype
    check: Check
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    options: Mapping[str, object]

    @property
    def label(self) -> str:
        return f"{self.operator} {self.variant.value} {dtype_name(self.dtype)} sample {self.index}"

    def entries(self) -> int:
        """Numbers in the Jacobian: real coordinates of the outputs times those of the inputs. Calls the function.

        None where the function raises: then there is no Jacobian, and every checker is to let the exception through.
        """
        try:
            with seeded(0):
                outputs = optree.tree_leaves(self.function(*self.inputs))
        except Exception:
            return 0
        return coordinates(self.inputs) * coordinates(o for o in outputs if isinstance(o, torch.Tensor))


def coordinates(tensors: Iterable[torch.Tensor]) -> int:
    """Real numbers that the tensors hold where they can have a derivative."""
    return sum(
        tensor.numel() * (2 if tensor.is_complex() else 1)
        for tensor in tensors
        if tensor.is_complex() or tensor.is_floating_point()
    )


def draw(
    operator: Any,
    dtype: torch.dtype,
    variant: Variant = Variant.FUNCTION,
    check: Check = Check.REVERSE,
    device: str = "cpu",
) -> list[Sample]:
    """Every sample of the operator in that dtype; none where PyTorch declares no such derivative."""
    if (
        not is_differentiable(operator, dtype, device)
        or variant not in variants(operator)
        or not supports(operator, check)
    ):
        return []
    with seeded(zlib.crc32(f"{operator.full_name} {dtype_name(dtype)}".encode())), _unobserved():
        # All at once: drawn lazily, the values would depend on what runs between two draws.
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

    Samples with nothing in their Jacobian come last: they exercise little, and some operators have hundreds.
    """
    shuffled = random.Random(seed).sample(samples, len(samples))
    chosen: list[Sample] = []
    empty: list[Sample] = []
    for sample in shuffled:
        if len(chosen) == count:
            break
        # A function of that many inputs is not called just to learn that it is too large.
        entries = sample.entries() if coordinates(sample.inputs) <= max_entries else max_entries + 1
        if entries <= max_entries:
            (chosen if entries else empty).append(sample)
    return sorted((chosen + empty)[:count], key=lambda sample: sample.index)


def options_of(operator: Any, variant: Variant, check: Check) -> dict[str, object]:
    """The flags with which PyTorch's tests check this operator; the mode, slow or fast, is left to the caller."""
    options: dict[str, object] = {"check_grad_dtypes": True, "nondet_tol": operator.gradcheck_nondet_tol}
    if check is Check.REVERSE:
        options |= {"check_batched_grad": operator.check_batched_grad, "check_undefined_grad": True}
    elif check is Check.FORWARD:
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
    elif check is Check.REVERSE_OVER_REVERSE:
        options |= {"check_batched_grad": operator.check_batched_gradgrad}
    else:
        options |= {
            "check_fwd_over_rev": True,
            "check_rev_over_rev": False,
            "check_batched_grad": False,
            "check_undefined_grad": False,
        }
    return options


@contextmanager
def _unobserved() -> Iterator[None]:
    """Without what PyTorch does about each sample besides making it, which costs many times as much.

    It looks for the test that asks in the sources of the whole stack, and keeps the stack for a GPU that is not there.
    """
    from torch.testing._internal import common_utils

    with ExitStack() as stack:
        stack.enter_context(patch.object(common_utils, "extract_test_fn", lambda: None, create=True))
        if not torch.cuda.is_available():
            stack.enter_context(patch.object(torch.cuda, "manual_seed_all", lambda seed: None))
        yield


@dataclass(frozen=True)
class Unknown:
    """Stands in the arguments of a call where input number `position` belongs."""

    position: int


def unknowns(operator: Any, variant: Variant, call: Any) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """Turn a call with lists and keywords into a function of the tensors that require grad, and those tensors."""
    inputs: list[torch.Tensor] = []

    def mark(leaf: Any) -> Any:
        if not (isinstance(leaf, torch.Tensor) and leaf.requires_grad):
            return leaf
        inputs.append(leaf)
        return Unknown(len(inputs) - 1)

    # The keywords as a list: a tree of dictionaries would sort them, and so reorder the inputs.
    arguments: Any = ((call.input, *call.args), list(call.kwargs.values()))
    template = optree.tree_map(mark, arguments, none_is_leaf=True)
    target = operator.get_op() if variant is Variant.FUNCTION else on_a_copy(operator.get_inplace())

    def function(*tensors: torch.Tensor) -> Any:
        def fill(leaf: Any) -> Any:
            return tensors[leaf.position] if isinstance(leaf, Unknown) else leaf

        positional, values = optree.tree_map(fill, template, none_is_leaf=True)
        keywords = dict(zip(call.kwargs, values, strict=True))
        return call.output_process_fn_grad(operator.gradcheck_wrapper(target, *positional, **keywords))

    return function, tuple(inputs)


def on_a_copy(inplace: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place operator applied to a copy: a leaf that requires grad may not be written to."""

    def function(tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        return inplace(tensor.clone(), *arguments, **keywords)

    return function
