"""The pytest plugin: the fixture `gradient_checker`, warnings about ignored failures, and output files of a run.

Reports are attached to pytest's own test reports, so that they also arrive from the worker processes of xdist.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntryNative, ReprFileLocation, ReprTraceback, TracebackEntry
from _pytest._io import TerminalWriter

from gradvet.core.events import filtering_reports, listening
from gradvet.core.results import InconclusiveWarning, Report, Verdict
from gradvet.errors import GradientError, InvalidProblemError
from gradvet.options import SEEDS
from gradvet.reports import html, json_files, ledger_table, terminal, wording

REPORTS_ATTRIBUTE = "gradvet"
"""Attribute of pytest's test report that holds the reports of gradvet."""

UNREAD = "the test did not look at this report: use the fixture gradient_checker, or gradvet.assert_gradients"
PACKAGE_FOLDER = Path(__file__).parent


class UnreadReportWarning(UserWarning):
    """`gradvet.check` found wrong gradients in a test that passed and did not look at the report."""


class UnreadReportError(GradientError):
    """The same with `--gradvet-strict`: the test fails."""


class WatchedReport(Report):
    """A report that knows whether anything of it was read."""

    __slots__ = ("is_read",)
    is_read: bool

    @classmethod
    def of(cls, report: Report) -> WatchedReport:
        watched = cls(**{item.name: getattr(report, item.name) for item in fields(Report)})
        object.__setattr__(watched, "is_read", False)
        return watched

    def __getattribute__(self, name: str) -> Any:
        if name != "is_read" and not name.startswith("__"):
            object.__setattr__(self, "is_read", True)
        return super().__getattribute__(name)


USER_ERRORS = (GradientError, InvalidProblemError, InconclusiveWarning)
"""Exceptions whose message is complete, so that the frames of gradvet are hidden."""


class GradientFailureRepr(ExceptionChainRepr):
    """A failed check as gradvet's report, in place of a traceback. xdist transfers the plain lines."""

    def __init__(self, statement: str, location: ReprFileLocation, report: Report, verbose: bool) -> None:
        """`statement` is the first line: the code that raised, or a sentence."""
        self.statement, self.report, self.verbose = statement, report, verbose
        self.hint = f"  {ledger_table.ACCEPT}\n" if report.verdict is Verdict.INCONCLUSIVE else ""
        place = f"{location.path}:{location.lineno}"
        lines = [self.statement, "", terminal.plain(report, verbose=verbose), self.hint, place]
        super().__init__(
            [(ReprTraceback([ReprEntryNative([f"{line}\n" for line in lines])], None, "native"), location, None)]
        )

    def toterminal(self, tw: TerminalWriter) -> None:
        first, _, rest = terminal.plain(self.report, tw.fullwidth, verbose=self.verbose).partition("\n")
        assert self.reprcrash is not None
        tw.line(f"{self.statement}\n", bold=True)
        tw.line(first, bold=True, **{"yellow" if self.hint else "red": True})
        tw.line(f"{rest}\n{self.hint}")
        tw.line(f"{self.reprcrash.path}:{self.reprcrash.lineno}")


class PluginSession:
    """The state of the plugin in one pytest process. With xdist, the controlling process receives all reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seed: int | None = config.getoption("gradvet_seed")
        self.replaces_torch: bool = config.getoption("gradvet_replace_torch")
        self.files: dict[str, str] = {
            kind: path for kind in ("html", "json") if (path := config.getoption(f"gradvet_{kind}"))
        }
        self.test_id = ""
        self.is_strict: bool = config.getoption("gradvet_strict")
        self.test_reports: list[Report] = []
        self.watched: list[WatchedReport] = []
        self.reports: list[Report] = []
        self.cleanup = ExitStack()

    def start(self) -> None:
        """Watch reports, listen to them if an option needs that, and replace torch's functions if requested."""
        self.cleanup.enter_context(filtering_reports(self.watch))
        if self.files or self.replaces_torch or self.seed is not None:
            self.cleanup.enter_context(listening(self.add, self.seed))
        if self.replaces_torch:
            from gradvet.compat import replace_torch_gradcheck

            self.cleanup.enter_context(replace_torch_gradcheck())

    def add(self, report: Report) -> None:
        """Record a report of the current test."""
        self.test_reports.append(
            replace(self.with_test_command(report), title=f"{self.test_id} {report.title}".strip())
        )

    def watch(self, report: Report) -> Report:
        """A failing report, such that the end of the test knows whether it was read."""
        if not report.failures:
            return report
        self.watched.append(WatchedReport.of(report))
        return self.watched[-1]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        self.watched.clear()
        try:
            result = yield
            unread = [report for report in self.watched if not report.is_read]
        finally:
            self.watched.clear()
        for report in unread:
            message = f"{report.title}: {ledger_table.headline(report)}; {UNREAD}"
            if self.is_strict:
                raise UnreadReportError(f"{message}\n{report}", report)
            line = (item.location[1] or 0) + 1
            warnings.warn_explicit(UnreadReportWarning(message), UnreadReportWarning, str(item.path), line)
        return result

    def with_test_command(self, report: Report) -> Report:
        """The report with the command that repeats its test."""
        flags = {"--gradvet-replace-torch": self.replaces_torch, "--gradvet-strict": self.is_strict}
        options = [flag for flag, is_given in flags.items() if is_given]
        command = ["pytest", self.test_id, *options, f"--gradvet-seed={report.seed}"]
        return replace(report, replay=shlex.join(command)) if self.test_id else report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.test_id = item.nodeid
        try:
            return (yield)
        finally:
            self.test_id = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        concise = self.config.getoption("tbstyle", "auto") != "native" and not self.config.getoption("fulltrace", False)
        if call.excinfo or issubclass(getattr(item, "cls", None) or object, TestCase):  # that keeps it back until later
            _hide_frames()
        test_report = yield
        setattr(test_report, REPORTS_ATTRIBUTE, [report.to_dict() for report in self.test_reports])
        if test_report.failed and concise and call.excinfo:
            found = getattr(call.excinfo.value, "report", None)
            if isinstance(found, Report):
                test_report.longrepr = self._failure_repr(item, call.excinfo, found)
            else:
                test_report.sections += [
                    ("gradvet", terminal.plain(report)) for report in self.test_reports if report.failures
                ]
        self.test_reports.clear()
        return test_report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports += [Report.from_dict(data) for data in getattr(report, REPORTS_ATTRIBUTE, ())]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workerinput"):
            return
        for kind, write in (("html", html.write), ("json", json_files.save)):
            if kind in self.files:
                write(self.reports, self.files[kind])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.reports and (self.files or self.replaces_torch):
            terminalreporter.section("gradvet")
            terminalreporter.line(wording.tally(report.verdict for report in self.reports))
            for path in self.files.values():
                terminalreporter.line(f"wrote {path}")

    def pytest_unconfigure(self) -> None:
        self.cleanup.close()

    def _failure_repr(
        self, item: pytest.Item, raised: pytest.ExceptionInfo[BaseException], report: Report
    ) -> GradientFailureRepr:
        """The report, after the line of the test that called gradvet and the caller's `msg`, if there is one."""
        if isinstance(raised.value, UnreadReportError):
            path, line, statement = item.path, (item.location[1] or 0), UNREAD
        else:
            entry = [entry for entry in raised.traceback if not _is_in_gradvet(entry)][-1]
            path, line, statement = Path(entry.path), entry.lineno, f">   {str(entry.statement).strip()}"
            msg, text, _ = str(raised.value).partition(str(report))  # not in the message of a GradcheckError
            statement = "\n".join(filter(None, (statement, msg.strip() if text else "")))
        headline = ": ".join([report.title, ledger_table.headline(report)])
        folder = self.config.invocation_params.dir
        shown = path.relative_to(folder) if path.is_relative_to(folder) else path
        location = ReprFileLocation(str(shown), line + 1, headline)
        is_verbose = self.config.getoption("verbose") > 0
        return GradientFailureRepr(statement, location, self.with_test_command(report), is_verbose)


@pytest.fixture
def gradient_checker() -> Callable[..., Report]:
    """`gradvet.assert_gradients`: fails the test if gradients are wrong or could not be compared."""
    from gradvet.api import assert_gradients

    return assert_gradients


def seed(text: str) -> int:
    with suppress(ValueError):
        if int(text) in SEEDS:
            return int(text)
    raise argparse.ArgumentTypeError(f"an integer of at most 64 bits was expected, found {text!r}")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradvet", "gradients checked by gradvet")
    group.addoption("--gradvet-html", metavar="FILE", help="write an HTML page with all gradient checks of the run")
    group.addoption("--gradvet-json", metavar="FILE", help="write the results of all gradient checks of the run")
    group.addoption("--gradvet-seed", metavar="N", type=seed, help="seed of the random directions of every check")
    group.addoption(
        "--gradvet-strict",
        action="store_true",
        help="fail a test that ignores a report of gradvet.check about wrong gradients, instead of warning",
    )
    group.addoption(
        "--gradvet-replace-torch",
        action="store_true",
        help="run every torch.autograd.gradcheck and gradgradcheck of the suite on gradvet",
    )


def pytest_configure(config: pytest.Config) -> None:
    session = PluginSession(config)
    try:
        json_files.require_writable(*session.files.values())
    except json_files.ReportFileError as error:
        raise pytest.UsageError(f"gradvet: {error}") from None
    config.pluginmanager.register(session, "gradvet-run")
    session.start()


def _hide_frames() -> None:
    """Set `__tracebackhide__` in the modules of gradvet, so that pytest leaves out their frames."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "gradvet":
            vars(module)["__tracebackhide__"] = _is_hidden


def _is_hidden(raised: pytest.ExceptionInfo[BaseException] | None) -> bool:
    """Hide the frames of gradvet, unless the exception comes from inside gradvet and is not meant for users.

    An exception that gradvet raises by a statement of its own is, also if the drop-in functions raise torch's type.
    """
    if raised is None or isinstance(raised.value, USER_ERRORS):
        return True
    last = raised.traceback[-1]
    return not _is_in_gradvet(last) or str(last.statement).lstrip().startswith("raise ")


def _is_in_gradvet(entry: TracebackEntry) -> bool:
    return Path(entry.path).is_relative_to(PACKAGE_FOLDER)
