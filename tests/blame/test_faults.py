"""Faults planted in models of five architectures are named with their path and line.

Tests `frontends/torch/blame/investigation.py`, `frontends/torch/blame/pieces.py`, `frontends/torch/blame/halves.py`,
`frontends/torch/blame/module_tree.py`, `frontends/torch/blame/stops.py`, `frontends/torch/blame/saved_tensors.py` and
`frontends/torch/blame/source_lines.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import gradvet
from tests.blame import graph, mixer, recurrent, transformer, unet
from tests.blame.planted import Fault

FAULTS = [
    pytest.param(fault, id=f"{module.__name__.rpartition('.')[2]}-{fault.name}")
    for module in (transformer, unet, recurrent, graph, mixer)
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


@pytest.mark.parametrize("module", [transformer, unet, recurrent, graph, mixer], ids=lambda m: m.__name__)
def test_model_without_fault_has_no_culprit(module: object) -> None:
    model, inputs = module.model("")  # type: ignore[attr-defined]
    report = gradvet.blame(model, inputs, seed=1)
    assert report.verdict is gradvet.Verdict.PASS, f"{report}"


def test_there_are_thirty_faults() -> None:
    assert len(FAULTS) >= 30
