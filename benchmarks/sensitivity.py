"""Which verdicts depend on which threshold: `python -m benchmarks.sensitivity [--only NAME ...] [--sample N]`.

Each number of `gradvet.core.thresholds` is varied by itself, in both directions: by a factor of two; an exponent of eps
(a name that ends with POWER or GROWTH) by 0.05, which is a factor of 6 in double precision and of 2 in single; an
integer by one. The numbers of a tuple are varied one by one. The cases are those of `benchmarks.record`: `check` on the
gallery, the drop-in functions on its wrong functions, and samples of PyTorch's operator database. For each constant the
verdicts that differ from those of the default are printed, or "none"; then the number of cases in which the verdict of
the report stays and that of a single check changes.

Only constants that a case reads are varied in it, because others cannot change its verdict; modules therefore must read
`thresholds.NAME` when they need it, and not keep it. Before the constants are varied one by one, all are varied
together, each at random up or down, `--joint` times. Where that changes nothing, a change by a single one is unlikely:
the others would have to hide it each time. `--joint 0` varies one by one in every case and takes five times as long.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from benchmarks.record import Entry, cases, entry_of
from gradvet.core import thresholds
from gradvet.core.results import Report

EXPONENT_STEP = 0.05
EXPONENTS = ("POWER", "POWER_LOW", "GROWTH")
READ: set[str] = set()
"""Constants that were read since it was emptied."""

Number = int | float | tuple[float, ...]


class Change(NamedTuple):
    """What one variation does to one case."""

    variation: str
    case: str
    before: str
    after: str
    is_verdict: bool
    """Whether the verdict of the report changes, and not only that of one check."""


class Result(NamedTuple):
    """What the variations do to one case."""

    case: str
    read: list[str]
    """The constants that it reads."""
    runs: int
    changes: list[Change]


class TracedModule(ModuleType):
    """The module of thresholds, with a record of the constants that are read."""

    def __getattribute__(self, name: str) -> Any:
        if name.isupper():
            READ.add(name)
        return super().__getattribute__(name)


def main(arguments: list[str] | None = None) -> int:
    wanted = parsed(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    names = wanted.only or [name for name in vars(thresholds) if name.isupper()]
    found = stored(wanted.path) if wanted.resume else {}
    chosen = [(name, run) for name, run in cases(wanted) if is_sampled(name, wanted.sample) and name not in found]
    # In an order in which the first cases are a sample of all.
    chosen.sort(key=lambda case: hashed(case[0]))
    _Work.names, _Work.cases, _Work.joint = frozenset(names), chosen, wanted.joint
    thresholds.__class__ = TracedModule
    started, runs = time.monotonic(), 0
    wanted.path.parent.mkdir(parents=True, exist_ok=True)
    # Forked: cases cannot be pickled.
    with (
        wanted.path.open("a" if wanted.resume else "w") as file,
        multiprocessing.get_context("fork").Pool(wanted.jobs) as pool,
    ):
        for number, result in enumerate(pool.imap_unordered(_Work.result, range(len(chosen))), start=1):
            found[result.case] = result
            runs += result.runs
            print(json.dumps(result), file=file, flush=True)
            if number % 50 == 0 or number == len(chosen):
                seconds = time.monotonic() - started
                print(f"{number} of {len(chosen)} cases, {runs} runs, {seconds:.0f} s", file=sys.stderr)
    print_changes(names, list(found.values()))
    return 0


def stored(path: Path) -> dict[str, Result]:
    """Results of an earlier run that was interrupted."""
    found = {}
    for line in path.read_text().splitlines():
        case, read, runs, changes = json.loads(line)
        found[case] = Result(case, read, runs, [Change(*change) for change in changes])
    return found


class _Work:
    """What the processes share."""

    names: frozenset[str]
    cases: list[tuple[str, Callable[[], Report]]]
    joint: int

    @classmethod
    def result(cls, number: int) -> Result:
        return vary(*cls.cases[number], cls.names, cls.joint)


def is_sampled(case: str, one_in: int) -> bool:
    """Of operators, a part of the cases, by a hash of their names; of the gallery, all."""
    return not case.startswith("operator") or not hashed(case) % one_in


def hashed(case: str) -> int:
    return zlib.crc32(case.encode())


def vary(name: str, run: Callable[[], Report], constants: frozenset[str], joint: int) -> Result:
    """One case with the default, and with variations of the constants that it reads."""
    READ.clear()
    before = entry_of(run)
    read = sorted(READ & constants)
    changes, runs = [], 1
    if joint and len(read) > joint // 2:
        draw = random.Random(name)
        for _ in range(joint):
            with patched({constant: drawn(constant, getattr(thresholds, constant), draw) for constant in read}):
                after = entry_of(run)
            runs += 1
            if after["verdict"] != before["verdict"] or after["findings"] != before["findings"]:
                break
        else:
            return Result(name, read, runs, changes)
    for constant in read:
        for label, value in variations(constant, getattr(thresholds, constant)):
            with patched({constant: value}):
                after = entry_of(run)
            runs += 1
            if after["verdict"] != before["verdict"]:
                changes.append(Change(label, name, before["verdict"], after["verdict"], True))
            elif after["findings"] != before["findings"]:
                changes.append(Change(label, name, differing(before, after), differing(after, before), False))
    return Result(name, read, runs, changes)


def differing(one: Entry, other: Entry) -> str:
    """The findings of one report that the other does not have."""
    left = Counter(map(tuple, one["findings"])) - Counter(map(tuple, other["findings"]))
    return ", ".join(f"{check} {verdict}" for check, verdict in left) or "-"


def variations(name: str, value: Number) -> Iterator[tuple[str, Number]]:
    """Names and values of the variations of one constant."""
    if isinstance(value, tuple):
        for place, number in enumerate(value):
            for label, other in variations(name, number):
                yield f"{name}[{place}]{label.removeprefix(name)}", (*value[:place], other, *value[place + 1 :])
    elif isinstance(value, int):
        yield from ((f"{name} {step:+d}", value + step) for step in (-1, 1))
    elif name.endswith(EXPONENTS):
        yield from ((f"{name} {step:+}", value + step) for step in (-EXPONENT_STEP, EXPONENT_STEP))
    else:
        yield from ((f"{name} × {factor:g}", value * factor) for factor in (0.5, 2.0))


def drawn(name: str, value: Number, draw: random.Random) -> Number:
    """A constant with each of its numbers varied up or down."""
    if isinstance(value, tuple):
        return tuple(drawn(name, number, draw) for number in value)  # type: ignore[misc]
    return draw.choice([other for _, other in variations(name, value)])


@contextmanager
def patched(values: Mapping[str, Number]) -> Iterator[None]:
    default = {name: getattr(thresholds, name) for name in values}
    vars(thresholds).update(values)
    try:
        yield
    finally:
        vars(thresholds).update(default)


def print_changes(names: list[str], results: list[Result]) -> None:
    read = Counter(name for result in results for name in result.read)
    found = defaultdict(list)
    for result in results:
        for change in result.changes:
            found[change.variation].append(change)
    for name in names:
        print(f"{name} = {getattr(thresholds, name)}, read by {read[name]} of {len(results)} cases")
        for label, _ in variations(name, getattr(thresholds, name)):
            verdicts = [change for change in found[label] if change.is_verdict]
            others = [change for change in found[label] if not change.is_verdict]
            print(f"  {label}: {len(verdicts) or 'none'}" + (f", of single checks {len(others)}" if others else ""))
            for change in sorted(verdicts) + sorted(others):
                print(f"    {'' if change.is_verdict else '('}{change.case}: {change.before} -> {change.after}", end="")
                print("" if change.is_verdict else ")")


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="vary these constants only")
    parser.add_argument("--sample", type=int, default=2, metavar="N", help="use one operator case in N")
    parser.add_argument("--every", type=int, default=3, help="draw from one operator in this many, by its name")
    parser.add_argument("--path", type=Path, default=Path("build/sensitivity.jsonl"), help="where results are stored")
    parser.add_argument("--resume", action="store_true", help="use the stored results of an interrupted run")
    parser.add_argument("--joint", type=int, default=6, help="joint variations before single ones")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
