"""A tensor that a kernel computed against what it should be. Arrays in, decision out; nothing is evaluated here.

The error bar of an entry comes from the reference run in the kernel's own precision (`Samples.plain`), from the change
of the truth for one roundoff of the inputs (`Samples.response`), and from the rounding of the result itself. Rounding
errors differ from entry to entry; errors of a formula or of a kernel do not. So the entries are compared one by one,
by the factor that all of them share, and by their typical size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gradvet.core import thresholds
from gradvet.core.reference_errors import TF32_EPS, Format, factor_there, region
from gradvet.core.results import Verdict
from gradvet.core.vectors import Array, namespace, quantile, rms

MIN_GROUP, MIN_CLUSTERS = 8, 4
"""Entries of which a typical error is well known; slices from which the spread of their factors counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """One tensor for several grad_outputs: arrays of the shape (grad_outputs, *shape)."""

    found: Array
    """What the kernel computed."""
    truth: Array
    """The reference in float64 at the same inputs."""
    plain: Array
    """Largest error of the reference in the kernel's precision, over points that are one roundoff apart."""
    usual: Array
    """Root mean square of the same."""
    response: Array
    """Change of the truth for one roundoff of the inputs."""


ACCURACY = {
    Verdict.PASS: "as accurate as plain torch",
    Verdict.INCONCLUSIVE: "less accurate than plain torch",
    Verdict.FAIL: "wrong",
}
"""What a verdict says about the accuracy of a kernel."""

Extent = Literal["some", "all", "common"]
"""Which entries have the errors: some, all by different factors, or all by a common factor."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorDecision:
    """What the samples of one tensor show."""

    samples: Samples
    verdict: Verdict
    resolution: float
    """Relative error of all entries that would have been seen; infinite if a lost entry would not have been. At least
    the error that is accepted."""
    plain: float
    """Error bar of a typical entry, relative to it."""
    evidence: str = ""
    """In which respect it is doubtful or wrong, in words; empty if it is not."""
    extent: Extent = "some"
    loss: float = 0.0
    """Typical error, in typical errors of plain torch."""
    scale: float = 0.0
    """Relative error that all entries share."""
    left_out: int = 0
    """Entries of the tensor that were not compared: they are not finite in plain torch either."""
    position: int = 0
    """Number of the worst entry in the flattened samples."""
    allowed: float = math.nan
    """Error of this entry up to which it is not doubtful."""

    @property
    def draw(self) -> int:
        """Number of the grad_output at which the worst entry was found."""
        return self.position // int(math.prod(self.samples.truth.shape[1:]))

    @property
    def index(self) -> int:
        """Number of the worst entry in its tensor."""
        return self.position % int(math.prod(self.samples.truth.shape[1:]))

    @property
    def found(self) -> float:
        return _at(self.samples.found, self.position)

    @property
    def expected(self) -> float:
        return _at(self.samples.truth, self.position)


def _at(array: Array, position: int) -> float:
    """An entry of a flattened array."""
    return float(namespace(array).reshape(array, (-1,))[position])


@dataclass(frozen=True, slots=True)
class _Evidence:
    """One way in which the errors are larger than expected."""

    severity: float
    """1 from where the comparison is doubtful, `CLEAR` from where it is wrong."""
    words: str
    extent: Extent
    position: int = -1
    """Number of an entry in the flattened samples; -1 for the one with the largest error."""
    doubt: str = ""
    """The words where it is doubtful, if they are others."""


def decide_tensor(samples: Samples, form: Format, accuracy: float = 0.0) -> TensorDecision:
    """The decision on all samples of one tensor. `accuracy` is a relative error that it may have by design."""
    xp = namespace(samples.truth)
    if not math.prod(form.shape):
        return TensorDecision(samples, Verdict.PASS, resolution=form.eps, plain=form.eps)
    truth, whole, plain, comparable, broken = _errors(samples, form)
    size = xp.maximum(xp.abs(truth), _typical_size(truth))
    error = xp.sign(whole) * xp.clip(xp.abs(whole) - accuracy * size, 0.0)
    own = _own_errors(truth, plain, samples.response, form)
    level = _pooled(own)
    loss, least_loss, count = _typical_losses(error, truth, samples.usual, form)
    # A kernel that is less accurate everywhere is so in every entry.
    allowed_loss = max(1.0, min(least_loss, form.wrong_loss))
    # Of few entries the largest error of plain torch is not well known.
    bar = form.most * allowed_loss * level * (1.0 + 2.0 / math.sqrt(math.prod(form.shape)))
    ratio = xp.where(broken, xp.full_like(error, math.inf), xp.abs(error) / bar)
    scale, spread, least = _common_factor(error, truth, level)
    factor = _factor(scale, max(spread, form.common_error), form, xp.abs(error - scale * truth), xp.abs(truth))
    lossy = _loss(loss, count, form)
    if accuracy:
        # What is accepted decides, but the errors as they are say what is wrong.
        scale = _common_factor(whole, truth, level)[0]
        described = _factor(scale, form.common_error, form, xp.abs(whole - scale * truth), xp.abs(truth))
        factor = replace(described, severity=factor.severity)
        loss = _typical_losses(whole, truth, samples.usual, form)[0]
        lossy = replace(lossy, words=f"{less_accurate(loss)} in a typical entry")
    is_shared = factor.extent == "common"
    # Another formula is not less accurate: its larger errors are not allowed.
    is_formula = lossy.severity >= thresholds.CLEAR or (factor.severity >= thresholds.CLEAR and not is_shared)
    entries = _entries(samples, ratio * allowed_loss if is_formula else ratio, broken, level)
    verdict, worst = _worst([factor, entries, lossy] if is_shared else [entries, factor, lossy])
    position = int(xp.argmax(xp.reshape(ratio, (-1,)))) if worst.position < 0 else worst.position
    left_out = xp.sum(xp.astype(~comparable, xp.int64), axis=tuple(range(1, truth.ndim)))
    # Errors that are wrong do not say how sharp the comparison was.
    scale_bar = max(least if verdict is Verdict.FAIL else spread, form.common_error)
    resolution = _resolution(truth, level if verdict is Verdict.FAIL else allowed_loss * level, scale_bar, form)
    return TensorDecision(
        samples,
        verdict,
        resolution=max(resolution, accuracy),
        plain=rms(own) / max(rms(truth), 1e-300),
        evidence=worst.words,
        extent=worst.extent,
        loss=loss,
        scale=scale,
        left_out=int(xp.max(left_out)),
        position=position,
        allowed=form.most * _at(level, position),
    )


def _worst(found: Sequence[_Evidence]) -> tuple[Verdict, _Evidence]:
    """What is certain is best described by a factor, then by entries; what is doubtful by how much is lost."""
    for one in found:
        if one.severity >= thresholds.CLEAR:
            return Verdict.FAIL, one
    for one in reversed(found):
        if one.severity >= 1.0:
            return Verdict.INCONCLUSIVE, replace(one, words=one.doubt or one.words)
    return Verdict.PASS, replace(found[0], words="")


def outside_kinks(samples: Samples, low: Array, high: Array, form: Format) -> tuple[Samples, int]:
    """The samples without the entries at which the reference has a kink and the kernel a derivative between both sides.

    `low` and `high` are the smallest and largest derivative next to the point. Returns how many entries are left out.
    """
    xp = namespace(samples.truth)
    rounding = 2.0 * samples.plain + form.eps * xp.maximum(xp.abs(low), xp.abs(high))
    # A smooth derivative that is nearly zero changes by the step, relative to a typical one.
    rounding = rounding + 8.0 * form.kink_step * _typical_size(samples.truth)
    is_kink = high - low > thresholds.PRECISION_DOUBT * rounding
    is_between = is_kink & (samples.found >= low - rounding) & (samples.found <= high + rounding)
    count = int(xp.count_nonzero(xp.any(is_between, axis=0)))
    return replace(samples, found=xp.where(is_between, samples.truth, samples.found)), count


def _errors(samples: Samples, form: Format) -> tuple[Array, Array, Array, Array, Array]:
    """Truth, error and error of plain torch with zeros where they cannot be compared; where they can; where the result
    is not finite although it should be.
    """
    xp = namespace(samples.truth)
    fits = xp.isfinite(samples.truth) & xp.isfinite(samples.plain) & ~(xp.abs(samples.truth) > 0.5 * form.largest)
    broken, zero = fits & ~xp.isfinite(samples.found), xp.zeros_like(samples.truth)
    truth, plain = (xp.where(fits, array, zero) for array in (samples.truth, samples.plain))
    error = xp.where(fits & ~broken, samples.found - truth, zero)
    return truth, error, plain, fits | (samples.found == samples.truth), broken


def _own_errors(truth: Array, plain: Array, response: Array, form: Format) -> Array:
    """The error to be expected at most at each entry by itself: what plain torch loses, what one roundoff of the inputs
    does, the rounding of the entry, and rounding inside, which leaves a part of a typical entry.

    Plain torch may be exact for one grad_output only, as a softmax for ones: an entry that depends on the grad_output
    has the errors of the others. Needed by `test_reference_that_is_exact_for_ones_is_not_taken_for_accurate`.
    """
    xp = namespace(truth)
    plain = xp.where(response > 0.0, xp.max(plain, axis=0, keepdims=True), plain)
    level = xp.maximum(plain, xp.where(xp.isfinite(response), response, xp.zeros_like(response)))
    level = xp.maximum(level, 0.5 * form.eps * xp.abs(truth))
    # Half precision is computed in float32, so that only the last rounding counts.
    roundings = 0.5 if form.is_half_precision else thresholds.PRECISION_DOUBT
    # Where both factors of a product are cut off it loses up to two spacings, and a difference of products four.
    roundings = thresholds.OPERATION_EPS if form.cuts_off else roundings
    # A gradient that vanishes for one grad_output has the rounding errors of the others.
    floor = roundings * form.eps * xp.max(_typical_size(truth))
    return xp.clip(xp.maximum(level, floor), max(0.5 * form.smallest, 1e-300))


def _pooled(level: Array) -> Array:
    """The largest error in the row or column of each entry: an estimate from few points may be small by chance.

    One that is far larger than most of them belongs to its entry alone, such as one that is next to a kink. Needed by
    `test_entry_next_to_a_kink_does_not_hide_a_wrong_one_in_its_row`.
    """
    xp = namespace(level)
    if level.ndim < 2:
        return level
    table = xp.reshape(level, (level.shape[0], -1, level.shape[-1]))
    rows, columns = _usual_largest(table, 2), _usual_largest(table, 1)
    return xp.reshape(xp.maximum(table, xp.maximum(rows, columns)), level.shape)


def _usual_largest(table: Array, axis: int) -> Array:
    """The largest number along an axis, but at most a few times the median."""
    xp = namespace(table)
    most = xp.max(table, axis=axis, keepdims=True)
    ordered, middle = xp.sort(table, axis=axis), slice(table.shape[axis] // 2, table.shape[axis] // 2 + 1)
    median = ordered[:, middle, :] if axis == 1 else ordered[:, :, middle]
    return xp.minimum(most, thresholds.PRECISION_DOUBT * median)


def _typical_size(truth: Array) -> Array:
    """Root mean square of the entries that are not zero, for each grad_output."""
    xp, axes = namespace(truth), tuple(range(1, truth.ndim))
    count = xp.sum(xp.astype(truth != 0.0, truth.dtype), axis=axes, keepdims=True)
    return xp.sqrt(xp.sum(truth * truth, axis=axes, keepdims=True) / xp.clip(count, 1.0))


def _typical_losses(error: Array, truth: Array, usual: Array, form: Format) -> tuple[float, float, int]:
    """Median error over that of plain torch, the same of the lower quartiles, and the number of entries behind them.

    Quantiles are not changed by a part of the tensor that is lost.
    """
    xp = namespace(truth)
    some = (truth != 0.0) | (error != 0.0)
    usual = xp.where(xp.isfinite(usual), usual, xp.zeros_like(usual))
    found, plain, size = (xp.abs(array)[some] for array in (error, usual, truth))
    losses = []
    for part in (0.5, 0.25):
        expected = max(quantile(plain, part), thresholds.NOISE_FLOOR * form.eps * quantile(size, part), form.smallest)
        losses.append(quantile(found, part) / expected)
    return losses[0], min(losses), int(xp.count_nonzero(xp.any(some, axis=0)))


def _limit(most: float, count: int) -> float:
    """A limit for the typical error of `count` entries: few of them may be unlucky together."""
    return most * (1.0 + MIN_GROUP / math.sqrt(max(1, count)))


def _common_factor(error: Array, truth: Array, level: Array) -> tuple[float, float, float]:
    """The relative error that all entries share, by least squares, how much of it the spread of the errors explains,
    and how much their error bars do at least.

    Errors of one entry in several samples, and errors of one slice of an axis, may have a common cause: the spread of
    their sums counts. Entries of the same size are rounded alike, so that they count as one.
    """
    xp = namespace(truth)
    product, square = error * truth / (level * level), truth * truth / (level * level)
    total = float(xp.sum(square))
    if not total > 0.0:
        return 0.0, math.inf, math.inf
    scale = float(xp.sum(product)) / total
    axes = range(truth.ndim)
    # Each entry has an error of about half its bar, whatever the few that there are show.
    alike = _sum_of_equals(xp.sqrt(square), xp.astype(xp.abs(truth), xp.float32))
    least = spread = 0.5 * max(math.sqrt(truth.shape[0] / total), alike / total)
    partitions = [(0,), *(tuple(other for other in axes if other != axis) for axis in axes[1:])]
    for summed in partitions:
        products, squares = xp.sum(product, axis=summed), xp.sum(square, axis=summed)
        count = math.prod(products.shape)
        if count >= MIN_CLUSTERS:
            rest = products - scale * squares
            found = math.sqrt(float(xp.sum(rest * rest)) * count / (count - 1)) / total
            spread = max(spread, found)
    width = thresholds.PRECISION_SCALE_WIDTH
    return scale, width * spread, width * least


def _sum_of_equals(errors: Array, sizes: Array) -> float:
    """The size of a sum of errors that are equal for entries of equal size, and independent otherwise.

    Needed by `test_gradient_of_equal_entries_may_have_the_rounding_error_of_one`.
    """
    xp = namespace(errors)
    errors, sizes = (xp.reshape(array, (-1,)) for array in (errors, sizes))
    order = xp.argsort(sizes)
    sums, sizes = xp.cumulative_sum(errors[order], include_initial=True), sizes[order]
    ends = xp.nonzero(sizes[1:] != sizes[:-1])[0] + 1
    groups = xp.diff(xp.concat([sums[:1], sums[ends], sums[-1:]]))
    return math.sqrt(float(xp.sum(groups * groups)))


def _resolution(truth: Array, level: Array, scale_bar: float, form: Format) -> float:
    """A common error that shows; infinite if the loss of a typical entry would not show."""
    xp = namespace(truth)
    some = truth != 0.0
    size, error = rms(truth), quantile(level[some], 0.5)
    if not bool(xp.any(some)) or size <= thresholds.HALF_PRECISION_EPS * error:
        # Zero up to rounding: that it is so was compared.
        return form.eps
    return scale_bar if form.most * error < size else math.inf


def _entries(samples: Samples, ratio: Array, broken: Array, level: Array) -> _Evidence:
    """The worst entry, and how many are wrong, for the grad_output for which the most are."""
    xp, worst = namespace(ratio), float(namespace(ratio).max(ratio))
    wrong = ratio > max(1.0, min(thresholds.CLEAR, 0.5 * worst))
    draw = int(xp.argmax(xp.sum(xp.astype(wrong, xp.int64), axis=tuple(range(1, ratio.ndim)))))
    here = wrong[draw, ...]
    size, count = math.prod(here.shape), int(xp.count_nonzero(here))
    where = f"in {count} of {size} entries{region(here)}"
    words = f"wrong {where}{factor_there(samples.found[draw, ...], samples.truth[draw, ...], here)}"
    words = f"not finite {where}" if bool(xp.any(broken[draw, ...])) else words
    position = draw * size + int(xp.argmax(xp.reshape(ratio[draw, ...], (-1,))))
    error = abs(_at(samples.found, position) - _at(samples.truth, position))
    doubt = f"{less_accurate(error / _at(level, position))} {where}"
    return _Evidence(worst, words, "some" if count < size else "all", position, doubt)


def _factor(scale: float, bar: float, form: Format, rest: Array, size: Array) -> _Evidence:
    """A factor; wrong from where no format inside explains it. Entries share it if `rest`, what it leaves, is small.

    Tensor cores cut float32 numbers off to TF32, so that products in a row lose some spacings, all on one side.
    """
    severity, explained = abs(scale) / bar, form.internal_eps
    others, typical = (quantile(some[size > 0.0], 0.5) for some in (rest, size))
    if others > thresholds.PRECISION_DOUBT * form.eps * typical:
        explained *= thresholds.OPERATION_EPS if explained > form.eps else 1.0
    if severity > 1.0:
        severity = max(severity, thresholds.CLEAR) if abs(scale) > explained else 1.0
    digits = 4 if abs(scale) > TF32_EPS else 7
    # What is left is rounding, or nearly nothing.
    is_shared = 2.0 * others <= abs(scale) * typical and others <= max(0.1 * abs(scale), form.eps) * typical
    words = f"{1.0 + scale:.{digits}g} times the reference"
    words = words if is_shared else f"wrong by different factors, on average {words}"
    return _Evidence(severity, words, "common" if is_shared else "all")


def _loss(loss: float, count: int, form: Format) -> _Evidence:
    """Less accurate everywhere; wrong from where no format inside explains it."""
    severity = loss / _limit(form.most, count)
    severity = max(severity, thresholds.CLEAR) if loss > _limit(form.wrong_loss, count) else min(severity, 1.0)
    return _Evidence(severity, f"{less_accurate(loss)} in a typical entry", "all")


def less_accurate(times: float) -> str:
    return f"{times:.3g} times {ACCURACY[Verdict.INCONCLUSIVE]}"
