"""`blame` and `watch`: which piece of a model, or of any code, has a wrong derivative."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal

from gradvet.api.pipeline import PipelineSettings, run_pipeline
from gradvet.api.selection import Selection
from gradvet.core.blame import MODULE, BlameReport
from gradvet.core.events import fresh_seed
from gradvet.core.frontend import Request
from gradvet.core.provenance import source_of
from gradvet.core.results import Finding, Report, Verdict
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch import FRONTEND, Question, Recorder, investigate, is_model, record_step
from gradvet.options import Budget, Options
from gradvet.reports.progress import interactive_progress

FUNCTION_CHECKS = (
    *("reverse", "determinism", "linearity", "cotangents", "mutation", "interleaving", "accumulation", "precision"),
    *("reverse-over-reverse", "symmetry"),
)
"""Checks of Functions and operators: those that matter in a training step."""

MODULE_CHECKS = ("constancy", "reverse", "precision")

STOP_ADVICE = "If it is meant so, pass stops='constant': what is stopped counts as a constant then."

DEFAULT_SECONDS = 120.0
"""Time for all checks of one report."""

DEFAULT_BYTES = 2 * 2**30
"""Memory for copies of recorded arguments."""

AUTOMATIC_SECONDS = 30.0
"""Time for the search that `check` does by itself when a module fails."""

STOPS = ("follow", "constant")


def blame(
    model: Any,
    inputs: Any,
    *,
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    order: int = 1,
    stops: Literal["follow", "constant"] = "follow",
    budget: float | Budget | None = None,
    seed: int | None = None,
) -> BlameReport:
    """Find the piece of a model whose derivative is wrong.

    The model runs once. Every call of a custom `autograd.Function` or `torch.library` operator is recorded with its
    arguments, random state and values, replayed and checked alone. If they are all right, the modules are checked from
    the root down: a module that fails while those it calls pass has the fault in its own code. There, the lines at
    which the gradient stops or is changed are tried one by one.

    Args:
        model: A `torch.nn.Module`.
        inputs: A tuple of positional arguments, or one argument of any kind. Their gradients count if they require
            grad, as in a training step; those of the parameters always do.
        kwargs: Keyword arguments of the model.
        loss: A function of the model's result. Functions and operators that it calls are checked too.
        order: 1 for first derivatives, 2 for the second derivatives of Functions and operators as well.
        stops: "follow" reports a `detach` that changes the gradient as a fault. "constant" accepts `detach`, `no_grad`
            and straight-through estimators as deliberate: what they stop counts as a constant.
        budget: Seconds that the checks may take, 120 by default, or a `gradvet.Budget` of seconds and bytes; the bytes
            limit what is kept of recorded arguments, 2 GiB by default.
        seed: Seed of the random directions. The default is a fresh one.

    Returns:
        The report: `report.culprit`, `report.culprits`, `report.tree`, `report.pieces`; `print(report)` shows it.

    >>> import torch
    >>> blame(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()), torch.randn(4, 3)).verdict.value
    'pass'
    """
    if not is_model(model):
        raise InvalidProblemError(
            f"blame needs a torch.nn.Module, found {type(model).__name__}: use gradvet.watch for other code"
        )
    spending = _budget(budget)
    recorder = Recorder(model, _memory(spending))
    record_step(recorder, Request(model, inputs, kwargs), loss)
    with interactive_progress(type(model).__name__):
        return _answer(recorder, order, stops, spending, seed)


class Watch(AbstractContextManager["Watch"]):
    """Records the calls inside a `with` block; `report()` replays and checks them."""

    def __init__(self, model: Any, order: int, stops: str, budget: Budget, seed: int | None) -> None:
        self._recorder = Recorder(model, _memory(budget), keeps_parameters=True)
        self._settings = (order, stops, budget, seed)

    def __enter__(self) -> Watch:
        self._recorder.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._recorder.stop()

    def report(self) -> BlameReport:
        """Replay and check what was recorded."""
        with interactive_progress("watch"):
            return _answer(self._recorder, *self._settings)


def watch(
    model: Any = None,
    *,
    order: int = 1,
    stops: Literal["follow", "constant"] = "follow",
    budget: float | Budget | None = None,
    seed: int | None = None,
) -> Watch:
    """Record what any code does, such as a training step; then `report()` names the piece with a wrong derivative.

    Without a model, the custom Functions and `torch.library` operators are recorded. With a model, its modules are
    recorded as well, with the parameters that they had at the beginning. The other arguments are those of `blame`.

        with gradvet.watch() as step:
            training_step()
        print(step.report())
    """
    if model is not None and not is_model(model):
        raise InvalidProblemError(f"watch takes a torch.nn.Module or nothing, found {type(model).__name__}")
    return Watch(model, order, stops, _budget(budget), seed)


def culprit_first(report: Report, request: Request, stops: str, budget: Budget) -> Report:
    """The report of a module that fails, with the culprit as its first finding. Bounded in time."""
    if not any(finding.check in (*FUNCTION_CHECKS, *MODULE_CHECKS) for finding in report.failures):
        return report
    spending = Budget(min(AUTOMATIC_SECONDS, budget.seconds or AUTOMATIC_SECONDS))
    model: Any = request.func
    recorder = Recorder(model, DEFAULT_BYTES)
    try:
        record_step(recorder, request, None, all_inputs=True)
        found = _answer(recorder, 1, stops, spending, report.seed, report)
    except Exception as error:
        note = f"the piece to blame could not be searched for: {type(error).__name__}"
        return replace(report, notes=(*report.notes, note))
    culprit = found.culprit
    if culprit is None:
        note = "no Function, operator or module inside was found to fail alone (gradvet.blame searches longer)"
        return replace(report, notes=(*report.notes, note))
    finding = culprit.finding
    facts = {"path": culprit.path, "what": culprit.what, "place": str(culprit.place or "")}
    advice = (finding.advice if finding else "") if not culprit.stops else STOP_ADVICE
    first = Finding("blame", Verdict.FAIL, str(culprit), finding.mismatches if finding else (), facts, advice)
    return replace(report, findings=(first, *report.findings))


def accepting_stops(report: Report, func: Any, lines: Iterable[str]) -> Report:
    """The report of a function whose stopped values were constants: source and command of the function itself."""
    held = tuple(f"held constant: {line}" for line in lines)
    command = f"{report.replay.removesuffix(')')}, stops='constant')"
    return replace(report, notes=(*report.notes, *held), replay=command, source=source_of(func))


def _budget(given: float | Budget | None) -> Budget:
    budget = given if isinstance(given, Budget) else Budget(seconds=given)
    if not all(limit is None or limit > 0 for limit in (budget.seconds, budget.bytes)):
        raise InvalidProblemError(f"a budget must be positive, or nothing would be checked; found {given!r}")
    return budget


def _memory(budget: Budget) -> int:
    return DEFAULT_BYTES if budget.bytes is None else budget.bytes


def accepts_stops(stops: str) -> bool:
    """Whether stops are constants. Raises if the argument is none of the two."""
    if stops not in STOPS:
        raise InvalidProblemError(f"stops is 'follow' or 'constant', found {stops!r}")
    return stops == "constant"


def _answer(
    recorder: Recorder, order: int, stops: str, budget: Budget, seed: int | None, known: Report | None = None
) -> BlameReport:
    if order not in (1, 2):
        raise InvalidProblemError(f"order is 1 or 2, found {order!r}")
    chosen = fresh_seed() if seed is None else seed

    def examine(request: Request, kind: str, seconds: float) -> Report:
        names = MODULE_CHECKS if kind == MODULE else FUNCTION_CHECKS
        settings = PipelineSettings(1 if kind == MODULE else order, Selection.of(("reverse",), names))
        return run_pipeline(FRONTEND, request, settings, Options(seed=chosen, seconds=seconds))

    seconds = DEFAULT_SECONDS if budget.seconds is None else budget.seconds
    return investigate(recorder, Question(examine, seconds, chosen, accepts_stops(stops), known))
