"""What a comparison with differences says."""

from __future__ import annotations

import pytest
import torch

from gradvet.checks.jacobian import MARGIN, forward, reverse
from gradvet.core.miss_probability import Plan, miss_probability
from gradvet.core.results import Verdict
from tests.core.trials import point, trial_of, written

wrong = written(torch.sin, lambda x: 1.1 * torch.cos(x))


@pytest.mark.parametrize(("check", "mode"), [(reverse, "reverse"), (forward, "forward")])
def test_headline_counts_entries_where_there_are_several(check: object, mode: str) -> None:
    (one,) = check(trial_of(wrong, point(1.0)))  # type: ignore[operator]
    assert one.headline == f"{mode} mode disagrees with finite differences"
    (several,) = check(trial_of(wrong, point(1.0, 2.0)))  # type: ignore[operator]
    assert several.headline == f"{one.headline} in at least 2 of the 4 entries that were compared"
    assert several.advice


@pytest.mark.parametrize(("outputs", "codirections"), [(1, None), (2, 2), (3, 2)])
def test_miss_probability_is_that_of_the_probes(outputs: int, cotangents: int | None) -> None:
    (finding,) = reverse(trial_of(torch.sin, point(*range(1, outputs + 1))))
    assert finding.verdict is Verdict.PASS
    assert finding.facts["miss"] == miss_probability(MARGIN, Plan(2, cotangents), spread=1.0)


def test_mismatch_has_an_allowance_of_one_and_a_half_error_bars() -> None:
    (finding,) = reverse(trial_of(wrong, point(1.0)))
    (mismatch,) = finding.mismatches
    assert mismatch.derivative == pytest.approx(1.1 * mismatch.numerical)
    assert mismatch.allowed == pytest.approx(1.5 * mismatch.error)
