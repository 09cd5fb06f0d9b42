"""What kinds of torch's own nodes were seen to do with a cotangent as such: asked once for each kind in a process.

Whether a rule of torch's is linear, and takes no cotangent for nothing, depends on how it was written, not on numbers
or on the user's code. A graph of kinds that were all seen to behave needs no pass to show it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradvet.core.problem import Trait

_SEEN: dict[Trait, set[str]] = {trait: set() for trait in Trait}


def are_known(kinds: Iterable[str], trait: Trait) -> bool:
    """Whether all of these were seen to have the trait."""
    return _SEEN[trait].issuperset(kinds)


def remember(kinds: Iterable[str], trait: Trait) -> None:
    """A graph of these had the trait."""
    _SEEN[trait].update(kinds)


def forget() -> None:
    """Ask anew."""
    for kinds in _SEEN.values():
        kinds.clear()
