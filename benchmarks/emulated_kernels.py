"""Kernels in the manner of public libraries, right and with faults inside: `--module benchmarks.emulated_kernels`."""

from __future__ import annotations

from benchmarks.emulated_products import PRODUCTS
from benchmarks.emulated_rows import ROWS

ENTRIES = tuple(entry for name, kernel in {**PRODUCTS, **ROWS}.items() for entry in kernel.entries(name))
