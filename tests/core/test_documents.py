"""Values of a JSON document are read only if they have the types of the fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import pytest

from gradvet.core.documents import MAX_LEVELS, escape_controls, escaped, read_dataclass
from gradvet.core.ledger import Cost
from gradvet.core.results import Report
from tests.reports.samples import passed


class Colour(Enum):
    RED = "red"


class Place(str):
    """Written as text."""


@dataclass
class Inner:
    number: int


@dataclass
class Thing:
    name: str
    size: float
    colour: Colour
    place: Place
    inner: Inner | None = None
    names: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_old: bool = False


RIGHT: dict[str, Any] = {"name": "a", "size": 1, "colour": "red", "place": "there"}


def read(**changes: Any) -> Thing:
    thing: Thing = read_dataclass(Thing, {**RIGHT, **changes}, "a thing", {Place: Place})
    return thing


def test_values_of_the_right_types_are_read() -> None:
    found = read(size="inf", inner={"number": 3}, names=["x", "y"], versions={"a": "1"}, facts={"b": [1, None]})
    assert found == Thing(
        "a", math.inf, Colour.RED, Place("there"), Inner(3), ("x", "y"), {"a": "1"}, {"b": [1, None]}, False
    )
    assert math.isnan(read(size="nan").size)
    assert read(inner=None, more="is left out").inner is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": 1}, "name is a value of type str, found 1"),
        ({"size": "large"}, "size is a number, found 'large'"),
        ({"size": True}, "size is a number, found True"),
        ({"colour": ["red"]}, r"colour is a value of type str, found \['red'\]"),
        ({"colour": "blue"}, "'blue' is not a valid Colour"),
        ({"place": 3}, "place is a value of type str, found 3"),
        ({"inner": 3}, "inner is a value of type dict, found 3"),
        ({"inner": {}}, "inner has no number"),
        ({"inner": {"number": 1.5}}, "number is a value of type int, found 1.5"),
        ({"inner": {"number": True}}, "number is a value of type int, found True"),
        ({"names": "xy"}, "names is a value of type list, found 'xy'"),
        ({"names": ["x", None]}, "names is a value of type str, found None"),
        ({"versions": {"a": 1}}, "a is a value of type str, found 1"),
        ({"facts": []}, r"facts is a value of type dict, found \[\]"),
        ({"is_old": 0}, "is_old is a value of type bool, found 0"),
    ],
)
def test_value_of_another_type_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(**changes)


def test_missing_value_is_refused() -> None:
    with pytest.raises(ValueError, match="a thing has no place"):
        read_dataclass(Thing, {name: RIGHT[name] for name in ("name", "size", "colour")}, "a thing", {Place: Place})


def test_control_characters_and_halves_of_characters_are_escaped() -> None:
    assert escape_controls("a\x1b[2J\u202e\ud800\tb\n") == "a\\x1b[2J\\u202e\\ud800\tb\n"
    assert escaped({"\x07": ["\x9b", 1]}) == {"\\x07": ["\\x9b", 1]}


def test_deeply_nested_values_are_refused() -> None:
    value: Any = 1
    for _ in range(MAX_LEVELS + 2):
        value = [value]
    with pytest.raises(ValueError, match="more than 50 levels"):
        escaped(value)


def test_documents_keep_the_former_names_of_the_numbers_of_passes() -> None:
    report = replace(passed(), cost=Cost(forwards=3, vjps=2, jvps=1))
    document = report.to_dict()
    assert document["cost"] == {"forwards": 3, "pulls": 2, "pushes": 1}
    read = Report.from_dict(document).cost
    assert (read.vjps, read.jvps) == (read.pulls, read.pushes) == (2, 1)
