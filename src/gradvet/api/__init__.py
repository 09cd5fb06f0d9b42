"""The native interface: `check` for a report, `assert_gradients` for an exception, `numerical_jacobian` for numbers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from gradvet.api import validation
from gradvet.api.blame import accepts_stops, culprit_first, shown_stages, with_notes_on_stops, with_torch_stops
from gradvet.api.pipeline import PipelineSettings, run_pipeline
from gradvet.api.points import PointSettings
from gradvet.api.validation import refuse
from gradvet.checks import REFERENCE
from gradvet.core.events import filtered, fresh_seed, one_at_a_time, publish
from gradvet.core.frontend import Request
from gradvet.core.numerical_jacobian import NumericalJacobian, measured_jacobian
from gradvet.core.provenance import title_of
from gradvet.core.results import Finding, InconclusiveWarning, Report, Verdict
from gradvet.core.runner import joined
from gradvet.errors import GradientError, InvalidProblemError, first_line, raise_interruption
from gradvet.frontends.torch import FRONTEND, StopMode, is_model, within
from gradvet.options import Budget, Options
from gradvet.reports.ledger_table import ACCEPT, headline

__all__ = ["NumericalJacobian", "assert_gradients", "check", "numerical_jacobian"]

REFUSED = "Leave this dtype out of dtypes= if the kernel is not meant for it."


@validation.explaining_arguments
def check(
    func: Callable[..., Any],
    inputs: Any,
    *,
    kwargs: Mapping[str, Any] | None = None,
    argnums: int | Sequence[int] | None = None,
    order: int | None = None,
    modes: Iterable[str] = ("reverse", "forward"),
    masked: bool = False,
    resolution: float | None = None,
    power: float | None = None,
    accuracy: float = 0.0,
    budget: float | Budget | None = None,
    seed: int | None = None,
    checks: Iterable[str] | Mapping[str, bool] | None = None,
    surrogate: Callable[..., Any] | Mapping[Any, Callable[..., Any]] | None = None,
    reference: Callable[..., Any] | None = None,
    dtypes: Any = None,
    points: Any = "small",
    domain: Any = None,
    compile: bool = False,
    thorough: bool = False,
    stops: Literal["follow", "constant"] = "follow",
    blame: bool = True,
) -> Report:
    """Compare the derivatives of `func` at `inputs` with finite differences. There is no tolerance to choose.

    The verdict of the report is PASS if every element of every input was compared, with the resolution asked for, and
    nothing disagrees; FAIL if something disagrees beyond its error bar; INCONCLUSIVE otherwise, and `report.ledger`
    says what was not compared and why.

    Args:
        func: The function: any callable, a `torch.nn.Module`, or a subclass of `torch.autograd.Function`.
        inputs: A tuple of positional arguments, or one argument of any kind. The tensors in it that require grad are
            checked, or all floating-point and complex ones if none does; of a module also the parameters.
        kwargs: Keyword arguments of the function; tensors in them are checked too.
        argnums: Number of the positional argument to check, or several. All else, also parameters of a module, is a
            constant then. The default is to check all.
        order: 1 for first derivatives, 2 for second derivatives as well, in each combination of the modes; up to 5 for
            derivatives of higher order as well, by reverse mode. The default is 1.
        modes: The modes of differentiation to check: "reverse" (backward), "forward" (jvp), or both.
        masked: Whether only the specified elements of sparse tensors count.
        resolution: The relative error of a typical entry that must have been visible before the check may pass, 0.01
            by default. Smaller is stricter; the report is inconclusive where it was not reached.
        power: The former name of `resolution`.
        accuracy: The relative error that the derivative may have by design, 0 by default. An iterative solver that
            stops at a tolerance of 1e-6 has accuracy=1e-5 or so: smaller disagreements are not failures.
        budget: Seconds that the comparison may take, or a `gradvet.Budget` of seconds and bytes. What is left out then
            is listed in the report. Explaining a failure may take longer. There is no limit by default.
        seed: Seed of the random directions: the same seed gives the same report. The default is a fresh one.
        checks: Names of the checks to run, or a mapping such as {"input_layout": False} to leave some out. The default
            is all checks of the modes.
        surrogate: A function whose derivative `func` is meant to have, where that is not its own, as for a
            straight-through estimator. For a model, a mapping of `autograd.Function` classes inside it to such
            functions; no other points are tried then.
        reference: Another implementation of `func`, in plain torch: values and gradients of `func` are compared with
            those of the reference in float64, and the reference with finite differences.
        dtypes: With `reference`, a floating-point dtype or several, such as (torch.float32, "bfloat16"): inputs and
            parameters are cast to each, and the report covers all. The default is the precision of the inputs as given.
        points: Which points are tried beside the one given: "small" for a few special points and shapes, "thorough"
            for all of them, None for none; or a list of inputs, a mapping of names to inputs, or a Hypothesis strategy.
        domain: Values that inputs may have at these points: an interval (low, high), a function, or a strategy, for
            all inputs or for each in a list or a mapping. The default is no restriction.
        compile: Whether to compare with the function that `torch.compile` makes, too.
        thorough: All points, order=2 and resolution=1e-4, unless these arguments say otherwise.
        stops: "follow" compares with the function as it is, so a `detach` that changes the gradient is a failure.
            "constant" accepts `detach` and `no_grad` as deliberate: what they stop counts as a constant, and no other
            points are tried.
        blame: Whether to search a module that fails for the piece with the wrong derivative, and to report it first.

    Returns:
        The report: `report.verdict`, `report.findings`, `report.ledger`; `print(report)` shows it.

    >>> import torch
    >>> report = check(torch.sin, torch.linspace(0.1, 2.0, 5, dtype=torch.float64))
    >>> report.verdict.value
    'pass'
    """
    surrogates = validation.surrogates_of(surrogate, or_function=True)
    request = validation.request_of(func, inputs, kwargs, surrogate if callable(surrogate) else None, argnums)
    is_thorough = validation.flag("thorough", thorough)
    limits = validation.budget_of(budget)
    options = Options(
        seed=fresh_seed() if seed is None else validation.seed_of(seed),
        masked=validation.flag("masked", masked),
        resolution=validation.resolution_of(resolution, power, 1e-4 if is_thorough else 0.01),
        accuracy=validation.fraction("accuracy", accuracy, "1e-5", zero=True),
        seconds=limits.seconds,
    )
    validation.require_domain(domain)
    if is_thorough and isinstance(points, str) and points == "small":
        points = "thorough"
    other_points = PointSettings.of(points, domain, options.seed)
    selection = validation.selection_of(validation.names_of("modes", modes), validation.checks_of(checks))
    if validation.flag("compile", compile):
        selection |= {"compile"}
    # A kernel is compared with its reference at first order.
    usual_order = 2 if is_thorough and reference is None else 1
    chosen_order = usual_order if order is None else validation.order_of(order)
    settings = PipelineSettings(chosen_order, selection, other_points, limits.bytes)
    request, stop_mode = replace(request, reference=reference), None
    dtypes = dtypes_of(dtypes)
    require_comparable(request, settings, dtypes)
    if (accepts := accepts_stops(stops)) or surrogates:
        stop_mode = StopMode(held=None if accepts else frozenset(), surrogates=surrogates)
        # The constants are those of the point given.
        request, settings = replace(request, func=within(func, stop_mode)), replace(settings, points=None)
    run = partial(run_in_dtypes, options=options, dtypes=dtypes)
    with shown_stages(title_of(func)):
        with validation.explaining_call(request):
            report = run(request, settings)
        if stop_mode is not None:
            report = with_notes_on_stops(report, func, stop_mode)
        elif report.failures and (dtypes is None or reference is not None):
            report = with_torch_stops(report, request, settings, run)
        if validation.flag("blame", blame) and report.failures and is_model(func) and not surrogates:
            report = culprit_first(report, replace(request, func=func), stops, limits)
    return filtered(publish(report))


@validation.explaining_arguments
def assert_gradients(
    func: Callable[..., Any],
    inputs: Any,
    *,
    inconclusive: Literal["raise", "warn", "ignore"] = "raise",
    msg: str = "",
    kwargs: Mapping[str, Any] | None = None,
    argnums: int | Sequence[int] | None = None,
    order: int | None = None,
    modes: Iterable[str] = ("reverse", "forward"),
    masked: bool = False,
    resolution: float | None = None,
    power: float | None = None,
    accuracy: float = 0.0,
    budget: float | Budget | None = None,
    seed: int | None = None,
    checks: Iterable[str] | Mapping[str, bool] | None = None,
    surrogate: Callable[..., Any] | Mapping[Any, Callable[..., Any]] | None = None,
    reference: Callable[..., Any] | None = None,
    dtypes: Any = None,
    points: Any = "small",
    domain: Any = None,
    compile: bool = False,
    thorough: bool = False,
    stops: Literal["follow", "constant"] = "follow",
    blame: bool = True,
) -> Report:
    """Run `check`, and raise `GradientError` unless it passes.

    Args:
        func: The function.
        inputs: A tuple of positional arguments, or one argument of any kind.
        inconclusive: What happens if nothing is wrong but not everything could be compared: "raise" raises
            `GradientError`, "warn" warns with `InconclusiveWarning` and returns the report, "ignore" returns it.
        msg: Text in front of the message of the exception or of the warning.

    The other arguments are those of `check`.

    Returns:
        The report.

    >>> import torch
    >>> assert_gradients(torch.exp, torch.ones(3, dtype=torch.float64)).verdict.value
    'pass'
    """
    settings = {name: given for name, given in locals().items() if name not in ("inconclusive", "msg")}
    if not isinstance(inconclusive, str) or inconclusive not in ("raise", "warn", "ignore"):
        refuse("inconclusive is 'raise', 'warn' or 'ignore'", inconclusive)
    if not isinstance(msg, str):
        refuse("msg is a text", msg)
    report = check(**settings)
    before = f"{msg}\n" if msg else ""
    if report.failures:
        raise GradientError(f"{before}{report}", report)
    if report.verdict is Verdict.INCONCLUSIVE and inconclusive == "raise":
        raise GradientError(f"{before}{report}\n  {ACCEPT}", report)
    if report.verdict is Verdict.INCONCLUSIVE and inconclusive == "warn":
        warnings.warn(f"{before}{report.title}: {headline(report)}", InconclusiveWarning, stacklevel=3)
    return report


@validation.explaining_arguments
def numerical_jacobian(
    func: Callable[..., Any], inputs: Any, *, kwargs: Mapping[str, Any] | None = None
) -> NumericalJacobian:
    """The Jacobian by differences alone, every entry with an error bar.

    Args:
        func: The function. No derivative of it is used.
        inputs: A tuple of positional arguments, or one argument of any kind.
        kwargs: Keyword arguments of the function; tensors in them are inputs too.

    Returns:
        The slopes: `value` and `error` for one output and one input, blocks in `values` and `errors` for several. A
        block has the output's shape followed by the input's.

    >>> import torch
    >>> found = numerical_jacobian(torch.square, torch.tensor([1.0, 3.0], dtype=torch.float64))
    >>> [round(float(slope), 6) for slope in found.value.diagonal()]
    [2.0, 6.0]
    """
    request = validation.request_of(func, inputs, kwargs)
    with one_at_a_time, validation.explaining_call(request):
        binding = FRONTEND.bind(request)
        FRONTEND.require_separate(request)
        state = FRONTEND.preserved_state((func, inputs, kwargs), binding.arguments)
        with state, state:  # twice: the first restoration may be interrupted
            return measured_jacobian(FRONTEND.problem(binding, 0))


def dtypes_of(given: Any) -> tuple[Any, ...] | None:
    """The dtypes that were given: one, or several, or names such as "float32,bfloat16"."""
    several = given.split(",") if isinstance(given, str) else given
    return None if given is None else tuple(several) if isinstance(several, Iterable) else (several,)


def require_comparable(request: Request, settings: PipelineSettings, dtypes: Any) -> None:
    """Raise if the settings cannot be used with a reference, or need one."""
    if request.reference is None:
        if dtypes is not None:
            raise InvalidProblemError(
                "dtypes compares a kernel with its reference in several precisions, but there is no reference: pass "
                "reference=, or inputs of the dtype that you want checked"
            )
        return
    if not callable(request.reference):
        refuse("reference is a function or a module", request.reference)
    if settings.order != 1:
        raise InvalidProblemError(
            "a reference is compared at first order: leave out the order, or check the second order without a reference"
        )
    if settings.points is not None and (settings.points.own is not None or settings.points.domain is not None):
        raise InvalidProblemError(
            "with a reference the kernel is compared at the inputs given: leave out points and domain, and call check "
            "for each of the points"
        )
    if REFERENCE not in settings.selection:
        raise InvalidProblemError(
            "a reference is for gradients of backward: modes must contain 'reverse', and checks, if given, 'reference'"
        )


def run_in_dtypes(
    request: Request, settings: PipelineSettings, options: Options, dtypes: Sequence[Any] | None
) -> Report:
    """One report about all dtypes; None: about the inputs as they are.

    The reference is compared with differences once, in the first of the dtypes that the kernel accepts.
    """
    if dtypes is None:
        return run_as_given(request, settings, options)
    requests = dict(FRONTEND.cast(request, dtype) for dtype in dtypes)
    if not requests:
        raise InvalidProblemError("dtypes is empty: name at least one, such as torch.bfloat16")
    reports: dict[str, Report] = {}
    refusals: dict[str, Exception] = {}
    end = None if options.seconds is None else time.monotonic() + options.seconds
    for name, cast in requests.items():
        left = options if end is None else replace(options, seconds=end - time.monotonic())
        wanted = replace(settings, precision=name)
        if reports:
            wanted = replace(wanted, selection=settings.selection - {"reverse"})
        try:
            reports[name] = run_pipeline(FRONTEND, cast, wanted, left)
        except (InvalidProblemError, TypeError):  # of the call, in any dtype
            raise
        except Exception as error:
            raise_interruption(error)
            refusals[name] = error
    words = {name: f"the kernel raises {type(error).__name__}: {first_line(error)}" for name, error in refusals.items()}
    if not reports:
        raise InvalidProblemError("; ".join(f"in {name}, {why}" for name, why in words.items())) from refusals[name]
    every = joined(reports, requests)
    refused = [
        Finding(REFERENCE, Verdict.INCONCLUSIVE, f"{name}: {why}", advice=REFUSED) for name, why in words.items()
    ]
    return replace(every, findings=(*every.findings, *refused))


def run_as_given(request: Request, settings: PipelineSettings, options: Options) -> Report:
    """The report; of the parameters alone if the function raises and runs with inputs that do not require grad."""
    try:
        return run_pipeline(FRONTEND, request, settings, options)
    except InvalidProblemError:
        raise
    except Exception:
        if (constant := FRONTEND.with_constant_inputs(request)) is None:
            raise
        return run_pipeline(FRONTEND, constant, settings, options)
