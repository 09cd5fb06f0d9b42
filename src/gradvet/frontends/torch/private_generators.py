"""The states of Python's and NumPy's global generators, read where they are stored.

Their public `getstate` takes 12 and 74 µs, called seven times in one check: 6 % of `check(torch.sin, x)` at n = 10 and
15 % of `gradcheck`. Memory is read only; it is never written. Where it cannot be read, the public functions are used.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

from gradvet.frontends.torch.private import PUBLIC_ONLY

_PYTHON_TWISTER = struct.Struct("=i624I")
"""CPython's Mersenne twister behind the head of the object: position, then 624 words."""

_NUMPY_TWISTER = struct.Struct("=624Ii")
"""NumPy's: 624 words, then the position."""

_NUMPY_GAUSS = struct.Struct("=i4xd")
"""Whether a second normal number is kept, and that number."""


class _View:
    """The bytes at the address of a generator's state; the address is found anew for another generator."""

    def __init__(self, locate: Callable[[Any], tuple[int, int]]) -> None:
        self._locate = locate
        self._generator: Any = None
        self._memory: Any = None

    def read(self, generator: Any) -> bytes:
        if generator is not self._generator:
            address, size = self._locate(generator)
            self._generator, self._memory = generator, (ctypes.c_char * size).from_address(address)
        state: bytes = self._memory.raw
        return state


def _locate_python(generator: Any) -> tuple[int, int]:
    return id(generator) + object.__basicsize__, _PYTHON_TWISTER.size


def _locate_numpy(generator: Any) -> tuple[int, int]:
    return int(generator.ctypes.state_address), _NUMPY_TWISTER.size


def _locate_gauss(source: Any) -> tuple[int, int]:
    """Search an example whose number is known for the place of that number; size 0 if it is not found."""
    example = type(source)(1)
    example.standard_normal()
    expected = _NUMPY_GAUSS.pack(*example.get_state()[3:])
    place = ctypes.string_at(id(example), type(example).__basicsize__).find(expected)
    return (id(source) + place, _NUMPY_GAUSS.size) if place >= 0 else (id(source), 0)


_PYTHON_VIEW, _NUMPY_VIEW, _GAUSS_VIEW = _View(_locate_python), _View(_locate_numpy), _View(_locate_gauss)


def _decode_python(memory: bytes) -> tuple[int, ...]:
    position, *words = _PYTHON_TWISTER.unpack(memory)
    return (*words, position)


def _can_read_python() -> bool:
    """Whether this Python keeps the state where it is expected, shown by an example."""
    if PUBLIC_ONLY or sys.implementation.name != "cpython" or not hasattr(random, "_inst"):
        return False
    example = random.Random(1)
    example.random()
    return bool(_decode_python(ctypes.string_at(*_locate_python(example))) == example.getstate()[1])


READS_PYTHON = _can_read_python()
READS_NUMPY = not PUBLIC_ONLY


def python_state() -> tuple[Any, ...]:
    """The state of Python's global generator, to be compared with `==` and passed to `set_python_state`."""
    if not READS_PYTHON:
        return random.getstate()
    generator: Any = random._inst
    return _PYTHON_VIEW.read(generator), generator.gauss_next


def set_python_state(state: tuple[Any, ...]) -> None:
    if isinstance(state[0], bytes):
        state = (random.Random.VERSION, _decode_python(state[0]), state[1])
    random.setstate(state)


def numpy_state() -> Any:
    """The state of NumPy's global generator in the same way; None if NumPy is not loaded."""
    source: Any = getattr(sys.modules.get("numpy"), "random", None)
    if source is None:
        return None
    current = getattr(source, "get_bit_generator", None)
    if READS_NUMPY and current is not None and type(current()).__name__ == "MT19937":
        gauss = _GAUSS_VIEW.read(source.mtrand._rand)
        if gauss:
            return _NUMPY_VIEW.read(current()), gauss
    return _Comparable(source.get_state(legacy=False))


def set_numpy_state(state: Any) -> None:
    """Restore a state, unless a generator of another kind has taken the place of the one it belongs to."""
    numpy: Any = sys.modules["numpy"]
    official = state.value if isinstance(state, _Comparable) else _decode_numpy(*state)
    if numpy.random.get_state(legacy=False)["bit_generator"] == official["bit_generator"]:
        numpy.random.set_state(official)


def _decode_numpy(memory: bytes, gauss: bytes) -> dict[str, Any]:
    *words, position = _NUMPY_TWISTER.unpack(memory)
    has_gauss, number = _NUMPY_GAUSS.unpack(gauss)
    twister = {"key": words, "pos": position}
    return {"bit_generator": "MT19937", "state": twister, "has_gauss": has_gauss, "gauss": number}


class _Comparable:
    """A public state of NumPy, compared by its text because it holds arrays."""

    def __init__(self, state: Any) -> None:
        self.value = dict(state)
        self._text = _text(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Comparable) and other._text == self._text

    __hash__ = None  # type: ignore[assignment]


def _text(value: Any) -> str:
    """A state as text with all its numbers; `repr` of an array leaves out the middle."""
    if isinstance(value, dict):
        return str({key: _text(item) for key, item in value.items()})
    return str(value.tolist()) if hasattr(value, "tolist") else repr(value)
