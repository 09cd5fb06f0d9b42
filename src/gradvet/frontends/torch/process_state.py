"""The settings of the process that a check or a case may change, how each is read, and how it is put back."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import setitem
from typing import Any

import torch
from torch.backends import cudnn

from gradvet.frontends.torch import private_state
from gradvet.frontends.torch.double_precision import AUTOCAST_DEVICES
from gradvet.frontends.torch.state import RandomState

Settings = dict[Callable[[], Any], Callable[[Any], object]]
"""How each setting is read, and how it is written."""


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


def use_standard_settings() -> None:
    """The settings of a check, whatever surrounds it: gradients are recorded, and TF32 is off.

    TF32 rounds torch's own products of float32 numbers to ten bits.
    """
    torch.set_grad_enabled(True)
    _set_tf32((False, "highest"))


SETTINGS: Settings = {
    private_state.default_device: torch.set_default_device,
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
    private_state.function_apply: private_state.set_function_apply,
    private_state.kernels_are_direct: private_state.set_kernels_direct,
    sys.getprofile: sys.setprofile,
    sys.getrecursionlimit: sys.setrecursionlimit,
}
"""How each setting that every check restores is read and written."""

SEARCH_SETTINGS: Settings = {**SETTINGS, **private_state.PATCHED_METHODS}
"""Those and the methods of torch that the search for a line replaces, which the drop-in functions never do."""


def _folder() -> str | None:
    with suppress(OSError):
        return os.getcwd()
    return None


def _set_folder(folder: str | None) -> None:
    if folder is not None:
        with suppress(OSError):  # the folder was removed
            os.chdir(folder)


def _set_environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _umask() -> int:
    """The mask of new files, read without a change of it where the system tells: an interruption would leave that."""
    with suppress(OSError), open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE)


def _set_handler(number: int, handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # no other thread may set one
        signal.signal(number, handler)


CASE_SETTINGS: Settings = {
    **SEARCH_SETTINGS,
    _folder: _set_folder,
    lambda: dict(os.environ): _set_environment,
    lambda: list(sys.path): partial(setitem, sys.path, slice(None)),
    **{partial(getattr, sys, name): partial(setattr, sys, name) for name in ("stdin", "stdout", "stderr")},
    _umask: os.umask,
    gc.isenabled: lambda enabled: gc.enable() if enabled else gc.disable(),
    sys.gettrace: sys.settrace,
    **{partial(signal.getsignal, number): partial(_set_handler, number) for number in HANDLED},
}
"""Those that are restored after each case of a run, too; reading them takes longer."""


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
        self._contexts = private_state.open_contexts()
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
        private_state.close_contexts(self._contexts)

    def restore(self) -> None:
        """Restore all but the random states."""
        if self._read() != self._values:
            for (read, write), value in zip(self._settings.items(), self._values, strict=True):
                if read() != value:
                    write(value)
        if private_state.open_contexts() != self._contexts:
            private_state.close_contexts(self._contexts)
        if warnings.filters is not self._filters or self._filters != self._shown_filters:
            with warnings.catch_warnings():  # on exit, it makes Python forget what the filters decided
                pass
            warnings.filters = self._filters
            warnings.filters[:] = self._shown_filters  # type: ignore[index]
        if warnings.showwarning is not self._showwarning:
            warnings.showwarning = self._showwarning
