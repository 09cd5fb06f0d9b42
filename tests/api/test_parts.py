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
from gradvet.core import context, vectors
from gradvet.core.context import Context
from gradvet.core.events import ShowingStages
from gradvet.frontends.torch.layouts import dense
from tests.allocation import allocated
from tests.api.test_models import detached

CHECKS = ("reverse", "precision")
"""The comparisons that are made part by part; without forward mode."""


def layers() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, torch.randn(4, 6)


def test_large_model_is_compared_in_parts_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MIN_PART_SIZE", 80)
    monkeypatch.setattr(parts, "MAX_PART_SIZE", 80)
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
    monkeypatch.setattr(parts, "MIN_PART_SIZE", 80)
    monkeypatch.setattr(parts, "MAX_PART_SIZE", 80)
    monkeypatch.setattr(parts, "PART_CALLS", 1)
    model, given = layers()
    report = gradvet.check(model, (given,), seed=2, checks=CHECKS)
    assert report.verdict is Verdict.INCONCLUSIVE, report
    assert any("the 1 forward passes planned for the inputs from" in note for note in report.notes)


def test_wrong_parameter_is_named_in_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MIN_PART_SIZE", 80)
    monkeypatch.setattr(parts, "MAX_PART_SIZE", 80)
    model, given = layers()
    detached(model, "2.weight")
    report = gradvet.check(model, (given,), seed=2, checks=CHECKS, blame=False)
    assert report.verdict is Verdict.FAIL
    assert report.failures[0].mismatches[0].input.name == "2.weight"


def test_part_is_released_before_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MIN_PART_SIZE", 80)
    monkeypatch.setattr(parts, "MAX_PART_SIZE", 80)
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


@pytest.mark.parametrize(("part", "count", "limit"), [(1 << 9, 7, 4.0), (1 << 21, 1, 12.4)])
def test_memory_of_a_model_in_parts_is_four_vectors_beyond_its_wider_version(
    monkeypatch: pytest.MonkeyPatch, part: int, count: int, limit: float
) -> None:
    monkeypatch.setattr(vectors, "MAX_PIECE", 1 << 9)
    for module in (context, dense):
        monkeypatch.setattr(module, "LARGE", 1 << 8)
    monkeypatch.setattr(parts, "MIN_PART_SIZE", part)
    torch.manual_seed(0)
    inner = [layer for _ in range(6) for layer in (nn.Linear(100, 100, bias=False), nn.Tanh(), nn.Dropout(0.1))]
    model, given = nn.Sequential(*inner), torch.randn(1, 100)
    reports = [gradvet.check(nn.Linear(3, 2), torch.ones(2, 3), seed=0)]  # loads all code
    found = allocated(lambda: reports.append(gradvet.check(model, given, seed=1))).peak
    assert reports[1].verdict is Verdict.PASS, reports[1]
    assert any(f"in {count} parts" in note for note in reports[1].notes) == (count > 1), reports[1].notes
    # With the parameters themselves, which are half a vector in float32, the wider version, and activations.
    assert found <= (0.5 + 1.0 + limit) * 8 * sum(parameter.numel() for parameter in model.parameters())


class Drawing(nn.Module):
    """Draws other numbers in each call, whatever the random state is."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.layers, self.size = nn.Sequential(*(nn.Linear(3, 3) for _ in range(8))), size

    def forward(self, x: Tensor) -> Tensor:
        generator = torch.Generator()
        generator.seed()
        out: Tensor = self.layers(x)
        return out + self.size * torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)


def test_model_that_draws_other_numbers_in_each_call_takes_few_evaluations() -> None:
    torch.manual_seed(0)
    report = gradvet.check(Drawing(1.0), torch.randn(4, 3), seed=1)
    assert report.verdict is Verdict.INCONCLUSIVE, report
    assert report.cost.forwards < 500


def test_model_with_noise_in_its_outputs_takes_bounded_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_CALLS", 300)
    torch.manual_seed(0)
    report = gradvet.check(Drawing(1e-3), torch.randn(4, 3), seed=1)
    assert report.verdict is Verdict.INCONCLUSIVE, report
    assert any("the 300 forward passes planned for the inputs from" in note for note in report.notes)
    assert report.cost.forwards < 900
