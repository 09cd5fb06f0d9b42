"""At points that nobody asked for, a derivative is called wrong only where its surroundings leave no other reading."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradvet.core.certainty import is_certain
from gradvet.core.judgement import Judgement, Reason
from gradvet.core.outcome import Outcome
from gradvet.core.pinpoint import Entry
from gradvet.core.results import Verdict
from gradvet.core.trial import Trial
from tests.core.trials import Elementwise, point, trial_of, written


def failure(trial: Trial, reason: Reason, row: int = 0, column: int = 0) -> Outcome:
    subject = trial.subject
    judgement = Judgement(Verdict.FAIL, reason)
    output, source = subject.codomain.locate(max(row, 0)), subject.domain.locate(column)
    entry = Entry(output, source, math.nan, math.nan, math.nan, judgement, row, column)
    return Outcome(Verdict.FAIL, reason, entry)


def certain(function: Elementwise, slope: float, reason: Reason, at: float = 0.0) -> bool:
    trial = trial_of(written(function, lambda x: torch.full_like(x, slope)), point(at))
    return is_certain(trial, failure(trial, reason))


def steep_kink(x: Tensor) -> Tensor:
    """Slopes 999 and 1001, and a value of one."""
    return 1.0 + 1000.0 * x + x.abs()


@pytest.mark.parametrize(("slope", "beyond"), [(1001.5, False), (998.5, False), (1005.0, True), (995.0, True)])
def test_value_outside_of_a_kink_counts_from_a_thousandth_of_its_slopes_on(slope: float, beyond: bool) -> None:
    assert certain(steep_kink, slope, Reason.OUTSIDE) is beyond
