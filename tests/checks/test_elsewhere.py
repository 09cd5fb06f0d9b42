"""What a derivative that raises at a point of the checker's choice comes to."""

from __future__ import annotations

import pytest
import torch

from gradvet.checks.elsewhere import raising
from gradvet.core.results import Verdict
from gradvet.errors import DerivativeError, RefusalError
from tests.core.trials import point, trial_of


def no(error: BaseException) -> bool:
    return False


@pytest.mark.parametrize(
    ("error", "verdict", "words"),
    [
        (DerivativeError("it broke\nhere"), Verdict.FAIL, "it broke, though the forward pass accepts these inputs"),
        (RefusalError("none"), Verdict.SKIPPED, "the operators have no derivative there"),
        (KeyError("why"), Verdict.INCONCLUSIVE, "could not be carried out: KeyError: 'why'"),
        (ValueError(), Verdict.INCONCLUSIVE, "could not be carried out: ValueError: "),
    ],
)
def test_derivative_that_raises_is_wrong_only_if_it_is_the_users(
    error: Exception, verdict: Verdict, words: str
) -> None:
    found = raising(trial_of(torch.sin, point(1.0)), "reverse", error, no)
    assert (found.check, found.verdict, found.headline) == ("reverse", verdict, words)


def test_what_the_framework_does_not_offer_is_skipped() -> None:
    found = raising(trial_of(torch.sin, point(1.0)), "reverse", KeyError("why"), lambda error: True)
    assert found.verdict is Verdict.SKIPPED


def test_derivative_that_raises_for_no_numbers_at_all_is_not_wrong() -> None:
    empty = trial_of(lambda x, y: x.sum() + y, point(), point(1.0))
    assert raising(empty, "reverse", DerivativeError("it broke"), no).verdict is not Verdict.FAIL
