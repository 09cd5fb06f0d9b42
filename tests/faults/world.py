"""Everything that a check must leave as it was, read as plain data that can be compared."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterable
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.backends import cuda, cudnn

from gradvet.core import events
from gradvet.frontends.torch.process_state import PATCHED_METHODS, kernels_are_direct, open_contexts


def world(tensors: Iterable[Tensor] = (), modules: Iterable[nn.Module] = ()) -> dict[str, Any]:
    """The state of the process, and of these tensors and modules."""
    found: dict[str, Any] = {
        "grad mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "anomaly mode": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "deterministic algorithms": torch.get_deterministic_debug_mode(),
        "open contexts": open_contexts(),
        "dual numbers": can_use_dual_numbers(),
        "profiling function": sys.getprofile(),
        "warnings filters": (id(warnings.filters), list(warnings.filters), warnings.showwarning),
        "random state of torch": torch.get_rng_state().tolist(),
        "random state of Python": random.getstate(),
        "random state of NumPy": str(numpy.random.get_state()[1].tolist()),  # type: ignore[index]
        "lock": is_free(),
        "default device": str(torch.get_default_device()),
        "inference mode": torch.is_inference_mode_enabled(),
        "threads of torch": torch.get_num_threads(),
        "precision of products": torch.get_float32_matmul_precision(),
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        "attention kernels": (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()),
        "signal handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "working folder": os.getcwd(),
        # torch sets that variable when it loads its compiler.
        "environment": {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"},
        "search path": list(sys.path),
        "streams": (id(sys.stdout), id(sys.stderr)),
        "recursion limit": sys.getrecursionlimit(),
        "apply of Functions": [
            vars(one).get("apply", "none") for one in (torch.autograd.Function, _SingleLevelFunction)
        ],
        "methods of torch": [read() for read in PATCHED_METHODS],
        "kernels of forward mode": kernels_are_direct(),
        "hooks of all modules": [list(hooks) for name, hooks in vars(nn.modules.module).items() if _is_hooks(name)],
        "listeners": [list(one) for one in (events._listeners, events._filters, events._stages, events._seeds)],
    }
    for number, tensor in enumerate(tensors):
        found |= {f"tensor {number}: {name}": value for name, value in tensor_state(tensor).items()}
    for number, module in enumerate(modules):
        found[f"module {number}: training"] = [part.training for part in module.modules()]
        for path, part in module.named_modules():
            found[f"module {number}: attributes of {path!r}"] = {
                name: list(value) if name.endswith("hooks") else id(value)
                for name, value in vars(part).items()
                if name not in ("_parameters", "_buffers", "_modules", "training")
            }
        for kind, named in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
            for name, tensor in named:
                label = f"module {number}: {kind} {name}"
                found[f"{label}: object"] = (id(tensor), type(tensor))
                # The function itself writes to buffers, and torch counts its writes.
                state = {
                    part: value for part, value in tensor_state(tensor).items() if kind != "buffer" or part != "version"
                }
                found |= {f"{label}: {part}": value for part, value in state.items()}
    return found


def tensor_state(tensor: Tensor) -> dict[str, Any]:
    gradient = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
    return {
        "values": tensor.detach().tolist(),
        "version": tensor._version,
        "requires grad": (tensor.requires_grad, tensor.is_leaf),
        "grad": None if gradient is None else (id(gradient), gradient.tolist()),
        "hooks": (list(tensor._backward_hooks or ()), list(tensor._post_accumulate_grad_hooks or ())),
    }


def can_use_dual_numbers() -> bool:
    """Whether a level of dual numbers can be opened: torch has one level, and counts it in Python and in C++."""
    try:
        with forward_ad.dual_level():
            return True
    except RuntimeError:
        return False


def _is_hooks(name: str) -> bool:
    return name.startswith("_global") and name.endswith("hooks")


def is_free() -> bool:
    """Whether another thread could begin a check."""
    taken: list[bool] = []

    def attempt() -> None:
        taken.append(events._LOCK.acquire(blocking=False))
        if taken[0]:
            events._LOCK.release()

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return taken[0]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what is not as it was."""
    return [name for name in before if before[name] != after.get(name)]
