"""Contexts of torch that are open: modes, transforms, levels of vmap and of dual numbers, hooks of saved tensors.

An interruption inside such a context's `__exit__` or `__enter__` leaves it open or half open. There is no public way to
see or to close it; where a private name is missing, that kind of context is left alone.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from operator import methodcaller
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad
import torch.utils._python_dispatch as dispatch

from gradvet.frontends.torch.private import PUBLIC_ONLY, _found

_FUNCTION_MODES = _found(torch, "_C._len_torch_function_stack"), _found(torch, "_C._pop_torch_function_stack")
_DISPATCH_MODES = _found(torch, "_C._len_torch_dispatch_stack"), _found(torch, "_C._pop_torch_dispatch_stack")
_TRANSFORMS = (
    _found(torch, "_C._functorch.get_dynamic_layer_stack_depth"),
    _found(torch, "_C._functorch.pop_dynamic_layer_stack_and_undo_to_depth"),
)
_BATCH_LEVELS = _found(torch, "_C._vmapmode_increment_nesting"), _found(torch, "_C._vmapmode_decrement_nesting")
"""The levels of the vmap by which torch runs batched backward passes; each call returns the number after it."""

_SAVED_TENSORS = (
    _found(torch, "_C._autograd._top_saved_tensors_default_hooks"),
    _found(torch, "_C._autograd._pop_saved_tensors_default_hooks"),
)
_SWITCHES = tuple(
    (read, write)
    for read, write in (
        (_found(torch, "_C._is_fwd_grad_enabled"), _found(torch, "_C._set_fwd_grad_enabled")),
        *(
            (_found(torch, f"_C._functorch.get_{name}"), _found(torch, f"_C._functorch.set_{name}"))
            for name in ("inplace_requires_grad_allowed", "single_level_autograd_function_allowed")
        ),
    )
    if read is not None and write is not None
)
"""Switches of forward mode and of transforms: how each is read and written."""

_EXIT_LEVEL = _found(torch, "_C._exit_dual_level")
_HAS_LEVEL = _found(forward_ad, "_current_level") is not None
_SET_FLAG = _found(dispatch, "set_is_in_mode_without_ignore_compile_internals")

_DEFAULT_DEVICE = _found(torch, "_GLOBAL_DEVICE_CONTEXT")
_FUNCTION_BASE: Any = _found(torch.autograd.function, "_SingleLevelFunction") or torch.autograd.Function

_FLAGS = tuple(
    name
    for name in (
        "_is_in_torch_dispatch_mode",
        "_is_in_non_infra_torch_dispatch_mode",
        "_is_in_any_mode_without_ignore_compile_internals",
    )
    if _found(dispatch, name) is not None
)
"""What torch notes in Python when a mode of operators is entered."""


def default_device() -> torch.device | None:
    """The argument of the last `torch.set_default_device`; without private names the device in use."""
    if _DEFAULT_DEVICE is None:
        device = torch.get_default_device()
        return None if device.type == "cpu" else device
    context = getattr(_DEFAULT_DEVICE, "device_context", None)
    return None if context is None else context.device


def function_apply() -> tuple[Any, ...]:
    """What was put in place of `apply` in the base class of all Functions; empty if nothing was.

    The class below `Function` is used, so that an `apply` that was kept in a variable is replaced too. Without private
    names, it is `Function` itself.
    """
    return tuple([value for name, value in vars(_FUNCTION_BASE).items() if name == "apply"])


def set_function_apply(replacement: tuple[Any, ...]) -> None:
    """Put something in place of `apply`, or nothing."""
    if replacement:
        (_FUNCTION_BASE.apply,) = replacement
    elif "apply" in vars(_FUNCTION_BASE):
        del _FUNCTION_BASE.apply


def inherited_apply(cls: type) -> Any:
    """The `apply` that a Function would have if nothing were put there."""
    return super(_FUNCTION_BASE, cls).apply


class OpenContexts(NamedTuple):
    """What was open when this was made."""

    function_modes: int
    dispatch_modes: int
    flags: tuple[bool, ...]
    transforms: int
    batch_levels: int
    level: int | None
    nesting: int
    switches: tuple[bool, ...]
    hooks: Any

    @classmethod
    def now(cls) -> OpenContexts:
        hooks = _SAVED_TENSORS[0]
        return cls(
            _depth(_FUNCTION_MODES),
            _depth(_DISPATCH_MODES),
            tuple([getattr(dispatch, name) for name in _FLAGS]),
            _depth(_TRANSFORMS),
            _batch_levels(),
            forward_ad._current_level if _HAS_LEVEL else None,
            getattr(_transforms(), "JVP_NESTING", 0),
            tuple([read() for read, _ in _SWITCHES]),
            None if hooks is None else hooks(True),
        )

    def close_others(self, *, interrupted: bool) -> None:
        """Close what was opened since; after an interruption torch's own record of levels may be wrong."""
        now = OpenContexts.now()
        if now == self and not interrupted:
            return
        while _FUNCTION_MODES[1] is not None and _depth(_FUNCTION_MODES) > self.function_modes:
            _FUNCTION_MODES[1]()
        while _DISPATCH_MODES[1] is not None and _depth(_DISPATCH_MODES) > self.dispatch_modes:
            _DISPATCH_MODES[1](None)
        for name, flag in zip(_FLAGS, self.flags, strict=True):
            setattr(dispatch, name, flag)
        if _SET_FLAG is not None and self.flags:
            _SET_FLAG(self.flags[-1])
        if now.transforms > self.transforms:
            _TRANSFORMS[1](self.transforms)
        for _ in range(_batch_levels() - self.batch_levels):
            _BATCH_LEVELS[1]()
        top, pop = _SAVED_TENSORS
        while pop is not None and top(True) not in (None, self.hooks):
            pop()
        if self.level is not None and now.level is not None and _EXIT_LEVEL is not None:
            for level in range(max(now.level, self.level + 1), self.level, -1):
                with suppress(RuntimeError):  # it is closed already
                    _EXIT_LEVEL(level=level)
            forward_ad._current_level = self.level
        if hasattr(_transforms(), "JVP_NESTING"):
            _transforms().JVP_NESTING = self.nesting
        for (_, write), value in zip(_SWITCHES, self.switches, strict=True):
            write(value)


def _transforms() -> Any:
    """The module in which torch counts nested jvps, if it is loaded."""
    return None if PUBLIC_ONLY else sys.modules.get("torch._functorch.eager_transforms")


def _batch_levels() -> int:
    """The number of open levels of batched backward passes.

    It can only be read by opening and closing one. Both happen in one call of C, so that no interruption comes between.
    """
    if _BATCH_LEVELS[0] is None or _BATCH_LEVELS[1] is None:
        return 0
    opened, _ = map(methodcaller("__call__"), _BATCH_LEVELS)
    return int(opened) - 1


def _depth(stack: tuple[Any, Any]) -> int:
    return 0 if stack[0] is None else int(stack[0]())
