"""The memory that a whole check takes above what the function itself needs: `python -m benchmarks.memory right`.

Measured in a process of its own, as the growth of its largest resident size: nothing that is allocated escapes it,
whoever allocates. The function has 10,000 inputs and outputs and a Jacobian that is dense below its diagonal.

`python -m benchmarks.memory model 1500 6` counts the tensors of `check` of a model in float32 with six layers of 1,500
units, and prints how many float64 vectors of the size of its inputs they take beyond its float64 version.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

SIZE = 10_000


def peak_of_a_check(kind: str, *options: str) -> int:
    """Bytes that a check of a "right" or a "wrong" function takes; `options` name keywords that are to be true."""
    command = [sys.executable, "-m", "benchmarks.memory", kind, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def measured(kind: str, options: list[str]) -> int:
    import torch
    from torch import Tensor

    import gradvet
    from benchmarks.functions import point, spoiled

    def function(x: Tensor) -> Tensor:
        return torch.cumsum(torch.sin(x), dim=0) / SIZE**0.5

    right = function, (point(SIZE),)
    chosen, inputs = right if kind == "right" else spoiled(right)
    # A small check loads all code, and a forward and a backward pass are the function's own.
    for size in (10, 40):
        gradvet.gradcheck(function, point(size))
    gradvet.gradcheck(spoiled(right)[0], point(10), raise_exception=False)
    chosen(*inputs).sum().backward()
    before = largest_size()
    try:
        accepted = gradvet.gradcheck(chosen, inputs, **dict.fromkeys(options, True))
    except gradvet.GradcheckError as error:
        accepted = not str(error)
    assert accepted is (kind == "right")
    return largest_size() - before


def vectors_of_a_model(width: int, depth: int) -> str:
    """Vectors beyond the wider version, MiB and passes of a check of a model of dense layers, in training mode."""
    import torch
    from torch import nn

    import gradvet
    from tests.allocation import allocated

    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))]
    model, inputs = nn.Sequential(*layers), torch.randn(4, width)
    size = sum(parameter.numel() for parameter in model.parameters()) + inputs.numel()
    reports = [gradvet.check(nn.Linear(3, 2), torch.ones(2, 3), seed=0)]  # loads all code
    peak = allocated(lambda: reports.append(gradvet.check(model, inputs, seed=1))).peak
    # The count has the parameters themselves, in float32, and the wider version.
    beyond = peak - 4 * size - 8 * size
    words = f"{beyond / (8 * size):.2f} vectors, {beyond / 2**20:.0f} MiB, {reports[1].cost.forwards} forward passes"
    return f"{size:,} elements, {reports[1].verdict}: {words}"


def reset_largest_size() -> int:
    """Let the largest resident size of this process begin at its present size, where the system can do that."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return largest_size()


def largest_size() -> int:
    """The largest resident size of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # Of this process alone: what the system calls its largest size begins with that of the process that began it.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    # Kilobytes, but bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    is_model = sys.argv[1] == "model"
    print(vectors_of_a_model(*map(int, sys.argv[2:])) if is_model else measured(sys.argv[1], sys.argv[2:]))
