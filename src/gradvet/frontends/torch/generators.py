"""The global generators of Python and NumPy, kept by a look at their memory.

Asked for its state, Python makes 625 numbers, and NumPy an array: either takes about as long as a small check, most of
it in caches that have to be filled again. So the state is read where it lies, and only if somebody drew from it is it
written back. Where it does not lie where it is expected, the generator is asked after all.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

WORDS = struct.Struct("=i624I")
"""The Mersenne twister as CPython holds it, behind the head of the object: a position and 624 words."""

NUMPY_STATE = 2500
"""Bytes of NumPy's own twister: 624 words and a position."""

PENDING = struct.Struct("=i4xd")
"""Beside it, the second of a pair of normal numbers, behind a mark that it waits to be used."""


class Generators:
    """The states of both generators at one moment."""

    __slots__ = ("_numpy", "_python", "_unusual")

    def __init__(self) -> None:
        self._python = _python_state()
        self._numpy = _numpy_state()
        self._unusual = _unusual_state() if self._numpy is None else None

    def are_untouched(self) -> bool:
        """Whether nothing was drawn since."""
        asked = self._unusual is None or repr(self._unusual) == repr(_unusual_state())
        return asked and self._python == _python_state() and self._numpy == _numpy_state()

    def restore(self) -> None:
        """Back to that moment, if anything was drawn since."""
        if self._python != _python_state():
            random.setstate(_official(*self._python))
        if self._unusual is not None:
            _ask_back(self._unusual)
        if self._numpy is None or self._numpy == (now := _numpy_state()) or now is None:
            return
        for (address, state), (still, _) in zip(self._numpy, now, strict=True):
            if address == still:
                ctypes.memmove(address, state, len(state))


def _place(generator: random.Random) -> tuple[int, int]:
    """Address and size of the state of one of Python's generators."""
    return id(generator) + object.__basicsize__, WORDS.size


def _decoded(memory: bytes) -> tuple[int, ...]:
    position, *words = WORDS.unpack(memory)
    return (*words, position)


def _lies_there() -> bool:
    """Whether this Python keeps its generators where CPython does."""
    if sys.implementation.name != "cpython":
        return False
    example = random.Random(1)
    example.random()
    return bool(_decoded(ctypes.string_at(*_place(example))) == example.getstate()[1])


LIES_THERE = _lies_there()


class _Memory:
    """The state of a generator where it lies, looked up anew only when another generator has taken its place."""

    __slots__ = ("_generator", "_view", "address")

    def __init__(self) -> None:
        self._generator: Any = None
        self._view: Any = None
        self.address = 0

    def of(self, generator: Any, place: Callable[[Any], tuple[int, int]]) -> bytes:
        if generator is not self._generator:
            self.address, size = place(generator)
            self._generator, self._view = generator, (ctypes.c_char * size).from_address(self.address)
        state: bytes = self._view.raw
        return state


_PYTHON, _NUMPY, _PENDING = _Memory(), _Memory(), _Memory()


def _python_state() -> tuple[Any, float | None]:
    """The words, as bytes or as numbers, and the second of a pair of normal numbers that waits to be used."""
    generator: Any = random._inst
    return (_PYTHON.of(generator, _place) if LIES_THERE else generator.getstate()[1]), generator.gauss_next


def _official(words: Any, waiting: float | None) -> tuple[Any, ...]:
    """The state as `random.setstate` wants it."""
    return random.Random.VERSION, _decoded(words) if LIES_THERE else words, waiting


def _numpy_state() -> tuple[tuple[int, bytes], tuple[int, bytes]] | None:
    """Where NumPy keeps the words of its global generator and a waiting number, and both; None for an unusual one."""
    numpy: Any = sys.modules.get("numpy")
    current = getattr(getattr(numpy, "random", None), "get_bit_generator", None)
    generator = None if current is None else current()
    if type(generator).__name__ != "MT19937":
        return None
    words, waiting = _NUMPY.of(generator, _numpy_place), _PENDING.of(numpy.random.mtrand._rand, _pending_place)
    return (_NUMPY.address, words), (_PENDING.address, waiting)


def _unusual_state() -> dict[str, Any] | None:
    """What NumPy says of a global generator that somebody put in place of its own, or in a version of other ways."""
    source: Any = getattr(sys.modules.get("numpy"), "random", None)
    return None if source is None else dict(source.get_state(legacy=False))


def _ask_back(state: dict[str, Any]) -> None:
    """The state for a generator of its kind, if there is still one and somebody drew from it."""
    now = _unusual_state()
    if now is not None and now["bit_generator"] == state["bit_generator"] and repr(now) != repr(state):
        sys.modules["numpy"].random.set_state(state)


def _numpy_place(generator: Any) -> tuple[int, int]:
    return int(generator.ctypes.state_address), NUMPY_STATE


def _pending_place(source: Any) -> tuple[int, int]:
    """Where an example of its kind has the number that it is known to keep; nothing if it has it nowhere."""
    example = type(source)(1)
    example.standard_normal()
    expected = PENDING.pack(*example.get_state()[3:])
    place = ctypes.string_at(id(example), type(example).__basicsize__).find(expected)
    return (id(source) + place, PENDING.size) if place >= 0 else (id(source), 0)
