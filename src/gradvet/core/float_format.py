"""A floating-point format, and what of an error it explains in the comparison with a reference."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradvet.core import thresholds

TF32_EPS = 2.0**-10
"""Spacing of TF32, in which kernels for float32 may multiply."""

FLOAT16_EPS = 2.0**-10
"""Spacing of float16, the only format whose range is much smaller than that of float32."""


def overflow_size(eps: float) -> float:
    """Size from which a derivative may overflow: half the largest float16, or nearly the largest of other formats."""
    return 32752.0 if eps == FLOAT16_EPS else 1e38


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point format, and how the numbers of one tensor are arranged."""

    shape: tuple[int, ...]
    eps: float
    """Relative spacing."""
    smallest: float
    """Spacing of the numbers next to zero."""
    largest: float
    cuts_off: bool = False
    """Whether numbers are cut off to this format rather than rounded, so that products lose some spacings on one side.
    """
    may_use_tf32: bool = False
    """Whether the device may multiply numbers of this format in TF32."""

    def in_tf32(self) -> Format:
        """The same with the spacing of TF32 if it is that of float32."""
        is_single = thresholds.DOUBLE_EPS < self.eps <= thresholds.COARSE_EPS
        return replace(self, eps=TF32_EPS, cuts_off=True) if is_single else self

    @property
    def is_coarse(self) -> bool:
        """Whether it is a format of half precision, whose values are computed in float32 and rounded once."""
        return self.eps > thresholds.COARSE_EPS

    @property
    def most(self) -> float:
        """Errors from which a result is doubtful: in error bars, or in those of plain torch."""
        return thresholds.COHERENT if self.is_coarse else thresholds.VISIBLE_NOISE

    @property
    def wrong_loss(self) -> float:
        """Typical error, in those of plain torch, that neither a coarser format inside nor sums in this one explain."""
        if self.is_coarse:
            return thresholds.MATERIAL_MAX / (thresholds.NOISE_FLOOR * self.eps)
        return thresholds.CLEAR * self.most * self.internal_eps / self.eps

    @property
    def common_error(self) -> float:
        """Relative error that all entries may share by rounding alone."""
        if self.cuts_off:
            return thresholds.INTERVAL_WIDTH * self.eps
        return (thresholds.NOISE_FLOOR if self.is_coarse else thresholds.PRECISION_SCALE_EPS) * self.eps

    @property
    def internal_eps(self) -> float:
        """Spacing of the coarsest format in which a kernel of this format may compute inside."""
        return max(self.eps, TF32_EPS) if self.eps > thresholds.DOUBLE_EPS else self.eps

    @property
    def constants(self) -> float:
        """Relative error, the same at all inputs, that constants explain which are rounded inside: a spacing of this
        format, or some of TF32.

        Needed by `test_mean_over_a_power_of_two_of_columns_is_wrong`.
        """
        return max(self.eps, thresholds.INTERVAL_WIDTH * min(self.internal_eps, TF32_EPS))
