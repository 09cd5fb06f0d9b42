"""Through which floating-point formats the numbers of a function pass, its captured constants included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class _Formats(TorchDispatchMode):
    """Notes the coarsest format among the tensors that operators take and give."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.coarsest = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in (*args, *(kwargs or {}).values(), result):
            self._note(value)
        return result

    def _note(self, value: Any) -> None:
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            self.coarsest = max(self.coarsest, float(torch.finfo(value.dtype).eps))
        elif isinstance(value, (tuple, list)):
            for item in value:
                self._note(item)


def coarsest_within(function: Callable[..., Any], arguments: Sequence[Any]) -> float:
    """The relative spacing of the coarsest format that one call meets; zero where it cannot be watched."""
    formats = _Formats()
    try:
        with torch.no_grad(), formats:
            function(*arguments)
    except Exception:
        return 0.0
    return formats.coarsest
