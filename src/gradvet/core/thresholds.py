"""Every number that decides a verdict: what it is compared with, and where it was calibrated.

Calibrated on "gallery" means the functions of `tests/gallery`, on "operators" the tuning half of PyTorch's operator
database (`benchmarks.detection --half tuning`); results are reported on the other half and on functions that were not
used for tuning. "models" means those of `benchmarks.models` at their small sizes, "half" the functions of
`tests/core/test_direction_average.py`; for these two there is no set that was not used for tuning. "theory" marks
numbers that follow from a formula.
`python -m benchmarks.sensitivity` varies each number by a factor of two both ways and prints the verdicts that change.
Limits on time and memory are beside the code that they limit.

Some numbers decide several things, which follow from one idea; the docstring gives it. Such a number must not be tuned
for one of its uses alone.
"""

from __future__ import annotations

# Formats

DOUBLE_EPS = 2.0**-40
"""Formats with at most this spacing are treated as double precision: one small step resolves a slope. [theory]"""

HALF_PRECISION_EPS = 2.0**-12
"""Formats with a larger spacing (half precision) have a sweep of few steps, so single steps count for less. [theory]"""

# Shared by several comparisons

ROUNDOFFS = 64.0
"""Number of roundoffs that the order of operations explains: of outputs over a step, of gradients and values that are
computed twice, of second derivatives. Roundoff hides smaller differences, kinks, stairs and slopes. [operators]"""

RESPONSE_FACTOR = 32.0
"""Allowed difference of two derivatives relative to their change for a change of the inputs by two roundoffs.
[operators]"""

LOW_PRECISION_POWER = 0.4
"""Below double precision, eps to this power of a number is what a formula or kernel may lose of it; in every
precision, what a second derivative may. [gallery]"""

LOW_PRECISION_PART = 0.25
"""Below double precision: largest part of an entry, or of a slope, that roundoff explains. [gallery]"""

OPERATION_EPS = 4.0
"""Number of spacings of a format that one operation and its constants may lose; the smallest resolution that can be
asked for in that format, and, in what plain torch loses, of a kernel. [operators]"""

GENERATED_RTOL = 1e-3
"""At generated points: smallest error, and smallest change of slope, that counts, relative to the output or its slope.
[gallery]"""

GENERATED_PEAK_RTOL = 1e-4
"""The same relative to the largest output or slope; also the largest residual of the screen that counts as agreement
there. Outputs with a slope below this part of the largest get a smaller weight there, and next to kinks. [gallery]"""

# Screen: one central difference against the derivative

SCREEN_STEP = 6e-6
"""Step of the screen relative to the step lengths: eps^(1/3) in double precision. [theory]"""

SCREEN_RTOL = 1e-6
"""Largest residual of a directional derivative that counts as agreement, relative to the scale of the slope: against a
difference, and of ⟨v, Ju⟩ against ⟨Jᵀv, u⟩; a smaller error of a fitted slope does not count either, unless a finer
resolution is asked for. Gradients computed twice may differ by this part of the largest entry. [operators]"""

# Step lengths

MIN_LENGTH = 0.25
"""Smallest step length of a coordinate, relative to the root mean square of its tensor. [operators]"""

NARROW_FACTOR = 2.0**-12
"""Factor of the smallest step lengths, for a whole comparison and for an entry that seems wrong: noise dominates there,
so agreement counts and disagreement does not. [gallery]"""

# Kinks

KINK_RTOL = 1e-5
"""An output has a kink if its even part exceeds this part of its slope, and does not shrink with the step; a smaller
change of slope is no kink. A value outside the two one-sided slopes by less than this part of their difference is
between them. [gallery]"""

KINK_SHRINKAGE = 3.0
"""Even part at twice the step over the even part: 4 for curvature, 2 for a kink; this separates them. [theory]"""

MANY_TIES = 16
"""Number of elements, other than zeros, that equal another one, up to which kinks at ties are tested one by one.
[gallery]"""

# From a step sweep to a slope

INTERVAL_WIDTH = 4.0
"""Half-width of a confidence interval, in standard errors. The screen and a projection of fast mode allow this many
standard errors of the roundoff of the outputs. [operators]"""

PLATEAU_STEPS = 3
"""Number of consecutive steps that must show the same error. [gallery]"""

PLATEAU_RTOL = 0.1
"""Two steps, points or directions show the same error or slope if they differ by less than this part of it. Steps of
equal length whose changes of an output differ by more go across jumps of a coarser format. [gallery]"""

NOISE_FLOOR = 0.2
"""Smallest standard deviation of an output, in spacings of its format: uniform rounding has 0.29. [theory]"""

VISIBLE_NOISE = 16.0
"""An error of this many noise floors over a step would be visible at that step. Where the difference of repeated calls,
times this, is more than the change over a full step, no step shows a slope. [gallery]"""

ZERO_SLOPE_POWER = 0.75
"""A slope below eps to this power of the output's size is zero. [operators]"""

STAIR_STEP = 2.0**-18
"""Values that stay equal over steps at least this wide are stairs of the function, not rounding; a function whose
values stay equal over this step of an argument is constant in it. [gallery]"""

CONSTANT_STEP = (2.0**-10, 2.0**-4)
"""Values that stay equal within steps this wide are constant, within smaller ones they are rounded: in double and in
single precision. In half precision they are always taken to be rounded. [gallery]"""

STEEP_GROWTH = (0.15, 0.85, 0.2)
"""Range of the exponent by which slopes grow towards a vertical tangent such as the square root's 1/2, and how much it
may differ between steps. [theory]"""

# From a slope to a verdict

CLEAR = 1.5
"""Error over error bar from which a disagreement counts. [operators]"""

NEGLIGIBLE_PART = 0.25
"""An error below this part of the asked resolution, or of the largest one that rounding explains, is agreement. If the
slopes at small steps show less than this part of an error that wide steps show, it is no error. [gallery]"""

MATERIAL_MAX = 0.05
"""Largest relative error that low precision explains: of a slope (upper limit of `ROUNDOFFS` · eps), of values against
the wider version, and of two equal backward passes. A larger first change of a value is a stair of the function, and no
rounding. Below double precision, outputs with a slope below this part of the largest get a smaller weight. [gallery]
"""

# Tolerance policy

TOLERANCE_PART = 0.1
"""Part of the tolerance below which an error of the comparison itself does not matter: the rounding of a step, the
spacing of the inputs, the difference of vectorised and plain calls, a residual where every entry is seen. Where torch's
fast mode accepts, a wrong entry is searched if errors add up to the inverse, this many tolerances. [theory]"""

# Two gradients that should be equal

ALLCLOSE = (1e-8, 1e-5)
"""Absolute and relative tolerance of torch.allclose, by which torch's gradcheck compares derivatives in a batch, with
undefined tangents, and with zero under masked semantics. [theory]"""

# Low precision against the wider version

PRECISION_DOUBT = 16.0
"""Error of a value or of an entry from which a comparison is doubtful: this many of its own roundoffs, or itself
divided by this number, whichever is less; for a kernel above half precision, this many times what plain torch loses.
[gallery]"""

PRECISION_FAIL = 128.0
"""Error of an entry from which it is wrong, in its own roundoffs; also `LOW_PRECISION_PART` of itself, whichever is
less. [gallery]"""

NEARBY_PART = 0.125
"""Distance of another point at which a doubtful entry is compared too, as a part of the inputs' values, or `ROUNDOFFS`
of their own roundoffs, whichever is less. Roundoff inside the function reaches less far, so that other elements are at
kinks there. [models]"""

COHERENT = 3.0
"""In half precision: size of errors, over what explains them, from which they have another cause. Residuals are
explained by kinks and by their spread over steps and directions; errors of a kernel by those of plain torch and by the
rounding of every operator. [half]"""

MEASURED_SPACINGS = 8.0
"""Number of spacings of a single output over which its slope is measured, to find where its rounded value jumps: one
spacing is then known to an eighth. With twice as many, right losses of many elements are undecided. [half]"""

HALF_FACTOR = 2.0
"""In low precision alone: common or dense error from which a derivative is wrong, in units of the common error that
rounding explains. [half]"""

PRECISION_SCALE_EPS = 8.0
"""Relative error common to all entries of an input that rounding explains, in spacings of the format; at most
`NEGLIGIBLE_PART` of `MATERIAL_MAX`, because even in bfloat16 rounding is incoherent. [gallery]"""

HALF_THE_DIGITS = 0.5
"""A formula may lose half its digits. So eps to this power is the largest relative error that roundoff explains: of all
entries of an input together, of values and tangents that are computed in another way (compiled, in a batch, in
float64), and of two equal backward passes. In double precision, slopes below this part of the largest get a smaller
weight; at generated points, slopes below this part of the largest at the user's point count as zero. [gallery]"""

PRECISION_SCALE_WIDTH = 6.0
"""Half-width of the interval for that common error, in standard errors. [theory]"""

# Generated points

CONFIRM_FAR = 2.0**-14
"""Larger of two steps at which slopes around a point are compared: those of a smooth function differ in proportion to
the step. Also the smallest distance at which a derivative that seems wrong at ties is compared again. [gallery]"""

TIES_FAR = 0.25
"""Largest distance at which a derivative that seems wrong at ties is compared again, relative to the step lengths.
[gallery]"""

CONFIRM_NEAR = 2.0**-20
"""Smaller of these two steps, and the largest step of a slope that must resolve an error. [gallery]"""

# Around a wrong entry

EXACT_RATIO = 1e-6
"""Smallest relative tolerance for equal ratios of entries, for small errors in double precision. It decides which entry
is tested and which cause is named. [gallery]"""

EQUAL_RATIO = 1e-3
"""Largest relative tolerance for equal ratios of entries. It decides which cause is named. [gallery]"""

NEAR_RATIO = 0.1
"""Relative difference of ratios that a wrong factor of one term among several explains. Ratios and entries around a
wrong entry are compared to this part of its error. It decides which cause is named. [gallery]"""
