"""gradvet on the kernels of Liger as they ship, and with planted faults: `python -m benchmarks.kernels`.

Needs Liger and Triton, and a GPU: without one, `TRITON_INTERPRET=1` runs most of them on the CPU in float32. Prints a
markdown table with a row for each kernel, dtype and fault, and totals; `--out` writes the same as JSON. `--reference`
passes the same function in plain torch as `reference=`. The first call, which compiles, is timed apart from the check.
Every check runs in a worker process: one that crashes or takes too long is that check's result.

    python -m benchmarks.kernels --planted --jobs 12 --out planted.json
    python -m benchmarks.kernels --planted --reference --jobs 12 --out planted-reference.json

`--module` names another module with `ENTRIES`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.kernel_cases import DTYPES, FAULTS, Case, Row, entries_of, measured, one_line
from gradvet.core.processes import ProcessDiedError, ProcessExecutor
from gradvet.options import Budget
from gradvet.suite import Status


def rows_of(module: str, cases: Sequence[Case], jobs: int, seconds: float) -> Iterator[Row]:
    """The results in the order in which they arrive."""
    executor = ProcessExecutor(jobs, Budget(seconds=seconds), entries_of, (module,))
    try:
        futures: dict[Future[Row], Case] = {executor.submit(measured, case): case for case in cases}
        for future in as_completed(futures):
            error = future.exception()
            if error is None:
                yield future.result()
            else:
                is_late = isinstance(error, ProcessDiedError) and error.status is Status.TIME_LIMIT
                verdict = "TIME" if is_late else "DIED"
                yield Row(futures[future], verdict, findings=(one_line(error),))
    finally:
        executor.shutdown(cancel_futures=True)


def totals(rows: Sequence[Row]) -> Iterator[str]:
    """Verdicts by dtype, as shipped and with faults, and the median time of a check."""
    for dtype in DTYPES:
        for title, kind in (("as shipped", False), ("planted", True)):
            chosen = [
                row
                for row in rows
                if row.case.dtype == dtype and bool(row.case.fault) is kind and row.verdict != "refused"
            ]
            if not chosen:
                continue
            counts = Counter(row.verdict for row in chosen)
            text = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
            named = sum(row.is_named for row in chosen)
            text += f"; {named} ({100.0 * named / len(chosen):.1f} %) named as a wrong derivative" if kind else ""
            median = statistics.median(row.seconds for row in chosen)
            yield f"{dtype}, {title}: {len(chosen)} checks, {text}; median {median:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--module", default="benchmarks.liger", help="module with ENTRIES")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--only", nargs="+", metavar="KERNEL", help="names of kernels; the default is all")
    parser.add_argument("--planted", action="store_true", help="also with each planted fault")
    parser.add_argument("--reference", action="store_true", help="pass the function in plain torch as reference=")
    parser.add_argument("--comparison", action="store_true", help="only the checks that compare the derivative")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="number of worker processes")
    parser.add_argument("--seconds", type=float, default=90.0, help="time limit of one check with its compilation")
    parser.add_argument("--out", type=Path, help="file for the rows as JSON")
    settings = parser.parse_args()
    known = entries_of(settings.module)
    unknown = set(settings.only or ()) - known.keys()
    if unknown:
        parser.error(f"unknown kernels: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    # As shipped first: that compiles what the others find in Triton's cache.
    cases = [
        Case(name, dtype, fault, settings.reference, settings.device, settings.seed, settings.comparison)
        for fault in ("", *(FAULTS if settings.planted else ()))
        for dtype in settings.dtypes
        for name in settings.only or known
    ]
    print("| kernel | dtype | fault | verdict | first call (s) | check (s) | findings |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows: list[Row] = []
    for row in rows_of(settings.module, cases, settings.jobs, settings.seconds):
        rows.append(row)
        print(row, flush=True)
        if settings.out:
            settings.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print()
    print("\n".join(totals(rows)))


if __name__ == "__main__":
    main()
