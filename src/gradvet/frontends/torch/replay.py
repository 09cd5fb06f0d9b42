"""Many points by replaying a captured CUDA graph, for functions that `vmap` cannot map (kernels of the user's own).

On a GPU, a small function spends its time on launches. A graph holds the launches of a block of points: each is copied
into the caller's own tensors, the function is called, and its outputs are copied out. To evaluate other points is then
one copy and one launch a block. The function itself runs only while the graph is captured, so what it gives must be
compared with plain calls before it is trusted.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradvet.frontends.torch.layouts.strided import Strided

if TYPE_CHECKING:
    from gradvet.frontends.torch.problem import TorchProblem

BLOCK = 32
"""Points in a graph."""


class Replay:
    """A captured block of evaluations: points go in, a row of values comes out for each."""

    def __init__(self, problem: TorchProblem, layouts: Sequence[Strided]) -> None:
        self._points = [layout.base.expand(BLOCK, *layout.base.shape).clone() for layout in layouts]
        self._graph = torch.cuda.CUDAGraph()
        with _noticing_waits():
            problem.call(problem.arguments)
        # What is done for the first time may not be captured, and must not happen on the stream that captures.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._evaluated(problem, layouts, 1)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self._graph):
            self._values = self._evaluated(problem, layouts, BLOCK)

    def _evaluated(self, problem: TorchProblem, layouts: Sequence[Strided], number: int) -> Tensor:
        rows = []
        for index in range(number):
            for layout, points in zip(layouts, self._points, strict=True):
                layout.put(points[index])
            rows.append(problem.values(problem.arguments))
        return torch.stack(rows)

    def at(self, points: Sequence[Tensor]) -> Tensor:
        """The outputs at points of which there are no more than `BLOCK`."""
        number = len(points[0])
        for mine, given in zip(self._points, points, strict=True):
            mine[:number] = given
        self._graph.replay()
        return self._values[:number].clone()


@contextmanager
def _noticing_waits() -> Iterator[None]:
    """A function that waits for the GPU cannot be captured, and trying would leave torch's generators unusable."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def evaluate_replayed(problem: TorchProblem, displacements: Tensor) -> Tensor | None:
    """The outputs at each displaced point by replays of one graph; None if the function cannot be captured."""
    layouts = [layout for layout in problem.layouts if isinstance(layout, Strided)]
    if problem.home.type != "cuda" or not problem.ordinary or len(layouts) < len(problem.layouts):
        return None
    pieces = torch.split(displacements, [leaf.coordinates.size for leaf in problem.domain.leaves], dim=1)
    points = [layout.points(piece).split(BLOCK) for layout, piece in zip(layouts, pieces, strict=True)]
    try:
        with torch.no_grad(), torch.cuda.device(problem.home):
            if problem.replay is None:
                problem.replay = Replay(problem, layouts)
            for layout in layouts:
                layout.put(layout.base)  # marked as moved: a replay moves it unseen
            return torch.cat([problem.replay.at(block) for block in zip(*points, strict=True)])
    except Exception:  # whatever stops the capture, the points can still be evaluated one by one
        return None
    finally:
        for layout in layouts:
            layout.restore()
