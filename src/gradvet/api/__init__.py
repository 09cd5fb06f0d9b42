"""The native interface: `check` for a report, `assert_gradients` for an exception, `numerical_jacobian` for numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradvet.api.pipeline import PipelineSettings, run_pipeline
from gradvet.api.points import PointSettings
from gradvet.api.selection import Selection
from gradvet.core.events import fresh_seed, publish
from gradvet.core.frontend import Request
from gradvet.core.provenance import title_of
from gradvet.core.results import InconclusiveWarning, Report, Verdict
from gradvet.errors import GradientError, InvalidProblemError
from gradvet.frontends.torch import FRONTEND
from gradvet.frontends.torch.numerical_jacobian import NumericalJacobian
from gradvet.options import Budget, Options
from gradvet.reports.ledger_table import ACCEPT, headline
from gradvet.reports.progress import interactive_progress

__all__ = ["NumericalJacobian", "assert_gradients", "check", "numerical_jacobian"]


@dataclass(frozen=True, slots=True)
class Extent:
    """What is done where the user does not say."""

    order: int
    power: float
    points: str


USUAL, THOROUGH = Extent(1, 0.01, "small"), Extent(2, 1e-4, "thorough")


def check(
    func: Callable[..., Any],
    inputs: Any,
    *,
    kwargs: Mapping[str, Any] | None = None,
    order: int | None = None,
    modes: Iterable[str] = ("reverse", "forward"),
    masked: bool = False,
    resolution: float | None = None,
    power: float | None = None,
    accuracy: float = 0.0,
    budget: float | Budget | None = None,
    seed: int | None = None,
    checks: Iterable[str] | Mapping[str, bool] | None = None,
    surrogate: Callable[..., Any] | None = None,
    points: Any = "small",
    domain: Any = None,
    compile: bool = False,
    thorough: bool = False,
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
        order: 1 for first derivatives, 2 for second derivatives as well. The default is 1.
        modes: The modes of differentiation to check: "reverse" (backward), "forward" (jvp), or both.
        masked: Whether only the specified elements of sparse tensors count.
        resolution: The relative error of a typical entry that must have been visible before the check may pass, 0.01
            by default. Smaller is stricter; the report is inconclusive where it was not reached.
        power: The former name of `resolution`.
        accuracy: The relative error that the derivative may have by design, 0 by default. An iterative solver that
            stops at a tolerance of 1e-6 has accuracy=1e-5 or so: smaller disagreements are not failures.
        budget: Seconds that the check may take, or a `gradvet.Budget` of seconds and bytes. What is left out then is
            listed in the report. There is no limit by default.
        seed: Seed of the random directions: the same seed gives the same report. The default is a fresh one.
        checks: Names of the checks to run, or a mapping such as {"layouts": False} to leave some out. The default is
            all checks of the modes.
        surrogate: A function whose derivative `func` is meant to have, where that is not its own, as for a
            straight-through estimator.
        points: Which points are tried beside the one given: "small" for a few special points and shapes, "thorough"
            for all of them, None for none; or a list of inputs, a mapping of names to inputs, or a Hypothesis strategy.
        domain: Values that inputs may have at these points: an interval (low, high), a function, or a strategy, for
            all inputs or for each in a list or a mapping. The default is no restriction.
        compile: Whether to compare with the function that `torch.compile` makes, too.
        thorough: All points, order=2 and resolution=1e-4, unless these arguments say otherwise.

    Returns:
        The report: `report.verdict`, `report.findings`, `report.ledger`; `print(report)` shows it.

    >>> import torch
    >>> report = check(torch.sin, torch.linspace(0.1, 2.0, 5, dtype=torch.float64))
    >>> report.verdict.value
    'pass'
    """
    extent = THOROUGH if thorough else USUAL
    spending = Budget.of(budget)
    options = Options(
        seed=fresh_seed() if seed is None else seed,
        masked=masked,
        power=_requested_resolution(resolution, power, extent.power),
        accuracy=accuracy,
        seconds=spending.seconds,
    )
    other = PointSettings.of(
        FRONTEND, extent.points if isinstance(points, str) and points == USUAL.points else points, domain, options.seed
    )
    selection = Selection.of(modes, checks).adding(*["compile"] if compile else [])
    wanted = PipelineSettings(extent.order if order is None else order, selection, other, spending.bytes)
    with interactive_progress(title_of(func)):
        report = run_pipeline(FRONTEND, Request(func, inputs, kwargs, surrogate), wanted, options)
    return publish(report)


def _requested_resolution(resolution: float | None, power: float | None, otherwise: float) -> float:
    """The resolution under either of its names."""
    if resolution is not None and power is not None:
        raise InvalidProblemError("resolution= and power= are two names of the same argument: give only resolution=")
    if resolution is None:
        return otherwise if power is None else power
    if isinstance(resolution, bool) or not isinstance(resolution, (int, float)) or not 0.0 < resolution <= 1.0:
        raise InvalidProblemError(f"resolution is a relative error between 0 and 1 such as 0.01, found {resolution!r}")
    return resolution


def assert_gradients(
    func: Callable[..., Any],
    inputs: Any,
    *,
    inconclusive: Literal["raise", "warn", "ignore"] = "raise",
    kwargs: Mapping[str, Any] | None = None,
    order: int | None = None,
    modes: Iterable[str] = ("reverse", "forward"),
    masked: bool = False,
    resolution: float | None = None,
    power: float | None = None,
    accuracy: float = 0.0,
    budget: float | Budget | None = None,
    seed: int | None = None,
    checks: Iterable[str] | Mapping[str, bool] | None = None,
    surrogate: Callable[..., Any] | None = None,
    points: Any = "small",
    domain: Any = None,
    compile: bool = False,
    thorough: bool = False,
) -> Report:
    """Run `check`, and raise `GradientError` unless it passes.

    Args:
        func: The function.
        inputs: A tuple of positional arguments, or one argument of any kind.
        inconclusive: What happens if nothing is wrong but not everything could be compared: "raise" raises
            `GradientError`, "warn" warns with `InconclusiveWarning` and returns the report, "ignore" returns it.

    The other arguments are those of `check`.

    Returns:
        The report.

    >>> import torch
    >>> assert_gradients(torch.exp, torch.ones(3, dtype=torch.float64)).verdict.value
    'pass'
    """
    if inconclusive not in ("raise", "warn", "ignore"):
        raise InvalidProblemError(f"inconclusive is 'raise', 'warn' or 'ignore', found {inconclusive!r}")
    report = check(
        func,
        inputs,
        kwargs=kwargs,
        order=order,
        modes=modes,
        masked=masked,
        resolution=resolution,
        power=power,
        accuracy=accuracy,
        budget=budget,
        seed=seed,
        checks=checks,
        surrogate=surrogate,
        points=points,
        domain=domain,
        compile=compile,
        thorough=thorough,
    )
    report.raise_if_failed()
    if report.verdict is Verdict.INCONCLUSIVE and inconclusive == "raise":
        raise GradientError(f"{report}\n  {ACCEPT}", report)
    if report.verdict is Verdict.INCONCLUSIVE and inconclusive == "warn":
        warnings.warn(f"{report.title}: {headline(report)}", InconclusiveWarning, stacklevel=2)
    return report


def numerical_jacobian(
    func: Callable[..., Any], inputs: Any, *, kwargs: Mapping[str, Any] | None = None
) -> NumericalJacobian:
    """The Jacobian by differences alone, every entry with an error bar.

    >>> import torch
    >>> found = numerical_jacobian(torch.square, torch.tensor([1.0, 3.0], dtype=torch.float64))
    >>> [round(float(slope), 6) for slope in found.value.diagonal()]
    [2.0, 6.0]
    """
    found: NumericalJacobian = FRONTEND.numerical_jacobian(Request(func, inputs, kwargs), seed=0)
    return found
