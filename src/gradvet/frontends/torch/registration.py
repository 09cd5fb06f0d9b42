"""Custom operators: what torch's own test of their registration says, which knows nothing of gradients' values."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

from gradvet.frontends.torch.binding import Request
from gradvet.frontends.torch.trees import mapped

OWN = ("aten", "prims", "prim", "quantized", "inductor")
"""Namespaces of torch's own operators."""


def registration(request: Request) -> Mapping[str, str] | None:
    """The complaint of each test by name, empty where there is none; None for what is no custom operator."""
    operator: Any = request.func
    if not _is_custom(operator):
        return None
    arguments = request.inputs if type(request.inputs) is tuple else (request.inputs,)
    own = tuple(mapped(_copied, argument) for argument in arguments)
    words = {name: mapped(_copied, value) for name, value in (request.kwargs or {}).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.library.opcheck(operator, own, words, raise_exception=False)
    return {name.removeprefix("test_"): _complaint(answer) for name, answer in found.items()}


def _is_custom(operator: Any) -> bool:
    if isinstance(operator, OpOverload):
        return operator.namespace not in OWN
    if isinstance(operator, OpOverloadPacket):
        return _is_custom(getattr(operator, operator.overloads()[0]))
    return isinstance(operator, CustomOpDef)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Nobody asked for a gradient of some tensors; the test wants all that could have one."""
    floating = tensor.is_floating_point() or tensor.is_complex()
    return tensor.detach().clone().requires_grad_(floating)


def _complaint(answer: Any) -> str:
    return "" if answer == "SUCCESS" else " ".join(str(answer).split()) or type(answer).__name__
