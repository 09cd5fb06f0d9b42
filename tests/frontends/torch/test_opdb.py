"""What PyTorch's own tests are told about an operator, and what gradvet asks: `frontends/torch/opdb.py`."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradvet.frontends.torch.opdb import Variant, marks, operator_named, settings


class Operator(SimpleNamespace):
    """An operator whose decorators are given by the name of the test."""

    def get_decorators(self, group: str, test: str, device: str, dtype: torch.dtype, parameters: dict[str, Any]) -> Any:
        return self.decorators.get(test, [])


@pytest.mark.parametrize(
    ("decorator", "found"),
    [
        (unittest.expectedFailure, ["reverse expected to fail"]),
        (unittest.skip("slow"), ["reverse skipped"]),
        (unittest.skipIf(False, "never"), []),
        (lambda test: test, []),
        (lambda: None, []),  # fails when it decorates
    ],
)
def test_meaning_of_a_decorator_is_learnt_by_decorating(decorator: Any, found: list[str]) -> None:
    operator = Operator(decorators={"test_fn_grad": [decorator]})
    assert marks(operator, torch.float64, Variant.FUNCTION) == found


def test_mark_belongs_to_its_variant_and_derivative() -> None:
    operator = Operator(decorators={"test_inplace_forward_mode_AD": [unittest.expectedFailure]})
    assert marks(operator, torch.float64, Variant.FUNCTION) == []
    assert marks(operator, torch.float64, Variant.INPLACE) == ["forward expected to fail"]


def test_database_itself_has_marks() -> None:
    assert marks(operator_named("remainder"), torch.float64, Variant.FUNCTION) == ["reverse skipped"]


def declared(**changes: bool) -> SimpleNamespace:
    names = (
        "supports_forward_ad",
        "supports_gradgrad",
        "supports_fwgrad_bwgrad",
        "check_batched_grad",
        "check_batched_forward_grad",
        "check_inplace_batched_forward_grad",
    )
    return SimpleNamespace(**{**dict.fromkeys(names, True), **changes})


def test_operator_that_declares_everything_is_asked_for_everything() -> None:
    assert settings(declared(), Variant.FUNCTION) == {"modes": ("reverse", "forward")}


def test_what_is_not_declared_is_not_asked_for() -> None:
    wanted = settings(declared(supports_forward_ad=False, supports_gradgrad=False), Variant.FUNCTION)
    assert wanted == {"modes": ("reverse",), "checks": {"reverse-over-reverse": False, "symmetry": False}}
    assert settings(declared(check_batched_grad=False), Variant.FUNCTION)["checks"] == {"batched": False}
