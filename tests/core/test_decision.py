"""The rules by which a fitted slope becomes a verdict, each just inside and just outside its bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradvet.core.decision import Decision, ErrorScale, Reason, decide
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
    derivative_noise: float = 0.0,
    resolution: float = 0.01,
    **seen: Any,
) -> Decision:
    """An error e ± bar of a slope of this scale, constant over several steps unless said otherwise."""
    fit = SlopeFit(Estimate(e, bar), Estimate(*kink), **({"has_plateau": True} | seen))
    return decide(fit, ErrorScale(scale, scale if typical is None else typical, eps, derivative_noise), resolution)


def verdict(e: float, bar: float, **seen: Any) -> tuple[Verdict, Reason]:
    found = decided(e, bar, **seen)
    return found.verdict, found.reason


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_error_fails_from_one_and_a_half_error_bars_on(sign: float) -> None:
    assert verdict(sign * 1.6e-2, 1e-2) == (FAIL, Reason.DISAGREES)
    assert verdict(sign * 1.4e-2, 1e-2) == (INCONCLUSIVE, Reason.PRECISION)


def test_error_within_its_bar_agrees_if_the_bar_could_have_shown_one() -> None:
    assert verdict(5e-3, 6e-3) == (PASS, Reason.AGREES)
    assert verdict(5e-3, 0.02) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(5e-3, 0.02, resolution=0.03) == (PASS, Reason.AGREES)
    assert verdict(5e-3, 0.02, is_steep=True) == (INCONCLUSIVE, Reason.STEEP)


def test_smallest_error_that_counts_follows_a_finer_resolution() -> None:
    assert verdict(5e-8, 1e-9) == (PASS, Reason.AGREES)
    assert verdict(5e-8, 1e-9, resolution=1e-8) == (FAIL, Reason.DISAGREES)


def test_required_resolution_is_relative_to_a_typical_entry_and_not_to_the_sum() -> None:
    assert verdict(0.0, 5e-3, typical=1.0) == (PASS, Reason.AGREES)
    assert verdict(0.0, 5e-3, typical=0.1) == (INCONCLUSIVE, Reason.PRECISION)


def test_derivative_of_zero_needs_an_error_bar_that_would_have_shown_a_typical_slope() -> None:
    assert verdict(0.0, 5e-3, scale=0.0, typical=1.0) == (PASS, Reason.AGREES)
    assert verdict(0.0, 5e-3, scale=0.0, typical=0.1) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(0.0, 5e-3, scale=0.0, typical=0.0) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(0.0, 0.0, scale=0.0, typical=0.0) == (PASS, Reason.AGREES)


def test_error_that_is_not_constant_is_not_failed() -> None:
    assert verdict(0.5, 1e-6, has_plateau=False) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(0.5, 1e-6, has_plateau=False, is_steep=True) == (INCONCLUSIVE, Reason.STEEP)


@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize(("eps", "least"), [(2.0**-52, 1e-6), (2.0**-23, 64.0 * 2.0**-23), (2.0**-7, 0.05)])
def test_error_below_a_small_part_of_the_scale_is_roundoff(scale: float, eps: float, least: float) -> None:
    assert verdict(1.02 * least * scale, 1e-18, scale=scale, eps=eps) == (FAIL, Reason.DISAGREES)
    assert decided(0.98 * least * scale, 1e-18, scale=scale, eps=eps).verdict is not FAIL


def test_bar_of_an_agreement_includes_an_error_beyond_it() -> None:
    assert decided(2e-7, 3e-7).bar == 3e-7
    assert decided(3e-7, 2e-7).bar == pytest.approx(5e-7, rel=1e-6, abs=0.0)


def test_error_denied_by_small_steps_is_inconclusive() -> None:
    assert verdict(0.5, 1e-6, is_denied=True) == (INCONCLUSIVE, Reason.PRECISION)


def test_unclear_error_agrees_only_if_it_is_a_quarter_of_the_required_resolution() -> None:
    assert verdict(1.3e-3, 1e-3) == (PASS, Reason.AGREES)
    assert verdict(1.6e-3, 1.1e-3) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(1.6e-3, 1.1e-3, is_steep=True) == (INCONCLUSIVE, Reason.STEEP)
    assert verdict(5e-3, 4e-3, eps=BFLOAT16) == (PASS, Reason.AGREES)
    assert verdict(6e-3, 5e-3, eps=BFLOAT16) == (INCONCLUSIVE, Reason.PRECISION)


def test_coarse_formats_allow_a_twentieth_of_the_scale() -> None:
    assert verdict(0.06, 0.01, eps=BFLOAT16) == (FAIL, Reason.DISAGREES)
    assert verdict(0.04, 0.01, eps=BFLOAT16) == (INCONCLUSIVE, Reason.PRECISION)
    assert verdict(0.04, 0.01, eps=BFLOAT16, resolution=0.06) == (PASS, Reason.AGREES)


def test_noise_of_the_derivative_widens_the_bar() -> None:
    assert verdict(1e-3, 1e-6) == (FAIL, Reason.DISAGREES)
    assert verdict(1e-3, 1e-6, derivative_noise=1e-3) == (PASS, Reason.AGREES)


def test_nonfinite_error_or_bar_is_inconclusive() -> None:
    assert verdict(0.0, math.inf) == (INCONCLUSIVE, Reason.NOT_FINITE)
    assert verdict(0.0, math.nan) == (INCONCLUSIVE, Reason.NOT_FINITE)
    assert verdict(math.nan, 1e-6) == (INCONCLUSIVE, Reason.NOT_FINITE)


def test_derivative_of_a_constant_function_is_wrong_unless_it_is_zero() -> None:
    assert verdict(1e-15, 1e-30, scale=1e-15) == (FAIL, Reason.DISAGREES)
    assert verdict(1e-17, 1e-30, scale=1e-17) == (FAIL, Reason.DISAGREES)
    assert verdict(1.0, 1e-6, scale=0.0) == (FAIL, Reason.DISAGREES)


def test_zero_derivative_on_a_stair_is_inconclusive() -> None:
    assert verdict(1.0, 1e-6, scale=0.0, has_stairs=True) == (INCONCLUSIVE, Reason.STAIRS)
    assert verdict(1.0, 1e-6, scale=5e-4, has_stairs=True) == (FAIL, Reason.DISAGREES)
    assert verdict(1.0, 1e-6, scale=0.0) == (FAIL, Reason.DISAGREES)


def test_jump_is_the_reason_whatever_the_error() -> None:
    assert verdict(1.0, 1e-6, jumps=True) == (INCONCLUSIVE, Reason.JUMP)
    assert verdict(0.0, 1e-6, jumps=True) == (INCONCLUSIVE, Reason.JUMP)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_derivative_between_the_one_sided_slopes_passes_and_outside_fails(sign: float) -> None:
    beside = {"kink": (sign, 1e-6), "has_kink_plateau": True}
    assert verdict(0.9, 1e-6, **beside) == (PASS, Reason.KINK)
    assert verdict(-0.9, 1e-6, **beside) == (PASS, Reason.KINK)
    assert verdict(1.0 + 9e-6, 1e-6, **beside) == (PASS, Reason.KINK)
    assert verdict(1.0 + 2e-5, 1e-6, **beside) == (FAIL, Reason.OUTSIDE)
    assert verdict(-1.0 - 2e-5, 1e-6, **beside) == (FAIL, Reason.OUTSIDE)


def test_failure_beyond_a_kink_needs_both_error_bars_and_a_plateau() -> None:
    assert verdict(1.1, 0.03, kink=(1.0, 0.03), has_kink_plateau=True) == (FAIL, Reason.OUTSIDE)
    assert verdict(1.1, 0.05, kink=(1.0, 0.06), has_kink_plateau=True) == (PASS, Reason.KINK)
    assert verdict(1.1, 0.04, kink=(1.0, 0.04), has_kink_plateau=True) == (FAIL, Reason.DISAGREES)
    assert verdict(1.1, 0.01, kink=(1.0, 0.01), has_kink_plateau=True, has_plateau=False) == (
        INCONCLUSIVE,
        Reason.PRECISION,
    )


def test_change_of_slope_is_a_kink_if_it_is_clear_has_a_plateau_and_exceeds_roundoff_of_the_slope() -> None:
    assert verdict(0.5, 1e-6, kink=(1.0, 0.6), has_kink_plateau=True) == (PASS, Reason.KINK)
    assert verdict(0.5, 1e-6, kink=(1.0, 0.7), has_kink_plateau=True) == (FAIL, Reason.DISAGREES)
    assert verdict(0.5, 1e-6, kink=(1.0, 0.6)) == (FAIL, Reason.DISAGREES)
    assert verdict(1.5e-5, 1e-9, kink=(2e-5, 1e-9), has_kink_plateau=True) == (PASS, Reason.KINK)
    assert verdict(7e-6, 1e-9, kink=(9e-6, 1e-9), has_kink_plateau=True) == (FAIL, Reason.DISAGREES)
    assert verdict(1.5e-5, 1e-9, kink=(2e-5, 1e-9), has_kink_plateau=True, scale=10.0) == (FAIL, Reason.DISAGREES)
