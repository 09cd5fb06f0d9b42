"""`blame` and `watch`: which piece of a model, or of any code, has a wrong derivative."""

from __future__ import annotations

import io
import operator
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Literal

from gradvet.api import validation
from gradvet.api.pipeline import PipelineSettings, run_pipeline
from gradvet.core.blame import MODULE, BlameReport
from gradvet.core.events import ShowingStages, fresh_seed, one_at_a_time
from gradvet.core.frontend import CONSTANT_INPUTS, Request
from gradvet.core.provenance import source_of
from gradvet.core.results import Finding, Report, Verdict
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch import (
    COMPILED,
    FRONTEND,
    Call,
    CompiledAsPython,
    Examiner,
    Recorder,
    StopMode,
    investigate,
    is_model,
    record_step,
    require_state,
    torch_stops,
    within,
)
from gradvet.options import Budget, Options
from gradvet.reports.progress import interactive_progress

FUNCTION_CHECKS = (
    *("reverse", "determinism", "linearity", "grad_output_layout", "mutation", "reentrancy", "accumulation"),
    *("precision", "reverse-over-reverse", "symmetry"),
)
"""Checks of Functions and operators: those that matter in a training step."""

MODULE_CHECKS = ("constancy", "detached", "reverse", "linearity", "precision")

Run = Callable[[Request, PipelineSettings], Report]
"""Makes the report of a check."""

DEFAULT_SECONDS = 120.0
"""Time for all checks of one report."""

DEFAULT_BYTES = 2 * 2**30
"""Memory for copies of recorded arguments."""

AUTOMATIC_SECONDS = 30.0
"""Time for the search that `check` does by itself when a module fails."""

STOPS = ("follow", "constant")


@validation.explaining_arguments
@one_at_a_time
def blame(
    model: Any,
    inputs: Any,
    *,
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    order: int = 1,
    stops: Literal["follow", "constant"] = "follow",
    surrogate: Mapping[Any, Callable[..., Any]] | None = None,
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
            grad, as in a training step; those of the parameters always do. Where none of both requires grad, those of
            all inputs count, as in `check`.
        kwargs: Keyword arguments of the model.
        loss: A function of the model's result. Functions and operators that it calls are checked too.
        order: 1 for first derivatives, 2 for the second derivatives of Functions and operators as well.
        stops: "follow" reports a `detach` that changes the gradient as a fault. "constant" accepts `detach`, `no_grad`
            and straight-through estimators as deliberate: what they stop counts as a constant.
        surrogate: Functions whose derivatives classes of `autograd.Function` are meant to have, by class, where these
            are not their own.
        budget: Seconds that the checks may take, 120 by default, or a `gradvet.Budget` of seconds and bytes; the bytes
            limit what is kept of recorded arguments, 2 GiB by default.
        seed: Seed of the random directions. The default is a fresh one.

    Returns:
        The report: `report.culprit`, `report.culprits`, `report.tree`, `report.pieces`; `print(report)` shows it.

    >>> import torch
    >>> blame(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()), torch.randn(4, 3)).verdict.value
    'pass'
    """
    validation.require_no_module_class(model)
    if not is_model(model):
        raise InvalidProblemError(
            f"blame needs a torch.nn.Module, found {type(model).__name__}: use gradvet.watch for other code"
        )
    if loss is not None and not callable(loss):
        validation.refuse("loss is a function of the model's result", loss)
    examiner, bytes = _examiner(order, stops, budget, seed, surrogate)
    request = validation.request_of(model, inputs, kwargs)
    require_state(model)
    state = _preserved_state(model, (model, loss, inputs, kwargs))
    with state, state, shown_stages(type(model).__name__):  # twice: the first restoration may be interrupted
        trains = any(parameter.requires_grad for parameter in model.parameters())
        return _searched(examiner, bytes, request, loss, all_inputs=not trains)


@contextmanager
def shown_stages(title: str) -> Iterator[None]:
    """A progress bar that names the piece that is checked."""
    with interactive_progress(title) as show, (shown := ShowingStages(show)), shown:
        yield


def _preserved_state(model: Any, called: Any) -> AbstractContextManager[None]:
    """The state to restore, with the values of the model's parameters."""
    return FRONTEND.preserved_state(called, () if model is None else tuple(model.parameters()))


class _EndOfBlock(io.IOBase):
    """The end of a `with` block. `__exit__` of this class is written in C and calls `close`, here that of a generator.

    At the first line of an `__exit__` in Python, an interruption would leave the block open.
    """


class Watch:
    """Records the calls inside a `with` block; `report()` replays and checks them."""

    __exit__: Any = property(operator.attrgetter("_end.__exit__"))

    def __init__(self, model: Any, examiner: Examiner, bytes: int) -> None:
        self._recorder = Recorder(model, bytes, keeps_parameters=True)
        self._examiner, self._end = examiner, _EndOfBlock()

    def __enter__(self) -> Watch:
        block = self._recording()
        self._end.close = block.close  # type: ignore[method-assign]
        try:
            next(block)
            return self
        except BaseException:
            block.close()
            raise

    def _recording(self) -> Generator[None]:
        """Record until it is closed."""
        # Twice: the first restoration may be interrupted.
        with one_at_a_time, (plain := CompiledAsPython()), plain, self._recorder, self._recorder:
            self._recorder.start()
            yield

    def __repr__(self) -> str:
        return "<gradvet.watch: after the block, report() checks what was recorded>"

    @one_at_a_time
    def report(self) -> BlameReport:
        """Replay and check what was recorded."""
        model = self._recorder.model
        state = _preserved_state(model, model)
        with state, state, shown_stages("watch"):  # twice: the first restoration may be interrupted
            return investigate(self._recorder, self._examiner)


def watch(
    model: Any = None,
    *,
    order: int = 1,
    stops: Literal["follow", "constant"] = "follow",
    surrogate: Mapping[Any, Callable[..., Any]] | None = None,
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
    validation.require_no_module_class(model)
    if model is not None and not is_model(model):
        raise InvalidProblemError(f"watch takes a torch.nn.Module or nothing, found {type(model).__name__}")
    return Watch(model, *_examiner(order, stops, budget, seed, surrogate))


@one_at_a_time
def culprit_first(report: Report, request: Request, stops: str, budget: Budget) -> Report:
    """The report of a module that fails, with the culprit first and its line as source. Bounded in time."""
    started = time.perf_counter()
    if not any(finding.check in (*FUNCTION_CHECKS, *MODULE_CHECKS) for finding in report.failures):
        return report
    seconds = min(AUTOMATIC_SECONDS, budget.seconds or AUTOMATIC_SECONDS)
    examiner = Examiner(_examined, Options(report.seed), seconds, accepts_stops=accepts_stops(stops))
    model: Any = request.func
    state = _preserved_state(model, (model, request.inputs, request.kwargs))
    try:
        with state, state:  # twice: the first restoration may be interrupted
            all_inputs = CONSTANT_INPUTS not in report.notes
            found = _searched(examiner, DEFAULT_BYTES, request, None, report, all_inputs=all_inputs)
    except Exception as error:
        note = f"the piece to blame could not be searched for: {type(error).__name__}"
        return replace(report, notes=(*report.notes, note))
    report = replace(report, seconds=report.seconds + time.perf_counter() - started)
    culprit, source = found.culprit, report.source
    if culprit is None:
        longer = "no Function, operator or module inside was found to fail alone (gradvet.blame searches longer)"
        return replace(report, notes=(*report.notes, *([longer] if found.pieces else found.notes)))
    finding = culprit.finding
    facts = {"path": culprit.path, "what": culprit.what, "place": str(culprit.place or "")}
    entries = finding.mismatches if finding else ()
    first = Finding("blame", Verdict.FAIL, str(culprit), entries, facts, culprit.advice)
    if culprit.place is not None and culprit.place.code:
        source = culprit.place
    return replace(report, findings=(first, *report.findings), source=source)


def with_notes_on_stops(report: Report, func: Any, mode: StopMode) -> Report:
    """The report of a function called in a mode, with what was held constant, and its own source and command."""
    notes, arguments = [], ""
    if mode.held is None:
        notes += [f"held constant: {line}" for line in mode.lines]
        notes += [
            f"derivative taken as given, of values that are constant by themselves: {line}"
            for line in mode.stairs.given.values()
        ]
        arguments += ", stops='constant'"
    if mode.surrogates:
        names = ", ".join(cls.__name__ for cls in mode.surrogates)
        notes.append(f"compared with the slopes of their surrogates: {names}")
        arguments += ", surrogate=surrogate"
    command = f"{report.replay.removesuffix(')')}{arguments})"
    return replace(report, notes=(*report.notes, *notes), replay=command, source=source_of(func))


@one_at_a_time
def with_torch_stops(report: Report, request: Request, settings: PipelineSettings, run: Run) -> Report:
    """A report that fails, or that of the function with the deliberate stops of torch's own code as constants.

    Of a kernel, its reference is meant. Calls the function, and checks it once more if there are such stops.
    """
    is_kernel = request.reference is not None
    request = replace(request, has_constant_inputs=CONSTANT_INPUTS in report.notes)
    subject = request.func if request.reference is None else request.reference
    if is_kernel and not any(finding.check == "reverse" for finding in report.failures):
        return report  # the reference is right
    binding = FRONTEND.bind(replace(request, func=subject))
    state = FRONTEND.preserved_state((request.func, request.inputs, request.kwargs), binding.arguments)
    with state, state:  # twice: the first restoration may be interrupted
        lines = torch_stops(lambda: FRONTEND.problem(binding, 0))
    if not lines:
        return report
    held = within(subject, StopMode(holds_torch=True))
    asked = replace(request, reference=held) if is_kernel else replace(request, func=held)
    found = run(asked, replace(settings, points=None))
    if any(finding.check == "reverse" or not is_kernel for finding in found.failures):
        return report
    notes = tuple(f"held constant, as torch's own code stops the gradient there: {line}" for line in lines)
    return replace(found, notes=(*found.notes, *notes), replay=report.replay, source=report.source)


def _examiner(order: Any, stops: Any, budget: Any, seed: Any, surrogate: Any) -> tuple[Examiner, int]:
    """What checks the pieces, and the memory for recorded arguments, by the arguments that `blame` and `watch` share.

    Wrong ones are refused.
    """
    if not validation.is_integer(order) or order not in (1, 2):
        validation.refuse("order is 1 or 2", order)
    options = Options(fresh_seed() if seed is None else validation.seed_of(seed))
    known = validation.surrogates_of(surrogate)
    limits = validation.budget_of(budget)
    seconds, bytes = limits.seconds or DEFAULT_SECONDS, limits.bytes or DEFAULT_BYTES
    return Examiner(_examined, options, seconds, int(order), accepts_stops(stops), known), bytes


def accepts_stops(stops: str) -> bool:
    """Whether stops are constants. Raises if the argument is none of the two."""
    if not isinstance(stops, str) or stops not in STOPS:
        validation.refuse("stops is 'follow' or 'constant'", stops)
    return stops == "constant"


def _searched(
    examiner: Examiner,
    bytes: int,
    request: Request,
    loss: Callable[[Any], Any] | None,
    known: Report | None = None,
    *,
    all_inputs: bool,
) -> BlameReport:
    """The report about one step of a model. Calls it forward and backward.

    What compiled code gets wrong is searched for in plain Python, whose Functions and lines can be seen. Needed by
    `test_fault_in_a_compiled_module_is_named`.
    """
    model: Any = request.func
    with validation.explaining_call(request):
        record_step(recorder := Recorder(model, bytes), request, loss, all_inputs=all_inputs)
    found = investigate(recorder, examiner, known)
    if not any(COMPILED in culprit.what for culprit in found.culprits):
        return found
    with CompiledAsPython():
        record_step(recorder := Recorder(model, bytes), request, loss, all_inputs=all_inputs)
        again = investigate(recorder, examiner)
    return again if again.culprits else found


def _examined(request: Request, call: Call, options: Options, order: int) -> Report:
    """The report about one piece."""
    is_module = call.kind == MODULE
    names = (*(MODULE_CHECKS if is_module else FUNCTION_CHECKS), *call.checks)
    modes = ("reverse", *(("forward",) if "forward" in call.checks else ()))
    settings = PipelineSettings(1 if is_module else order, validation.selection_of(modes, names))
    return run_pipeline(FRONTEND, request, settings, options)
