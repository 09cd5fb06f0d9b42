"""Right functions that look like the wrong ones of F26, F27, F28, F30, F31 and F32."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F

from tests.functions import with_vjp
from tests.gallery import (
    conditions,
    f26_kinks_and_ties,
    f27_views_and_hooks,
    f28_zero_rows,
    f30_lost_gradients,
    f31_faint_inputs,
    proofs,
)
from tests.gallery.case import Case, Function, right
from tests.gallery.f27_views_and_hooks import by_masks, in_place, on_view, product
from tests.gallery.inputs import at, normal, point, uniform


def at_kink(name: str, why: str, function: Function, *values: Any) -> Case:
    return right(
        name, why, at(function, point, *values), reference=function, drop_in=False, proof=proofs.one_sided_slopes
    )


# Views and saved tensors.


def sine_vjp(v: Tensor, x: Tensor) -> Tensor:
    return v * torch.cos(x)


def square_vjp(v: Tensor, x: Tensor) -> Tensor:
    return 2 * v * x


def exponential_vjp(v: Tensor, x: Tensor) -> Tensor:
    return v * torch.exp(x)


def saved_with_sign_apart(x: Tensor) -> Tensor:
    """Magnitude and sign, as a quantiser stores them, without loss."""
    with saved_tensors_hooks(
        lambda t: (t.detach().abs(), torch.signbit(t.detach())), lambda parts: torch.where(parts[1], -1, 1) * parts[0]
    ):
        return product(x)


def saved_on_cpu(x: Tensor) -> Tensor:
    with save_on_cpu():
        return product(x)


def saved_in_two_parts(x: Tensor) -> Tensor:
    """A float32 number and what it leaves: together they are exact."""

    def pack(t: Tensor) -> tuple[Tensor, Tensor]:
        high = t.detach().float()
        return high, t.detach() - high.double()

    with saved_tensors_hooks(pack, lambda parts: parts[0].double() + parts[1]):
        return product(x)


# Rows of zeros.


def sine_scattered_back(v: Tensor, x: Tensor) -> Tensor:
    """Computes the active rows alone and puts them where they belong."""
    rows = f28_zero_rows.active(v)
    gradient = torch.zeros_like(x)
    gradient[rows] = v[rows] * torch.cos(x[rows])
    return gradient


def softmax_by_safe_unit_rows(v: Tensor, x: Tensor) -> Tensor:
    """A row of zeros is divided by one."""
    size = v.norm(dim=-1, keepdim=True)
    y, unit = torch.softmax(x, -1), v / torch.where(size > 0, size, 1.0)
    return size * y * (unit - (unit * y).sum(-1, keepdim=True))


def linear_of_active_rows(v: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Cotangent and input are shortened by the same mask."""
    rows = f28_zero_rows.active(v)
    return v @ weight.mT, x[rows].mT @ v[rows]


# Large offsets.


def identity(x: Tensor) -> Tensor:
    return x.clone()


def constant_behind_offset(x: Tensor, y: Tensor) -> Tensor:
    """y has no influence, and its gradient of zero is right."""
    return 1e6 + torch.sin(x) + 0.0 * y


def wave(x: Tensor) -> Tensor:
    return 100 * torch.sin(x / 100)


# Faint inputs.


def stacked_sum(weights: list[float]) -> Function:
    """A weighted sum of sines as one product."""
    return lambda *inputs: torch.tensor(weights, dtype=torch.float64) @ torch.sin(torch.stack(inputs))


EACH = proofs.by_entry(proofs.reverse)


# Passes that differ within roundoff or not at all.


def in_alternating_order() -> Function:
    """The sum over the rows begins at the other end in every second pass."""
    passes = count()

    def vjp(v: Tensor, x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros_like(b)
        for row in v if next(passes) % 2 else v.flip(0):
            total = total + row
        return v * torch.cos(x), total

    return with_vjp(shifted_sine, vjp)


def shifted_sine(x: Tensor, b: Tensor) -> Tensor:
    return torch.sin(x) + b


def with_plan_made_in_the_first_pass() -> Function:
    """The first pass stores a table that depends on shapes alone; the others read it."""
    plans: dict[torch.Size, Tensor] = {}

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        plan = plans.setdefault(x.shape, torch.arange(x.numel()).flip(0))
        return (v * torch.cos(x)).flip(0)[plan]

    return with_vjp(torch.sin, vjp)


def with_a_log_every_tenth_pass() -> Function:
    """A counter that only counts."""
    passes, log = count(1), []

    def vjp(v: Tensor, x: Tensor) -> Tensor:
        gradient = 0.5 * v * torch.exp(0.5 * x)
        if next(passes) % 10 == 0:
            log.append(float(gradient.norm()))
        return gradient

    return with_vjp(f28_zero_rows.growth, vjp)


CASES = (
    at_kink(
        "gate_of_zeros_beside_padding",
        "Both are zero, one of them is at a kink.",
        f26_kinks_and_ties.gated,
        f26_kinks_and_ties.PADDED,
        [0.0, 0.0, 0.0],
    ),
    at_kink(
        "square_of_ones_beside_clamp_at_one",
        "Inputs at the bounds, of which several are equal, beside weights of the same value.",
        f26_kinks_and_ties.clipped_beside_square,
        f26_kinks_and_ties.CLIPPED,
        [1.0, 1.0, 1.0, 1.0],
    ),
    at_kink(
        "weight_of_ones_beside_hardtanh_at_one",
        "A factor of 1 beside an input at its bound.",
        f26_kinks_and_ties.clipped_and_weighted,
        [[1.0, 0.3, -0.6], [0.2, 1.0, 2.0]],
        [1.0, 1.0, 1.0],
    ),
    at_kink(
        "sine_at_zero_beside_relu_at_zero",
        "Equal values in one tensor, with a kink for one of them.",
        f26_kinks_and_ties.rectified_and_bent,
        [0.0, -1.0, 2.0, 0.0, 0.5, 0.0],
    ),
    at_kink(
        "gate_of_zeros_without_influence",
        "The gate meets padding alone: its gradient is zero and rightly so.",
        lambda x, gate: torch.relu(x) + gate * F.relu6(x),
        [0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
    ),
    right(
        "in_place_sine_on_view",
        "A right rule below CopySlices.",
        at(on_view(in_place(torch.sin, sine_vjp), f27_views_and_hooks.upper_rows), normal, (4, 3)),
        reference=by_masks(torch.sin, f27_views_and_hooks.upper_rows),
    ),
    right(
        "in_place_square_on_view_of_transpose",
        "A view of a view.",
        at(on_view(in_place(torch.square, square_vjp), f27_views_and_hooks.middle_of_transpose), normal, (2, 5)),
        reference=by_masks(torch.square, f27_views_and_hooks.middle_of_transpose),
    ),
    right(
        "in_place_exponential_on_view_of_diagonal",
        "A view of entries that are far apart in memory.",
        at(on_view(in_place(torch.exp, exponential_vjp), f27_views_and_hooks.diagonal), normal, (3, 4)),
        reference=by_masks(torch.exp, f27_views_and_hooks.diagonal),
    ),
    right(
        "saved_tensors_with_signs_apart",
        "Hooks that store magnitudes and signs.",
        at(saved_with_sign_apart, normal, (6,)),
        reference=product,
    ),
    right("saved_tensors_on_cpu", "Hooks that move what is saved.", at(saved_on_cpu, normal, (6,)), reference=product),
    right(
        "saved_tensors_in_two_parts",
        "Hooks that pack without loss.",
        at(saved_in_two_parts, normal, (6,)),
        reference=product,
    ),
    right(
        "sine_of_active_rows_scattered_back",
        "Rows without a cotangent cost nothing.",
        at(with_vjp(torch.sin, sine_scattered_back), normal, (5, 3)),
        reference=torch.sin,
        proof=conditions.alternate_rows_of_cotangent,
    ),
    right(
        "softmax_over_safe_norm_of_cotangent",
        "Rows of zeros are left as they are.",
        at(with_vjp(f28_zero_rows.softmax, softmax_by_safe_unit_rows), normal, (4, 3)),
        reference=f28_zero_rows.softmax,
        proof=conditions.alternate_rows_of_cotangent,
    ),
    right(
        "linear_of_active_rows",
        "One mask for both operands.",
        at(with_vjp(f28_zero_rows.linear, linear_of_active_rows), normal, (5, 3), (3, 2)),
        reference=f28_zero_rows.linear,
        proof=conditions.alternate_rows_of_cotangent,
    ),
    right(
        "identity_behind_1e10",
        "A gradient of one that small steps do not show.",
        at(f30_lost_gradients.far_identity, normal, (5,)),
        reference=identity,
        drop_in=False,
    ),
    right(
        "sine_behind_1e6",
        "Noise of 1e-10 in the values.",
        at(f30_lost_gradients.far_sine, normal, (5,)),
        reference=torch.sin,
        drop_in=False,
    ),
    right(
        "wide_wave_behind_1e9",
        "Only wide steps see its slope.",
        at(f30_lost_gradients.wide_wave, uniform, 100.0, 200.0, (5,)),
        reference=wave,
        drop_in=False,
    ),
    right(
        "input_without_influence_behind_1e6",
        "A gradient of zero that is right.",
        at(constant_behind_offset, normal, (4,), (4,)),
        reference=lambda x, y: torch.sin(x) + 0.0 * y,
        drop_in=False,
    ),
    right(
        "shift_of_1e_14",
        "A slope of one that wide steps alone show.",
        at(f31_faint_inputs.shifted, f31_faint_inputs.beside_shift, 1e-14),
    ),
    right(
        "one_faint_input_of_100",
        "It contributes a millionth, and its gradient says so.",
        at(f31_faint_inputs.ONE_OF_HUNDRED, normal, *[(2,)] * 100),
        reference=stacked_sum(f31_faint_inputs.weights(100, {80: 1e-6})),
        proof=EACH,
    ),
    right(
        "faint_inputs_beside_one_strong",
        "Eighty-nine inputs of 1e-5.",
        at(f31_faint_inputs.MANY_FAINT, normal, *[(2,)] * 90),
        reference=stacked_sum([1.0, *[1e-5] * 89]),
        proof=EACH,
    ),
    right(
        "entries_over_eight_decades",
        "Faint and right.",
        at(f31_faint_inputs.decades, normal, (33,)),
        reference=lambda x: torch.exp(0.3 * x) @ f31_faint_inputs.DECADES,
        proof=EACH,
    ),
    right(
        "sum_in_alternating_order",
        "Passes of the same cotangent differ by roundoff.",
        lambda: (in_alternating_order(), normal((40, 3), (3,))),
        reference=shifted_sine,
        proof=conditions.passes(20),
    ),
    right(
        "plan_made_in_the_first_pass",
        "The first pass differs from the others in what it does, not in what it gives.",
        lambda: (with_plan_made_in_the_first_pass(), normal((5,))),
        reference=torch.sin,
        proof=conditions.passes(20),
    ),
    right(
        "log_every_tenth_pass",
        "Every tenth pass does more and gives the same.",
        lambda: (with_a_log_every_tenth_pass(), normal((5,))),
        reference=f28_zero_rows.growth,
        proof=conditions.passes(20),
    ),
)
