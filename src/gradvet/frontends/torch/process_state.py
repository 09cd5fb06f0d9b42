"""The state of this process that a check may change, and its restoration: settings, open contexts, warnings filters.

Contexts are modes, transforms, levels of vmap and of dual numbers, and hooks of saved tensors. An interruption inside
the `__exit__` or `__enter__` of one leaves it open or half open. There is no public way to see or to close it; where a
private name of torch is missing, that kind of context is left alone.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from operator import methodcaller
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
import torch.utils._python_dispatch as dispatch
from torch.backends import cudnn

from gradvet.frontends.torch.double_precision import AUTOCAST_DEVICES
from gradvet.frontends.torch.private import PUBLIC_ONLY, _found, compiler_stance, set_compiler_stance
from gradvet.frontends.torch.random_state import RandomState

Settings = dict[Callable[[], Any], Callable[[Any], object]]
"""How each setting is read, and how it is written."""

_FUNCTION_MODES, _DISPATCH_MODES = (
    (
        _found(torch, f"_C._len_torch_{kind}_stack"),
        _found(torch, f"_C._pop_torch_{kind}_stack"),
        _found(torch, f"_C._get_{kind}_stack_at"),
    )
    for kind in ("function", "dispatch")
)
_TRANSFORMS = (
    _found(torch, "_C._functorch.get_dynamic_layer_stack_depth"),
    _found(torch, "_C._functorch.pop_dynamic_layer_stack"),
)
_BATCH_LEVELS = _found(torch, "_C._vmapmode_increment_nesting"), _found(torch, "_C._vmapmode_decrement_nesting")
"""The levels of the vmap by which torch runs batched backward passes; each call returns the number after it."""

_SAVED_TENSORS = (
    _found(torch, "_C._autograd._top_saved_tensors_default_hooks"),
    _found(torch, "_C._autograd._pop_saved_tensors_default_hooks"),
)
_MODE_FLAG = "_is_in_any_mode_without_ignore_compile_internals"
_EXIT_LEVEL = _found(torch, "_C._exit_dual_level")

_DEFAULT_DEVICE = _found(torch, "_GLOBAL_DEVICE_CONTEXT")
_FUNCTION_BASE: Any = _found(torch.autograd.function, "_SingleLevelFunction")
# From torch 2.15 on, `apply` does not use that class.
if _FUNCTION_BASE is None or inspect.isbuiltin(torch.autograd.Function.apply):
    _FUNCTION_BASE = torch.autograd.Function

_SWITCHES = tuple(
    (read, write)
    for read, write in (
        (_found(torch, "_C._is_fwd_grad_enabled"), _found(torch, "_C._set_fwd_grad_enabled")),
        *(
            (_found(torch, f"_C._functorch.get_{name}"), _found(torch, f"_C._functorch.set_{name}"))
            for name in ("inplace_requires_grad_allowed", "single_level_autograd_function_allowed")
        ),
        *(
            (partial(getattr, dispatch, name), partial(setattr, dispatch, name))
            for name in ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode", _MODE_FLAG)
            if _found(dispatch, name) is not None
        ),
        (
            partial(getattr, dispatch, _MODE_FLAG, None),
            _found(dispatch, "set_is_in_mode_without_ignore_compile_internals"),
        ),
    )
    if read is not None and write is not None
)
"""Switches of forward mode, of transforms and of modes of operators: how each is read and written. Torch keeps the last
one in two places."""


def default_device() -> torch.device | None:
    """The argument of the last `torch.set_default_device`; without private names the device in use."""
    if _DEFAULT_DEVICE is None:
        device = torch.get_default_device()
        return None if device.type == "cpu" else device
    context = getattr(_DEFAULT_DEVICE, "device_context", None)
    return None if context is None else context.device


Place = tuple[Any, str]
"""A method of torch: the class that has it, and its name."""

APPLY: Place = (_FUNCTION_BASE, "apply")
"""`apply` of all Functions. The class below `Function` is used, so that an `apply` that was kept in a variable is
replaced too. Without private names, and from torch 2.15 on, it is that of `Function` itself."""

TRANSFORMED_CALL: Place = (type(_found(torch, "_functorch.autograd_function.custom_function_call")), "__call__")
"""What runs a Function under a transform such as vmap; a method that does not exist if this torch has no such class."""


NO_METHOD = object()
"""In place of a method that a class inherits or does not have."""


def own_method(place: Place) -> Any:
    """A method as its class has it."""
    return vars(place[0]).get(place[1], NO_METHOD)


def set_method(place: Place, method: Any) -> None:
    """Replace a method of a class, or delete it."""
    if method is not NO_METHOD:
        setattr(*place, method)
    elif own_method(place) is not NO_METHOD:
        delattr(*place)


PATCHED_METHODS: Settings = {
    partial(own_method, place): partial(set_method, place)
    for place in (
        *product((torch.inference_mode, torch.autograd.graph.saved_tensors_hooks), ("__enter__", "__exit__")),
        (torch.nn.Parameter, "__new__"),
        TRANSFORMED_CALL,
    )
}
"""Methods of torch that the search for a line replaces for a time, because modes do not see their calls: how each is
read and written."""


def _deferred_kernels() -> list[tuple[Any, Any]]:
    """Python kernels that torch calls for sums and products of a dual number and a constant: decorated, and without
    the decorator, which loads torch's compiler on the first call (a second).
    """
    decorate = _found(torch, "_disable_dynamo")
    if decorate is None or not hasattr(decorated := decorate(default_device), "__code__"):
        return []
    found = []
    for kernel in [_found(torch, f"_refs.{name}") for name in ("add", "sub", "mul", "true_divide")]:
        while kernel is not None and getattr(kernel, "__code__", None) is not decorated.__code__:
            kernel = getattr(kernel, "__wrapped__", None)
        inner = None if kernel is None else inspect.getclosurevars(kernel).nonlocals.get("fn")
        if inspect.isfunction(inner):
            found.append((kernel, inner))
    return found


_KERNELS = _deferred_kernels()
_CALLED = "__dynamo_disable"
"""The attribute of a kernel in which its decorator keeps what it calls."""


def kernels_are_direct() -> bool:
    """Whether the kernels of forward mode are called without loading torch's compiler."""
    return bool(_KERNELS) and isinstance(vars(_KERNELS[0][1]).get(_CALLED), _Direct)


def set_kernels_direct(direct: bool) -> None:
    """Call the kernels of forward mode without loading torch's compiler, or as torch does.

    The first one is replaced first and put back last, so that it shows whether any is replaced after an interruption.
    """
    for decorated, kernel in _KERNELS if direct else reversed(_KERNELS):
        present = vars(kernel).get(_CALLED)
        if direct and present is None and "torch._dynamo" not in sys.modules:
            setattr(kernel, _CALLED, _Direct(decorated, kernel))
        elif not direct and isinstance(present, _Direct):
            delattr(kernel, _CALLED)


class _Direct:
    """A kernel that is called as it is while torch's compiler is not loaded, and as torch does it from then on."""

    def __init__(self, decorated: Any, kernel: Any) -> None:
        self._decorated, self._kernel = decorated, kernel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return self._kernel(*args, **kwargs)
        set_kernels_direct(False)
        return self._decorated(*args, **kwargs)


def open_contexts() -> list[Any]:
    """All that is open now, to be compared with `==` and passed to `close_contexts`."""
    return [read() for read in _CONTEXT_READERS]


def close_contexts(opened: list[Any]) -> None:
    """Close what was opened since; after an interruption torch's own record of levels may be wrong."""
    function_modes, dispatch_modes, transforms, batch_levels, level, nesting, hooks, *switches = opened
    transforms_now, level_now = _CONTEXT_READERS[2](), _CONTEXT_READERS[4]()
    _pop_modes(_FUNCTION_MODES, function_modes)
    _pop_modes(_DISPATCH_MODES, dispatch_modes, None)
    for _ in range(transforms_now - transforms):
        _TRANSFORMS[1]()
    for _ in range(_batch_levels() - batch_levels):
        _BATCH_LEVELS[1]()
    top, pop = _SAVED_TENSORS
    while None not in (top, pop) and top(True) not in (None, hooks):
        pop()
    if level is not None and level_now is not None and _EXIT_LEVEL is not None:
        for open_level in range(max(level_now, level + 1), level, -1):
            with suppress(RuntimeError):  # it is closed already
                _EXIT_LEVEL(level=open_level)
        forward_ad._current_level = level
    if (module := sys.modules.get(_NESTING[0])) is not None and hasattr(module, _NESTING[1]):
        setattr(module, _NESTING[1], nesting)
    for (_, write), value in zip(_SWITCHES, switches, strict=True):
        write(value)


_NESTING = ("", "") if PUBLIC_ONLY else ("torch._functorch.eager_transforms", "JVP_NESTING")
"""The module and the name under which torch counts the open levels of `torch.func.jvp`."""


def _nesting() -> int:
    return getattr(sys.modules.get(_NESTING[0]), _NESTING[1], 0)


def _batch_levels() -> int:
    """The number of open levels of batched backward passes.

    It can only be read by opening and closing one. Both happen in one call of C, so that no interruption comes between.
    """
    if _BATCH_LEVELS[0] is None or _BATCH_LEVELS[1] is None:
        return 0
    opened, _ = map(methodcaller("__call__"), _BATCH_LEVELS)
    return int(opened) - 1


_CONTEXT_READERS: tuple[Callable[[], Any], ...] = (
    _FUNCTION_MODES[0] or int,
    _DISPATCH_MODES[0] or int,
    _TRANSFORMS[0] or int,
    _batch_levels,
    partial(getattr, forward_ad, "_current_level", None),
    _nesting,
    bool if _SAVED_TENSORS[0] is None else partial(_SAVED_TENSORS[0], True),
    *(read for read, _ in _SWITCHES),
)
"""How all that may be open is read; where that is unknown, it is constant."""


def _pop_modes(stack: tuple[Any, Any, Any], depth: int, *arguments: object) -> None:
    """Close the modes above a depth. They are held meanwhile: torch 2.6 frees one too early that nothing else holds."""
    length, pop, at = stack
    if None not in stack:
        for _ in [at(place) for place in range(depth, length())]:
            pop(*arguments)


VMAP_FALLBACK: Settings = {
    read: write
    for read, write in [[_found(torch, f"_C._functorch._{name}_vmap_fallback_enabled") for name in ("is", "set")]]
    if read and write
}
"""Whether vmap calls operators that have no batching rule point by point, with a warning each time."""


@contextmanager
def without_vmap_fallback() -> Iterator[None]:
    """The context in which vmap raises for such operators: point by point they take as long as plain calls."""
    before = [(write, read()) for read, write in VMAP_FALLBACK.items()]
    try:
        for write, _ in before:
            write(False)
        yield
    finally:
        for write, value in before:
            write(value)


CUDNN_FLAGS = ("enabled", "benchmark", "deterministic")


def _anomaly_mode() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _tf32() -> tuple[bool, str] | None:
    """Whether cuDNN uses TF32, and the precision of matrix products; None if each kind of operator has its own."""
    try:
        return cudnn.allow_tf32, torch.get_float32_matmul_precision()
    except RuntimeError:  # set by torch's newer interface, which the older one cannot express
        return None


def _set_tf32(state: tuple[bool, str] | None) -> None:
    if state is not None and _tf32() not in (None, state):
        if not torch.backends.flags_frozen():  # as torch's own tests do
            cudnn.allow_tf32 = state[0]
        torch.set_float32_matmul_precision(state[1])


def _recompile_limit() -> int | None:
    """The number of versions of a function above which torch runs it as Python; None without a compiler."""
    return _found(sys.modules.get("torch._dynamo.config"), "recompile_limit")  # type: ignore[no-any-return]


def _set_recompile_limit(limit: int | None) -> None:
    if None not in (limit, _recompile_limit()):
        sys.modules["torch._dynamo.config"].recompile_limit = limit  # type: ignore[attr-defined]


def use_standard_settings() -> None:
    """The settings of a check, whatever surrounds it: gradients are recorded, and TF32 is off.

    TF32 rounds torch's own products of float32 numbers to ten bits. A compiled function may have 256 versions, such as
    those with and without grad mode: needed by `test_wrong_gradient_of_compiled_code_fails`.
    """
    torch.set_grad_enabled(True)
    _set_tf32((False, "highest"))
    _set_recompile_limit(256)


SETTINGS: Settings = {
    default_device: torch.set_default_device,
    torch.is_grad_enabled: torch.set_grad_enabled,
    torch.get_default_dtype: torch.set_default_dtype,
    torch.is_autocast_cache_enabled: torch.set_autocast_cache_enabled,
    **{partial(torch.is_autocast_enabled, on): partial(torch.set_autocast_enabled, on) for on in AUTOCAST_DEVICES},
    **{partial(torch.get_autocast_dtype, on): partial(torch.set_autocast_dtype, on) for on in AUTOCAST_DEVICES},
    _anomaly_mode: lambda flags: torch.autograd.set_detect_anomaly(*flags),
    torch.get_deterministic_debug_mode: torch.set_deterministic_debug_mode,
    torch.get_num_threads: torch.set_num_threads,
    _tf32: _set_tf32,
    **{partial(getattr, cudnn, name): partial(setattr, cudnn, name) for name in CUDNN_FLAGS},
    partial(own_method, APPLY): partial(set_method, APPLY),
    kernels_are_direct: set_kernels_direct,
    **VMAP_FALLBACK,
    compiler_stance: set_compiler_stance,
    sys.getprofile: sys.setprofile,
    sys.getrecursionlimit: sys.setrecursionlimit,
}
"""How each setting that every check restores is read and written."""

SEARCH_SETTINGS: Settings = {**SETTINGS, _recompile_limit: _set_recompile_limit, **PATCHED_METHODS}
"""Those, the limit on compiled versions, and the methods of torch that the search for a line replaces."""


class ProcessState:
    """Settings, warnings filters, open contexts and random states of this process and thread, when this was made.

    Leaving the context restores them. It is entered twice, as `with state, state:`, because an interruption may come
    while they are restored.
    """

    __slots__ = ("_contexts", "_filters", "_settings", "_shown_filters", "_showwarning", "_values", "random")

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.random = RandomState()
        self._settings = settings
        self._values = self._read()
        self._contexts = open_contexts()
        self._filters, self._shown_filters = warnings.filters, list(warnings.filters)
        self._showwarning = warnings.showwarning

    def _read(self) -> list[Any]:
        return [read() for read in self._settings]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self.close_contexts()
        self.restore()
        self.random.restore()

    def close_contexts(self) -> None:
        """Close contexts that an interruption left open; torch's own record of what is open may be wrong then."""
        close_contexts(self._contexts)

    def restore(self) -> None:
        """Restore all but the random states."""
        if self._read() != self._values:
            for (read, write), value in zip(self._settings.items(), self._values, strict=True):
                if read() != value:
                    write(value)
        if open_contexts() != self._contexts:
            close_contexts(self._contexts)
        if warnings.filters is not self._filters or self._filters != self._shown_filters:
            with warnings.catch_warnings():  # on exit, it makes Python forget what the filters decided
                pass
            warnings.filters = self._filters
            warnings.filters[:] = self._shown_filters  # type: ignore[index]
        if warnings.showwarning is not self._showwarning:
            warnings.showwarning = self._showwarning
