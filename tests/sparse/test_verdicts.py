"""Every layout × semantics × mode × function, right and wrong: gradvet's verdict, and torch's beside it.

Where torch gives another one, the table of reviewed differences says which and why; a difference that is not in it, or
no longer there, fails.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from torch import Tensor

import gradvet
from tests.sparse.functions import (
    RIGHT_HAND,
    Function,
    decision,
    stored_numbers,
    weighted_sine,
    with_doubled_gradient,
)
from tests.sparse.tensors import LAYOUTS, full, holed

TORCH = importlib.import_module("torch.autograd.gradcheck")
MODES = ("slow", "fast")


@dataclass(frozen=True, slots=True)
class Problem:
    """A function, the semantics of its gradient, and the layouts that torch has no operator for."""

    function: Function
    masked: bool
    missing: tuple[str, ...] = ()


DENSE_OUTPUT = {
    "sum": Problem(torch.sum, masked=False),
    "to_dense-masked": Problem(lambda x: x.to_dense(masked_grad=True), masked=True),
    "to_dense-unmasked": Problem(lambda x: x.to_dense(masked_grad=False), masked=False),
    "sparse.mm": Problem(
        lambda x: torch.sparse.mm(x, RIGHT_HAND), masked=True, missing=("sparse_csc", "sparse_bsr", "sparse_bsc")
    ),
    "mm": Problem(lambda x: torch.mm(x, RIGHT_HAND), masked=False, missing=("sparse_bsr", "sparse_bsc")),
}
ANY_OUTPUT = {
    "identity": lambda x: x,
    "to_dense": Tensor.to_dense,
    "sum": torch.sum,
    "to_sparse": lambda x: x.to_sparse(layout=torch.sparse_coo),
    "values": stored_numbers,
}

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
both_semantics = pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])
both_modes = pytest.mark.parametrize("mode", MODES)
both_libraries = pytest.mark.parametrize(
    "library", [gradvet, pytest.param(TORCH, marks=pytest.mark.gallery)], ids=["gradvet", "torch"]
)
"""`make test` runs gradvet; `make gallery` shows that torch gives the verdicts that the tests say."""


def differs(expected: str, mode: str, holes: bool) -> str:
    """Reviewed difference: torch's fast mode looks at the specified elements alone and lets any fault outside pass."""
    return "pass" if expected == "fail" and mode == "fast" and holes else expected


@every_layout
@both_semantics
@both_modes
@pytest.mark.parametrize("point", [holed, full], ids=["holed", "full"])
@both_libraries
def test_function_passes_under_its_own_semantics_alone(
    layout: str, masked: bool, mode: str, point: Callable[[str], Tensor], library: ModuleType
) -> None:
    holes = point is holed
    options = {"masked": masked, "fast_mode": mode == "fast"}
    for name, problem in DENSE_OUTPUT.items():
        if layout in problem.missing:
            expected = "RuntimeError"
        else:
            expected = "pass" if problem.masked == masked or not holes else "fail"
            expected = differs(expected, mode, holes) if library is TORCH else expected
        x = point(layout).requires_grad_()
        assert decision(library.gradcheck, problem.function, x, **options) == expected, name


@every_layout
@both_semantics
@both_modes
@both_libraries
def test_doubled_gradient_is_found_under_either_semantics(
    layout: str, masked: bool, mode: str, library: ModuleType
) -> None:
    options = {"masked": masked, "fast_mode": mode == "fast"}
    for name, problem in DENSE_OUTPUT.items():
        expected = "RuntimeError" if layout in problem.missing else "fail"
        wrong = with_doubled_gradient(problem.function)
        assert decision(library.gradcheck, wrong, holed(layout).requires_grad_(), **options) == expected, name


@every_layout
@both_semantics
@both_modes
@pytest.mark.parametrize("own", [True, False], ids=["masked-gradient", "unmasked-gradient"])
@both_libraries
def test_single_wrong_entry_is_found_inside_and_outside_the_pattern(
    layout: str, masked: bool, mode: str, own: bool, library: ModuleType
) -> None:
    options = {"masked": masked, "fast_mode": mode == "fast"}
    if library is TORCH:
        # Its check of undefined grad_output breaks on any sparse gradient of a Function.
        options |= {"check_undefined_grad": False}
    for fault in ("right", "wrong-inside", "wrong-outside"):
        function, x = weighted_sine(own, fault), holed(layout).requires_grad_()
        expected = "pass" if fault == "right" and own == masked else "fail"
        # One wrong entry inside is visible to torch's fast mode as well; what is outside never is.
        if library is TORCH and fault != "wrong-inside":
            expected = differs(expected, mode, holes=True)
        assert decision(library.gradcheck, function, x, **options) == expected, fault


ADAPTERS = {"gradvet": gradvet.as_sparse_gradcheck, "torch": torch.sparse.as_sparse_gradcheck}


@every_layout
@both_semantics
@pytest.mark.parametrize("adapter", ADAPTERS)
@both_libraries
def test_adapters_accept_right_and_reject_wrong_functions_over_either_checker(
    layout: str, masked: bool, adapter: str, library: ModuleType
) -> None:
    # In slow mode alone: an adapter passes fast_mode on.
    check = ADAPTERS[adapter](library.gradcheck)
    for name, function in ANY_OUTPUT.items():
        assert decision(check, function, holed(layout).requires_grad_(), masked=masked) == "pass", name
        wrong = with_doubled_gradient(function)
        assert decision(check, wrong, holed(layout).requires_grad_(), masked=masked) == "fail", name
