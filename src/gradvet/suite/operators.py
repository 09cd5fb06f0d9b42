"""The samples of PyTorch's operator database as cases: `addmm/float64/3`, and `addmm/inplace/float64/3`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.opdb.database import database
from gradvet.frontends.torch.opdb.roster import Group, group_named, groups
from gradvet.suite.case import Case


@dataclass(frozen=True, slots=True)
class Operators:
    """Which samples are wanted."""

    glob: str = "*"
    dtypes: tuple[str, ...] = ("float64", "complex128")
    device: str = "cpu"
    samples: int | None = None
    """At most so many of each operator, variant and dtype, taken at random; None is all."""
    cases: tuple[str, ...] = ()
    """These alone, by name."""
    flags: str = ""
    """Options that hold for every case, as they were typed, for the command that repeats one."""

    def open(self) -> Mapping[str, Case]:
        database()  # here, where it counts for no case
        return _Samples(self)

    def describe(self) -> dict[str, Any]:
        return {"operators": asdict(self)}


class _Samples(Mapping[str, Case]):
    """Cases by name. A name is looked up by drawing the samples of its operator alone."""

    def __init__(self, wanted: Operators) -> None:
        self.wanted = wanted

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Case:
        group, _, index = name.rpartition("/")
        sample = group_named(group, self.wanted.device).sample(int(index)) if index.isdecimal() else None
        if sample is None:
            raise InvalidProblemError(
                f"the operator database has no sample {name!r}: a name is such as addmm/float64/3"
            )
        device = f" --device {self.wanted.device}" if self.wanted.device != "cpu" else ""
        return Case(
            name,
            sample.function,
            inputs=lambda: sample.inputs,
            options=sample.settings,
            replay=f"gradvet ops --case {name}{device} {self.wanted.flags}".rstrip(),
        )

    @cached_property
    def _names(self) -> tuple[str, ...]:
        limit = self.wanted.samples
        return self.wanted.cases or tuple(f"{one}/{index}" for one in self._groups() for index in one.indices(limit))

    def _groups(self) -> list[Group]:
        found = groups(self.wanted.glob, self.wanted.dtypes, self.wanted.device)
        if not found:
            raise InvalidProblemError(
                f"no operator fits {self.wanted.glob!r} and is differentiable in {', '.join(self.wanted.dtypes)} "
                f"on {self.wanted.device}"
            )
        return found
