"""Reads dataclasses from the values of a JSON document, each value checked against the type of its field.

A document may come from someone else: what is not as expected raises ValueError.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")

MAX_LEVELS = 50
"""Levels of lists and mappings in a document."""

NONFINITE_WORDS = ("nan", "inf", "-inf")
"""How numbers that JSON does not have are written."""

CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, change colours, reorder text or cannot be written; line breaks and tabs are none."""


def escape_controls(text: str) -> str:
    """The text with control characters written as escape sequences, so that a terminal does not act on them.

    >>> escape_controls("a\x1b[2J")
    'a\\\\x1b[2J'
    """
    return CONTROL_CHARACTERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escaped(value: Any, depth: int = 0) -> Any:
    """JSON values with the control characters of all texts escaped. Raises ValueError if they are nested deeply."""
    if isinstance(value, str):
        return escape_controls(value)
    if depth > MAX_LEVELS:
        raise ValueError(f"more than {MAX_LEVELS} levels")
    if isinstance(value, Mapping):
        return {escape_controls(str(key)): escaped(item, depth + 1) for key, item in value.items()}
    return [escaped(item, depth + 1) for item in value] if isinstance(value, (tuple, list)) else value


def read_value(kind: Any, value: Any, place: str, readers: Mapping[type, Callable[[str], Any]]) -> Any:
    """The value as its type says. `readers` make objects of types that are written as text."""
    if kind is Any:
        return value
    if kind in readers:
        return readers[kind](_of_type(str, value, place))
    if kind is float:
        if value not in NONFINITE_WORDS and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError(f"{place} is a number, found {shortened(repr(value))}")
        return float(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(_of_type(str, value, place))
    if is_dataclass(kind):
        return read_dataclass(kind, value, place, readers)
    parts = get_args(kind)
    if get_origin(kind) is UnionType:
        (inner,) = [part for part in parts if part is not NoneType]
        return None if value is None else read_value(inner, value, place, readers)
    if get_origin(kind) is tuple:
        return tuple([read_value(parts[0], item, place, readers) for item in _of_type(list, value, place)])
    if get_origin(kind) is Mapping:
        return {key: read_value(parts[1], item, key, readers) for key, item in _of_type(dict, value, place).items()}
    return _of_type(kind, value, place)


def read_dataclass(kind: Any, value: Any, place: str, readers: Mapping[type, Callable[[str], Any]]) -> Any:
    """A dataclass from a mapping of the keys of its fields. Keys of no field are left out."""
    given = _of_type(dict, value, place)
    types = _types(kind)
    keys = {field.name: key_of(field) for field in fields(kind)}
    for field in fields(kind):
        if keys[field.name] not in given and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{place} has no {keys[field.name]}")
    named = ((name, key) for name, key in keys.items() if key in given)
    return kind(**{name: read_value(types[name], given[key], key, readers) for name, key in named})


def key_of(field: Field[Any]) -> str:
    """The name of a field in a document: its own, or the one that older documents have."""
    return str(field.metadata.get("key", field.name))


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _of_type(kind: type[Kind], value: Any, place: str) -> Kind:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{place} is a value of type {kind.__name__}, found {shortened(repr(value))}")
    return value


def shortened(text: str) -> str:
    """The text, cut to 60 characters."""
    return text if len(text) <= 60 else f"{text[:57]}..."
