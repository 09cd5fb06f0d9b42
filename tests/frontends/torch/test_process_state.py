"""Contexts of torch that stay open are closed again, also where torch's own records contradict each other."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gradvet.frontends.torch import process_state
from gradvet.frontends.torch.blame.private import inference_mode_as, packing_if
from gradvet.frontends.torch.process_state import close_contexts, open_contexts
from tests.frontends.torch import needs_private_names

pytestmark = needs_private_names


HAS_TOP_HOOKS = process_state._SAVED_TENSORS[0] is not None
"""torch 2.6 does not tell which hooks of saved tensors are in use: they are left alone."""


def itself(value: object) -> object:
    return value


def exit_in_half() -> None:
    """As an interruption between torch's C++ and Python code leaves it: closed, but still noted as open."""
    forward_ad.enter_dual_level()
    torch._C._exit_dual_level(level=0)


def enter_in_half() -> None:
    """The reverse: open, but not noted."""
    torch._C._enter_dual_level()


OPENED: dict[str, Callable[[], object]] = {
    "mode of functions": lambda: TorchFunctionMode().__enter__(),
    "two modes of operators": lambda: [TorchDispatchMode().__enter__() for _ in range(2)],
    "level of dual numbers": forward_ad.enter_dual_level,
    "level that was exited in half": exit_in_half,
    "level that was entered in half": enter_in_half,
    "hooks of saved tensors": lambda: saved_tensors_hooks(itself, itself).__enter__(),
    "level of a batched backward pass": lambda: torch._C._vmapmode_increment_nesting(),
    "transform": lambda: torch._C._functorch._vmap_increment_nesting(3, "error"),
}


@pytest.mark.parametrize("kind", OPENED)
def test_context_that_stays_open_is_closed(kind: str) -> None:
    if kind == "hooks of saved tensors" and not HAS_TOP_HOOKS:
        pytest.skip("this torch does not tell which hooks are in use")
    before = open_contexts()
    OPENED[kind]()
    close_contexts(before)
    assert open_contexts() == before
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(forward_ad.make_dual(torch.ones(2), torch.ones(2)).sin()).tangent
    assert torch.allclose(tangent, torch.ones(2).cos())


def test_contexts_that_were_open_before_stay_open() -> None:
    with TorchFunctionMode(), saved_tensors_hooks(itself, itself), forward_ad.dual_level():
        before = open_contexts()
        TorchFunctionMode().__enter__()
        close_contexts(before)
        assert open_contexts() == before
        assert forward_ad._current_level == 0
        assert torch._C._len_torch_function_stack() == 1


class InterruptedKernel:
    """A kernel at which the replacement, or its end, is interrupted."""

    def __setattr__(self, name: str, value: object) -> None:
        raise KeyboardInterrupt

    def __delattr__(self, name: str) -> None:
        raise KeyboardInterrupt


class Kernel:
    """A kernel of forward mode."""


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("direct", [True, False])
def test_interrupted_replacement_of_kernels_is_seen(monkeypatch: pytest.MonkeyPatch, place: int, direct: bool) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    kernels: list[object] = [Kernel() for _ in range(4)]
    kernels.insert(place, InterruptedKernel())
    if not direct:
        for kernel in kernels:
            vars(kernel)[process_state._CALLED] = process_state._Direct(None, kernel)
    monkeypatch.setattr(process_state, "_KERNELS", [(None, kernel) for kernel in kernels])
    with pytest.raises(KeyboardInterrupt):
        process_state.set_kernels_direct(direct)
    assert process_state.kernels_are_direct() is any(vars(kernel) for kernel in kernels)


def test_replacement_that_ends_late_restores_its_own_methods_alone() -> None:
    before = [read() for read in process_state.PATCHED_METHODS]
    outer, inner = inference_mode_as(lambda *_: None), packing_if(lambda _: True)
    outer.__enter__()
    inner.__enter__()
    # After an interruption, Python may end the inner block last.
    outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    assert [read() for read in process_state.PATCHED_METHODS] == before
