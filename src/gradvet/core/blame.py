"""The report of `blame` and `watch` about a model as plain data, and what that of a piece says about its fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gradvet.core.results import FORMAT, RENDERERS, Finding, Report, ShownReport, SourceCode, Verdict, plain_data

FUNCTION, OPERATOR, MODULE = "autograd.Function", "operator", "module"
"""Kinds of pieces."""

ROOT = "the model"
"""Name of the module at the root, whose path is empty."""


STOP_ADVICE = "If it is meant so, pass stops='constant': what is stopped counts as a constant then."


@dataclass(frozen=True, slots=True)
class Stop:
    """A line at which a gradient stops or is changed."""

    place: SourceCode
    what: str
    """The event, as a sentence without its end."""
    explains: bool = False
    """Whether the derivative is right without it."""
    can_hold: bool = False
    """Whether `stops="constant"` accepts it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One recorded call that was checked alone, or could not be."""

    path: str
    """The path of the module whose code made the call, or the line of the call where no model is known; of a module,
    its own path."""
    kind: str
    name: str
    verdict: Verdict
    place: SourceCode | None = None
    """Where its derivative, or its forward pass, is defined."""
    called: SourceCode | None = None
    """The line that made the call."""
    reason: str = ""
    """Why there is no verdict, or why a failure is accepted."""
    number: int = 1
    """Which of the calls of this function by this line it was, from 1."""
    report: Report | None = None

    @property
    def is_replayed(self) -> bool:
        return self.report is not None

    def __str__(self) -> str:
        return f"{self.path or ROOT}: {self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Culprit:
    """A place in the model whose derivative is wrong."""

    path: str
    what: str
    """`autograd.Function Rope`, `detach`, `hook on parameter weight`."""
    place: SourceCode | None
    cause: str
    """The diagnosis in one sentence."""
    input: str = ""
    called: SourceCode | None = None
    others: tuple[str, ...] = ()
    """Paths of further calls that fail for the same line."""
    stops: tuple[Stop, ...] = ()
    finding: Finding | None = None

    @property
    def advice(self) -> str:
        """How to accept a stop; nothing about another line that explains the failure; else the finding's advice."""
        explaining = [stop.can_hold for stop in self.stops if stop.explains]
        if explaining:
            return STOP_ADVICE if all(explaining) else ""
        return self.finding.advice if self.finding else ""

    def __str__(self) -> str:
        where = [self.what, *([str(self.place)] if self.place else []), *([self.input] if self.input else [])]
        return f"{self.path or ROOT}: {', '.join(where)}: {self.cause}"


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A module of the model with what is known about it."""

    path: str
    name: str
    """The class of the module."""
    verdict: Verdict
    note: str = ""
    children: tuple[TreeNode, ...] = ()
    pieces: tuple[Piece, ...] = ()
    """Functions and operators that its own code calls."""


@dataclass(frozen=True, slots=True, repr=False)
class BlameReport(ShownReport):
    """Which piece of a model has a wrong derivative. `print(report)` shows it, `report.save(...)` writes it."""

    renderer_prefix: ClassVar[str] = "blame "
    title: str
    culprits: tuple[Culprit, ...]
    pieces: tuple[Piece, ...]
    """Functions, operators and modules that were recorded and checked, or could not be."""
    tree: TreeNode | None
    seconds: float
    seed: int
    warnings: tuple[Culprit, ...] = ()
    """Lines that are no wrong derivative by themselves, such as a parameter that is not registered."""
    accepted: tuple[Stop, ...] = ()
    """Stops that were held constant, because the caller said so."""
    notes: tuple[str, ...] = ()
    is_complete: bool = False
    """Whether everything that the verdict PASS needs was checked."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """FAIL with a culprit; PASS if all that was recorded was checked and passes; INCONCLUSIVE otherwise."""
        if self.culprits:
            return Verdict.FAIL
        open_pieces = any(piece.verdict is not Verdict.PASS for piece in self.pieces)
        return Verdict.PASS if self.is_complete and not open_pieces else Verdict.INCONCLUSIVE

    @property
    def culprit(self) -> Culprit | None:
        """The first culprit."""
        return next(iter(self.culprits), None)

    @property
    def unreplayed(self) -> tuple[Piece, ...]:
        """The pieces that could not be replayed or were not checked."""
        return tuple(piece for piece in self.pieces if not piece.is_replayed)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values, with the version of the format."""
        document: dict[str, Any] = {"format": FORMAT, "kind": "blame", "verdict": self.verdict.value}
        return {**document, **plain_data(self), "headlines": [str(culprit) for culprit in self.culprits]}

    def __str__(self) -> str:
        if render := RENDERERS.get("blame text"):
            return render(self)
        return "\n  ".join([f"{self.verdict} {self.title}", *map(str, self.culprits)])


RAISES = "the backward pass raises"
"""Beginning of the headline of a failure by an exception."""


def is_hazard(report: Report, *, called_once: bool, is_right_here: bool) -> bool:
    """Whether all failures need conditions that the recorded run cannot have had.

    A backward pass that raises in another one than the plain pass did not raise there. State that a second call
    overwrites is harmless if there is one call, and so is a write to an argument if the slopes are right in the model.
    """
    harmless = {"reentrancy"} if called_once else set()
    harmless |= {"mutation"} if is_right_here else set()
    return bool(report.failures) and all(
        finding.check in harmless or (finding.check != "reverse" and finding.headline.startswith(RAISES))
        for finding in report.failures
    )


def main_finding(report: Report) -> Finding:
    """The failure that says most: random gradients explain all others; else one with wrong entries, if there is one."""
    said = {finding.check: finding for finding in reversed(report.failures)}
    entries = (finding for finding in report.failures if finding.mismatches)
    return said.get("determinism") or next(entries, report.failures[0])


def cause_of(finding: Finding) -> str:
    """What is wrong in one sentence: the diagnosis of wrong entries without the advice behind its colon."""
    if "wrong" not in finding.facts or finding.check != "reverse" or not finding.advice:
        is_named = finding.check == "reverse" or finding.check in finding.headline
        return finding.headline if is_named else f"{finding.check}: {finding.headline}"
    sentence = finding.advice.split(": ")[0].rstrip(".")
    return sentence[:1].lower() + sentence[1:]


def input_of(finding: Finding) -> str:
    """The input or parameter of the worst entry."""
    return finding.mismatches[0].input.name if finding.mismatches else ""
