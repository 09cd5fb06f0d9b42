"""What do a function and its arguments lead to? Modules, other functions, containers: as far as one can see."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

from torch import Tensor, nn

from gradvet.frontends.torch.legibility import is_harmless, writing_of

REACH = 24
"""How many callables, containers and objects are looked into in search of modules, the nearest first."""

WITHIN = 32
"""How much of what one of them holds is looked at."""

PLAIN = (Tensor, type, ModuleType, str, int, float, complex, NoneType)
"""What has no modules in it."""

LEGIBLE = (FunctionType, MethodType, BuiltinFunctionType)
"""Callables whose code can be read, or that have none of their own."""

OPAQUE = (nn.Module, *PLAIN)
"""What is not looked into."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What functions and arguments lead to, as far as one can see."""

    modules: list[nn.Module]
    hookless: bool
    """Whether nothing there puts hooks on tensors or nodes, as far as the code can be read."""

    @classmethod
    def of(cls, *things: Any) -> Contents:
        """Modules that callables are, are bound to, close over, have as defaults, or read from their globals."""
        found: dict[int, nn.Module] = {}
        hookless, opened = isinstance(things[0], LEGIBLE), 0
        for thing in reachable(*things):
            if isinstance(thing, nn.Module):
                found[id(thing)] = thing
                continue
            hookless = hookless and is_harmless(thing)
            opened += not isinstance(thing, PLAIN)
        # The code of a module is not looked into, nor what is too far to be reached.
        return cls(list(found.values()), hookless and not found and opened < REACH)


def reachable(*things: Any, reach: int = REACH) -> Iterator[Any]:
    """What callables, containers and objects lead to, the nearest first; modules and tensors are not looked into."""
    seen: set[int] = set()
    ahead = deque(things)
    while ahead and len(seen) < reach:
        thing = ahead.popleft()
        yield thing
        if not isinstance(thing, OPAQUE) and id(thing) not in seen:
            seen.add(id(thing))
            ahead.extend(_inside(thing))


def _inside(thing: Any) -> Iterator[Any]:
    """What a callable, a container or an object can reach at once."""
    if isinstance(thing, FunctionType):
        if thing.__defaults__ or thing.__kwdefaults__:
            yield from (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values())
        for cell in thing.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # the cell is still empty
                continue
        # Of what stands beside the function in its file: modules, what may hold one, and other functions.
        for name in writing_of(thing.__code__).names:
            value = thing.__globals__.get(name)
            if value is not None and (not isinstance(value, FunctionType) or value.__globals__ is thing.__globals__):
                yield value
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, (tuple, list, dict)):
        items = list(thing.values() if isinstance(thing, dict) else thing)
        yield from (item for item in items if isinstance(item, nn.Module))
        yield from items[:WITHIN]
    elif isinstance(thing, MethodType):
        yield from (thing.__self__, thing.__func__)
        if isinstance(thing.__self__, type):  # an autograd.Function, whose passes are methods of the class
            yield from (getattr(thing.__self__, name, None) for name in ("forward", "backward"))
    else:
        yield from islice(getattr(thing, "__dict__", {}).values(), WITHIN)
