"""Which checks run: by mode, by name, or all with some switched on or off."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradvet.checks.catalogue import COMPILE, NAMES, REFERENCE, SECOND_ORDER
from gradvet.errors import InvalidProblemError

MODES = ("reverse", "forward")


@dataclass(frozen=True, slots=True)
class Selection:
    """Names of the checks that run."""

    names: frozenset[str]

    @classmethod
    def of(cls, modes: Iterable[str], checks: Iterable[str] | Mapping[str, bool] | None) -> Selection:
        """All checks of the modes; or only those named; or all with some switched on or off."""
        wanted = (modes,) if isinstance(modes, str) else tuple(modes)
        _require_known("mode", wanted, MODES)
        names = set(_of_modes(wanted))
        if isinstance(checks, Mapping):
            _require_known("check", checks, NAMES)
            names = {name for name in NAMES if checks.get(name, name in names)}
        elif checks is not None:
            names = {checks} if isinstance(checks, str) else set(checks)
            _require_known("check", names, NAMES)
        if not names or not wanted:
            raise InvalidProblemError("no check is left to run: name at least one mode and one check")
        return cls(frozenset(names))

    def adding(self, *names: str) -> Selection:
        return Selection(self.names | set(names)) if names else self

    def without(self, name: str) -> Selection:
        return Selection(self.names - {name})

    def __contains__(self, name: str) -> bool:
        return name in self.names


@functools.cache
def _of_modes(modes: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name for name in NAMES if _belongs(name, modes))


def _belongs(name: str, modes: tuple[str, ...]) -> bool:
    """Whether a check runs by default for these modes."""
    if name in MODES:
        return name in modes
    if name == COMPILE:
        return False
    if name == REFERENCE:
        return "reverse" in modes
    if name == "duality":
        return set(modes) == set(MODES)
    return name not in SECOND_ORDER or set(name.split("-over-")) <= set(modes)


def _require_known(kind: str, given: Iterable[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise InvalidProblemError(f"there is no {kind} {name!r}; known are: {', '.join(known)}")
