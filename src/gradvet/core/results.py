"""Findings and reports as plain data (numbers and text), which can be pickled, written as JSON and rendered."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from gradvet.core.documents import escape_controls as escape_controls
from gradvet.core.documents import escaped, key_of, read_dataclass
from gradvet.core.ledger import ACCEPTED as ACCEPTED
from gradvet.core.ledger import FLOAT64 as FLOAT64
from gradvet.core.ledger import GIVEN as GIVEN
from gradvet.core.ledger import NO_MEMORY as NO_MEMORY
from gradvet.core.ledger import Cost
from gradvet.core.ledger import LedgerRow as LedgerRow
from gradvet.core.ledger import suggested_resolution as suggested_resolution
from gradvet.core.vectors import Location
from gradvet.errors import GradientError

FORMAT = 1
"""Version of the dictionary that `Report.to_dict` gives."""


class Verdict(str, Enum):
    """The result of one check, or of all checks together."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"
    """The check did not come to an end: the case raised, its process died, or a limit was exceeded."""
    SKIPPED = "skipped"

    def __str__(self) -> str:
        """`PASS`, in every version of Python."""
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)


WORST_FIRST = (Verdict.FAIL, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.SKIPPED)
"""The verdicts in the order in which they are listed and gathered."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One entry of the Jacobian whose derivative disagrees with its finite difference."""

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

    @property
    def size(self) -> float:
        """Absolute error of the derivative; infinite where one of the values is not finite."""
        difference = abs(self.derivative - self.numerical)
        return difference if math.isfinite(difference) else math.inf

    @property
    def is_precise(self) -> bool:
        """Whether the error bar is small beside the error."""
        return math.isinf(self.size) or 3.0 * self.error <= self.size

    def __str__(self) -> str:
        return f"d {self.output} / d {self.input}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: verdict, sentence, wrong entries, facts by name, and advice."""

    check: str
    verdict: Verdict
    headline: str
    mismatches: tuple[Mismatch, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""


@dataclass(frozen=True, slots=True)
class SourceCode:
    """A line of source code, or a function or class that begins there."""

    file: str
    line: int
    """Line at which `code` begins: that of the first decorator, if there is one."""
    code: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def definition_line(self) -> int:
        """The line of the `def` or `class`, below the decorators."""
        numbered = enumerate(self.code.splitlines(), self.line)
        starts = ("def ", "async def ", "class ")
        return next((number for number, text in numbered if text.lstrip().startswith(starts)), self.line)


class ShownReport(ABC):
    """Common base of the reports about a function and about a model: reading, showing and saving them."""

    __slots__ = ()
    renderer_prefix: ClassVar[str] = ""
    """Beginning of the names in `RENDERERS` for this kind of report."""

    @property
    @abstractmethod
    def verdict(self) -> Verdict: ...

    @property
    def passed(self) -> bool:
        """Whether the verdict is PASS."""
        return self.verdict is Verdict.PASS

    def __bool__(self) -> bool:
        raise TypeError(
            "a report is neither true nor false: look at report.verdict or report.passed, or use "
            "gradvet.assert_gradients"
        )

    def raise_if_failed(self) -> None:
        """Raise GradientError if the verdict is FAIL."""
        if self.verdict is Verdict.FAIL:
            raise GradientError(str(self), self)  # type: ignore[arg-type]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]: ...

    def save(self, path: str | Path) -> None:
        """Write the report to a file: a name that ends in .json gets JSON, one in .html or .htm gets a page."""
        file = Path(path)
        suffix = file.suffix.lower()
        if suffix == ".json":
            text = json.dumps(self.to_dict(), indent=2)
        elif suffix in (".html", ".htm"):
            text = RENDERERS[f"{self.renderer_prefix}page"](self)  # `import gradvet` enters the renderer
        else:
            raise ValueError(f"a report is saved as .json or .html, found the file name {file.name!r}")
        replace_file(file, text)

    def _repr_html_(self) -> str:
        """The view in a notebook, by the renderer that `gradvet.reports` enters in `RENDERERS`."""
        render = RENDERERS.get(f"{self.renderer_prefix}html")
        return render(self) if render else f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        """At a prompt, the same as printed."""
        return str(self)


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShownReport):
    """All findings about one function at one point, with their cost, ledger and miss probability."""

    title: str
    findings: tuple[Finding, ...]
    cost: Cost
    seconds: float
    seed: int
    miss: float
    """Miss probability: the largest one with which random directions hide an error of 100 times the resolution, or an
    entry outside the tolerance."""
    resolution: float | None = None
    """The smallest relative error of an entry of typical size that this run could have seen; None if not measured."""
    notes: tuple[str, ...] = ()
    replay: str = ""
    """The call that gives this report again."""
    source: SourceCode | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Versions of Python, torch and other libraries, by name."""
    ledger: tuple[LedgerRow, ...] = ()
    """Which inputs were compared with differences, in which mode and precision, at which resolution."""
    expects_ledger: bool = False
    """Whether derivatives were to be compared with differences, so that PASS needs a complete ledger."""

    @property
    def verdict(self) -> Verdict:
        """FAIL or ERROR if a finding says so; PASS only with findings, all conclusive, and a complete ledger."""
        verdicts = {finding.verdict for finding in self.findings}
        for worst in (Verdict.FAIL, Verdict.ERROR):
            if worst in verdicts:
                return worst
        is_pass = verdicts and Verdict.INCONCLUSIVE not in verdicts and self.is_complete
        return Verdict.PASS if is_pass else Verdict.INCONCLUSIVE

    @property
    def is_complete(self) -> bool:
        """Whether everything that was to be compared was, with the resolution asked for.

        A ledger alone is not enough: a finding about one of its modes must say that the derivatives agree.
        """
        return not self.expects_ledger or (not self.open_rows and self._has_agreement)

    @property
    def _has_agreement(self) -> bool:
        """Whether a finding passes in a mode in which elements were compared."""
        modes = {row.mode for row in self.ledger if row.compared > 0}
        return any(finding.verdict is Verdict.PASS and finding.check in modes for finding in self.findings)

    @property
    def open_rows(self) -> tuple[LedgerRow, ...]:
        """The rows of the ledger that are not complete."""
        return tuple(row for row in self.ledger if not row.is_complete)

    @property
    def exercised(self) -> tuple[str, ...]:
        """The names of the checks that ran."""
        return tuple(dict.fromkeys(one.check for one in self.findings if one.verdict is not Verdict.SKIPPED))

    @property
    def exercised_parts(self) -> dict[str, str]:
        """Of checks that consist of parts (points, shapes, registration tests): which of them ran and which did not."""
        facts: dict[str, dict[str, Any]] = {}
        for one in self.findings:
            if one.facts.keys() & PART_FACTS:
                facts.setdefault(one.check, {}).update(one.facts)
        return {name: _words_for_parts(known) for name, known in facts.items()}

    @property
    def not_exercised(self) -> dict[str, list[str]]:
        """The names of the checks that did not run, by reason."""
        names: dict[str, list[str]] = {}
        for one in self.findings:
            if one.verdict is Verdict.SKIPPED and "skipped" not in one.facts:
                names.setdefault(one.headline, []).append(one.check)
        return names

    @property
    def coverage(self) -> tuple[str, ...]:
        """Checks, points and shapes that were exercised, and those that were not and why, as lines of text."""
        ran = [f"exercised: {', '.join(self.exercised)}"] if self.exercised else []
        not_run = [f"not exercised: {name}: {why}" for why, names in self.not_exercised.items() for name in names]
        return (*ran, *(f"{name}: {words}" for name, words in self.exercised_parts.items()), *not_run)

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple([finding for finding in self.findings if finding.verdict is Verdict.FAIL])

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values, with the version of the format."""
        derived = {"verdict": self.verdict.value, "coverage": list(self.coverage)}
        return {"format": FORMAT, **derived, **plain_data(self)}

    @classmethod
    def of_error(cls, title: str, kind: str, message: str, seconds: float = 0.0) -> Report:
        """The report of a case that has no other: its verdict is ERROR."""
        finding = Finding(kind, Verdict.ERROR, message)
        return cls(title, (finding,), Cost(), seconds, seed=0, miss=0.0)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """Inverse of `to_dict`; locations come back as plain names.

        Control characters in its text are escaped. The verdict follows from findings and ledger; the one in the
        document is not read. Raises ValueError if a value is not of the type that it should have.
        """
        version = data.get("format") if isinstance(data, Mapping) else None
        if version != FORMAT:
            raise ValueError(f"a report of format {FORMAT} was expected, found format {version!r}")
        report: Report = read_dataclass(cls, escaped(data), "a report", {Location: lambda name: Location(0, name, "")})
        return report

    def text(self, *, verbose: bool = False) -> str:
        """The printed text; with `verbose` all findings, the checks that ran, and those that did not and why."""
        if render := RENDERERS.get("verbose" if verbose else "text"):
            return render(self)
        notable = [f for f in self.findings if f.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE)]
        lines = [f"{finding.check}: {finding.headline}" for finding in notable]
        return "\n  ".join([f"{self.verdict} {self.title}", *lines])

    def __str__(self) -> str:
        """The view in a terminal as plain text; without a renderer, the verdict and the notable findings."""
        return self.text()


PART_FACTS = {"exercised", "skipped"}
"""Facts of a finding that list the parts of its check that ran, and those that did not."""


def _words_for_parts(facts: Mapping[str, Any]) -> str:
    skipped = f"; skipped: {', '.join(facts['skipped'])}" if "skipped" in facts else ""
    finite_only = "; compared for NaN and infinity only" if facts.get("finiteness alone") else ""
    return f"{', '.join(facts.get('exercised', ())) or 'none'}{skipped}{finite_only}"


RENDERERS: dict[str, Callable[[Any], str]] = {}
"""How a report is shown, by kind (text, html, page; "blame text" and so on for a model). `gradvet.reports` enters its
renderers here."""


class InconclusiveWarning(UserWarning):
    """A check is inconclusive; `-W error::gradvet.pytest_plugin.InconclusiveWarning` makes that a failure."""


def replace_file(file: Path, text: str) -> None:
    """Write a text to a file. An error, such as a full disk, leaves the old file as it is."""
    if file.exists() and not file.is_file():  # a pipe or a device
        file.write_text(text, encoding="utf-8")
        return
    target = file.resolve()
    new = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error  # with the name that the caller gave
    finally:
        new.unlink(missing_ok=True)


def read_report(data: Mapping[str, Any]) -> Report:
    """The report in a document from a file. Raises ValueError if its findings and its verdict contradict each other."""
    report = Report.from_dict(data)
    if data.get("verdict", report.verdict.value) != report.verdict.value:
        raise ValueError(
            f"the verdict {data['verdict']!r} does not follow from the findings, which say {report.verdict}"
        )
    return report


def plain_data(value: Any) -> Any:
    """Numbers, words, lists and dictionaries that JSON can hold: what is not finite becomes its name."""
    if isinstance(value, Location):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {key_of(field): plain_data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain_data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
