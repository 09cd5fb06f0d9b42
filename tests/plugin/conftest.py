"""Loads torch and gradvet completely before the first inner run of pytest.

An inner run unloads the modules that it has imported. Some parts of torch cannot be imported twice, and a class of
gradvet that is imported twice is two classes.
"""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _loaded() -> None:
    import torch
    import torch._dynamo

    import gradvet

    gradvet.check(torch.sin, torch.ones(2, dtype=torch.float64))
    for name in gradvet.__all__:
        getattr(gradvet, name)
