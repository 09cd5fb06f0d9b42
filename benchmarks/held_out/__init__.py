"""Functions on which `gradvet.check` is measured and on which nothing is tuned."""

from __future__ import annotations

from benchmarks.held_out import activations, attention, indexing, kernels, losses, modules, norms, sciences
from benchmarks.held_out.record import Record, right, wrong

RECORDS: tuple[Record, ...] = (
    *norms.RECORDS,
    *activations.RECORDS,
    *losses.RECORDS,
    *attention.RECORDS,
    *indexing.RECORDS,
    *sciences.RECORDS,
    *modules.RECORDS,
    *kernels.RECORDS,
)

__all__ = ["RECORDS", "Record", "right", "wrong"]
