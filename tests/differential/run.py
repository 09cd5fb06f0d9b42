"""Compare gradvet with torch's slow mode over the whole operator database: `python -m tests.differential.run`.

Prints the disagreements of each operator as they come, then a summary; ends with status 1 if the table does not explain
them all. Operators run one after the other, and the memory of one is free before the next begins.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gradvet.frontends.torch.opdb import Variant, dtype_name, operators
from tests.differential.comparison import Disagreement, disagreements
from tests.differential.samples import DTYPES, Derivative, Sample, draw, small
from tests.differential.table import REASONS
from tests.differential.verdicts import Checker, gradvet_checker, torch_checker


@dataclass
class Tally:
    """What has been seen so far."""

    samples: int = 0
    operators: int = 0
    without_derivative: int = 0
    too_large: list[str] = field(default_factory=list)
    found: list[Disagreement] = field(default_factory=list)

    @property
    def unexplained(self) -> list[Disagreement]:
        return [disagreement for disagreement in self.found if disagreement.reason is None]

    def unused_reasons(self) -> list[str]:
        used = {id(disagreement.reason) for disagreement in self.found}
        return [
            f"{operator} {dtype}: {reason.torch} / {reason.gradvet}"
            for (operator, dtype), reasons in REASONS.items()
            for reason in reasons
            if id(reason) not in used
        ]


def main(arguments: list[str] | None = None) -> int:
    wanted = parsed(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the operators warn of their own options and futures
    console = Console()
    others = [gradvet_checker(fast_mode=False), gradvet_checker(fast_mode=True)]
    tally = Tally()
    everything = operators(wanted.ops)
    started = time.perf_counter()
    with progress_bar(console) as progress:
        for operator in progress.track(everything, description="operators"):
            visit(operator, wanted, others, tally, progress.console)
            gc.collect()
    summarise(tally, console, time.perf_counter() - started)
    if wanted.ops == "*":
        for line in tally.unused_reasons():
            console.print(f"table entry not needed in this run: {escape(line)}")
    if wanted.json:
        wanted.json.write_text(json.dumps(as_json(tally), indent=1) + "\n")
    return 1 if tally.unexplained else 0


def visit(operator: Any, wanted: argparse.Namespace, others: list[Checker], tally: Tally, console: Console) -> None:
    """Compare every chosen sample of one operator, and print where the verdicts part."""
    drawn = 0
    for sample in chosen(operator, wanted, tally):
        drawn += 1
        for disagreement in disagreements(sample, torch_checker(fast_mode=False), others):
            # Without the sample's tensors, so that their memory is free when the operator is done.
            light = replace(disagreement.sample, function=tuple, inputs=())
            tally.found.append(replace(disagreement, sample=light))
            colour = "red" if disagreement.reason is None else "yellow"
            console.print(f"[{colour}]{escape(str(disagreement))}[/]", highlight=False)
            if disagreement.reason is not None:
                console.print(f"    explained: {escape(disagreement.reason.why)}", highlight=False)
    tally.samples += drawn
    tally.operators += drawn > 0


def chosen(operator: Any, wanted: argparse.Namespace, tally: Tally) -> Iterator[Sample]:
    has_samples = False
    for dtype in wanted.dtypes:
        for variant in wanted.variants:
            samples = draw(operator, dtype, variant, wanted.check)
            some = small(samples, wanted.samples, wanted.max_entries)
            if samples and not some:
                tally.too_large.append(f"{operator.full_name} {variant.value} {dtype_name(dtype)}")
            has_samples = has_samples or bool(samples)
            yield from some
    tally.without_derivative += not has_samples


def summarise(tally: Tally, console: Console, seconds: float) -> None:
    console.print(
        f"{tally.samples} samples of {tally.operators} operators in {seconds:.0f} s; "
        f"{tally.without_derivative} entries have no such derivative; "
        f"{len(tally.too_large)} had only samples above the size limit"
    )
    kinds = Counter((d.checker, str(d.expected), str(d.found), d.reason is not None) for d in tally.found)
    for (checker, expected, found, is_explained), count in kinds.most_common():
        explained = "explained" if is_explained else "UNEXPLAINED"
        console.print(f"{count:5}  torch slow {expected}, {checker} {found}  ({explained})")
    console.print(f"{len(tally.found)} disagreements, {len(tally.unexplained)} of them unexplained")


def as_json(tally: Tally) -> dict[str, object]:
    return {
        "samples": tally.samples,
        "operators": tally.operators,
        "without_derivative": tally.without_derivative,
        "too_large": tally.too_large,
        "disagreements": [
            {
                "operator": d.sample.operator,
                "variant": d.sample.variant.value,
                "dtype": dtype_name(d.sample.dtype),
                "index": d.sample.index,
                "checker": d.checker,
                "torch": str(d.expected),
                "found": str(d.found),
                "inputs_changed": d.found.disturbed,
                "torch_message": d.expected.message[:2000],
                "message": d.found.message[:2000],
                "reason": d.reason.why if d.reason else None,
            }
            for d in tally.found
        ],
    }


def progress_bar(console: Console) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("operators"), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.differential.run", description=__doc__)
    parser.add_argument("--ops", default="*", metavar="GLOB", help="operators by full name (default: all)")
    parser.add_argument(
        "--dtypes", nargs="+", default=DTYPES, type=dtype_of, metavar="DTYPE", help="float64 complex128"
    )
    parser.add_argument("--variants", nargs="+", default=list(Variant), type=Variant, metavar="VARIANT")
    parser.add_argument(
        "--check", default=Derivative.REVERSE, type=Derivative, help=", ".join(check.value for check in Derivative)
    )
    parser.add_argument("--samples", default=6, type=int, metavar="N", help="at most N per operator, variant and dtype")
    parser.add_argument("--max-entries", default=40_000, type=int, metavar="N", help="numbers in a sample's Jacobian")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the disagreements there")
    return parser.parse_args(arguments)


def dtype_of(name: str) -> torch.dtype:
    named = {dtype_name(dtype): dtype for dtype in DTYPES}
    if name not in named:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(named)}, found {name}")
    return named[name]


if __name__ == "__main__":
    sys.exit(main())
