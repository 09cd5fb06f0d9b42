"""The state of random generators, of torch, Python and NumPy, and its restoration."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from gradvet.frontends.torch import private

States = list[tuple[Callable[[Any], object], Any]]
"""How the state of each of some generators is written, and that state."""


def torch_states() -> States:
    """The states of torch's generators."""
    on_devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [(generator.set_state, generator.get_state()) for generator in (torch.default_generator, *on_devices)]


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

    __slots__ = ("_numpy", "_python", "given", "torch")

    def __init__(self, given: Iterable[Any] = ()) -> None:
        self.given: States = []
        for read, write in filter(None, map(_state_access, given)):
            with suppress(NotImplementedError):  # a source without a state, such as SystemRandom
                self.given.append((write, read()))
        self.torch, self._python, self._numpy = torch_states(), random.getstate(), numpy_state()

    def is_torch_current(self) -> bool:
        """Whether no number has been drawn from torch's generators since."""
        now = torch_states()
        same = (torch.equal(before, after) for (_, before), (_, after) in zip(self.torch, now, strict=False))
        return len(self.torch) == len(now) and all(same)

    def restore(self) -> None:
        """Write back all states."""
        for write, state in (*self.torch, *self.given):
            write(state)
        self.restore_others()

    def restore_others(self) -> bool:
        """Write back those of Python and NumPy if they have changed; whether one has. Takes tens of microseconds."""
        has_changed = self._python != random.getstate()
        if has_changed:
            random.setstate(self._python)
        if self._numpy is not None and _comparable(self._numpy) != _comparable(numpy_state()):
            set_numpy_state(self._numpy)
            return True
        return has_changed


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


def numpy_state() -> Any:
    """The state of NumPy's global generator; None if NumPy is not loaded."""
    source: Any = getattr(sys.modules.get("numpy"), "random", None)
    return None if source is None else source.get_state(legacy=False)


def set_numpy_state(state: Any) -> None:
    """Restore a state, unless a generator of another kind has taken the place of the one it belongs to."""
    if numpy_state()["bit_generator"] == state["bit_generator"]:
        sys.modules["numpy"].random.set_state(state)


def _comparable(value: Any) -> Any:
    """A state of NumPy with bytes in place of its arrays, which `==` does not compare as a whole."""
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    return value.tobytes() if hasattr(value, "tobytes") else value
