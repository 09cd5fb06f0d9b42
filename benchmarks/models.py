"""`check` of whole models beside one training step: `python -m benchmarks.models`.

The models of `benchmarks.architectures` have random weights, float32, and are in training mode. Each is measured in a
process of its own, so that its peak memory is its own: on a GPU what torch allocated, on a CPU the largest resident
size above that before the step or the check. The training step is forward, backward and AdamW. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

HEADINGS = (
    *("model", "parameters", "verdict", "forward", "backward", "forward mode"),
    *("seconds", "peak GiB", "step s", "step GiB", "memory of steps"),
)
GIBI = 2.0**30
RETURNING = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
"""Settings of the GNU allocator with which freed tensors leave the resident size."""


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = _parsed(arguments)
    if wanted.child:
        print(json.dumps(measured(wanted.child, wanted.device, wanted.seed)))
        return 0
    from benchmarks.architectures import CASES

    sizes = wanted.sizes or (["small"] if wanted.device == "cpu" else ["small", "large"])
    names = [case.name for case in CASES if case.size in sizes and any(part in case.name for part in wanted.only)]
    rows = [_in_child(name, wanted) for name in names]
    print(f"\n{rows[0]['device'] if rows else wanted.device}, torch {rows[0]['torch'] if rows else ''}\n")
    print(f"| {' | '.join(HEADINGS)} |\n|{' --- |' * len(HEADINGS)}")
    for row in rows:
        print(f"| {' | '.join(_cells(row))} |")
    return int(any(row["verdict"] != "pass" for row in rows))


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--only", nargs="*", default=[""], help="Parts of the names of models.")
    parser.add_argument("--sizes", nargs="*", choices=["small", "large"], help="Default: small on a CPU, else both.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of weights, inputs and directions.")
    parser.add_argument("--timeout", type=float, default=600.0, help="Seconds for one model.")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _in_child(name: str, wanted: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.models", "--child", name, "--device", wanted.device]
    command += ["--seed", str(wanted.seed)]
    print(f"{name} …", file=sys.stderr, flush=True)
    try:
        environment = {**os.environ, **RETURNING} if wanted.device == "cpu" else os.environ
        done = subprocess.run(command, capture_output=True, text=True, timeout=wanted.timeout, env=environment)
    except subprocess.TimeoutExpired:
        return {"name": name, "verdict": f"more than {wanted.timeout:.0f} s", "device": wanted.device, "torch": ""}
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return {"name": name, "verdict": f"exit status {done.returncode}", "device": wanted.device, "torch": ""}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for line in row["open"]:
        print(f"  {line}", file=sys.stderr)
    return row


def _cells(row: dict[str, Any]) -> list[str]:
    if "forwards" not in row:
        return [row["name"], "", row["verdict"], *[""] * (len(HEADINGS) - 3)]
    passes = [str(row[kind]) for kind in ("forwards", "vjps", "jvps")]
    ratio = f"{row['bytes'] / row['step_bytes']:.1f}" if row["step_bytes"] else ""
    sizes = [f"{row['seconds']:.1f}", f"{row['bytes'] / GIBI:.3f}"]
    step = [f"{row['step_seconds']:.3f}", f"{row['step_bytes'] / GIBI:.3f}"]
    return [row["name"], f"{row['parameters'] / 1e6:.2f}M", row["verdict"], *passes, *sizes, *step, ratio]


def measured(name: str, device: str, seed: int) -> dict[str, Any]:
    """One model: a training step, then a check, in this process."""
    import torch
    from torch import nn

    import gradvet
    from benchmarks.architectures import CASES, on_device, sum_of_squares

    make = next(case.make for case in CASES if case.name == name)
    # A small check loads all code.
    gradvet.check(nn.Linear(3, 2).to(device), torch.ones(2, 3, device=device), seed=0)
    torch.manual_seed(seed)
    model, inputs = make()
    model, inputs = model.to(device), on_device(inputs, device)

    def step() -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        sum_of_squares(model(*inputs)).backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)

    step()
    step_seconds, step_bytes, _ = _cost(step, device)
    seconds, size, report = _cost(lambda: gradvet.check(model, inputs, seed=seed), device)
    unsettled = [f for f in report.findings if f.verdict.value in ("fail", "inconclusive")]
    return {
        "name": name,
        "device": torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "verdict": report.verdict.value,
        "open": [f"{f.check}: {f.verdict.value}: {f.headline}" for f in unsettled],
        "forwards": report.cost.forwards,
        "vjps": report.cost.vjps,
        "jvps": report.cost.jvps,
        "seconds": seconds,
        "bytes": size,
        "step_seconds": step_seconds,
        "step_bytes": step_bytes,
    }


def _cost(call: Callable[[], Any], device: str) -> tuple[float, int, Any]:
    """Seconds, bytes at the peak and the result of a call. On a GPU the weights are part of the bytes."""
    import torch

    from benchmarks.memory import largest_size, reset_largest_size

    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        return time.perf_counter() - started, torch.cuda.max_memory_allocated(), result
    before = reset_largest_size()
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, largest_size() - before, result


if __name__ == "__main__":
    sys.exit(main())
