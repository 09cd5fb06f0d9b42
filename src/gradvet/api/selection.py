"""Which checks run: by mode, by name, or all with some switched on or off."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping

from gradvet.checks.catalogue import COMPILE, HIGHER_ORDER, NAMES, REFERENCE, SECOND_ORDER
from gradvet.errors import InvalidProblemError

MODES = ("reverse", "forward")


Selection = frozenset[str]
"""Names of the checks that run."""


def selection_of(modes: Iterable[str], checks: Iterable[str] | Mapping[str, bool] | None) -> Selection:
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
    return frozenset(names)


@functools.cache
def _of_modes(modes: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name for name in NAMES if _belongs(name, modes))


def _belongs(name: str, modes: tuple[str, ...]) -> bool:
    """Whether a check runs by default for these modes."""
    if name in MODES:
        return name in modes
    if name == COMPILE:
        return False
    if name in (REFERENCE, HIGHER_ORDER):
        return "reverse" in modes
    if name == "duality":
        return set(modes) == set(MODES)
    return name not in SECOND_ORDER or set(name.split("-over-")) <= set(modes)


def _require_known(kind: str, given: Iterable[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(known)}"
            raise InvalidProblemError(f"there is no {kind} {name!r}; {meant}")
