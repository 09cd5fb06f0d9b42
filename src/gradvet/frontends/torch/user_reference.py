"""The reference that a user gives for a kernel: its problem at the same point, formats, other dtypes, and TF32.

TF32 is the format of ten bits in which tensor cores multiply float32 numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.core import thresholds
from gradvet.core.frontend import Request
from gradvet.core.reference_errors import Format
from gradvet.core.vectors import Space
from gradvet.errors import InvalidProblemError, first_line
from gradvet.frontends.torch import private
from gradvet.frontends.torch.arguments import ArgumentTree, fill, map_tensors
from gradvet.frontends.torch.binding import bind, is_differentiable
from gradvet.frontends.torch.layouts.dense import unflattened
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.frontends.torch.wider_version import may_round_products


def plain_problem(problem: TorchProblem, request: Request, seed: int) -> tuple[TorchProblem, Request]:
    """The reference at the point of the kernel, from the same random state, and its own request. Calls it.

    In the precision of the kernel; or in float32, if that is half precision and the reference does not run in it, as
    `torch.linalg` does not, or is not finite in it, as exponentials that a kernel computes in float32. The former is
    needed by `test_reference_that_refuses_half_precision_is_run_in_float32`.
    """
    own = replace(request, func=_with_parameters_of(request.func, request.reference), reference=None)
    own = _as_found(problem, own)
    is_half = problem.eps > torch.finfo(torch.float32).eps
    found: list[TorchProblem] = []
    refusals: list[Exception] = []
    for wide in (None, torch.float32) if is_half else (None,):
        problem.binding.restart()
        try:
            own_problem = TorchProblem(bind(own, wide=wide), seed, problem.masked)
            is_finite = not is_half or _is_finite(own_problem)
        except Exception as error:
            refusals.append(error)
            continue
        found.append(own_problem)
        if is_finite:
            break
    if not found:
        kinds = ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in problem.inputs}))
        raise InvalidProblemError(
            f"the reference is called with the inputs of the kernel ({kinds}) and raised {type(refusals[0]).__name__}: "
            f"{first_line(refusals[0])}"
        ) from refusals[0]
    plain = found[-1]
    # Calls are counted together.
    problem.cost.forwards += plain.cost.forwards
    plain.cost = problem.cost
    return plain, own


def _is_finite(problem: TorchProblem) -> bool:
    """Whether values and a gradient are finite. One VJP."""
    ones = problem.zeros(problem.codomain.size) + 1.0
    return bool(problem.value.isfinite().all()) and bool(problem.vjp(ones).isfinite().all())


def _as_found(problem: TorchProblem, request: Request) -> Request:
    """The request with copies of the checked inputs as they were before the kernel, which may write to them."""
    tree = ArgumentTree()
    template = tree.template((request.positional, dict(request.kwargs or {})), "")
    values = unflattened(problem.domain, problem.point)
    found = {leaf.position: value for leaf, value in zip(problem.domain.leaves, values, strict=True)}
    # Of expanded inputs only the numbers behind them are coordinates.
    tensors = [
        found[place].expand(tensor.shape).requires_grad_() if place in found else tensor
        for place, tensor in enumerate(tree.tensors)
    ]
    inputs, keywords = fill(template, tensors)
    return replace(request, inputs=inputs, kwargs=keywords or None)


def _with_parameters_of(kernel: Any, reference: Any) -> Any:
    """The reference; a module as a copy that has the parameters of the kernel, and holds those of its own constant."""
    wanted = _trainable(kernel)
    known = dict(reference.named_parameters()) if isinstance(reference, nn.Module) else {}
    if missing := [name for name in wanted if name not in known or known[name].shape != wanted[name].shape]:
        found = ", ".join(known) or "none"
        raise InvalidProblemError(
            f"the reference must have the parameters of the kernel, so that their gradients can be compared: "
            f"{', '.join(missing)} was expected, found {found}. Pass a module whose parameters have the same names and "
            "shapes as reference, or write both as functions that take the parameters as inputs."
        )
    if not isinstance(reference, nn.Module):
        return reference
    module = copy.deepcopy(reference)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    buffers = dict(kernel.named_buffers()) if isinstance(kernel, nn.Module) else {}
    with torch.no_grad():
        for name, own in module.named_buffers():
            if name in buffers and buffers[name].shape == own.shape:
                own.data = buffers[name].detach().clone()
        for name, own in module.named_parameters():
            if name in wanted:
                own.data = wanted[name].detach().clone()
                own.requires_grad_()
    return module


def _trainable(kernel: Any) -> dict[str, Tensor]:
    parameters = kernel.named_parameters() if isinstance(kernel, nn.Module) else ()
    return {name: parameter for name, parameter in parameters if parameter.requires_grad}


def formats(problem: TorchProblem, space: Space) -> list[Format]:
    """Shape and format of each leaf of the domain, or of a space of outputs."""
    holders = problem.arguments if space is problem.domain else problem.outputs
    found = [_format(holders[leaf.position], leaf.coordinates.size) for leaf in space.leaves]
    return [replace(form, may_use_tf32=True) for form in found] if may_round_products(problem) else found


def _format(tensor: Any, size: int) -> Format:
    info = torch.finfo(tensor.dtype)
    shape = (*tensor.shape, *([2] if tensor.is_complex() else []))
    arranged = shape if tensor.layout is torch.strided else (size,)
    # There is no truth more precise than float64: sums in another order differ by many of its roundoffs.
    return Format(arranged, max(info.eps, thresholds.DOUBLE_EPS), info.smallest_normal * info.eps, info.max)


def cast(request: Request, dtype: Any) -> tuple[str, Request]:
    """The name of a dtype, and copies of inputs, keywords and modules in it. Integers and booleans stay."""
    kind = getattr(torch, dtype.strip().removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise InvalidProblemError(f"dtypes are floating-point dtypes such as torch.bfloat16, found {dtype!r}")

    def converted(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return tensor.detach().to(kind, copy=True).requires_grad_(is_differentiable(tensor))

    def module(function: Any) -> Any:
        return copy.deepcopy(function).to(kind) if isinstance(function, nn.Module) else function

    # Together, so that a tensor that is passed twice stays one.
    inputs, keywords = map_tensors(converted, (request.positional, dict(request.kwargs or {})))
    given = replace(request, func=module(request.func), inputs=inputs, kwargs=keywords or None)
    return str(kind).removeprefix("torch."), replace(given, reference=module(request.reference))


PRODUCTS = (
    "mul",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addbmm",
    "mv",
    "addmv",
    "dot",
    "convolution",
    "dot_product",
    "linear",
)
"""Ends of the names of operators that multiply; those of their derivatives end in `_backward`. A reference may write a
product of matrices as elementwise products and sums, as recurrences do."""

LOST_BITS = 0x1FFF
"""The last 13 bits of a float32 number, which tensor cores do not read."""


def tf32_products() -> AbstractContextManager[object] | None:
    """A context in which the factors of products are cut off to TF32; None if operators cannot be intercepted."""

    def run(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = (
            operator.name().partition("::")[2].partition(".")[0].removesuffix("_backward").removesuffix("_overrideable")
        )
        if name.endswith(PRODUCTS) or "dot_product" in name:
            # The first argument of addmm and its like is added.
            terms = 1 if name.startswith(("add", "badd")) else 0
            args = [*args[:terms], *map(cut_off, args[terms:])]
        return operator(*args, **kwargs)

    return private.operator_mode(run)


def cut_off(value: Any) -> Any:
    """A float32 tensor without the bits that TF32 does not have; anything else as it is."""
    if not isinstance(value, Tensor) or value.dtype is not torch.float32 or value.layout is not torch.strided:
        return value
    return (value.view(torch.int32) & ~LOST_BITS).view(torch.float32)
