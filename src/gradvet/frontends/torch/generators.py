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


class Generators:
    """The states of both generators at one moment."""

    __slots__ = ("_numpy", "_python")

    def __init__(self) -> None:
        self._python = _python_state()
        self._numpy = _numpy_state()

    def restore(self) -> None:
        """Back to that moment, if anything was drawn since."""
        if self._python != _python_state():
            random.setstate(_official(*self._python))
        if self._numpy is not None and self._numpy != (now := _numpy_state()) and now and now[0] == self._numpy[0]:
            ctypes.memmove(*self._numpy, NUMPY_STATE)


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


_PYTHON, _NUMPY = _Memory(), _Memory()


def _python_state() -> tuple[Any, float | None]:
    """The words, as bytes or as numbers, and the second of a pair of normal numbers that waits to be used."""
    generator: Any = random._inst
    return (_PYTHON.of(generator, _place) if LIES_THERE else generator.getstate()[1]), generator.gauss_next


def _official(words: Any, waiting: float | None) -> tuple[Any, ...]:
    """The state as `random.setstate` wants it."""
    return random.Random.VERSION, _decoded(words) if LIES_THERE else words, waiting


def _numpy_state() -> tuple[int, bytes] | None:
    """Where NumPy keeps the state of its global generator, and the state; None if it has not its usual one."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return None
    generator: Any = numpy.random.get_bit_generator()
    if type(generator).__name__ != "MT19937":
        return None
    state = _NUMPY.of(generator, _numpy_place)
    return _NUMPY.address, state


def _numpy_place(generator: Any) -> tuple[int, int]:
    return int(generator.ctypes.state_address), NUMPY_STATE
