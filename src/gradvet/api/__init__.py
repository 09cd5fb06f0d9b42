"""The native interface: `check` for a report, `assert_gradients` for an exception, `numerical_jacobian` for numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradvet.api.pipeline import PipelineSettings, run_pipeline
from gradvet.api.points import PointSettings
from gradvet.checks.catalogue import Selection
from gradvet.core.events import fresh_seed, publish
from gradvet.core.provenance import title_of
from gradvet.core.results import Report
from gradvet.frontends.torch.binding import Request
from gradvet.frontends.torch.numerical import NumericalJacobian, jacobian_of
from gradvet.options import Budget, Options
from gradvet.reports.waiting import waiting

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
    power: float | None = None,
    budget: float | Budget | None = None,
    seed: int | None = None,
    checks: Iterable[str] | Mapping[str, bool] | None = None,
    surrogate: Callable[..., Any] | None = None,
    points: Any = "small",
    domain: Any = None,
    compile: bool = False,
    thorough: bool = False,
) -> Report:
    """Are the derivatives of `func` at `inputs` right? There is no tolerance to choose.

    `inputs` is a tuple of positional arguments, or one argument of any kind. The tensors in it that require grad are
    checked, or all floating-point and complex ones if none does; of a module also the parameters.

    Beside the point given, some special ones are tried: `points` says how many ("small", "thorough", None) or which,
    `domain` where inputs may lie. `compile` compares with what torch.compile makes of the function. `thorough` is all
    points, second order, and no pass unless errors of a ten-thousandth would have been seen.

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
        power=extent.power if power is None else power,
        seconds=spending.seconds,
    )
    other = PointSettings.of(
        extent.points if isinstance(points, str) and points == USUAL.points else points, domain, options.seed
    )
    selection = Selection.of(modes, checks).adding(*["compile"] if compile else [])
    wanted = PipelineSettings(extent.order if order is None else order, selection, other, spending.bytes)
    with waiting(title_of(func)):
        report = run_pipeline(Request(func, inputs, kwargs, surrogate), wanted, options)
    return publish(report)


def assert_gradients(func: Callable[..., Any], inputs: Any, **settings: Any) -> Report:
    """`check`, raising `GradientError` if anything failed; the report otherwise.

    >>> import torch
    >>> assert_gradients(torch.exp, torch.ones(3, dtype=torch.float64)).verdict.value
    'pass'
    """
    report = check(func, inputs, **settings)
    report.raise_if_failed()
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
    return jacobian_of(Request(func, inputs, kwargs))
