"""The call that gives a report again: the function, every setting that is not the usual one, and the seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradvet.api.validation import MODES, Selection, selection_of
from gradvet.checks.catalogue import COMPILE, NAMES
from gradvet.core.frontend import Request
from gradvet.core.provenance import title_of
from gradvet.options import Options

PLAIN = (bool, int, float, complex, str, type(None))
FEW = 3
"""Number of left-out checks up to which the command names them; beyond that it names those that ran."""


def replay(
    request: Request,
    order: int,
    selection: Selection,
    bytes: int | None,
    options: Options,
    points: Mapping[str, str],
) -> str:
    """`gradvet.check(Wrong.apply, inputs, order=2, seed=7)`: values without a literal are given by name."""
    usual = Options(seed=options.seed)
    settings = {
        **({"kwargs": _written(request.kwargs)} if request.kwargs else {}),
        **({"argnums": repr(request.argnums)} if request.argnums is not None else {}),
        **({"order": repr(order)} if order != 1 else {}),
        **_selection(selection),
        **({"masked": "True"} if options.masked else {}),
        **({"resolution": repr(options.resolution)} if options.resolution != usual.resolution else {}),
        **({"accuracy": repr(options.accuracy)} if options.accuracy else {}),
        **_budget(options.seconds, bytes),
        **({"surrogate": _named(request.surrogate, "surrogate")} if request.surrogate else {}),
        **({"reference": _named(request.reference, "reference")} if request.reference else {}),
        **points,
        "seed": repr(options.seed),
    }
    given = ", ".join(f"{name}={value}" for name, value in settings.items())
    return f"gradvet.check({_named(request.func, 'func')}, inputs, {given})"


def _named(func: Any, otherwise: str) -> str:
    """The function's name if that can stand in code, which `<lambda>` and the class of a module cannot."""
    title = title_of(func)
    is_instance = title == type(func).__name__
    return title if not is_instance and all(part.isidentifier() for part in title.split(".")) else otherwise


def _written(kwargs: Mapping[str, Any]) -> str:
    return repr(dict(kwargs)) if all(map(_is_plain, kwargs.values())) else "kwargs"


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)


def _selection(selection: Selection) -> dict[str, str]:
    if COMPILE in selection:
        return {**_selection(selection - {COMPILE}), "compile": "True"}
    for modes in (MODES, *((mode,) for mode in MODES)):
        if selection == selection_of(modes, None):
            return {} if modes == MODES else {"modes": repr(modes)}
    left_out = {name: False for name in NAMES if name not in selection and name != COMPILE}
    chosen = [name for name in NAMES if name in selection]
    return {"checks": repr(left_out if len(left_out) <= FEW else chosen)}


def _budget(seconds: float | None, bytes: int | None) -> dict[str, str]:
    if bytes is not None:
        return {"budget": f"gradvet.Budget(seconds={seconds!r}, bytes={bytes!r})"}
    return {"budget": repr(seconds)} if seconds is not None else {}
