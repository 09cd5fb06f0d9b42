"""`check(kernel, inputs, reference=...)` on right kernels and on kernels with planted faults.

    python -m benchmarks.references --set reporting
    python -m benchmarks.references --set tuning --kernel softmax --verbose

Thresholds are chosen with the tuning set (the kernels of the tests). Figures are reported on the other set, which has
other kernels, shapes and ways of rounding; do not look at its single cases to choose a threshold.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

import gradvet
from gradvet.core.results import Finding, Verdict
from tests.reference_kernels import FAULTS, KERNELS, OVERWRITING, VALUE, Kernel

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
COMPARISON = {"checks": ("reference", "reverse")}
"""The comparison alone: the other checks do not depend on the reference."""


def kernels_of(name: str) -> Sequence[Kernel]:
    if name == "tuning":
        return (*KERNELS, *OVERWRITING)
    from benchmarks.reference_kernels import REPORTED

    return REPORTED


def cases(kernel: Kernel, seed: int) -> Iterator[tuple[str, int, str]]:
    """Fault, slot and name of the tensor; every fault once, in turn in each gradient and in the values."""
    slots = (*kernel.slots, VALUE)
    for number, fault in enumerate(FAULTS):
        slot = slots[(number + seed) % len(slots)]
        yield fault, slot, "output" if slot == VALUE else f"grad of input {slot}"


def is_named(findings: Sequence[Finding], tensor: str) -> bool:
    return any(
        finding.verdict is Verdict.FAIL and str(finding.facts.get("tensor", "")).startswith(tensor)
        for finding in findings
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--set", choices=("tuning", "reporting"), default="reporting")
    parser.add_argument("--kernel", help="only kernels whose name contains this")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--right-only", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    right: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    seconds: list[float] = []
    for kernel in kernels_of(options.set):
        if options.kernel and options.kernel not in kernel.name:
            continue
        for seed in range(options.seeds):
            for dtype in DTYPES:
                torch.manual_seed(seed)
                inputs = kernel.inputs()
                name = str(dtype).removeprefix("torch.")
                settings = {"reference": kernel.eager, "dtypes": (dtype,), "seed": seed, **COMPARISON}
                began = time.perf_counter()
                report = gradvet.check(kernel.fused(), inputs, **settings)  # type: ignore[arg-type]
                seconds.append(time.perf_counter() - began)
                right[report.verdict.value] += 1
                if report.verdict is not Verdict.PASS or options.verbose:
                    words = "; ".join(f.headline for f in report.findings if f.verdict is not Verdict.SKIPPED)
                    print(f"{'right':14s} {kernel.name} {name} {report.verdict}: {words} {report.open_rows}")
                if options.right_only:
                    continue
                for fault, slot, tensor in cases(kernel, seed):
                    report = gradvet.check(kernel.fused(FAULTS[fault], slot), inputs, **settings)  # type: ignore[arg-type]
                    named = is_named(report.findings, tensor)
                    outcome = "named" if named else f"not named ({report.verdict.value})"
                    wrong[outcome] += 1
                    if not named or options.verbose:
                        words = "; ".join(f.headline for f in report.findings if f.check == "reference")
                        print(f"{fault:14s} {kernel.name} {name} {tensor} {report.verdict}: {words}")
    print(f"right {sum(right.values())}: {dict(right)}")
    print(f"wrong {sum(wrong.values())}: {dict(wrong)}")
    print(f"median seconds of a check: {sorted(seconds)[len(seconds) // 2]:.2f}")


if __name__ == "__main__":
    main()
