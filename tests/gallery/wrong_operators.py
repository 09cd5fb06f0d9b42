"""Ordinary operators made wrong by a wrapper of `mutants_of_state`: several classes of faults, none in a formula."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.gallery import conditions, proofs
from tests.gallery.case import Case
from tests.gallery.inputs import at, normal
from tests.gallery.mutants_of_state import (
    conjugated,
    detached,
    mutating_cotangent,
    redrawn,
    unless_frozen,
    with_stale_inputs,
    with_tangent,
    with_workspace,
)


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.mT, -1) @ value


def convolution(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv1d(x, weight, padding=1)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def whitened(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.solve(a @ a.mH + torch.eye(len(a), dtype=a.dtype), b)


CASES = (
    Case.wrong(
        "attention_with_workspace",
        "F14",
        lambda: (with_workspace(attention), normal((3, 4), (3, 4), (3, 2))),
        attention,
        "Two layers of one shape share a buffer: the second one's forward overwrites the first one's keys.",
        finds={"reentrancy"},
        drop_in=False,
        special="another forward before the backward",
        proof=conditions.interleaved,
    ),
    Case.wrong(
        "convolution_with_stale_weights",
        "F14",
        lambda: (with_stale_inputs(convolution), normal((1, 2, 5), (2, 2, 3))),
        convolution,
        "Weights packed at the first call and never again: right until the first optimiser step.",
        finds={"reentrancy", "reverse", "points", "input_layout"},
        drop_in=False,
        special="another call before this one",
        proof=conditions.other_inputs_first,
    ),
    Case.wrong(
        "layer_norm_mutates_cotangent",
        "F14",
        at(mutating_cotangent(norm), normal, (3, 4)),
        norm,
        "The gradient is right; what the residual branch receives afterwards is not.",
        finds={"mutation"},
        drop_in=False,
        special="a cotangent that is used again",
        proof=conditions.mutated_cotangent,
    ),
    Case.wrong(
        "log_softmax_redrawn_in_backward",
        "F14",
        at(redrawn(log_softmax), normal, (4, 8)),
        log_softmax,
        "Random numbers in a backward pass give another gradient at every run.",
        finds={"reverse", "determinism", "linearity"},
    ),
    Case.wrong(
        "convolution_weight_unless_input_frozen",
        "F23",
        at(unless_frozen(convolution, slot=1, frozen=0), normal, (1, 2, 5), (2, 2, 3)),
        convolution,
        "The first layer of a network, whose input is data, would never learn.",
        finds={"partial_requires_grad"},
        drop_in=False,
        special="the input is frozen",
        proof=conditions.frozen(0),
    ),
    Case.wrong(
        "attention_value_unless_key_frozen",
        "F23",
        at(unless_frozen(attention, slot=2, frozen=1), normal, (3, 4), (3, 4), (3, 2)),
        attention,
        "One flag asked about for another, in the middle of three.",
        finds={"partial_requires_grad"},
        drop_in=False,
        special="the key is frozen",
        proof=conditions.frozen(1),
    ),
    Case.wrong(
        "log_softmax_detached",
        "F17",
        at(detached(log_softmax), normal, (2, 4)),
        log_softmax,
        "A gradient that is cut off cannot be penalised.",
        finds={"reverse-over-reverse", "forward-over-reverse", "symmetry"},
        order=2,
        proof=proofs.second_order("reverse-over-reverse"),
    ),
    Case.wrong(
        "whitened_conjugated",
        "F15",
        at(conjugated(whitened), normal, (2, 2), (2, 1), dtype=torch.complex128),
        whitened,
        "A conjugate too many in a solver: right for every real matrix.",
        dtype=torch.complex128,
    ),
    Case.wrong(
        "attention_tangent_too_large",
        "F19",
        at(with_tangent(attention, lambda t: 1.05 * t), normal, (3, 4), (3, 4), (3, 2)),
        attention,
        "Five per cent in forward mode alone.",
        finds={"forward", "jvp_vjp_agree"},
        drop_in=False,
        special="forward mode",
        proof=proofs.forward,
    ),
    Case.wrong(
        "convolution_tangent_shifted",
        "F19",
        at(with_tangent(convolution, lambda t: t.roll(1, -1)), normal, (1, 2, 5), (2, 2, 3)),
        convolution,
        "Tangents that land one entry too far.",
        finds={"forward", "jvp_vjp_agree"},
        drop_in=False,
        special="forward mode",
        proof=proofs.forward,
    ),
)
