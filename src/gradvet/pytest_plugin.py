"""The pytest plugin: a fixture `gradvet`, failures in gradvet's own words, and one report about the whole run.

What gradvet finds travels with the report that pytest makes of a test, so it also arrives from other processes (xdist).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from gradvet.core.results import Report, Verdict
from gradvet.reports import documents, html, terminal, words

ATTRIBUTE = "gradvet"
"""Where the pytest report about a test carries what gradvet found in it."""


class InconclusiveWarning(UserWarning):
    """A check could not tell; `-W error::gradvet.pytest_plugin.InconclusiveWarning` makes that a failure."""


class OwnWords(TerminalRepr):
    """A failure as gradvet tells it, instead of a traceback through gradvet."""

    def __init__(self, place: ReprFileLocation, report: Report) -> None:
        self.reprcrash = place
        self.text = terminal.plain(report)

    def toterminal(self, tw: TerminalWriter) -> None:
        first, _, rest = self.text.partition("\n")
        self.reprcrash.toterminal(tw)
        tw.line(first, red=True, bold=True)
        tw.line(rest)


class Run:
    """One run of pytest. In a distributed run every process has one, and the first gathers what all have found."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.test = ""
        self.fresh: list[Report] = []
        self.gathered: list[Report] = []
        self.undo = ExitStack()

    def add(self, report: Report) -> None:
        """Note a report about the test that is running."""
        self.fresh.append(replace(report, title=f"{self.test} {report.title}".strip()))

    def replace_torch(self) -> None:
        from gradvet.compat import replace_torch_gradcheck
        from gradvet.suite.recording import recorded

        self.undo.enter_context(replace_torch_gradcheck())
        self.undo.enter_context(recorded(self.add))

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
        outcome = yield
        setattr(outcome, ATTRIBUTE, [report.to_dict() for report in self.fresh])
        self.fresh.clear()
        found = getattr(call.excinfo.value, "report", None) if call.excinfo else None
        if outcome.failed and isinstance(found, Report) and self.config.getoption("tbstyle", "auto") != "native":
            outcome.longrepr = OwnWords(_place(item, call, found), found)
        return outcome

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.gathered += [Report.from_dict(data) for data in getattr(report, ATTRIBUTE, ())]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workerinput"):
            return
        if document := self.config.getoption("gradvet_json"):
            documents.save(self.gathered, document)
        if page := self.config.getoption("gradvet_html"):
            html.write(self.gathered, page)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        written = [self.config.getoption(name) for name in ("gradvet_html", "gradvet_json")]
        if self.gathered and (any(written) or self.config.getoption("gradvet_replace_torch")):
            terminalreporter.section("gradvet")
            terminalreporter.line(words.tally(self.gathered))
            for path in filter(None, written):
                terminalreporter.line(f"wrote {path}")


RUN = pytest.StashKey[Run]()


class Checker:
    """What the fixture gives: `check` as in gradvet, failing the test where a gradient is wrong."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def check(self, func: Callable[..., Any], inputs: Any, **options: Any) -> Report:
        """`gradvet.check`, recorded; raises `GradientError` if anything failed and warns if nothing can be said."""
        from gradvet.api import check
        from gradvet.core.provenance import environment, source_of

        seed = self._run.config.getoption("gradvet_seed")
        if seed is not None:
            options.setdefault("seed", seed)
        found = check(func, inputs, **options)
        report = replace(found, source=source_of(func), environment=environment())
        self._run.add(report)
        report.raise_if_failed()
        if report.verdict is Verdict.INCONCLUSIVE:
            headline = words.telling(report)[0].headline
            warnings.warn(f"{report.title}: {headline}", InconclusiveWarning, stacklevel=2)
        return report


@pytest.fixture
def gradvet(request: pytest.FixtureRequest) -> Checker:
    """Checks gradients: `gradvet.check(func, inputs)` fails the test if they are wrong."""
    return Checker(request.config.stash[RUN])


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradvet", "gradients checked by gradvet")
    group.addoption("--gradvet-html", metavar="FILE", help="write a page about all gradient checks of the run")
    group.addoption("--gradvet-json", metavar="FILE", help="write the results of all gradient checks of the run")
    group.addoption("--gradvet-seed", metavar="N", type=int, help="draw the same random directions in every check")
    group.addoption(
        "--gradvet-replace-torch",
        action="store_true",
        help="run every torch.autograd.gradcheck and gradgradcheck of the suite on gradvet",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("gradvet_html"):
        try:
            html.page([])
        except html.MissingLibraryError as error:
            raise pytest.UsageError(f"--gradvet-html: {error}") from None
    run = config.stash[RUN] = Run(config)
    config.pluginmanager.register(run, "gradvet-run")
    if config.getoption("gradvet_replace_torch"):
        run.replace_torch()


def pytest_unconfigure(config: pytest.Config) -> None:
    if RUN in config.stash:
        config.stash[RUN].undo.close()


def _place(item: pytest.Item, call: pytest.CallInfo[None], report: Report) -> ReprFileLocation:
    """The line of the test from which gradvet was called, with the worst that it found."""
    assert call.excinfo is not None
    entries = [entry for entry in call.excinfo.traceback if str(entry.path) == str(item.path)]
    entry = entries[-1] if entries else call.excinfo.traceback[0]
    headlines = [finding.headline for finding in words.telling(report)]
    return ReprFileLocation(str(entry.path), entry.lineno + 1, headlines[0] if headlines else report.verdict.value)
