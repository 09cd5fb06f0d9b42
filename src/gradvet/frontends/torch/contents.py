"""What do a function and its arguments lead to? Modules, other functions, containers: as far as one can see."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from itertools import islice
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any

from torch import Tensor, nn

REACH = 24
"""How many callables, containers and objects are looked into in search of modules, the nearest first."""

WITHIN = 32
"""How much of what one of them holds is looked at."""

PLAIN = (Tensor, type, ModuleType, str, int, float, complex, NoneType)
"""What has no modules in it."""

OPAQUE = (nn.Module, *PLAIN)
"""What is not looked into."""


def modules_in(*things: Any) -> list[nn.Module]:
    """Modules that callables are, are bound to, close over, have as defaults, or read from their globals."""
    return list({id(thing): thing for thing in reachable(*things) if isinstance(thing, nn.Module)}.values())


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
        for name in thing.__code__.co_names:
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
