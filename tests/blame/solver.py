"""A neural ODE: a function outside of modules steps with one. Each fault is on the line that a comment names."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tests.blame.planted import Fault


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(torch.cat([y, t.expand(len(y), 1)], -1))  # type: ignore[no-any-return]


def midpoint(field: nn.Module, t: Tensor, y: Tensor, h: Any, fault: str) -> Tensor:
    """One step of the midpoint rule."""
    half = y + h / 2 * field(t, y)
    if fault == "stage":
        half = half.detach()  # fault: stage
    out: Tensor = y + h * field(t + h / 2, half)
    return out


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.round(decimals=1)


def _unpacked(tensor: Tensor) -> Tensor:
    return tensor


class Solver(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.field, self.log_h, self.fault = Field(), nn.Parameter(torch.tensor(-1.0)), fault
        if fault == "hook_of_parent":
            self.field.register_forward_hook(self.bounded)

    def bounded(self, field: nn.Module, args: Any, out: Tensor) -> Tensor:
        return out / out.detach().norm()  # fault: hook_of_parent

    def forward(self, y: Tensor) -> Tensor:
        h: Any = self.log_h.exp()
        if self.fault == "step_size":
            h = float(h)  # fault: step_size
        if self.fault == "written_alias":
            h, value = torch.zeros((), dtype=y.dtype), h
            h.data.copy_(value)  # fault: written_alias
        t = torch.zeros(1, dtype=y.dtype)
        if self.fault == "packed":
            with torch.autograd.graph.saved_tensors_hooks(_rounded, _unpacked):  # fault: packed
                return midpoint(self.field, t, y, h, "")
        if self.fault == "new_parameter":
            h = nn.Parameter(h)  # fault: new_parameter
        if self.fault == "assigned_data":
            h, value = torch.zeros((), dtype=y.dtype), h
            h.data = value  # fault: assigned_data
        field = self.field
        if self.fault == "copied_module":
            field = copy.deepcopy(field)  # fault: copied_module
        if self.fault == "grad_mode":
            torch.set_grad_enabled(False)  # fault: grad_mode
            t = t + h
            torch.set_grad_enabled(True)
        return midpoint(field, t, midpoint(self.field, t, y, h, self.fault), h, self.fault)


def model(fault: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    solver = nn.Sequential(nn.Linear(2, 2), Solver(fault)).double()
    return solver, torch.randn(3, 2, dtype=torch.float64)


FAULTS = [
    Fault("stage", "1", "detach", model),
    Fault("step_size", "1", "__float__", model),
    Fault("grad_mode", "1", "no_grad", model),
    Fault("new_parameter", "1", "nn.Parameter", model),
    Fault("assigned_data", "1", "data", model),
    Fault("written_alias", "1", "copy_", model),
    Fault("hook_of_parent", "1", "detach", model),
    Fault("packed", "1", "saved_tensors_hooks", model),
    Fault("copied_module", "1", "data", model),
]
