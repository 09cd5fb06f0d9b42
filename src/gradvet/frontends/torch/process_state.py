"""Settings of the process that a user's code may change, and that are put back after it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from gradvet.frontends.torch.random_state import preserved_rng


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)


def _folder() -> str | None:
    with suppress(OSError):
        return os.getcwd()
    return None


def _set_folder(folder: str | None) -> None:
    if folder is not None:
        os.chdir(folder)


def _set_environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _set_path(folders: list[str]) -> None:
    sys.path[:] = folders


SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, _set_default_device),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_folder, _set_folder),
    (lambda: dict(os.environ), _set_environment),
    (lambda: list(sys.path), _set_path),
)
"""How a setting is read, and how it is set."""


@contextmanager
def preserved_process() -> Iterator[None]:
    """Put back all settings, the filters for warnings and the random states on exit, whatever happens inside."""
    before = [read() for read, _ in SETTINGS]
    with preserved_rng(), warnings.catch_warnings():
        try:
            yield
        finally:
            for (read, write), value in zip(SETTINGS, before, strict=True):
                if read() != value:
                    with suppress(OSError):  # the working folder was removed
                        write(value)
