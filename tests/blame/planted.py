"""A fault planted in a model, with the place that a report must name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fault:
    """`model(name)` gives the model with the fault and its inputs; the line has the comment `# fault: name`."""

    name: str
    path: str
    what: str
    model: Callable[[str], tuple[Any, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    is_warning: bool = False

    @property
    def place(self) -> tuple[str, int]:
        """The file and the line of the fault."""
        file = Path(inspect.getfile(self.model))
        lines = file.read_text(encoding="utf-8").splitlines()
        (number,) = (n for n, line in enumerate(lines, 1) if line.endswith(f"# fault: {self.name}"))
        return file.name, number
