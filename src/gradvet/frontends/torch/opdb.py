"""PyTorch's operator database: samples of its operators, and which derivatives each operator declares.

Samples are prepared as PyTorch's own gradient tests prepare them: a function of tensors alone, and the tensors to
differentiate at. Each operator and dtype has its own seed, so a sample has the same values in every run and order.
Groups have names such as `addmm/float64` and `addmm/inplace/float64`. Nothing is checked here.
"""

from __future__ import annotations

import gc
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import Any
from unittest.mock import patch

import torch

from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.arguments import ArgumentTree, fill
from gradvet.frontends.torch.inputs import differentiable_dtype
from gradvet.frontends.torch.random_state import seeded


class Variant(Enum):
    """The operator as a function, or in place."""

    FUNCTION = "function"
    INPLACE = "inplace"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def database() -> tuple[Any, ...]:
    """All operators of PyTorch's tests. There is no public way; the first call takes seconds."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise InvalidProblemError(
            f"PyTorch's operator database does not load ({error}): pip install 'gradvet[ops]'"
        ) from error
    # The import forbids `torch.backends.x.flag = value` in the whole process.
    torch.backends.__allow_nonbracketed_mutation_flag = True
    # It is never freed, and the garbage collector would spend most of the time on it.
    gc.collect()
    gc.freeze()
    return tuple(op_db)


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


TESTS: dict[tuple[Variant, str], tuple[str, str]] = {
    (Variant.FUNCTION, "reverse"): ("TestBwdGradients", "test_fn_grad"),
    (Variant.FUNCTION, "forward"): ("TestFwdGradients", "test_forward_mode_AD"),
    (Variant.FUNCTION, "reverse-over-reverse"): ("TestBwdGradients", "test_fn_gradgrad"),
    (Variant.FUNCTION, "forward-over-reverse"): ("TestFwdGradients", "test_fn_fwgrad_bwgrad"),
    (Variant.INPLACE, "reverse"): ("TestBwdGradients", "test_inplace_grad"),
    (Variant.INPLACE, "forward"): ("TestFwdGradients", "test_inplace_forward_mode_AD"),
    (Variant.INPLACE, "reverse-over-reverse"): ("TestBwdGradients", "test_inplace_gradgrad"),
}
"""Class and name of PyTorch's test of each derivative."""


def marks(operator: Any, dtype: torch.dtype, variant: Variant, device: str = "cpu") -> list[str]:
    """The derivatives that PyTorch's tests of an operator skip or expect to be wrong, such as `reverse skipped`."""
    found = []
    for (face, derivative), (group, test) in TESTS.items():
        if face is variant:
            decorators = operator.get_decorators(group, test, torch.device(device).type, dtype, {})
            found += [f"{derivative} {meaning}" for meaning in _meanings(decorators)][:1]
    return found


def _meanings(decorators: list[Callable[..., Any]]) -> Iterator[str]:
    """The effects of decorators on a test, found by decorating one."""
    for decorate in decorators:

        def test(self: object) -> None: ...

        try:
            decorated = decorate(test)
        except Exception:
            continue  # a decorator of classes or of real tests, which exempts from nothing
        if getattr(decorated, "__unittest_skip__", False):
            yield "skipped"
        elif getattr(decorated, "__unittest_expecting_failure__", False):
            yield "expected to fail"


def settings(operator: Any, variant: Variant) -> dict[str, Any]:
    """Settings of `gradvet.check` for the derivatives that PyTorch declares for the operator."""
    is_inplace = variant is Variant.INPLACE
    batched = operator.check_inplace_batched_forward_grad if is_inplace else operator.check_batched_forward_grad
    checks = {
        "batched": bool(operator.check_batched_grad and (batched or not operator.supports_forward_ad)),
        "reverse-over-reverse": operator.supports_gradgrad,
        "symmetry": operator.supports_gradgrad,
        "forward-over-reverse": operator.supports_fwgrad_bwgrad,
    }
    undeclared = {name: False for name, declared in checks.items() if not declared}
    modes = ("reverse", "forward") if operator.supports_forward_ad else ("reverse",)
    return {"modes": modes, **({"checks": undeclared} if undeclared else {})}


@contextmanager
def _quick_samples() -> Iterator[None]:
    """Draw samples without the search for the calling test and without seeding absent GPUs, which dominate the cost."""
    from torch.testing._internal import common_utils

    with ExitStack() as stack:
        stack.enter_context(patch.object(common_utils, "extract_test_fn", lambda: None, create=True))
        if not torch.cuda.is_available():
            stack.enter_context(patch.object(torch.cuda, "manual_seed_all", lambda seed: None))
        yield


Sample = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
"""One call of one operator: a function of tensors, and its inputs."""


def coordinates(tensors: Iterable[torch.Tensor]) -> int:
    """The number of real coordinates of the floating-point and complex tensors."""
    return sum(
        tensor.numel() * (2 if tensor.is_complex() else 1)
        for tensor in tensors
        if tensor.is_complex() or tensor.is_floating_point()
    )


def samples_of(operator: Any, dtype: torch.dtype, variant: Variant, device: str = "cpu") -> dict[int, Sample]:
    """Every sample of the operator in that dtype, by number; none where PyTorch declares no such derivative."""
    if not is_differentiable(operator, dtype, device) or variant not in variants(operator):
        return {}
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
    samples = {}
    for number, call in enumerate(calls):
        if variant is Variant.INPLACE and call.broadcasts_input:
            continue  # the result would not fit into the input
        function, inputs = unknowns(operator, variant, call)
        if inputs:
            samples[number] = (function, inputs)
    return samples


def unknowns(operator: Any, variant: Variant, call: Any) -> Sample:
    """Turn a call with lists and keywords into a function of the tensors that require grad, and those tensors."""
    tree = ArgumentTree()
    template = tree.template(((call.input, *call.args), list(call.kwargs.values())), "")
    places = [place for place, tensor in enumerate(tree.tensors) if tensor.requires_grad]
    target = operator.get_op() if variant is Variant.FUNCTION else on_a_copy(operator.get_inplace())

    def function(*tensors: torch.Tensor) -> Any:
        given = dict(zip(places, tensors, strict=True))
        positional, values = fill(template, [given.get(place, own) for place, own in enumerate(tree.tensors)])
        keywords = dict(zip(call.kwargs, values, strict=True))
        return call.output_process_fn_grad(operator.gradcheck_wrapper(target, *positional, **keywords))

    return function, tuple(tree.tensors[place] for place in places)


def on_a_copy(inplace: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place operator applied to a copy: a leaf that requires grad may not be written to."""
    return lambda tensor, *arguments, **keywords: inplace(tensor.clone(), *arguments, **keywords)


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

    def numbers(self, limit: int | None) -> list[int]:
        """The numbers of its samples, or of `limit` random ones; samples without coordinates come last."""
        samples = self.samples()
        if limit is None or len(samples) <= limit:
            return list(samples)
        shuffled = random.Random(0).sample(list(samples), len(samples))
        return sorted(sorted(shuffled, key=lambda number: not coordinates(samples[number][1]))[:limit])

    def samples(self) -> dict[int, Sample]:
        """Its samples by number."""
        return _samples_of_group(self)

    def settings(self) -> dict[str, Any]:
        """The arguments of `gradvet.check` for all of its samples."""
        return settings(operator_named(self.operator), self.variant)

    def marks(self) -> list[str]:
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
    if not rest or operator not in _by_name():
        raise InvalidProblemError(f"the operator database has no {name!r}: a name is such as addmm/float64")
    return Group(operator, variant, differentiable_dtype(rest[-1]), device)


@lru_cache(maxsize=8)  # cases of one operator follow each other
def _samples_of_group(group: Group) -> dict[int, Sample]:
    return samples_of(operator_named(group.operator), group.dtype, group.variant, group.device)
