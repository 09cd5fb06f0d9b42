"""How often `check` is right: `python -m benchmarks.detection`.

Right operators must not fail, planted faults must. The operators of PyTorch's database are split in two halves by a
hash of their names: constants were tuned on one half, and the table is about the other (`--half tuning` shows the
first). INCONCLUSIVE is right where there is nothing to compare: inputs or outputs without elements, values or gradients
that are not finite in the given precision, a jump at the point. These are told without gradvet and counted apart.
Then the gallery: right but hard functions, and wrong ones by class of fault, beside torch's own checker. Last, the
cost beside torch's slow mode.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import sys
import time
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.autograd import gradcheck, gradgradcheck

import gradvet
import tests.gallery
from benchmarks import functions
from benchmarks.planted import Fault, planted
from benchmarks.report import geometric_mean, numbers_table, save, wide_console
from benchmarks.timing import interleaved
from gradvet.frontends.torch.opdb import dtype_name, operators
from gradvet.frontends.torch.random_state import seeded
from tests.differential.samples import Sample, draw, small
from tests.gallery import RIGHT, WRONG, Case

DTYPES = (torch.float64, torch.complex128, torch.float32, torch.bfloat16, torch.float16)
FAULTS = {
    torch.float64: (Fault.ONE_BY_A_THOUSANDTH, Fault.ALL_BY_A_THOUSANDTH, Fault.ONE_ZEROED),
    torch.float32: (Fault.ONE_BY_A_HUNDREDTH,),
}
WRONG_IN_TORCH = {
    "as_strided_scatter": "stock torch gives the gradient to what is replaced",
    "normal": "the gradient is declared zero; with the random state fixed it is not",
    "normal.number_mean": "the gradient is declared zero; with the random state fixed it is not",
    "normal.in_place": "the gradient is declared zero; with the random state fixed it is not",
    "cholesky_inverse": "forward mode is wrong",
    "scatter_reduce.prod": "forward mode is wrong: it agrees neither with reverse mode nor with differences",
    "quantile": "declared to have no batched forward mode",
    "nanquantile": "declared to have no batched forward mode",
    "logcumsumexp": "forward mode of complex numbers gives NaN",
    "nn.functional.max_unpool1d": "indices that repeat: which one wins is not said",
    "nn.functional.max_unpool2d": "indices that repeat: which one wins is not said",
    "nn.functional.max_unpool3d": "indices that repeat: which one wins is not said",
    "sparse.mm.reduce": "its gradient has masked semantics: with masked=True it passes",
    "linalg.norm.subgradients_at_zero": "the norm of order -2 is not convex: its gradient at 0 is no one-sided slope",
}
"""Operators whose derivative is wrong or meant otherwise, judged one by one. They are counted apart."""


@dataclass(frozen=True)
class Row:
    """One call of `check`."""

    kind: str
    label: str
    dtype: str
    verdict: str
    failed: tuple[str, ...]
    excused: str = ""
    undefined: str = ""
    """Why the operator has no derivative at the sample; only for an INCONCLUSIVE right one."""


def main(arguments: list[str] | None = None) -> int:
    wanted = parsed(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    console = wide_console()
    rows: list[Row] = []
    if not wanted.no_database:
        rows = list(database_rows(wanted))
        console.print(right_table(rows), fault_table(rows))
        report_failures(rows, console)
    if not wanted.no_gallery:
        gallery = list(gallery_rows(wanted))
        console.print(*gallery_tables(gallery))
        rows += gallery
    costs = {} if wanted.no_cost else cost_rows()
    if costs:
        console.print(cost_table(costs))
    save("detection", vars(wanted), [vars(row) for row in rows], {"costs": costs}, console)
    return 0


def in_half(name: str, half: str) -> bool:
    return half == "both" or (zlib.crc32(name.encode()) % 2 == 0) == (half == "tuning")


def database_rows(wanted: argparse.Namespace) -> Iterator[Row]:
    """The rows of the operators, one after the other or in `--jobs` processes."""
    names = [op.full_name for op in operators(wanted.ops) if in_half(op.full_name, wanted.half)]
    deadline = time.monotonic() + wanted.time_budget
    if wanted.jobs == 1:
        for name in names:
            yield from operator_rows(wanted, deadline, name)
    else:
        with multiprocessing.get_context("spawn").Pool(wanted.jobs) as pool:
            for rows in pool.imap(partial(operator_rows, wanted, deadline), names):
                yield from rows


def operator_rows(wanted: argparse.Namespace, deadline: float, name: str) -> list[Row]:
    """`check` of one operator at its samples, right and with planted faults; nothing after the deadline."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for operator in (op for op in operators(name) if op.full_name == name):
        for dtype in DTYPES:
            for sample in small(draw(operator, dtype), wanted.samples, wanted.max_entries):
                if time.monotonic() > deadline:
                    return rows
                rows.append(row_of("right", sample, wanted.seed))
                spoiled = (attempt(partial(planted, sample, fault)) for fault in FAULTS.get(dtype, ()))
                faults = zip(FAULTS.get(dtype, ()), spoiled, strict=True)
                rows += [row_of(fault.value, wrong, wanted.seed) for fault, wrong in faults if wrong is not None]
    return rows


def attempt(call: Callable[[], Sample | None]) -> Sample | None:
    """What a call gives; nothing where the sample itself cannot be run."""
    try:
        return call()
    except Exception:
        return None


def row_of(kind: str, sample: Sample, seed: int) -> Row:
    verdict, failed = verdict_of(sample.function, sample.inputs, seed=seed)
    excused = WRONG_IN_TORCH.get(sample.operator, "")
    undefined = undefined_derivative(sample) if kind == "right" and verdict == "inconclusive" else ""
    return Row(kind, sample.label, dtype_name(sample.dtype), verdict, failed, excused, undefined)


JUMP_STEPS = 2.0**-20, 2.0**-30
"""Relative changes of the inputs over which the change of a continuous function shrinks."""


def undefined_derivative(sample: Sample) -> str:
    """Why an operator has no derivative at a sample, by values and gradients without gradvet; empty if it has one."""
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in sample.inputs]
    try:
        with seeded(0):
            outputs = tensors_of(sample.function(*leaves))
        wanted = [x for x in leaves if x.requires_grad]
        if not sum(x.numel() for x in wanted) or not sum(y.numel() for y in outputs):
            return "no elements"
        total = sum(y.sum() for y in outputs if y.requires_grad)
        gradients = torch.autograd.grad(total, wanted, torch.ones_like(total), allow_unused=True)
        if not all(bool(torch.isfinite(t).all()) for t in (*outputs, *gradients) if t is not None):
            return "not finite"
        near, nearer = (change_across(sample, step) for step in reversed(JUMP_STEPS))
        size = max(float(y.detach().abs().max()) for y in outputs if y.numel())
        return "a jump" if near > 0.5 * nearer and near > 1e-6 * size else ""
    except Exception:  # it refuses wider inputs, or has no reverse mode: nothing is known
        return ""


def tensors_of(result: Any) -> list[torch.Tensor]:
    found = result if isinstance(result, (tuple, list)) else (result,)
    return [y for y in found if isinstance(y, torch.Tensor) and (y.is_floating_point() or y.is_complex())]


def change_across(sample: Sample, step: float) -> float:
    """The largest change of an output between the point and both sides of it, in double precision."""
    wide = torch.complex128 if sample.dtype.is_complex else torch.float64
    generator, sides = torch.Generator().manual_seed(0), []
    moves = [torch.rand(x.shape, generator=generator) - 0.5 for x in sample.inputs]
    for sign in (1.0, -1.0, 0.0):
        moved = [
            x.detach().to(wide) + sign * step * move.to(wide) for x, move in zip(sample.inputs, moves, strict=True)
        ]
        with seeded(0):
            sides.append(tensors_of(sample.function(*moved)))
    changes = (a - b for one, other in combinations(sides, 2) for a, b in zip(one, other, strict=True) if a.numel())
    return max(float(change.abs().max()) for change in changes)


def verdict_of(function: Callable[..., Any], inputs: Any, **settings: Any) -> tuple[str, tuple[str, ...]]:
    try:
        with seeded(0):
            report = gradvet.check(function, inputs, **settings)
    except Exception as error:
        return f"raised {type(error).__name__}", ()
    return report.verdict.value, tuple(finding.check for finding in report.failures)


def right_table(rows: Sequence[Row]) -> Table:
    numbers = "samples", "false FAIL", "INCONCLUSIVE", "raised", "nothing to compare", "wrong in torch"
    table = numbers_table("right operators", ("dtype",), numbers)
    for dtype in dict.fromkeys(row.dtype for row in rows):
        mine = [row for row in rows if row.kind == "right" and row.dtype == dtype]
        counted = [row for row in mine if not row.excused]
        undefined = Counter(row.undefined for row in counted if row.undefined)
        count = Counter(row.verdict.split()[0] for row in counted if not row.undefined)
        shares = [share(count[key], count.total()) for key in ("fail", "inconclusive", "raised")]
        reasons = ", ".join(f"{number} {reason}" for reason, number in undefined.items()) or "0"
        table.add_row(dtype, str(count.total()), *shares, reasons, str(len(mine) - len(counted)))
    return table


def fault_table(rows: Sequence[Row]) -> Table:
    table = numbers_table("planted faults", ("fault", "dtype"), ("samples", "caught", "INCONCLUSIVE", "missed"))
    # A fault counts where the operator itself passes: elsewhere the verdict would not be about the fault.
    sound = {(row.label, row.dtype) for row in rows if row.kind == "right" and row.verdict == "pass"}
    for kind, dtype in dict.fromkeys((row.kind, row.dtype) for row in rows if row.kind != "right"):
        mine = [row for row in rows if (row.kind, row.dtype) == (kind, dtype) and (row.label, row.dtype) in sound]
        count = Counter(row.verdict.split()[0] for row in mine)
        shares = [share(count[key], len(mine)) for key in ("fail", "inconclusive", "pass")]
        table.add_row(kind, dtype, str(len(mine)), *shares)
    return table


def share(part: int, whole: int) -> str:
    return f"{part} ({100.0 * part / whole:.1f} %)" if whole else "-"


def report_failures(rows: Sequence[Row], console: Console) -> None:
    for row in rows:
        if row.kind == "right" and row.verdict not in ("pass", "inconclusive"):
            console.print(f"  {row.label}: {row.verdict} {list(row.failed)} {row.excused}", highlight=False)


def gallery_rows(wanted: argparse.Namespace) -> Iterator[Row]:
    for case in (*RIGHT, *WRONG):
        order = case.order if case.fault else 1
        verdict, failed = verdict_of(*case.build(), order=order, seed=wanted.seed, accuracy=case.accuracy or 0.0)
        yield Row(case.fault or "hard", case.name, dtype_name(case.dtype), verdict, failed)
        if case.fault:
            for name, calls in TORCH.items():
                caught = "fail" if rejected_by_torch(case, calls) else "pass"
                yield Row(f"{case.fault} {name}", case.name, dtype_name(case.dtype), caught, ())


Flags = dict[str, bool]
TORCH: dict[str, tuple[Flags, ...]] = {
    "torch slow": ({},),
    "torch fast": ({"fast_mode": True},),
    "torch with every flag": (
        {},
        {"fast_mode": True},
        {"check_batched_grad": True},
        {"check_grad_dtypes": True},
        {"check_forward_ad": True},
        {"check_forward_ad": True, "check_batched_forward_grad": True},
        {"gen_non_contig_grad_outputs": True},
        {"check_fwd_over_rev": True},
        {"check_fwd_over_rev": True, "check_rev_over_rev": False},
    ),
}
"""Calls of torch's checker: a fault is caught if one of them says no. Each flag has a call of its own, lest a mode that
the function does not have keep the others from running."""


def rejected_by_torch(case: Case, calls: Sequence[Flags]) -> bool:
    """Whether torch's checker says no to the first derivative, or to the second where the fault is of second order."""
    check = gradgradcheck if case.order == 2 else gradcheck
    known = inspect.signature(check).parameters
    return any(rejected(check, case, flags) for flags in calls if set(flags) <= set(known))


def rejected(check: Callable[..., bool], case: Case, flags: Flags) -> bool:
    """Whether one call says no; an exception that is not its refusal counts as no answer."""
    try:
        with seeded(0):
            return not check(*case.build(), **flags, raise_exception=False)
    except Exception:
        return False


def fault_titles() -> dict[str, str]:
    """What each class of faults is, from the first sentence of its module in the gallery."""
    modules = [value for name, value in vars(tests.gallery).items() if name.startswith("f") and "_" in name]
    titles = [str(module.__doc__).partition("\n")[0].rstrip(".").partition(". ")[0] for module in modules]
    return {name: words for name, _, words in (title.partition(": ") for title in titles)}


def gallery_tables(rows: Sequence[Row]) -> list[Table]:
    hard = Counter(row.verdict.split()[0] for row in rows if row.kind == "hard")
    first = numbers_table("right but hard functions", (), ("functions", "false FAIL", "INCONCLUSIVE", "raised"))
    shares = [share(hard[key], hard.total()) for key in ("fail", "inconclusive", "raised")]
    first.add_row(str(hard.total()), *shares)
    numbers = "functions", "gradvet.check", *TORCH
    second = numbers_table("wrong functions caught, by class", ("class", "fault"), numbers)
    caught: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row.kind != "hard":
            fault, _, checker = row.kind.partition(" ")
            for key in (fault, "all"):
                caught[key][checker] += row.verdict == "fail"
                caught[key]["functions"] += not checker
    titles = fault_titles()
    for fault in sorted(caught, key=lambda name: int(name[1:]) if name != "all" else 99):
        count = caught[fault]
        shares = [share(count[key], count["functions"]) for key in ("", *TORCH)]
        second.add_row(fault, titles.get(fault, ""), str(count["functions"]), *shares)
    return [first, second]


def cost_rows() -> dict[str, dict[str, float]]:
    """Seconds of `check` and of torch's slow mode at several sizes."""
    check = gradvet.check
    found: dict[str, dict[str, float]] = {}
    for n in (10, 100, 1000):
        for name, problem in functions.FUNCTIONS.items():
            function, inputs = problem(n)
            checkers = {
                "torch slow": partial(gradcheck, function, inputs),
                "gradvet.check": partial(check, function, inputs, seed=0),
            }
            for call in checkers.values():
                call()  # what an operator loads when it is first called is not the checker's cost
            found[f"{name} {n}"] = interleaved(checkers)
    return found


def cost_table(costs: dict[str, dict[str, float]]) -> Table:
    numbers = "torch slow", "gradvet.check", "check / slow"
    table = numbers_table("cost at the defaults, CPU seconds", ("function, inputs",), numbers)
    for name, seconds in costs.items():
        slow, mine = seconds["torch slow"], seconds["gradvet.check"]
        table.add_row(name, f"{slow:.4f}", f"{mine:.4f}", f"{mine / slow:.2f}")
    for size in sorted({int(name.split()[-1]) for name in costs}):
        ratios = [s["gradvet.check"] / s["torch slow"] for name, s in costs.items() if name.endswith(f" {size}")]
        table.add_row(f"geometric mean, {size}", "", "", f"{geometric_mean(ratios):.2f}")
    return table


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection", description=__doc__)
    parser.add_argument("--ops", default="*", metavar="GLOB", help="operators by full name (default: all)")
    parser.add_argument("--half", default="held-out", choices=("tuning", "held-out", "both"))
    parser.add_argument("--samples", default=3, type=int, metavar="N", help="at most N per operator and dtype")
    parser.add_argument("--max-entries", default=100_000, type=int, metavar="N", help="numbers in a Jacobian")
    parser.add_argument("--time-budget", default=float("inf"), type=float, metavar="SECONDS")
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--jobs", default=1, type=int, metavar="N", help="processes for the operators")
    parser.add_argument("--no-database", action="store_true")
    parser.add_argument("--no-gallery", action="store_true")
    parser.add_argument("--no-cost", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
