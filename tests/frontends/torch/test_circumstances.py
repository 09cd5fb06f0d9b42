"""What one circumstance shows in passing need not be asked for again."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.core.trials import point, trial_of


def test_function_that_reads_its_arguments_is_not_called_again_to_show_it() -> None:
    subject = trial_of(torch.sin, point(0.3, 1.0)).subject
    subject.circumstances.after_another_forward(point(1.0, 1.0).detach())
    before = subject.cost.forwards
    assert not subject.circumstances.reads_captured()
    assert subject.cost.forwards == before


def test_function_that_reads_what_it_captured_is_told_whatever_was_asked_before() -> None:
    x = point(0.3, 1.0)
    subject = trial_of(lambda y: torch.sin(x), x).subject
    subject.circumstances.after_another_forward(point(1.0, 1.0).detach())
    assert subject.circumstances.reads_captured()


def test_function_that_is_not_defined_elsewhere_is_asked_next_to_the_point() -> None:
    def narrow(x: Tensor) -> Tensor:
        if bool((x[0] > -8.0).any()):
            raise ValueError("too far")
        return 2.0 * x

    subject = trial_of(narrow, point(-9.0, 1.0)).subject
    subject.circumstances.after_another_forward(point(1.0, 1.0).detach())
    assert not subject.circumstances.reads_captured()
