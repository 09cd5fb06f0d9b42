"""The global generators of Python and NumPy (`frontends/torch/random_state.py`), restored after draws."""

from __future__ import annotations

import random

import numpy
import pytest

from gradvet.frontends.torch import private, random_state
from gradvet.frontends.torch.random_state import RandomState


@pytest.fixture(params=[True, False], ids=["in memory", "asked for"])
def scheme(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and private.PUBLIC_ONLY:
        pytest.skip("private names are switched off")
    monkeypatch.setattr(random_state, "READS_PYTHON", request.param)
    monkeypatch.setattr(random_state, "READS_NUMPY", request.param)


@pytest.mark.usefixtures("scheme")
def test_numbers_drawn_in_between_were_never_drawn() -> None:
    kept = RandomState()
    first = random.random(), random.gauss(0.0, 1.0), float(numpy.random.rand())
    for _ in range(1000):
        random.random()
        numpy.random.rand()
    kept.restore()
    assert (random.random(), random.gauss(0.0, 1.0), float(numpy.random.rand())) == first


@pytest.mark.usefixtures("scheme")
def test_normal_number_that_waits_to_be_used_is_kept() -> None:
    random.gauss(0.0, 1.0)
    kept = RandomState()
    waiting = random.gauss(0.0, 1.0)
    kept.restore()
    assert random.gauss(0.0, 1.0) == waiting


def test_normal_number_that_numpy_keeps_is_kept() -> None:
    numpy.random.seed(1)
    for _ in range(2):  # none waits, then one does
        kept = RandomState()
        first = numpy.random.randn()
        kept.restore()
        assert numpy.random.randn() == first


@pytest.mark.usefixtures("scheme")
def test_generator_that_nobody_drew_from_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = RandomState()
    monkeypatch.setattr(random, "setstate", lambda state: pytest.fail("the state was written"))
    kept.restore()


@pytest.mark.parametrize("kind", [numpy.random.PCG64, numpy.random.SFC64, type("Mine", (numpy.random.MT19937,), {})])
def test_generator_that_somebody_put_in_place_of_numpys_is_kept_too(kind: type) -> None:
    own = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(kind(5))
        kept, before = RandomState(), repr(numpy.random.get_state(legacy=False))
        numpy.random.standard_normal(3)
        kept.restore()
        assert repr(numpy.random.get_state(legacy=False)) == before
    finally:
        numpy.random.set_bit_generator(own)
