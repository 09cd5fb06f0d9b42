"""Drop-in replacements for what `torch.autograd.gradcheck` offers, and the switch that puts them in its place."""

from __future__ import annotations

from gradvet.compat.gradcheck import GradcheckError, gradcheck, gradgradcheck
from gradvet.compat.jacobian_helpers import (
    get_analytical_jacobian,
    get_numerical_jacobian,
    get_numerical_jacobian_wrt_specific_input,
)
from gradvet.compat.patching import replace_torch_gradcheck
from gradvet.compat.sparse import as_sparse_gradcheck

__all__ = [
    "GradcheckError",
    "as_sparse_gradcheck",
    "get_analytical_jacobian",
    "get_numerical_jacobian",
    "get_numerical_jacobian_wrt_specific_input",
    "gradcheck",
    "gradgradcheck",
    "replace_torch_gradcheck",
]
