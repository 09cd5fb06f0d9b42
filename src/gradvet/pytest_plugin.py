"""The pytest plugin: a fixture `gradvet`, failures in gradvet's own words, and one report about the whole run.

What gradvet finds travels with the report that pytest makes of a test, so it also arrives from other processes (xdist).
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntryNative, ReprFileLocation, ReprTraceback, TracebackEntry
from _pytest._io import TerminalWriter

from gradvet.core.events import listening
from gradvet.core.results import Report, Verdict
from gradvet.errors import GradientError, InvalidProblemError
from gradvet.reports import documents, html, terminal, words
from gradvet.reports.files import UnwritableFileError, prepared

ATTRIBUTE = "gradvet"
"""Where the pytest report about a test carries what gradvet found in it."""

OWN = Path(__file__).parent
SEEDS = range(2**32)


class InconclusiveWarning(UserWarning):
    """A check could not tell; `-W error::gradvet.pytest_plugin.InconclusiveWarning` makes that a failure."""


OURS = (GradientError, InvalidProblemError, InconclusiveWarning)
"""What gradvet raises to be understood without a look at its code."""


class OwnWords(ExceptionChainRepr):
    """A failure as gradvet tells it, instead of a traceback through gradvet. Other processes send it as plain lines."""

    def __init__(self, statement: str, place: ReprFileLocation, report: Report) -> None:
        self.statement, self.report = f">   {statement}", report
        lines = [self.statement, "", terminal.plain(report), "", f"{place.path}:{place.lineno}"]
        super().__init__(
            [(ReprTraceback([ReprEntryNative([f"{line}\n" for line in lines])], None, "native"), place, None)]
        )

    def toterminal(self, tw: TerminalWriter) -> None:
        first, _, rest = terminal.plain(self.report, tw.fullwidth).partition("\n")
        assert self.reprcrash is not None
        tw.line(f"{self.statement}\n", bold=True)
        tw.line(first, red=True, bold=True)
        tw.line(f"{rest}\n")
        tw.line(f"{self.reprcrash.path}:{self.reprcrash.lineno}")


class Run:
    """One run of pytest. In a distributed run every process has one, and the first gathers what all have found."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seed: int | None = config.getoption("gradvet_seed")
        self.replaces: bool = config.getoption("gradvet_replace_torch")
        self.files: dict[str, str] = {
            kind: path for kind in ("html", "json") if (path := config.getoption(f"gradvet_{kind}"))
        }
        self.test = ""
        self.fresh: list[Report] = []
        self.gathered: list[Report] = []
        self.undo = ExitStack()

    def begin(self) -> None:
        """Listen, if anybody wants to know; put gradvet where torch's functions are, if asked."""
        if self.files or self.replaces or self.seed is not None:
            self.undo.enter_context(listening(self.add, self.seed))
        if self.replaces:
            from gradvet.compat import replace_torch_gradcheck

            self.undo.enter_context(replace_torch_gradcheck())

    def add(self, report: Report) -> None:
        """Note a report about the test that is running."""
        self.fresh.append(replace(self.placed(report), title=f"{self.test} {report.title}".strip()))

    def placed(self, report: Report) -> Report:
        """With the command that runs its test again."""
        options = ["--gradvet-replace-torch"] if self.replaces else []
        command = ["pytest", self.test, *options, f"--gradvet-seed={report.seed}"]
        return replace(report, replay=shlex.join(command)) if self.test else report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.test = item.nodeid
        try:
            return (yield)
        finally:
            self.test = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        concise = self.config.getoption("tbstyle", "auto") != "native" and not self.config.getoption("fulltrace", False)
        if call.excinfo:
            _hide_frames()
        outcome = yield
        setattr(outcome, ATTRIBUTE, [report.to_dict() for report in self.fresh])
        if outcome.failed and concise and call.excinfo:
            found = getattr(call.excinfo.value, "report", None)
            if isinstance(found, Report):
                outcome.longrepr = self._own_words(call.excinfo, found)
            else:
                outcome.sections += [("gradvet", terminal.plain(report)) for report in self.fresh if report.failures]
        self.fresh.clear()
        return outcome

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.gathered += [Report.from_dict(data) for data in getattr(report, ATTRIBUTE, ())]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workerinput"):
            return
        for kind, write in (("html", html.write), ("json", documents.save)):
            if kind in self.files:
                write(self.gathered, self.files[kind])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.gathered and (self.files or self.replaces):
            terminalreporter.section("gradvet")
            terminalreporter.line(words.tally(self.gathered))
            for path in self.files.values():
                terminalreporter.line(f"wrote {path}")

    def _own_words(self, raised: pytest.ExceptionInfo[BaseException], report: Report) -> OwnWords:
        """The line from which gradvet was called, with the worst that it found."""
        entry = [entry for entry in raised.traceback if not _is_own(entry)][-1]
        headline = ": ".join([report.title, *[finding.headline for finding in words.telling(report)][:1]])
        path = Path(entry.path)
        folder = self.config.invocation_params.dir
        shown = path.relative_to(folder) if path.is_relative_to(folder) else path
        place = ReprFileLocation(str(shown), entry.lineno + 1, headline)
        return OwnWords(str(entry.statement).strip(), place, self.placed(report))


RUN = pytest.StashKey[Run]()


class Checker:
    """What the fixture gives: `check` as in gradvet, failing the test where a gradient is wrong."""

    def check(self, func: Callable[..., Any], inputs: Any, **options: Any) -> Report:
        """`gradvet.check`; raises `GradientError` if anything failed and warns if nothing can be said."""
        from gradvet.api import check

        report = check(func, inputs, **options)
        report.raise_if_failed()
        if report.verdict is Verdict.INCONCLUSIVE:
            headline = words.telling(report)[0].headline
            warnings.warn(f"{report.title}: {headline}", InconclusiveWarning, stacklevel=2)
        return report

    def __getattr__(self, name: str) -> Any:
        """Everything else of the package: the fixture hides the module in tests that also import it."""
        return getattr(importlib.import_module("gradvet"), name)


@pytest.fixture
def gradvet() -> Checker:
    """Checks gradients: `gradvet.check(func, inputs)` fails the test if they are wrong."""
    return Checker()


def seed(text: str) -> int:
    """A number that every generator takes."""
    if not text.isdecimal() or int(text) not in SEEDS:
        raise argparse.ArgumentTypeError(f"a number from 0 to {SEEDS[-1]} was expected, found {text!r}")
    return int(text)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradvet", "gradients checked by gradvet")
    group.addoption("--gradvet-html", metavar="FILE", help="write a page about all gradient checks of the run")
    group.addoption("--gradvet-json", metavar="FILE", help="write the results of all gradient checks of the run")
    group.addoption("--gradvet-seed", metavar="N", type=seed, help="draw the same random directions in every check")
    group.addoption(
        "--gradvet-replace-torch",
        action="store_true",
        help="run every torch.autograd.gradcheck and gradgradcheck of the suite on gradvet",
    )


def pytest_configure(config: pytest.Config) -> None:
    run = config.stash[RUN] = Run(config)
    try:
        for path in run.files.values():
            prepared(path)
        if "html" in run.files:
            html.page([])
    except (UnwritableFileError, html.MissingLibraryError) as error:
        raise pytest.UsageError(f"gradvet: {error}") from None
    config.pluginmanager.register(run, "gradvet-run")
    run.begin()


def pytest_unconfigure(config: pytest.Config) -> None:
    if RUN in config.stash:
        config.stash[RUN].undo.close()


def _hide_frames() -> None:
    """Ask pytest to leave out gradvet's frames, by the name that it looks for in their modules."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "gradvet":
            vars(module)["__tracebackhide__"] = _is_hidden


def _is_hidden(raised: pytest.ExceptionInfo[BaseException] | None) -> bool:
    """Gradvet's frames tell its user nothing, unless gradvet itself broke."""
    return raised is None or isinstance(raised.value, OURS) or not _is_own(raised.traceback[-1])


def _is_own(entry: TracebackEntry) -> bool:
    return Path(entry.path).is_relative_to(OWN)
