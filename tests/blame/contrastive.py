"""A contrastive loss with a queue of negatives. Each fault is on the line that a comment names."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.blame.planted import Fault


class Contrastive(nn.Module):
    queue: Tensor

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.encoder, self.fault = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), fault
        self.register_buffer("queue", F.normalize(torch.randn(4, 2), dim=-1))
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        query, key = self.encoder(x), F.normalize(self.encoder(other), dim=-1)
        norm = query.norm(dim=-1, keepdim=True)
        if self.fault == "normalisation":
            norm = norm.detach()  # fault: normalisation
        query = query / norm
        temperature = self.temperature
        if self.fault == "temperature":
            temperature = temperature.new_tensor(temperature)  # fault: temperature
        if self.fault == "detached_in_place":
            temperature = temperature.clone().detach_()  # type: ignore[assignment]  # fault: detached_in_place
        queue = self.queue if self.fault == "queue" else self.queue.clone()
        logits = torch.cat([(query * key).sum(-1, keepdim=True), query @ queue.T], -1) / temperature
        with torch.no_grad():
            self.queue[: len(key)] = key  # fault: queue
        return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))


def model(fault: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return Contrastive(fault).double(), tuple(torch.randn(2, 2, 3, dtype=torch.float64))


FAULTS = [
    Fault("normalisation", "", "detach", model),
    Fault("temperature", "", "new_tensor", model),
    Fault("detached_in_place", "", "detach_", model),
    Fault("queue", "", "write to a saved tensor", model),
]
