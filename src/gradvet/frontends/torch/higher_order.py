"""Derivatives as functions: what is differentiated at second order is the gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import is_tensor_like

from gradvet.core.provenance import title_of
from gradvet.frontends.torch.problem import tensors_in


def gradient_of(
    function: Callable[..., Any], arguments: Sequence[Any], cotangents: Sequence[Any]
) -> Callable[..., tuple[Tensor, ...]]:
    """(arguments, cotangents) ↦ Jᵀ·cotangents for the arguments that require grad, itself differentiable.

    Forward mode calls it with detached duals, so which arguments require grad is remembered from the start.
    """
    every = [*arguments, *cotangents]
    active = [is_tensor_like(value) and value.requires_grad for value in every]
    count = len(arguments)

    def gradient(*values: Any) -> tuple[Tensor, ...]:
        restored = [value.requires_grad_() if on else value for value, on in zip(values, active, strict=True)]
        outputs = [output for output in tensors_in(function(*restored[:count])) if output.requires_grad]
        sources = [value for value, on in zip(restored[:count], active[:count], strict=True) if on]
        gradients = torch.autograd.grad(outputs, sources, restored[count:], create_graph=True, allow_unused=True)
        return tuple(g for g in gradients if g is not None)

    gradient.__name__ = f"gradient of {title_of(function)}"
    # A report shows the code that somebody wrote: the function's.
    return functools.update_wrapper(gradient, function, assigned=(), updated=())


def random_cotangents(
    function: Callable[..., Any], arguments: Sequence[Any], *, noncontiguous: bool
) -> tuple[Tensor, ...]:
    """One random cotangent in [-1, 1) per differentiable output, from the global random state."""
    outputs = [output for output in tensors_in(function(*arguments)) if output.requires_grad]
    return tuple(
        torch.testing.make_tensor(
            output.shape,
            dtype=output.dtype if output.is_floating_point() or output.is_complex() else torch.float64,
            device=output.device,
            low=-1,
            high=1,
            requires_grad=True,
            noncontiguous=noncontiguous,
        )
        for output in outputs
    )
