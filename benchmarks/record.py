"""A record of what gradvet reports, to compare two states of the source: `python -m benchmarks.record write|compare`.

`write` runs `check` on the gallery and on samples of PyTorch's operator database, and the drop-in functions on the
gallery's wrong functions, and stores the reports. `compare` runs the same cases again and prints which reports differ,
layer by layer: verdict, findings, numbers (entries, error bars, resolution), evaluation counts, text. It exits with 1
if a layer up to `--strict` differs. Every case starts from the same random state, so two runs of one state agree in
all layers. Times are not recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import multiprocessing
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gradvet
from benchmarks.detection import in_half
from gradvet.core.results import Report
from gradvet.frontends.torch.opdb import dtype_name, operators
from gradvet.frontends.torch.random_state import seeded
from tests.differential.samples import Sample, draw, small
from tests.gallery import RIGHT, WRONG, Case

LAYERS = ("verdict", "findings", "numbers", "cost", "text")
"""What is compared, from what must never change unnoticed to what may change with every edit of a sentence."""

DTYPES = (torch.float64, torch.complex128, torch.float32, torch.bfloat16)
SEED = 20
MAX_ENTRIES = 2_000

Entry = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    wanted = parsed(arguments)
    if wanted.jobs > 1:
        with multiprocessing.get_context("spawn").Pool(wanted.jobs) as pool:
            parts = pool.starmap(recorded, [(wanted, number) for number in range(wanted.jobs)])
        found = {name: entry for part in parts for name, entry in part.items()}
    else:
        found = recorded(wanted, 0)
    if wanted.action == "write":
        wanted.path.parent.mkdir(parents=True, exist_ok=True)
        wanted.path.write_text(json.dumps(found, indent=0))
        print(f"{len(found)} cases recorded in {wanted.path}")
        return 0
    return compare(json.loads(wanted.path.read_text()), found, wanted)


def recorded(wanted: argparse.Namespace, first: int) -> dict[str, Entry]:
    """Every `jobs`-th case from `first` on."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {}
    for name, run in itertools.islice(cases(wanted), first, None, wanted.jobs):
        found[name] = entry_of(run)
        if sys.stderr.isatty():
            print(f"\r{len(found)} cases", end="", file=sys.stderr)
    return found


def cases(wanted: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Report]]]:
    """Every case by name, with the call that gives its report."""
    for case in (*RIGHT, *WRONG):
        yield f"gallery {case}", partial(gallery_report, case)
    for case in WRONG:
        if case.drop_in and case.order == 1:
            yield f"drop-in {case}", partial(drop_in_report, case, fast=False)
            yield f"drop-in fast {case}", partial(drop_in_report, case, fast=True)
    for operator in operators():
        # One operator in three, by name: enough to notice a change, and a few minutes.
        if not in_half(operator.full_name, "both") or zlib.crc32(operator.full_name.encode()) % wanted.every:
            continue
        for dtype in DTYPES:
            for sample in small(draw(operator, dtype), 1, MAX_ENTRIES):
                yield f"operator {sample.label}", partial(sample_report, sample)
            if dtype is torch.float64:
                for sample in small(draw(operator, dtype), 1, MAX_ENTRIES):
                    yield f"drop-in {sample.operator} {dtype_name(dtype)}", partial(drop_in_sample, sample)


def gallery_report(case: Case) -> Report:
    return gradvet.check(*case.build(), order=case.order, seed=SEED, accuracy=case.accuracy or 0.0)


def sample_report(sample: Sample) -> Report:
    return gradvet.check(sample.function, sample.inputs, seed=SEED)


def drop_in_sample(sample: Sample) -> Report:
    return drop_in(gradvet.gradcheck, sample.function, sample.inputs, fast_mode=True, **dict(sample.options))


def drop_in_report(case: Case, *, fast: bool) -> Report:
    function, inputs = case.build()
    inputs = tuple(x.detach().clone().requires_grad_() if _is_floating(x) else x for x in inputs)
    return drop_in(gradvet.gradcheck, function, inputs, fast_mode=fast)


def drop_in(checker: Callable[..., bool], *arguments: Any, **options: Any) -> Report:
    """The last report that a drop-in function announces."""
    from gradvet.core.events import listening

    reports: list[Report] = []
    with listening(reports.append, seed=SEED):
        checker(*arguments, raise_exception=False, **options)
    return reports[-1]


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def entry_of(run: Callable[[], Report]) -> Entry:
    """The layers of one report; of an exception its kind, and its text in the last layer."""
    with seeded(SEED):
        try:
            report = run().to_dict()
        except Exception as error:
            return {layer: f"{type(error).__name__}" for layer in LAYERS[:-1]} | {"text": digest(str(error))}
    findings = report["findings"]
    return {
        "verdict": report["verdict"],
        "findings": [(finding["check"], finding["verdict"]) for finding in findings],
        "numbers": digest([[list(m.values()) for m in f["mismatches"]] for f in findings], report["resolution"]),
        "cost": report["cost"],
        "text": digest({key: report[key] for key in report if key not in ("seconds", "source", "environment")}),
    }


def digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def compare(before: dict[str, Entry], after: dict[str, Entry], wanted: argparse.Namespace) -> int:
    """Print what differs, and say by the exit code whether a strict layer does."""
    after = json.loads(json.dumps(after))
    for name in before.keys() ^ after.keys():
        print(f"only {'before' if name in before else 'now'}: {name}")
    common = [name for name in before if name in after]
    status = 0
    for layer in LAYERS:
        changed = [name for name in common if before[name][layer] != after[name][layer]]
        print(f"{layer}: {len(changed)} of {len(common)} differ")
        for name in changed[: wanted.show] if layer != "text" else ():
            print(f"  {name}: {before[name][layer]} -> {after[name][layer]}")
        if changed and LAYERS.index(layer) <= LAYERS.index(wanted.strict):
            status = 1
    for key in ("forwards", "pulls", "pushes"):
        totals = [
            sum(e[n]["cost"].get(key, 0) for n in common if isinstance(e[n]["cost"], dict)) for e in (before, after)
        ]
        print(f"{key}: {totals[0]} -> {totals[1]}")
    return status


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("--path", type=Path, default=Path("build/record.json"))
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--every", type=int, default=3, help="one operator in so many, by a hash of its name")
    parser.add_argument(
        "--strict", choices=LAYERS, default="findings", help="exit with 1 if a layer up to this differs"
    )
    parser.add_argument("--show", type=int, default=40, help="differing cases that are printed in each layer")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
