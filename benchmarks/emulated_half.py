"""The kernels of `benchmarks.emulated_functions` that run in half precision alone: `--module benchmarks.emulated_half`.

Nothing wider shows what their slopes are: use `--dtypes bfloat16 float16`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.emulated_functions import FUNCTIONS, kernel
from benchmarks.kernel_cases import Entry
from tests.kernels.emulated import opaque_function


def half_only(x: Tensor) -> Tensor:
    """In float32. A kernel that knows half precision alone raises for anything else."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        raise KeyError(x.dtype)
    return x.float()


ENTRIES = tuple(
    Entry(name, opaque_function(*kernel(function, half_only)), function, build)
    for name, (function, _, build) in FUNCTIONS.items()
)
