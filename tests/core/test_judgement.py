"""The rules by which a reading becomes a verdict, each just inside and just outside its bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradvet.core.decision import ErrorScale, Reason, SlopeDecision, decide
from gradvet.core.extrapolation import Estimate, SlopeFit
from gradvet.core.results import Verdict

EPS = 2.0**-52
BFLOAT16 = 2.0**-7
FAIL, PASS, INCONCLUSIVE = Verdict.FAIL, Verdict.PASS, Verdict.INCONCLUSIVE


def decided(
    e: float,
    bar: float,
    *,
    kink: tuple[float, float] = (0.0, 1e-12),
    scale: float = 1.0,
    typical: float | None = None,
    eps: float = EPS,
    unsure: float = 0.0,
    power: float = 0.01,
    **seen: Any,
) -> SlopeDecision:
    """An error e ± bar of a slope of this scale, constant over several steps unless said otherwise."""
    fit = SlopeFit(Estimate(e, bar), Estimate(*kink), **({"plateau": True} | seen))
    return decide(fit, ErrorScale(scale, scale if typical is None else typical, eps, unsure), power)


def verdict(e: float, bar: float, **seen: Any) -> tuple[Verdict, Reason]:
    found = decided(e, bar, **seen)
    return found.verdict, found.reason


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_error_fails_from_one_and_a_half_error_bars_on(sign: float) -> None:
    assert verdict(sign * 1.6e-3, 1e-3) == (FAIL, Reason.DISAGREES)
    assert verdict(sign * 1.4e-3, 1e-3) == (INCONCLUSIVE, Reason.PRECISION)


def test_error_within_its_bar_agrees_if_the_bar_could_have_shown_one() -> None:
    assert verdict(5e-3, 6e-3) == (PASS, Reason.AGREES)
    assert verdict(5e-3, 0.02) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(5e-3, 0.02, power=0.03) == (PASS, Reason.AGREES)
    assert verdict(5e-3, 0.02, steep=True) == (INCONCLUSIVE, Reason.STEEP)


def test_what_must_be_seen_is_a_part_of_a_typical_entry_and_not_of_the_sum() -> None:
    assert verdict(0.0, 5e-3, typical=1.0) == (PASS, Reason.AGREES)
    assert verdict(0.0, 5e-3, typical=0.1) == (INCONCLUSIVE, Reason.PRECISION)


def test_where_the_derivative_is_zero_there_is_nothing_to_be_a_part_of() -> None:
    assert verdict(0.0, 5e-3, scale=0.0) == (PASS, Reason.AGREES)


def test_error_that_is_not_constant_is_not_failed() -> None:
    assert verdict(0.5, 1e-6, plateau=False) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(0.5, 1e-6, steep=True) == (INCONCLUSIVE, Reason.STEEP)


@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize(("epsilon", "least"), [(2.0**-52, 1e-9), (2.0**-23, 64.0 * 2.0**-23), (2.0**-7, 0.05)])
def test_error_below_a_small_part_of_the_scale_is_roundoff(scale: float, eps: float, least: float) -> None:
    assert verdict(1.02 * least * scale, 1e-18, scale=scale, eps=eps) == (FAIL, Reason.DISAGREES)
    assert decided(0.98 * least * scale, 1e-18, scale=scale, eps=eps).verdict is not FAIL


def test_error_below_a_quarter_of_that_does_not_widen_the_bar() -> None:
    assert decided(2.4e-10, 1e-18).bar == 1e-18
    assert decided(2.6e-10, 1e-18).bar == pytest.approx(2.6e-10 + 1e-18, rel=1e-6, abs=0.0)


def test_error_that_other_steps_deny_or_that_uneven_values_show_leaves_doubt() -> None:
    assert verdict(0.5, 1e-6, denied=True) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(0.5, 1e-6, eps=BFLOAT16, unevenness=17.0) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(0.5, 1e-6, eps=BFLOAT16, unevenness=15.0) == (FAIL, Reason.DISAGREES)
    assert verdict(0.5, 1e-6, unevenness=17.0) == (FAIL, Reason.DISAGREES)


def test_error_that_is_not_clear_agrees_only_if_it_is_far_below_what_must_be_seen() -> None:
    assert verdict(4e-5, 3e-5) == (PASS, Reason.AGREES)
    assert verdict(8e-5, 6e-5) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(4e-5, 3e-5, steep=True) == (INCONCLUSIVE, Reason.STEEP)


def test_coarse_formats_forgive_a_twentieth_of_the_scale() -> None:
    assert verdict(0.06, 0.01, eps=BFLOAT16) == (FAIL, Reason.DISAGREES)
    assert verdict(0.04, 0.01, eps=BFLOAT16) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(0.04, 0.01, eps=BFLOAT16, power=0.06) == (PASS, Reason.AGREES)


def test_in_coarse_formats_a_bend_as_large_as_the_error_leaves_doubt() -> None:
    assert verdict(0.5, 0.01, eps=BFLOAT16, kink=(0.3, 0.1)) == (FAIL, Reason.DISAGREES)
    assert verdict(0.5, 0.01, eps=BFLOAT16, kink=(0.3, 0.3)) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(0.5, 0.01, eps=BFLOAT16, kink=(-0.3, 0.3)) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(0.5, 0.01, kink=(0.3, 0.3)) == (FAIL, Reason.DISAGREES)


def test_noise_of_the_derivative_widens_the_bar() -> None:
    assert verdict(1e-3, 1e-6) == (FAIL, Reason.DISAGREES)
    assert verdict(1e-3, 1e-6, unsure=1e-3) == (PASS, Reason.AGREES)


def test_what_is_not_finite_is_neither_right_nor_wrong() -> None:
    assert verdict(0.0, math.inf) == (INCONCLUSIVE, Reason.NOT_FINITE)
    assert verdict(0.0, math.nan) == (INCONCLUSIVE, Reason.NOT_FINITE)
    assert verdict(math.nan, 1e-6) == (INCONCLUSIVE, Reason.NOT_FINITE)


def test_derivative_below_roundoff_of_a_function_that_stands_still_shows_nothing() -> None:
    assert verdict(1e-17, 1e-30, scale=1e-17, still=True) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(1e-15, 1e-30, scale=1e-15, still=True) == (FAIL, Reason.DISAGREES)
    assert verdict(1e-17, 1e-30, scale=1e-17) == (FAIL, Reason.DISAGREES)
    assert verdict(1.0, 1e-6, scale=0.0, still=True) == (FAIL, Reason.DISAGREES)


def test_zero_on_a_stair_is_a_derivative_that_people_mean() -> None:
    assert verdict(1.0, 1e-6, scale=5e-4, stairs=True) == (INCONCLUSIVE, Reason.STAIRS)
    assert verdict(1.0, 1e-6, scale=2e-3, stairs=True) == (FAIL, Reason.DISAGREES)
    assert verdict(1.0, 1e-6, scale=5e-4) == (FAIL, Reason.DISAGREES)


def test_jump_is_named_whatever_the_error() -> None:
    assert verdict(1.0, 1e-6, jump=True) == (INCONCLUSIVE, Reason.JUMP)
    assert verdict(0.0, 1e-6, jump=True) == (INCONCLUSIVE, Reason.JUMP)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_value_between_the_slopes_passes_and_outside_fails(sign: float) -> None:
    beside = {"kink": (sign, 1e-6), "bent": True}
    assert verdict(0.9, 1e-6, **beside) == (PASS, Reason.KINK)
    assert verdict(-0.9, 1e-6, **beside) == (PASS, Reason.KINK)
    assert verdict(1.0 + 9e-5, 1e-6, **beside) == (PASS, Reason.KINK)
    assert verdict(1.0 + 2e-4, 1e-6, **beside) == (FAIL, Reason.OUTSIDE)
    assert verdict(-1.0 - 2e-4, 1e-6, **beside) == (FAIL, Reason.OUTSIDE)


def test_value_beyond_a_kink_needs_the_bars_of_both_and_a_constant_error() -> None:
    assert verdict(1.1, 0.03, kink=(1.0, 0.03), bent=True) == (FAIL, Reason.OUTSIDE)
    assert verdict(1.1, 0.05, kink=(1.0, 0.06), bent=True) == (PASS, Reason.KINK)
    assert verdict(1.1, 0.04, kink=(1.0, 0.04), bent=True) == (FAIL, Reason.DISAGREES)
    assert verdict(1.1, 0.01, kink=(1.0, 0.01), bent=True, plateau=False) == (INCONCLUSIVE, Reason.PRECISION)


def test_bend_counts_as_a_kink_if_it_is_clear_constant_and_not_a_roundoff_of_the_slope() -> None:
    assert verdict(0.5, 1e-6, kink=(1.0, 0.6), bent=True) == (PASS, Reason.KINK)
    assert verdict(0.5, 1e-6, kink=(1.0, 0.7), bent=True) == (FAIL, Reason.DISAGREES)
    assert verdict(0.5, 1e-6, kink=(1.0, 0.6)) == (FAIL, Reason.DISAGREES)
    assert verdict(1.5e-6, 1e-9, kink=(2e-6, 1e-9), bent=True) == (PASS, Reason.KINK)
    assert verdict(7e-7, 1e-9, kink=(9e-7, 1e-9), bent=True) == (FAIL, Reason.DISAGREES)
    assert verdict(1.5e-6, 1e-9, kink=(2e-6, 1e-9), bent=True, scale=10.0) == (FAIL, Reason.DISAGREES)


def test_function_that_may_vary_between_the_steps_is_not_failed() -> None:
    assert verdict(1.0, 1e-6, wild=0.5) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(1.0, 1e-6, wild=2.0) == (FAIL, Reason.DISAGREES)
    assert verdict(2.5, 1e-6, wild=0.5) == (FAIL, Reason.DISAGREES)
    assert verdict(15.0, 1e-6, wild=0.5, scale=10.0) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(0.2, 1e-6, wild=0.01, scale=0.05) == (FAIL, Reason.DISAGREES)


def test_narrow_steps_that_show_no_error_speak_against_wide_ones_that_do() -> None:
    assert verdict(0.5, 1e-6, denied=True) == (INCONCLUSIVE, Reason.PRECISION)


def test_uneven_values_of_a_rough_format_do_not_fail() -> None:
    assert verdict(0.5, 1e-3, eps=BFLOAT16, unevenness=17.0) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(0.5, 1e-3, eps=BFLOAT16, unevenness=15.0) == (FAIL, Reason.DISAGREES)
    assert verdict(0.5, 1e-3, unevenness=17.0) == (FAIL, Reason.DISAGREES)
