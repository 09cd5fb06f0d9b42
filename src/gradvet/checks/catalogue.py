"""The checks of the native interface by name, in the order in which they run."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradvet.checks import jacobian
from gradvet.checks.adjoint import duality
from gradvet.checks.batching import batched
from gradvet.checks.determinism import determinism
from gradvet.checks.linearity import linearity, missing_cotangents
from gradvet.checks.memory_layout import grad_output_layouts, input_layouts
from gradvet.checks.metadata import metadata
from gradvet.checks.outputs import constancy, detached, values
from gradvet.checks.state import accumulation, checkpoint, frozen, interleaving, mutation
from gradvet.core.runner import CheckFunction
from gradvet.errors import InvalidProblemError

EXACT: Mapping[str, CheckFunction] = {
    "constancy": constancy,
    "detached": detached,
    "values": values,
    "determinism": determinism,
    "metadata": metadata,
    "linearity": linearity,
    "undefined": missing_cotangents,
    "cotangents": grad_output_layouts,
    "mutation": mutation,
    "interleaving": interleaving,
    "frozen": frozen,
    "layouts": input_layouts,
    "batched": batched,
    "accumulation": accumulation,
    "checkpoint": checkpoint,
    "duality": duality,
}
"""Checks that need no differences; they look at the function in the precision that the user gave."""

SUBSTITUTING = frozenset({"interleaving", "frozen", "layouts", "batched", "duality", "forward"})
"""Checks that hand the function other tensors; one that reads captured ones would not see them."""

VALUES = frozenset({"constancy", "detached", "values"})
"""Checks of the function's own values, which are not compared where a surrogate stands in for them."""

FORWARD = frozenset({"batched", "reverse", "forward"})
"""Checks that have something to say where there is no reverse mode: that there is none, or about forward mode."""

SLOPES: Mapping[str, CheckFunction] = {"reverse": jacobian.reverse, "forward": jacobian.forward}

SECOND_ORDER = ("reverse-over-reverse", "forward-over-reverse", "reverse-over-forward", "forward-over-forward")

ELSEWHERE = ("points", "shapes")
"""The same at other values and other lengths."""

REGISTRATION, COMPILE = "opcheck", "compile"
"""Of a custom operator also its registration; and, for those who ask, what torch.compile makes of the function."""

NAMES = (*EXACT, *SLOPES, "precision", *SECOND_ORDER, "symmetry", *ELSEWHERE, REGISTRATION, COMPILE)
MODES = ("reverse", "forward")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which checks run, and which of them somebody asked for by name."""

    names: frozenset[str]
    named: frozenset[str] = frozenset()

    @classmethod
    def of(cls, modes: Iterable[str], checks: Iterable[str] | Mapping[str, bool] | None) -> Selection:
        """All of the modes asked for; only those named, or all with some switched on or off."""
        wanted = (modes,) if isinstance(modes, str) else tuple(modes)
        _known("mode", wanted, MODES)
        names, named = set(_of_modes(wanted)), set[str]()
        if isinstance(checks, Mapping):
            _known("check", checks, NAMES)
            names = {name for name in NAMES if checks.get(name, name in names)}
            named = {name for name in names if name in checks}
        elif checks is not None:
            chosen = (checks,) if isinstance(checks, str) else tuple(checks)
            _known("check", chosen, NAMES)
            names = named = set(chosen)
        if not names or not wanted:
            raise InvalidProblemError("no check is left to run: name at least one mode and one check")
        return cls(frozenset(names), frozenset(named))

    def adding(self, *names: str) -> Selection:
        """These as well."""
        return Selection(self.names | set(names), self.named | set(names)) if names else self

    def without(self, name: str) -> Selection:
        return Selection(self.names - {name}, self.named - {name})

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def of_these(self, catalogue: Mapping[str, CheckFunction]) -> dict[str, CheckFunction]:
        return {name: check for name, check in catalogue.items() if name in self.names}


@functools.cache
def _of_modes(modes: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name for name in NAMES if _belongs(name, modes))


def _belongs(name: str, modes: tuple[str, ...]) -> bool:
    """Whether a check has to do with the modes asked for."""
    if name in MODES:
        return name in modes
    if name == COMPILE:
        return False
    if name == "duality":
        return set(modes) == set(MODES)
    return name not in SECOND_ORDER or set(name.split("-over-")) <= set(modes)


def _known(kind: str, given: Iterable[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise InvalidProblemError(f"there is no {kind} {name!r}; known are: {', '.join(known)}")
