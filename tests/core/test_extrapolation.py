"""What a step sweep shows about functions whose slopes are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gradvet.core.decision import Decision, ErrorScale, Reason, decide
from gradvet.core.extrapolation import (
    EVEN_FILTER,
    EVEN_ORDER,
    ODD_FILTER,
    ODD_ORDERS,
    SIDE_FILTER,
    SIDE_ORDERS,
    Estimate,
    SlopeFit,
    _extrapolations,
    _has_plateau,
    _is_steep,
    _noise,
    _tends_to_constant,
    fit_slope,
)
from gradvet.core.finite_differences import StepSweep, constant_step_for
from gradvet.core.results import Verdict

EPS = 2.0**-52


def outside(function: Callable[[float], float], x: float) -> float:
    try:
        return function(x)
    except ValueError:
        return math.nan


def step_sweep(function: Callable[[float], float], x: float, slope: float) -> StepSweep:
    steps = [2.0 ** (-4 - level) for level in range(24)]
    at = function(x)
    plus = [outside(function, x + t) - at - slope * ((x + t) - x) for t in steps]
    minus = [outside(function, x - t) - at - slope * ((x - t) - x) for t in steps]
    sides = [(outside(function, x + t), outside(function, x - t)) for t in steps]
    changed = [(int(above != at), int(below != at)) for above, below in sides]
    rise = max((abs(value - at) for side in sides for value in side if math.isfinite(value)), default=0.0)
    return StepSweep(steps, plus, minus, changed, 0.2 * EPS * abs(at), rise=rise, constant_step=constant_step_for(EPS))


def decided(function: Callable[[float], float], x: float, slope: float) -> tuple[Decision, SlopeFit]:
    fit = fit_slope(step_sweep(function, x, slope))
    # A derivative of zero is compared with what the function does.
    typical = abs(slope) or fit.rise or abs(function(x))
    return decide(fit, ErrorScale(abs(slope), typical, EPS), 0.01), fit


def shifted(x: float) -> float:
    return 2.0 * ((1e8 + x) - 1e8)


SMOOTH = {
    "sine": (math.sin, 0.7, math.cos(0.7)),
    "sine with a large offset": (lambda x: 1e8 + math.sin(x), 0.7, math.cos(0.7)),
    "fast sine": (lambda x: math.sin(300.0 * x), 0.7, 300.0 * math.cos(210.0)),
    "shifted and back": (shifted, 0.7, 2.0),
    "kink beside the point": (lambda x: abs(x - 1e-5), 0.0, -1.0),
    "constant": (lambda x: 3.0, 0.7, 0.0),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_right_slope_is_not_failed(name: str) -> None:
    function, x, slope = SMOOTH[name]
    decision, fit = decided(function, x, slope)
    assert decision.verdict is Verdict.PASS
    assert abs(fit.error.value) <= fit.error.error + 64 * EPS * abs(slope)


@pytest.mark.parametrize("name", SMOOTH)
def test_slope_off_by_a_percent_is_failed(name: str) -> None:
    function, x, slope = SMOOTH[name]
    wrong = 1.01 * slope if slope else 0.01
    decision, fit = decided(function, x, wrong)
    assert decision.verdict is Verdict.FAIL
    assert decision.reason is Reason.DISAGREES
    assert fit.error.value == pytest.approx(slope - wrong, rel=1e-2)


def test_error_bar_is_near_roundoff_for_a_smooth_function() -> None:
    assert decided(math.sin, 0.7, math.cos(0.7))[1].error.error < 1e-12


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_value_between_the_slopes_of_a_kink_passes(slope: float) -> None:
    decision, fit = decided(lambda x: max(x, 0.0), 0.0, slope)
    assert (decision.verdict, decision.reason) == (Verdict.PASS, Reason.KINK)
    assert fit.kink.value == pytest.approx(0.5)


@pytest.mark.parametrize("slope", [-0.1, 1.1, 5.0])
def test_value_outside_the_slopes_of_a_kink_fails(slope: float) -> None:
    decision, _ = decided(lambda x: max(x, 0.0), 0.0, slope)
    assert (decision.verdict, decision.reason) == (Verdict.FAIL, Reason.OUTSIDE)


def test_jump_is_named_and_not_failed() -> None:
    decision, _ = decided(lambda x: float(x >= 0.0), 0.0, 0.0)
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.JUMP)


def test_vertical_tangent_is_named_and_not_failed() -> None:
    decision, fit = decided(math.sqrt, 0.0, 1.0)
    assert fit.one_sided
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.STEEP)


def test_edge_of_the_domain_is_tested_from_one_side() -> None:
    right, fit = decided(lambda x: math.sqrt(x) ** 4 + 3.0 * x, 0.0, 3.0)
    assert fit.one_sided
    assert right.verdict is Verdict.PASS
    assert decided(lambda x: math.sqrt(x) ** 4 + 3.0 * x, 0.0, 3.1)[0].verdict is Verdict.FAIL


def test_function_without_any_finite_neighbour_is_inconclusive() -> None:
    decision, _ = decided(lambda x: 1.0 if x == 0.0 else math.nan, 0.0, 0.0)
    assert (decision.verdict, decision.reason) == (Verdict.INCONCLUSIVE, Reason.NOT_FINITE)


def test_derivative_that_is_not_a_number_never_passes() -> None:
    assert decided(math.sin, 0.7, math.nan)[0].verdict is not Verdict.PASS


def test_middle_of_a_wide_stair_has_slope_zero() -> None:
    assert decided(lambda x: float(round(4.0 * x)) / 4.0, 0.3, 0.0)[0].verdict is Verdict.PASS
    assert decided(lambda x: float(round(4.0 * x)) / 4.0, 0.3, 1.0)[0].verdict is Verdict.FAIL


def test_error_that_only_two_of_the_widest_steps_show_is_no_plateau() -> None:
    steps = [2.0**-level for level in range(4, 16)]
    values = [t if number < 2 else 0.0 for number, t in enumerate(steps)]
    three = [t if number < 3 else 0.0 for number, t in enumerate(steps)]
    assert not _has_plateau(_extrapolations(steps, values, 1e-12, (1.0,)), Estimate(1.0, 1e-6))
    assert _has_plateau(_extrapolations(steps, three, 1e-12, (1.0,)), Estimate(1.0, 1e-6))


def test_vertical_tangent_must_show_over_six_steps_however_short_the_sweep() -> None:
    steps = [2.0**-level for level in range(1, 10)]
    root = [math.sqrt(t) for t in steps]
    only_the_last = [t * max(1.0, math.sqrt(steps[4] / t)) for t in steps]
    assert _is_steep(steps, root)
    assert not _is_steep(steps, only_the_last)


@pytest.mark.parametrize(
    ("weights", "powers"),
    [
        *((order, (2, 4)[: len(order) - 1]) for order in ODD_ORDERS),
        *((order, (1, 2)[: len(order) - 1]) for order in SIDE_ORDERS),
        (EVEN_ORDER, (-1, 1)),
    ],
)
def test_extrapolation_keeps_the_slope_and_cancels_these_powers(weights: tuple[float, ...], powers: tuple[int]) -> None:
    assert sum(weights) == pytest.approx(1.0)
    for power in powers:
        assert sum(w * 2.0 ** (-power * k) for k, w in enumerate(weights)) == pytest.approx(0.0, abs=1e-14)


@pytest.mark.parametrize(("weights", "powers"), [(ODD_FILTER, (1, 3)), (SIDE_FILTER, (1, 2)), (EVEN_FILTER, (0, 1, 2))])
def test_filter_cancels_these_powers_but_not_the_next(weights: tuple[float, ...], powers: tuple[int]) -> None:
    def left(power: int) -> float:
        return sum(w * 2.0 ** (-power * k) for k, w in enumerate(weights))

    assert [left(power) for power in powers] == pytest.approx([0.0] * len(powers))
    assert abs(left(powers[-1] + 1)) > 1e-3


def test_jump_is_a_constant_difference_at_the_smallest_steps() -> None:
    steps = [2.0 ** (-4 - level) for level in range(24)]
    assert _tends_to_constant([1.0 + 100.0 * t for t in steps], 1e-16)
    assert not _tends_to_constant([100.0 * t for t in steps], 1e-16)
    assert not _tends_to_constant([1.0] * 20 + [1.0, 1.0, 1.2, 1.0], 1e-16)
    assert not _tends_to_constant([1e-15] * 24, 1e-16)


def test_plateau_needs_consecutive_steps() -> None:
    steps = [2.0**-level for level in range(4, 16)]
    late = [t if number in (4, 5, 6) else 0.0 for number, t in enumerate(steps)]
    broken = [t if number in (4, 5, 7, 8) else 0.0 for number, t in enumerate(steps)]
    assert _has_plateau(_extrapolations(steps, late, 1e-12, (1.0,)), Estimate(1.0, 1e-6))
    assert not _has_plateau(_extrapolations(steps, broken, 1e-12, (1.0,)), Estimate(1.0, 1e-6))
    assert not _has_plateau(_extrapolations(steps, late, 1.0, (1.0,)), Estimate(1.0, 1e-6))


def stairs(width: float, height: float = 1.0) -> bool:
    """Whether the sweep from the middle of a stair of this width shows a staircase."""
    steps = [2.0 ** (-4 - level) for level in range(24)]
    plus = [height * round(t / width) for t in steps]
    changed = [(int(rise != 0.0), int(rise != 0.0)) for rise in plus]
    return fit_slope(StepSweep(steps, plus, [-rise for rise in plus], changed, 1e-16)).has_stairs


def test_wide_stairs_are_found_and_those_of_roundoff_are_not() -> None:
    assert stairs(2.0**-8)
    assert stairs(2.0**-14)
    assert not stairs(2.0**-22)
    assert not stairs(2.0**-8, height=1e-14)


def test_noise_is_that_of_most_values_and_not_of_one() -> None:
    alternating = [1e-3 * (-1.0) ** number for number in range(24)]
    noise = _noise(alternating, ODD_FILTER)
    assert 1e-3 < noise < 3e-3
    assert _noise([*alternating[:-1], 1.0], ODD_FILTER) == pytest.approx(noise)
    assert _noise([1.0, *alternating[1:]], ODD_FILTER) == pytest.approx(noise)
    assert _noise([2.0**-number for number in range(24)], ODD_FILTER) == pytest.approx(0.0, abs=1e-12)


def test_error_is_denied_by_smaller_steps_that_show_none() -> None:
    steps = [2.0**-k for k in range(1, 10)]
    # As a saw in half precision: over the widest steps it hardly rises, over the narrowest it does as predicted.
    errors = [-13.4, -14.6, -12.7, -10.8, -11.4, -22.2, 0.0, 0.0, 0.0]
    odd = [error * step for error, step in zip(errors, steps, strict=True)]
    sweep = StepSweep(steps, odd, [-value for value in odd], [(1, 1)] * 9, 2e-4)
    assert abs(fit_slope(sweep).error.value) > 10.0
    assert fit_slope(sweep).is_denied
    constant = [-13.0 * step for step in steps]
    assert not fit_slope(StepSweep(steps, constant, [-value for value in constant], [(1, 1)] * 9, 2e-4)).is_denied


def test_rise_is_the_largest_change_and_zero_where_it_is_roundoff() -> None:
    steps = [2.0**-k for k in range(4, 28)]
    odd = [1e-3 * step for step in steps]

    def rise(largest: float) -> float:
        sweep = StepSweep(steps, odd, [-value for value in odd], [(1, 1)] * 24, 1e-16, rise=largest)
        return fit_slope(sweep).rise

    assert rise(0.5) == 0.5
    assert rise(65e-16) == 65e-16
    assert rise(63e-16) == 0.0
