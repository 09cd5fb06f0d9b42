"""Checks that remember nothing of earlier ones: what the first one in a process costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gradvet.api import remembered
from gradvet.frontends.torch import acquaintance

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

HELP = "forget before each check what was asked once of torch's own rules"


def forgetting(check: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """The check, as if it were the first."""

    def first(*args: Given.args, **settings: Given.kwargs) -> Answer:
        remembered.forget()
        acquaintance.forget()
        return check(*args, **settings)

    return first
