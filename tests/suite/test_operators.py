"""Samples of the operator database as cases: `suite/sources.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradvet.core.results import Verdict
from gradvet.errors import InvalidProblemError
from gradvet.suite.sources import Operators

# Operators warn of their own options and futures; that is not what is tested.
pytestmark = pytest.mark.filterwarnings("ignore")


def names(**wanted: Any) -> list[str]:
    return list(Operators(**wanted).open())


def test_cases_are_named_after_operator_variant_dtype_and_sample() -> None:
    found = names(glob="addmm", dtypes=("float64",))
    assert "addmm/float64/0" in found
    assert "addmm/inplace/float64/0" in found
    assert len(set(found)) == len(found)


def test_glob_and_dtypes_choose() -> None:
    found = names(glob="linalg.*det", dtypes=("complex128",))
    assert {name.split("/")[0] for name in found} == {"linalg.det", "linalg.slogdet"}
    assert {name.split("/")[-2] for name in found} == {"complex128"}


def test_some_samples_are_the_same_ones_every_time() -> None:
    some = names(glob="addmm", dtypes=("float64",), samples=2)
    assert len([name for name in some if "inplace" not in name]) == 2
    assert some == names(glob="addmm", dtypes=("float64",), samples=2)
    assert set(some) <= set(names(glob="addmm", dtypes=("float64",)))


def test_samples_with_nothing_to_differentiate_at_are_taken_last() -> None:
    cases = Operators("cat", ("float64",), samples=3).open()
    assert all(sum(tensor.numel() for tensor in case.inputs()) for case in cases.values())


def test_name_gives_the_same_inputs_after_other_random_numbers() -> None:
    (name,) = names(glob="cov", dtypes=("float64",), samples=1)
    first = Operators().open()[name].inputs()
    Operators().open()["sin/float64/0"]
    torch.rand(3)
    assert all(map(torch.equal, first, Operators("sin").open()[name].inputs()))


def test_sample_is_checked_and_says_how_to_repeat_it() -> None:
    report = Operators(flags="--order 2").open()["addmm/inplace/float64/0"].run(seed=3, order=2)
    assert report.verdict is Verdict.PASS
    assert report.replay == "gradvet ops --case addmm/inplace/float64/0 --order 2 --seed 3"
    assert report.source is None  # the function belongs to gradvet


@pytest.mark.parametrize("name", ["addmm/float64/9999", "addmm/float64", "addmm", "nothing/float64/0", "addmm/int64/0"])
def test_unknown_name_is_one_line(name: str) -> None:
    with pytest.raises(InvalidProblemError, match=r"has no|a floating-point or complex dtype was expected"):
        Operators().open()[name]


def test_glob_that_fits_nothing_is_one_line() -> None:
    with pytest.raises(InvalidProblemError, match=r"no operator fits 'nothing\*'"):
        names(glob="nothing*")
