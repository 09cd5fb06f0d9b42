"""Large models are compared in parts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import gradvet
from gradvet import Verdict
from gradvet.api import parts
from gradvet.core.context import Context
from gradvet.core.events import ShowingStages
from tests.api.test_models import detached

CHECKS = ("reverse", "precision")
"""The comparisons that are made part by part; without forward mode."""


def layers() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, torch.randn(4, 6)


def test_large_model_is_compared_in_parts_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_SIZE", (80, 80))
    model, given = layers()
    stages: list[str] = []
    with ShowingStages(stages.append):
        report = gradvet.check(model, (given,), seed=2, checks=CHECKS)
    assert report.verdict is Verdict.PASS, report
    assert {row.input for row in report.ledger} == {"input 0", *(name for name, _ in model.named_parameters())}
    assert [stage.split(", ")[1] for stage in stages] == [
        f"part {k} of {len(stages)}" for k in range(1, len(stages) + 1)
    ]
    assert len(stages) > 2
    assert any(
        f"parts, the others held constant, with at most {2000 * len(stages):,} forward" in n for n in report.notes
    )


def test_evaluations_of_a_part_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_SIZE", (80, 80))
    monkeypatch.setattr(parts, "PART_CALLS", 1)
    model, given = layers()
    report = gradvet.check(model, (given,), seed=2, checks=CHECKS)
    assert report.verdict is Verdict.INCONCLUSIVE, report
    assert any("the 1 forward passes planned for the part from" in note for note in report.notes)


def test_wrong_parameter_is_named_in_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_SIZE", (80, 80))
    model, given = layers()
    detached(model, "2.weight")
    report = gradvet.check(model, (given,), seed=2, checks=CHECKS, blame=False)
    assert report.verdict is Verdict.FAIL
    assert report.failures[0].mismatches[0].input.name == "2.weight"


def test_part_is_released_before_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_SIZE", (80, 80))
    made, alive = [], []

    def restricted(*arguments: object, made_by: Callable[..., Context] = parts._restricted) -> Context:
        gc.collect()
        alive.append(sum(reference() is not None for reference in made))
        part = made_by(*arguments)
        made.append(weakref.ref(part.problem))
        return part

    monkeypatch.setattr(parts, "_restricted", restricted)
    gradvet.check(*layers(), seed=2, checks=CHECKS)
    # Each part has a problem as given and one in float64: when the latter is made, the former exists.
    assert alive == [0, 1] * (len(alive) // 2)
    assert len(alive) > 4
