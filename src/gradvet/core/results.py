"""What a check found, as plain data: numbers and words only, so that it survives processes, JSON and a page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from html import escape
from pathlib import Path
from typing import Any

from gradvet.core.problem import Cost
from gradvet.core.spaces import Location
from gradvet.errors import GradientError

FORMAT = 1
"""Version of the dictionary that `Report.to_dict` gives."""


class Verdict(str, Enum):
    """What a check, or all of them together, concluded."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One entry of the Jacobian that is known in two ways which disagree."""

    output: Location
    input: Location
    derivative: float
    numerical: float
    error: float
    """The error bar of `numerical`."""
    allowed: float

    @property
    def ratio(self) -> float:
        """Derivative over numerical value; not a number where the latter is zero."""
        return self.derivative / self.numerical if self.numerical else float("nan")

    def __str__(self) -> str:
        return f"d {self.output} / d {self.input}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says."""

    check: str
    verdict: Verdict
    headline: str
    mismatches: tuple[Mismatch, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""


@dataclass(frozen=True, slots=True)
class SourceCode:
    """The code of the function that was checked, and where it stands."""

    code: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """All findings about one function at one point, with what they cost and how sure they are."""

    title: str
    findings: tuple[Finding, ...]
    cost: Cost
    seconds: float
    seed: int
    miss: float
    """How probable it is at most that an entry outside the tolerance was not seen."""
    resolution: float | None = None
    """The smallest relative error of an entry of typical size that this run could have seen; None if not measured."""
    coverage: tuple[str, ...] = ()
    """What was exercised and what was not."""
    notes: tuple[str, ...] = ()
    replay: str = ""
    """The call that gives this report again."""
    source: SourceCode | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the check ran on: versions by name."""

    @property
    def verdict(self) -> Verdict:
        verdicts = {finding.verdict for finding in self.findings}
        for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
            if verdict in verdicts:
                return verdict
        return Verdict.PASS

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple([finding for finding in self.findings if finding.verdict is Verdict.FAIL])

    def __bool__(self) -> bool:
        raise TypeError("a report is neither true nor false: look at report.verdict, or use gradvet.assert_gradients")

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values, with the version of the format."""
        return {"format": FORMAT, "verdict": self.verdict.value, **_plain(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The report that `to_dict` was asked for; places become mere names."""
        version = data.get("format")
        if version != FORMAT:
            raise ValueError(f"a report of format {FORMAT} was expected, found format {version!r}")
        given = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        resolution, source = given.get("resolution"), given.get("source")
        return cls(
            **{
                **given,
                "findings": tuple(_finding(finding) for finding in given["findings"]),
                "cost": Cost(**given["cost"]),
                "seconds": float(given["seconds"]),
                "miss": float(given["miss"]),
                "resolution": None if resolution is None else float(resolution),
                "coverage": tuple(given.get("coverage", ())),
                "notes": tuple(given.get("notes", ())),
                "source": SourceCode(**source) if source else None,
            }
        )

    def raise_if_failed(self) -> None:
        """Raise GradientError if anything failed."""
        if self.failures:
            raise GradientError(str(self), self)

    def save(self, path: str | Path) -> None:
        """Write the report as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2), encoding="utf-8")

    def _repr_html_(self) -> str:
        """What a notebook shows: the renderer of `gradvet.reports`, which puts itself into `RENDERERS`."""
        render = RENDERERS.get("html")
        return render(self) if render else f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        """At a prompt, the same as printed."""
        return str(self)

    def __str__(self) -> str:
        """What a terminal shows, as plain text; where no renderer is loaded, the verdict and what speaks against it."""
        if render := RENDERERS.get("text"):
            return render(self)
        telling = [f for f in self.findings if f.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE)]
        lines = [f"{finding.check}: {finding.headline}" for finding in telling]
        return "\n  ".join([f"{self.verdict.value.upper()} {self.title}", *lines])


RENDERERS: dict[str, Callable[[Report], str]] = {}
"""How a report is shown, by kind. The renderers stand above this file, so they register themselves."""


def _finding(data: Mapping[str, Any]) -> Finding:
    mismatches = tuple(_mismatch(mismatch) for mismatch in data["mismatches"])
    return Finding(**{**data, "verdict": Verdict(data["verdict"]), "mismatches": mismatches})


def _mismatch(data: Mapping[str, Any]) -> Mismatch:
    output, place = (Location(0, data[end], "") for end in ("output", "input"))
    numbers = {name: float(data[name]) for name in ("derivative", "numerical", "error", "allowed")}
    return Mismatch(output, place, **numbers)


def _plain(value: Any) -> Any:
    """Numbers, words, lists and dictionaries that JSON can hold: what is not finite becomes its name."""
    if isinstance(value, Location):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
