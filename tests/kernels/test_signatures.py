"""How many kinds of calls a check of a kernel on an accelerator makes: Triton compiles for each.

A kind is the shape, dtype and strides of every tensor, and whether it begins at a multiple of 16 bytes. The CPU stands
for the accelerator: a request without safe devices treats it as one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradvet.api.pipeline import PipelineSettings, run_pipeline
from gradvet.api.points import PointSettings
from gradvet.api.validation import selection_of
from gradvet.core.frontend import Request
from gradvet.core.results import Report, Verdict
from gradvet.frontends.torch import FRONTEND
from gradvet.options import Options
from tests.kernels.emulated import Kernel, opaque_function

Kind = tuple[Any, ...]


def kind_of(*tensors: Tensor) -> Kind:
    return tuple((tuple(t.shape), t.dtype, t.stride(), t.data_ptr() % 16 == 0) for t in tensors)


def recorded(forward_kinds: set[Kind], backward_kinds: set[Kind], *, ignores_strides: str = "") -> Kernel:
    """tanh(x) · w, computed in the dtype of x. The strides of x or of grad_output may be ignored."""

    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        forward_kinds.add(kind_of(x, w))
        if ignores_strides == "x":
            x = x.as_strided(x.shape, (x.shape[1], 1))
        ctx.save_for_backward(x, w)
        return torch.tanh(x) * w

    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        backward_kinds.add(kind_of(v, x, w))
        if ignores_strides == "grad_output":
            v = v.as_strided(v.shape, (v.shape[1], 1))
        y = torch.tanh(x)
        return v * w * (1.0 - y * y), (v * y).sum(0)

    return opaque_function(forward, backward)


def report_on(kernel: Kernel, dtype: torch.dtype, **options: Any) -> Report:
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in ((6, 40), (40,)))
    settings = PipelineSettings(1, selection_of(("reverse",), None), PointSettings())
    return run_pipeline(FRONTEND, Request(kernel, inputs, safe_devices=(), **options), settings, Options(seed=0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernel_is_called_in_two_dtypes_and_one_other_layout(dtype: torch.dtype) -> None:
    forward: set[Kind] = set()
    backward: set[Kind] = set()
    report = report_on(recorded(forward, backward), dtype)
    assert report.verdict is Verdict.PASS, report
    assert len(forward) == 3
    # The same, and grad_output that is expanded, and one that is transposed and sliced.
    assert len(backward) == 5
    assert all(is_aligned for kind in forward for *_, is_aligned in kind)


def test_kernel_with_a_reference_is_called_in_its_own_dtype_alone() -> None:
    forward: set[Kind] = set()
    backward: set[Kind] = set()
    report = report_on(recorded(forward, backward), torch.bfloat16, reference=lambda x, w: torch.tanh(x) * w)
    assert report.verdict is Verdict.PASS, report
    assert (len(forward), len(backward)) == (2, 4)
    assert {dtype for kind in forward for _, dtype, *_ in kind} == {torch.bfloat16}


def test_backward_that_ignores_strides_is_found_in_one_other_layout() -> None:
    report = report_on(recorded(set(), set(), ignores_strides="grad_output"), torch.float32)
    (failure,) = [finding for finding in report.failures if finding.check == "grad_output_layout"]
    assert failure.facts["layout"] in ("expanded", "transposed and sliced")


def test_forward_that_ignores_strides_is_a_note_and_the_layout_counts_as_not_compared() -> None:
    report = report_on(recorded(set(), set(), ignores_strides="x"), torch.float32)
    assert report.verdict is Verdict.PASS, report
    assert sum("that are transposed and sliced in memory" in note for note in report.notes) == 1
    assert any("or returns other values for them: transposed and sliced" in line for line in report.coverage)


def test_forward_that_follows_strides_has_no_such_note() -> None:
    assert not any("in memory" in note for note in report_on(recorded(set(), set()), torch.float32).notes)
