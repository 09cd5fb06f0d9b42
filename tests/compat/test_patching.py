"""torch's functions are replaced wherever a module has them, and come back at the end (`compat/__init__.py`)."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet import replace_torch_gradcheck
from tests.core.wrong_jacobians import numbers

SOURCE = importlib.import_module("torch.autograd.gradcheck")
TORCH = SOURCE.gradcheck, SOURCE.gradgradcheck
GRADVET = gradvet.gradcheck, gradvet.gradgradcheck


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    """Every test starts and ends with torch's own functions."""
    assert in_place() == TORCH
    yield
    assert in_place() == TORCH
    assert (torch.autograd.gradcheck, torch.autograd.gradgradcheck) == TORCH


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A loaded module that imported torch's functions by name."""
    module: Any = ModuleType("user_of_gradcheck")
    module.gradcheck, module.second_order = TORCH
    module.slow = functools.partial(TORCH[0], fast_mode=False, atol=1e-4)
    module.other = functools.partial(torch.sin)
    module.number = 3
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module  # type: ignore[no-any-return]


def in_place() -> tuple[Any, Any]:
    return SOURCE.gradcheck, SOURCE.gradgradcheck


def test_both_functions_are_replaced_inside_the_block_only() -> None:
    with replace_torch_gradcheck():
        assert in_place() == GRADVET
        assert (torch.autograd.gradcheck, torch.autograd.gradgradcheck) == GRADVET
    assert in_place() == TORCH


def test_plain_call_lasts_until_it_is_undone() -> None:
    replacement = replace_torch_gradcheck()
    assert in_place() == GRADVET
    replacement.restore()
    assert in_place() == TORCH
    replacement.restore()
    assert in_place() == TORCH


def test_names_that_modules_imported_earlier_are_replaced(user: Any) -> None:
    with replace_torch_gradcheck():
        assert (user.gradcheck, user.second_order) == GRADVET
        assert user.number == 3
    assert (user.gradcheck, user.second_order) == TORCH


def test_partials_are_replaced_with_their_arguments(user: Any) -> None:
    slow, other = user.slow, user.other
    with replace_torch_gradcheck():
        assert user.slow.func is GRADVET[0]
        assert user.slow.keywords == {"fast_mode": False, "atol": 1e-4}
        assert user.other is other
        assert user.slow(torch.sin, numbers((3,), 0).requires_grad_()) is True
    assert user.slow is slow


def test_wrappers_of_the_internal_test_tools_run_on_gradvet() -> None:
    common_utils = pytest.importorskip("torch.testing._internal.common_utils")
    with replace_torch_gradcheck():
        assert common_utils.gradcheck(torch.sin, (numbers((3,), 0).requires_grad_(),))
        assert common_utils.gradgradcheck(torch.sin, (numbers((3,), 0).requires_grad_(),))
        with pytest.raises(gradvet.GradcheckError):
            common_utils.gradcheck(_wrong, (numbers((3,), 0).requires_grad_(),), check_batched_grad=False)


def _wrong(x: Tensor) -> Tensor:
    return x * x.detach()


def test_error_of_the_replacement_is_caught_by_the_class_of_the_original() -> None:
    with replace_torch_gradcheck(), pytest.raises(SOURCE.GradcheckError) as caught:
        torch.autograd.gradcheck(_wrong, numbers((3,), 0).requires_grad_())
    assert isinstance(caught.value, gradvet.GradcheckError)


def test_exception_in_the_block_ends_the_replacement_and_passes(user: Any) -> None:
    with pytest.raises(ZeroDivisionError), replace_torch_gradcheck():
        1 / 0  # noqa: B018
    assert in_place() == (user.gradcheck, user.second_order) == TORCH


def test_inner_block_leaves_the_outer_one_in_force(user: Any) -> None:
    with replace_torch_gradcheck():
        with replace_torch_gradcheck():
            assert in_place() == GRADVET
        assert in_place() == (user.gradcheck, user.second_order) == GRADVET
    assert in_place() == (user.gradcheck, user.second_order) == TORCH


def test_replacements_may_end_in_any_order(user: Any) -> None:
    first, second = replace_torch_gradcheck(), replace_torch_gradcheck()
    first.restore()
    assert in_place() == GRADVET
    second.restore()
    assert in_place() == (user.gradcheck, user.second_order) == TORCH
    assert user.slow.func is TORCH[0]


def test_module_that_was_loaded_between_two_replacements_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    with replace_torch_gradcheck():
        late: Any = ModuleType("loaded_late")
        late.gradcheck = TORCH[0]
        monkeypatch.setitem(sys.modules, "loaded_late", late)
        with replace_torch_gradcheck():
            assert late.gradcheck is GRADVET[0]
    assert late.gradcheck is TORCH[0]


def test_own_modules_keep_what_they_have() -> None:
    own: Any = ModuleType("gradvet.kept_for_comparison")
    own.reference = TORCH[0]
    similar: Any = ModuleType("gradvetted")
    similar.reference = TORCH[0]
    sys.modules[own.__name__], sys.modules[similar.__name__] = own, similar
    try:
        with replace_torch_gradcheck():
            assert own.reference is TORCH[0]
            assert similar.reference is GRADVET[0]
    finally:
        del sys.modules[own.__name__], sys.modules[similar.__name__]
    assert similar.reference is TORCH[0]


def test_module_without_a_name_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    nameless: Any = ModuleType("nameless")
    del nameless.__name__
    nameless.gradcheck = TORCH[0]
    monkeypatch.setitem(sys.modules, "nameless", nameless)
    with replace_torch_gradcheck():
        assert nameless.gradcheck is GRADVET[0]
    assert nameless.gradcheck is TORCH[0]
