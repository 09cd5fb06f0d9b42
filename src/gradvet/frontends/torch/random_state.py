"""The state of random generators, of torch, Python and NumPy, and its restoration.

The global generators of Python and NumPy are read in memory, by their address, after every call of a function: their
public methods take 12 and 40 microseconds. These are the fallback.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.frontends.torch import private
from gradvet.frontends.torch.private import PUBLIC_ONLY


def torch_states() -> list[tuple[torch.Generator, Tensor]]:
    """Torch's generators, each with its state."""
    on_devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [(generator, generator.get_state()) for generator in (torch.default_generator, *on_devices)]


def _state_access(value: Any) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
    """How the state of a random generator of torch, Python or NumPy is read and written; None for other values."""
    if isinstance(value, torch.Generator):
        return value.get_state, value.set_state
    if isinstance(value, random.Random):
        return value.getstate, value.setstate
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is None:
        return None
    if isinstance(value, numpy_random.RandomState):
        return partial(value.get_state, legacy=False), value.set_state  # without a warning about its kind
    if isinstance(value, (numpy_random.Generator, numpy_random.BitGenerator)):
        bits = getattr(value, "bit_generator", value)
        return lambda: bits.state, partial(setattr, bits, "state")
    return None


def generators_among(things: Iterable[Any]) -> list[Any]:
    """The random generators among some objects and among the attributes of modules, each once.

    Needed by `test_generators_that_a_function_holds_give_the_same_numbers_to_every_evaluation` and
    `test_right_model_has_no_culprit`.
    """
    candidates = [
        value
        for thing in things
        for value in (
            [value for module in thing.modules() for _, value in private.attributes_of(module)]
            if isinstance(thing, nn.Module)
            else [thing]
        )
    ]
    return list({id(one): one for one in candidates if _state_access(one) is not None}.values())


class RandomState:
    """The state of all generators that a function may draw from: those of torch, Python and NumPy, and given ones."""

    __slots__ = ("_given", "_numpy", "_python", "_torch")

    def __init__(self, given: Iterable[Any] = ()) -> None:
        self._given = []
        for read, write in filter(None, map(_state_access, given)):
            with suppress(NotImplementedError):  # a source without a state, such as SystemRandom
                self._given.append((write, read()))
        self._torch, self._python, self._numpy = torch_states(), python_state(), numpy_state()

    def is_torch_current(self) -> bool:
        """Whether no number has been drawn from torch's generators since."""
        now = torch_states()
        same = (torch.equal(before, after) for (_, before), (_, after) in zip(self._torch, now, strict=False))
        return len(self._torch) == len(now) and all(same)

    def restore(self) -> None:
        """Write back the states; those of Python and NumPy where they have changed."""
        for generator, state in self._torch:
            generator.set_state(state)
        self.restore_given()
        if self._python != python_state():
            set_python_state(self._python)
        if self._numpy is not None and self._numpy != numpy_state():
            set_numpy_state(self._numpy)

    def restore_given(self) -> None:
        for write, state in self._given:
            write(state)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Restore all random states on exit."""
    state = RandomState()
    try:
        yield
    finally:
        state.restore()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all generators on entry and restore their states on exit."""
    with preserved_rng():
        # Not torch.manual_seed, which loads the compiler (seconds).
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed)
        yield


_PYTHON_TWISTER = struct.Struct("=i624I")
"""CPython's Mersenne twister behind the head of the object: position, then 624 words."""

_NUMPY_TWISTER = struct.Struct("=624Ii")
"""NumPy's: 624 words, then the position."""

_NUMPY_GAUSS = struct.Struct("=i4xd")
"""Whether a second normal number is kept, and that number."""


def _reader(locate: Callable[[Any], tuple[int, int]]) -> Callable[[Any], bytes]:
    """Reads the bytes at the address of a generator's state; the address is found anew for another generator."""
    known: Any = None
    memory: Any = None

    def read(generator: Any) -> bytes:
        nonlocal known, memory
        if generator is not known:
            address, size = locate(generator)
            known, memory = generator, (ctypes.c_char * size).from_address(address)
        state: bytes = memory.raw
        return state

    return read


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


_read_python, _read_numpy, _read_gauss = _reader(_locate_python), _reader(_locate_numpy), _reader(_locate_gauss)


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
    return _read_python(generator), generator.gauss_next


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
        gauss = _read_gauss(source.mtrand._rand)
        if gauss:
            return _read_numpy(current()), gauss
    return _plain(source.get_state(legacy=False))


def set_numpy_state(state: Any) -> None:
    """Restore a state, unless a generator of another kind has taken the place of the one it belongs to."""
    numpy: Any = sys.modules["numpy"]
    official = state if isinstance(state, dict) else _decode_numpy(*state)
    if numpy.random.get_state(legacy=False)["bit_generator"] == official["bit_generator"]:
        numpy.random.set_state(official)


def _decode_numpy(memory: bytes, gauss: bytes) -> dict[str, Any]:
    *words, position = _NUMPY_TWISTER.unpack(memory)
    has_gauss, number = _NUMPY_GAUSS.unpack(gauss)
    twister = {"key": words, "pos": position}
    return {"bit_generator": "MT19937", "state": twister, "has_gauss": has_gauss, "gauss": number}


def _plain(value: Any) -> Any:
    """A public state of NumPy with lists in place of its arrays, which `==` does not compare as a whole."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value
