"""What torch makes of its own derivatives, asked once for each function and combination of operators.

Under vmap or recomputation a graph of torch's own nodes shows nothing of the user's rules, nor does it where cotangents
are missing or lie otherwise in memory: whether torch can be trusted there is a matter of the operators and of the code
that calls them, not of the numbers. The first check of a function answers for the next ones in the process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, NoneType
from typing import Any

from gradvet.core.results import Finding, Verdict
from gradvet.core.survey import TrialCheck
from gradvet.core.trial import Trial

MOST = 4096
"""So many combinations are kept in mind; then the oldest are forgotten."""

SETTINGS = (NoneType, bool, int, float, complex, str)
"""What a function may be made with to behave in one way or another."""

_SEEN: dict[Hashable, tuple[Finding, ...]] = {}


def once_for_its_operators(name: str, check: TrialCheck, function: Callable[..., Any]) -> TrialCheck:
    """The check, or what it found when this function was first seen with these operators."""
    code = _code_of(function)
    return check if code is None else partial(_recalled, (name, code), check)


def forget() -> None:
    """Ask anew."""
    _SEEN.clear()


def _recalled(question: Hashable, check: TrialCheck, trial: Trial) -> Iterator[Finding]:
    kind = (question, trial.subject.circumstances.operators(), trial.reversible)
    known = _SEEN.get(kind)
    if known is not None:
        yield from known
        return
    before = len(trial.record.notes), trial.subject.drawn
    findings = tuple(check(trial))
    # What calls for a word names numbers, and is to be seen at the next ones too; what draws random numbers is asked
    # again, so that the numbers which follow do not depend on what was seen before.
    alike = (len(trial.record.notes), trial.subject.drawn) == before
    if alike and all(f.verdict in (Verdict.PASS, Verdict.SKIPPED) for f in findings):
        while len(_SEEN) >= MOST:
            _SEEN.pop(next(iter(_SEEN)), None)
        _SEEN[kind] = tuple(replace(finding, headline=f"{finding.headline} (seen before)") for finding in findings)
    yield from findings


def _code_of(function: Callable[..., Any]) -> Hashable | None:
    """What stays the same when a function is defined again; None where that cannot be told."""
    if isinstance(function, functools.partial):
        return _code_of(function.func)
    if isinstance(function, MethodType):
        return type(function.__self__), _code_of(function.__func__)
    if isinstance(function, FunctionType):
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        return function.__code__, tuple([_kind_of(thing) for thing in (*(function.__closure__ or ()), *defaults)])
    return function if isinstance(function, BuiltinFunctionType) else None


def _kind_of(thing: Any) -> Hashable:
    """What stays the same of something that a function holds: settings as they are, functions by their code."""
    if isinstance(thing, CellType):
        try:
            thing = thing.cell_contents
        except ValueError:  # the cell is still empty
            return None
    if isinstance(thing, SETTINGS):
        return type(thing), thing
    if isinstance(thing, FunctionType):
        return thing.__code__  # not what it holds in turn: that may be the function itself
    return thing if isinstance(thing, BuiltinFunctionType) else (type(thing),)
