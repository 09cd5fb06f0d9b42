"""A report knows the code of its function."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradvet.core.provenance import environment, source_of, title_of


def plain(x: Tensor) -> Tensor:
    return x.sin()


@functools.wraps(plain)
def wrapper(x: Tensor) -> Tensor:
    return plain(x)


class Function(torch.autograd.Function):
    """Has a forward."""


class Module(nn.Module):
    """Has a forward, too."""


class Rule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.sin()


def make_rule() -> type[torch.autograd.Function]:
    class Rule(torch.autograd.Function):
        """Another class of this name."""

        @staticmethod
        @functools.cache
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.cos()

    return Rule


@dataclass
class Record:
    """Has an `__init__` that nobody wrote."""

    factor: float

    def __call__(self, x: Tensor) -> Tensor:
        return self.factor * x


@pytest.mark.parametrize(
    ("func", "first"),
    [
        (plain, "def plain"),
        (functools.partial(functools.partial(plain)), "def plain"),
        (wrapper, "def plain"),
        (Function, "class Function"),
        (Function.apply, "class Function"),
        (Module(), "class Module"),
        (Record(2.0), "class Record"),
        (Record(2.0).__call__, "    def __call__"),
    ],
)
def test_code_is_what_somebody_wrote(func: object, first: str) -> None:
    source = source_of(func)  # type: ignore[arg-type]
    assert source is not None
    assert source.code.startswith(first)
    assert Path(source.file).name == "test_provenance.py"
    assert Path(__file__).read_text().splitlines()[source.line - 1].startswith(first)


def test_classes_of_the_same_name_are_told_apart() -> None:
    sources = source_of(Rule.apply), source_of(make_rule().apply)
    assert ["x.cos()" in source.code for source in sources if source] == [False, True]


def test_code_is_found_without_a_search_of_all_modules_or_a_parse_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: object) -> None:
        raise AssertionError("takes up to seconds")

    monkeypatch.setattr(inspect, "getmodule", slow)
    monkeypatch.setattr(inspect, "findsource", slow)
    assert source_of(plain) is not None
    assert source_of(make_rule().apply) is not None


def test_function_without_a_file_has_no_code() -> None:
    names: dict[str, Any] = {}
    exec("def made(x):\n    return x", names)
    assert source_of(names["made"]) is None


@pytest.mark.parametrize(
    ("func", "title"),
    [
        (plain, "plain"),
        (functools.partial(functools.partial(plain)), "plain"),
        (Function, "Function"),
        (Function.apply, "Function.apply"),
        (Module(), "Module"),
        (Module().forward, "Module._forward_unimplemented"),
        (torch.sin, "sin"),
    ],
)
def test_title_is_what_people_call_it(func: object, title: str) -> None:
    assert title_of(func) == title


def test_builtin_has_no_code() -> None:
    assert source_of(torch.sin) is None


def test_environment_names_versions() -> None:
    assert {"python", "platform", "gradvet", "torch"} <= set(environment())
