"""The samples of PyTorch's operator database as cases with names such as `addmm/inplace/float64/3`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.opdb.operators import database
from gradvet.frontends.torch.opdb.samples import Group, group_named, groups
from gradvet.suite.case import Case


@dataclass(frozen=True, slots=True)
class Operators:
    """A selection of samples, as a source of cases."""

    glob: str = "*"
    dtypes: tuple[str, ...] = ("float64", "complex128")
    device: str = "cpu"
    samples: int | None = None
    """Largest number of random samples per operator, variant and dtype; None takes all."""
    cases: tuple[str, ...] = ()
    """Names of single samples; if given, nothing else is selected."""
    flags: str = ""
    """Command-line options of the run, for the command that repeats one case."""

    def open(self) -> Mapping[str, Case]:
        database()  # loaded here, so that its time counts for no case
        return _Samples(self)

    def describe(self) -> dict[str, Any]:
        return {"operators": asdict(self)}


class _Samples(Mapping[str, Case]):
    """Cases by name. Looking up a name creates only the samples of its operator."""

    def __init__(self, selection: Operators) -> None:
        self.selection = selection

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Case:
        prefix, _, index = name.rpartition("/")
        group = group_named(prefix, self.selection.device) if index.isdecimal() else None
        sample = group.sample(int(index)) if group else None
        if group is None or sample is None:
            raise InvalidProblemError(f"the operator database has no sample {name!r}: names look like addmm/float64/3")
        device = f" --device {self.selection.device}" if self.selection.device != "cpu" else ""
        return Case(
            name,
            sample.function,
            inputs=lambda: sample.inputs,
            options=group.settings(),
            replay=f"gradvet ops --case {name}{device} {self.selection.flags}".rstrip(),
        )

    @cached_property
    def _names(self) -> tuple[str, ...]:
        if self.selection.cases:
            return tuple(dict.fromkeys(self.selection.cases))
        limit = self.selection.samples
        return tuple(f"{group}/{index}" for group in self._groups() for index in group.indices(limit))

    def _groups(self) -> list[Group]:
        matching = groups(self.selection.glob, self.selection.dtypes, self.selection.device)
        if not matching:
            raise InvalidProblemError(
                f"no operator fits {self.selection.glob!r} and is differentiable in {', '.join(self.selection.dtypes)} "
                f"on {self.selection.device}"
            )
        return matching
