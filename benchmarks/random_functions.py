"""How often `check` is right on random compositions of torch operations: `python -m benchmarks.random_functions`.

Every program of `benchmarks.random_programs` is checked as it is, where FAIL is a false one, and with a planted fault,
where PASS is a silent one. A fault counts if it changes the gradient in float64, computed without gradvet, by much more
than `resolution`: single entries by a quarter of a typical one, or all together by 2 % (6 % in bfloat16), where no kink
explains it, if the outputs would show it over a step of the size of the input, and if it is left after rounding. With
`--opaque` the function accepts only the given precision, as a kernel does. Odd seeds are for tuning, even ones for the
report.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

import gradvet
from benchmarks.random_programs import Program, draw, with_fault
from benchmarks.report import numbers_table, save, wide_console

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "complex128": torch.complex128,
}
ENTRY_PART, COMMON_PART = 0.25, 0.02
"""Error of one entry relative to a typical one, and of all entries together, from which a fault counts; of the latter
at least eight spacings of the format, as `check` promises four."""

KINK_PART = 1e-3
"""Change of an entry between neighbouring points, relative to a typical one, from which it is at a kink."""

VISIBLE_PART = 1e-9
"""Change of the outputs over a step of the size of the input, relative to values of at least 1, that shows it."""


@dataclass(frozen=True)
class Row:
    """One call of `check`."""

    seed: int
    dtype: str
    program: str
    is_wrong: bool
    fault: str
    verdict: str
    findings: tuple[str, ...]
    cpu_seconds: float
    evaluations: int


def main(arguments: list[str] | None = None) -> int:
    wanted = parsed(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for name in wanted.dtype:
        for number in range(wanted.count):
            rows += rows_of(name, wanted.seed + 2 * number, wanted)
    console = wide_console()
    console.print(table_of(rows))
    save("random-functions", vars(wanted), [asdict(row) for row in rows], {}, console)
    return 0


def rows_of(name: str, seed: int, wanted: argparse.Namespace) -> list[Row]:
    """The checks of one right program and of the same with a fault."""
    program, inputs = program_of(name, seed)
    if not program.steps:
        return []
    found = []
    if wanted.kind != "wrong":
        found.append(row_of(program, inputs, name, seed, wanted))
    faulty = faulty_program(program, inputs, seed) if wanted.kind != "right" else None
    if faulty is not None:
        found.append(row_of(faulty, inputs, name, seed, wanted))
    return found


def program_of(name: str, seed: int) -> tuple[Program, tuple[Tensor, ...]]:
    """The program and the inputs that belong to a seed."""
    return draw(random.Random(f"{name} {seed}"), DTYPES[name])


def faulty_program(program: Program, inputs: Sequence[Tensor], seed: int) -> Program | None:
    """The program with a fault that matters; None if ten attempts find none."""
    rng = random.Random(seed)
    for _ in range(10):
        faulty = with_fault(rng, program)
        if matters(program, faulty, inputs):
            return faulty
    return None


def row_of(program: Program, inputs: tuple[Tensor, ...], name: str, seed: int, wanted: argparse.Namespace) -> Row:
    function: Callable[..., Any] = opaque(program, inputs[0].dtype) if wanted.opaque else program
    begin = time.process_time()
    evaluations, findings = 0, ()
    try:
        report = gradvet.check(function, inputs, seed=seed, points=None)
        verdict, evaluations = report.verdict.value, report.cost.forwards
        told = [finding for finding in report.findings if finding.verdict.value in ("fail", "inconclusive")]
        findings = tuple(f"{finding.check} {finding.verdict.value}: {finding.headline}" for finding in told)
        if verdict == "inconclusive":
            findings += tuple(str(row) for row in report.open_rows)
    except Exception as error:
        verdict, findings = "error", (f"{type(error).__name__}: {error}",)
    seconds = time.process_time() - begin
    if wanted.list and (verdict != "fail" if program.fault else verdict != "pass"):
        shapes = [tuple(x.shape) for x in inputs]
        print(
            f"{name} seed {seed} {verdict}: {shapes} {program.words}",
            *[text[:300] for text in findings[:3]],
            sep="\n    ",
            flush=True,
        )
    fault = program.fault.kind if program.fault else ""
    return Row(seed, name, program.words, bool(program.fault), fault, verdict, findings, seconds, evaluations)


def matters(right: Program, wrong: Program, inputs: Sequence[Tensor]) -> bool:
    """Whether the gradients in float64 differ at entries without a kink, by much more than the resolution asked for."""
    wide = [x.detach().to(torch.complex128 if x.is_complex() else torch.float64) for x in inputs]
    generator = torch.Generator().manual_seed(0)
    true, found = gradients(right, wide, 0), gradients(wrong, wide, 0)
    outputs = right(*wide)
    values = torch.cat([y.abs().reshape(-1) for y in (outputs if isinstance(outputs, tuple) else (outputs,))])
    visible = VISIBLE_PART * float(values.clamp(min=1.0).norm())
    moved = []
    for _ in range(4):
        shift = [1e-9 * (x.abs() + 0.1) * torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in wide]
        moved.append(gradients(right, [x + d for x, d in zip(wide, shift, strict=True)], 0))
    for number, (good, bad) in enumerate(zip(true, found, strict=True)):
        size = good.abs()
        if not bool(torch.isfinite(size).all() and torch.isfinite(bad.abs()).all()) or not bool(size.any()):
            continue
        typical = float(size[size > 0].square().mean().sqrt())
        change = torch.stack([(other[number] - good).abs() for other in moved]).amax(0)
        error = torch.where(change <= KINK_PART * typical, (bad - good).abs(), torch.zeros_like(size))
        length = wide[number].abs().clamp(min=0.25 * float(wide[number].abs().square().mean().sqrt()))
        same = torch.equal(good.to(inputs[number].dtype), bad.to(inputs[number].dtype))
        if same or not float((error * length).norm()) > visible:
            continue
        common = max(COMMON_PART, 8.0 * torch.finfo(inputs[number].dtype).eps)
        if float(error.max()) > ENTRY_PART * typical or float(error.norm()) > common * float(size.norm()):
            return True
    return False


def gradients(program: Program, inputs: Sequence[Tensor], seed: int) -> list[Tensor]:
    """The gradient of a fixed random combination of the outputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = program(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(seed)
    cotangents = [torch.randn(y.shape, dtype=y.dtype, generator=generator) for y in outputs]
    found = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True)]


def opaque(program: Program, dtype: torch.dtype) -> Callable[..., Any]:
    """The program as one operation that accepts this dtype alone, and that torch cannot look into.

    Half precision is computed in float32 and rounded at the end.
    """
    inside = dtype if dtype in (torch.float64, torch.complex128) else torch.float32

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Any:
            if inputs[0].dtype != dtype:
                raise RuntimeError(f"only {dtype} is supported")
            ctx.save_for_backward(*inputs)
            with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
                found = program(*[x.to(inside) for x in inputs])
                return tuple(y.to(dtype) for y in found) if isinstance(found, tuple) else found.to(dtype)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Any:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                leaves = [x.detach().to(inside).requires_grad_() for x in ctx.saved_tensors]
                with torch.enable_grad():
                    found = program(*leaves)
                    found = found if isinstance(found, tuple) else (found,)
                    wide = [y.to(inside) for y in found]  # real outputs of complex programs too
                used = [(y, v.to(inside)) for y, v in zip(wide, cotangents, strict=True) if y.requires_grad]
                outputs, gradients = zip(*used, strict=True)
                grads = torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)
                pairs = zip(grads, leaves, strict=True)
                return tuple((torch.zeros_like(x) if g is None else g).to(dtype) for g, x in pairs)

    return Kernel.apply  # type: ignore[no-any-return]


def table_of(rows: Sequence[Row]) -> Table:
    numbers = "functions", "PASS", "FAIL", "INCONCLUSIVE", "error", "CPU s", "evaluations"
    table = numbers_table("random compositions of operations", ("dtype", "kind"), numbers)
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.dtype, "wrong" if row.is_wrong else "right"].append(row)
        if row.is_wrong:
            groups["any", row.fault].append(row)
    for (dtype, kind), mine in sorted(groups.items()):
        count = Counter(row.verdict for row in mine)
        cells = [str(count[verdict]) for verdict in ("pass", "fail", "inconclusive", "error")]
        seconds, evaluations = sum(row.cpu_seconds for row in mine), sum(row.evaluations for row in mine) // len(mine)
        table.add_row(dtype, kind, str(len(mine)), *cells, f"{seconds:.1f}", str(evaluations))
    return table


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.random_functions", description=__doc__)
    parser.add_argument("--count", default=100, type=int, metavar="N", help="programs of each dtype")
    parser.add_argument("--seed", default=0, type=int, help="the first one; the others follow in steps of two")
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=tuple(DTYPES))
    parser.add_argument("--kind", default="both", choices=("both", "right", "wrong"))
    parser.add_argument("--opaque", action="store_true", help="the function accepts only its own dtype")
    parser.add_argument("--list", action="store_true", help="print each false or undecided verdict")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
