"""Faults planted in models of nine architectures are named with their path and line.

Tests `frontends/torch/blame/investigation.py`, `frontends/torch/blame/pieces.py`,
`frontends/torch/blame/module_tree.py`, `frontends/torch/blame/stops.py`, `frontends/torch/blame/backward_pass.py`,
and `frontends/torch/blame/source_lines.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from tests.blame import autoencoder, contrastive, experts, graph, mixer, recurrent, solver, transformer, unet
from tests.blame.planted import Fault

MODULES = (transformer, unet, recurrent, graph, mixer, solver, autoencoder, contrastive, experts)
FAULTS = [
    pytest.param(fault, id=f"{module.__name__.rpartition('.')[2]}-{fault.name}")
    for module in MODULES
    for fault in module.FAULTS
]


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_named_with_its_path_and_line(fault: Fault) -> None:
    model, inputs = fault.model(fault.name)
    report = gradvet.blame(model, inputs, seed=1, **fault.settings)
    found = (report.warnings if fault.is_warning else report.culprits)[0]
    assert found.place is not None
    assert (found.path, found.what, Path(found.place.file).name, found.place.line) == (
        fault.path,
        fault.what,
        *fault.place,
    ), f"{report}"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_model_without_fault_has_no_culprit(module: object) -> None:
    model, inputs = module.model("")  # type: ignore[attr-defined]
    report = gradvet.blame(model, inputs, seed=1)
    assert report.verdict is gradvet.Verdict.PASS, f"{report}"


class FreshMask(torch.autograd.Function):
    """Dropout whose backward draws another mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * (torch.rand_like(x) > 0.5)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return grad_output * (torch.rand_like(grad_output) > 0.5)


class Masked(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return FreshMask.apply(x)  # type: ignore[no-any-return]


def test_random_backward_is_named_as_such_and_not_by_one_of_its_gradients() -> None:
    culprit = gradvet.blame(torch.nn.Sequential(torch.nn.Linear(3, 8), Masked()), torch.ones(2, 3), seed=1).culprit
    assert culprit is not None
    assert culprit.cause.startswith("determinism: two backward passes with the same grad_output differ")


def test_there_are_thirty_faults() -> None:
    assert len(FAULTS) >= 30


def test_layer_of_torch_that_overwrites_what_another_has_saved_is_named() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ELU(inplace=True), torch.nn.Dropout(0.2, inplace=True))
    report = gradvet.blame(torch.nn.Sequential(torch.nn.Linear(3, 3), layers), torch.randn(4, 3), seed=1)
    assert report.culprit is not None
    assert (report.culprit.path, report.culprit.place) == ("1.2", None)
    assert "that ELU saves for its backward pass is overwritten by Dropout here" in report.culprit.cause
