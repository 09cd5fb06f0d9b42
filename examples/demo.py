"""Checks the gradients of right.py and wrong.py and prints what gradvet says about each."""

from __future__ import annotations

import sys

import torch

from gradvet import GradcheckError, gradcheck
from right import RMSNorm
from wrong import HastyRMSNorm


def accepts(function: type[torch.autograd.Function]) -> bool:
    """Whether gradvet finds the gradients of `function` right; prints the answer."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(3, dtype=torch.float64, generator=generator).requires_grad_()

    print(f"{function.__module__}.py, {function.__name__}:")
    try:
        gradcheck(function.apply, (x, weight))
    except GradcheckError as error:
        print(f"the gradients are wrong\n\n{error}\n")
        return False
    print("the gradients are right\n")
    return True


if __name__ == "__main__":
    as_expected = accepts(RMSNorm) and not accepts(HastyRMSNorm)
    sys.exit(0 if as_expected else "gradvet should have accepted the first function and refused the second")
