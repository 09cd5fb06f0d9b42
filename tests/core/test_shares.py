"""How much each input adds to a slope."""

from __future__ import annotations

import math

import pytest
import torch

from gradvet.core.line_test import only, typical_contributions
from gradvet.core.vectors import norm
from tests.core.trials import point, trial_of


def vector(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_share_is_what_a_typical_entry_adds_and_unmoved_inputs_have_none() -> None:
    context = trial_of(lambda x, y, z: x.sum() + y + z, point(1.0, 1.0, 1.0), point(1.0), point(1.0))
    w, u = vector(3.0, 4.0, 9.0, 2.0, 5.0), vector(1.0, 1.0, 0.0, 0.0, -2.0)
    expected = {"input 0": pytest.approx(math.sqrt(25.0 / 2.0)), "input 2": 10.0}
    assert dict(typical_contributions(context, w, u)) == expected
    assert dict(typical_contributions(context, w, u, moved_only=True)) == {"input 0": 0.0, "input 2": 0.0}


def test_norm_looks_only_where_the_codirection_does() -> None:
    assert norm(vector(3.0, 0.0, 1.0), vector(1.0, math.inf, -4.0)) == 5.0


def test_only_a_part_is_kept() -> None:
    assert only(vector(1.0, 2.0, 3.0, 4.0), slice(1, 3)).tolist() == [0.0, 2.0, 3.0, 0.0]
