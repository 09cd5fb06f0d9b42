"""A report knows the code of its function."""

from __future__ import annotations

import functools
from pathlib import Path

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


@pytest.mark.parametrize(
    ("func", "first"),
    [
        (plain, "def plain"),
        (functools.partial(functools.partial(plain)), "def plain"),
        (wrapper, "def plain"),
        (Function, "class Function"),
        (Function.apply, "class Function"),
        (Module(), "class Module"),
    ],
)
def test_code_is_what_somebody_wrote(func: object, first: str) -> None:
    source = source_of(func)  # type: ignore[arg-type]
    assert source is not None
    assert source.code.startswith(first)
    assert Path(source.file).name == "test_provenance.py"
    assert Path(__file__).read_text().splitlines()[source.line - 1].startswith(first)


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
