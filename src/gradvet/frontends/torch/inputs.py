"""Inputs that are made for the user: random tensors of given shapes, the same for the same seed."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.randomness import preserved_rng


def random_inputs(shapes: Sequence[Sequence[int]], dtype: str = "float64") -> tuple[Tensor, ...]:
    """One random tensor per shape, of a dtype that has derivatives."""
    kind = differentiable(dtype)
    return tuple(torch.randn(tuple(shape), dtype=kind) for shape in shapes)


def converted(value: Any, dtype: str) -> Any:
    """A module with its parameters and buffers in a dtype; anything else as it is."""
    return value.to(differentiable(dtype)) if isinstance(value, nn.Module) else value


def differentiable(name: str) -> torch.dtype:
    """The dtype of that name, which must be one that has derivatives."""
    kind = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(kind, torch.dtype) or not (kind.is_floating_point or kind.is_complex):
        raise InvalidProblemError(
            f"a floating-point or complex dtype was expected, found {name!r}: use float64, float32, bfloat16, "
            "float16, complex128 or complex64"
        )
    return kind


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers drawn inside depend on the seed alone, and those drawn afterwards on nothing inside."""
    with preserved_rng():
        # Not torch.manual_seed, which loads the compiler: seconds, for nothing.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed)
        yield
