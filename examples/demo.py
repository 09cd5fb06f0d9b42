"""Checks the gradients of right.py and wrong.py and prints what gradvet says about each."""

from __future__ import annotations

import sys

import torch

import gradvet
from right import RMSNorm
from wrong import HastyRMSNorm


def accepts(function: type[torch.autograd.Function]) -> bool:
    """Whether gradvet finds the gradients of `function` right; prints the report."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    weight = torch.randn(3, dtype=torch.float64, generator=generator)
    report = gradvet.check(function, (x, weight), seed=0)
    answer = "the gradients are right" if report.passed else "the gradients are wrong"
    print(f"{function.__module__}.py, {function.__name__}: {answer}\n\n{report}\n")
    return report.passed


if __name__ == "__main__":
    as_expected = accepts(RMSNorm) and not accepts(HastyRMSNorm)
    sys.exit(0 if as_expected else "gradvet should have accepted the first function and refused the second")
