"""Torch and gradvet are loaded whole before the first run inside a run.

Such a run forgets the modules that it has loaded: some parts of torch cannot be loaded twice, and a class of gradvet
that is loaded twice is two classes.
"""

from __future__ import annotations

import pytest
import torch
import torch._dynamo

import gradvet


@pytest.fixture(scope="session", autouse=True)
def _loaded() -> None:
    gradvet.check(torch.sin, torch.ones(2, dtype=torch.float64))
    for name in gradvet.__all__:
        getattr(gradvet, name)
