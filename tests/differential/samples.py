"""Samples of PyTorch's operator database, prepared as PyTorch's own gradient tests prepare them.

A sample is a function of tensors alone, the tensors to differentiate at, and the options that the operator asks for.
The same sample has the same values in every run and in any order: each operator and dtype has its own seed.
Nothing is checked here.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import numpy
import optree
import torch

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


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def coordinates(tensors: Sequence[torch.Tensor] | Iterator[torch.Tensor]) -> int:
    """Real numbers that the tensors hold where they can have a derivative."""
    return sum(
        tensor.numel() * (2 if tensor.is_complex() else 1)
        for tensor in tensors
        if tensor.is_complex() or tensor.is_floating_point()
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Fix every global generator inside the block, and leave them as they were found."""
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        numpy.random.set_state(states[2])


@cache
def database() -> tuple[Any, ...]:
    """All operators that PyTorch's tests know. The import takes seconds, so it waits for the first call."""
    from torch.testing._internal.common_methods_invocations import op_db

    # The import forbids `torch.backends.x.flag = value` for the whole process; that is not ours to forbid.
    torch.backends.__allow_nonbracketed_mutation_flag = True
    return tuple(op_db)


def operators(glob: str = "*") -> list[Any]:
    """The operators whose full name, such as `div.floor_rounding`, fits the glob."""
    return [operator for operator in database() if fnmatchcase(operator.full_name, glob)]


def is_differentiable(operator: Any, dtype: torch.dtype) -> bool:
    supported: set[torch.dtype] = operator.supported_backward_dtypes("cpu")
    return dtype in supported and dtype in operator.supported_dtypes("cpu")


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


def draw(
    operator: Any, dtype: torch.dtype, variant: Variant = Variant.FUNCTION, check: Check = Check.REVERSE
) -> list[Sample]:
    """Every sample of the operator in that dtype; none where PyTorch declares no such derivative."""
    if not is_differentiable(operator, dtype) or variant not in variants(operator) or not supports(operator, check):
        return []
    with seeded(zlib.crc32(f"{operator.full_name} {dtype_name(dtype)}".encode())):
        # All at once: drawn lazily, the values would depend on what runs between two draws.
        calls = list(
            operator.sample_inputs(
                "cpu",
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
