"""Right functions from training code: draws in float32, checkpoints, shared memory, long sorts, loose solvers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.functions import with_vjp
from tests.gallery import conditions
from tests.gallery.case import Case, Function, Inputs, right
from tests.gallery.inputs import at, leaf, normal, uniform
from tests.gallery.solvers import conjugate_gradients, solution

F32 = torch.float32
TOLERANCE = 1e-6


# Conv, norm and dropout in training mode.


def block() -> nn.Module:
    """The same parameters at every call, in training mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.BatchNorm1d(4), nn.GELU(), nn.Dropout(0.3))
    return layers.requires_grad_(False)


def block_by_hand(x: Tensor) -> Tensor:
    """Batch norm by its formula, dropout by a mask."""
    convolution = block()[0].to(x.dtype)
    h = convolution(x)
    centred = h - h.mean((0, 2), keepdim=True)
    h = F.gelu(centred / torch.sqrt((centred**2).mean((0, 2), keepdim=True) + 1e-5))
    return h * F.dropout(torch.ones_like(h), 0.3)


def image_block() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout2d(0.5))
    return layers.requires_grad_(False)


def image_block_by_hand(x: Tensor) -> Tensor:
    h = image_block()[0].to(x.dtype)(x)
    centred = h - h.mean((0, 2, 3), keepdim=True)
    h = torch.tanh(centred / torch.sqrt((centred**2).mean((0, 2, 3), keepdim=True) + 1e-5))
    return h * F.dropout2d(torch.ones_like(h), 0.5)


def mlp_with_dropout(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return F.dropout(F.silu(x @ first), 0.2) @ second


def mlp_with_mask(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    h = x @ first
    return (h * torch.sigmoid(h) * F.dropout(torch.ones_like(h), 0.2)) @ second


def drawn(name: str, why: str, make: Callable[[], Function], reference: Function, *shapes: tuple[int, ...]) -> Case:
    """In float32, with draws of the global generator."""
    return right(
        name,
        why,
        lambda: (make(), normal(*shapes, dtype=F32)),
        reference=reference,
        dtype=F32,
        drop_in=False,
        proof=conditions.same_random_state,
    )


# Reentrant checkpoints, which allow `backward()` alone.


def residual(x: Tensor) -> Tensor:
    return x + torch.tanh(2 * x)


def two_layers(x: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh(torch.tanh(x @ weight) @ weight)


def checkpointed(function: Function) -> Function:
    return lambda *inputs: checkpoint(function, *inputs, use_reentrant=True)


def chain_of_checkpoints(x: Tensor) -> Tensor:
    for _ in range(3):
        x = checkpoint(residual, x, use_reentrant=True)
    return x


def chain(x: Tensor) -> Tensor:
    return residual(residual(residual(x)))


# Inputs whose entries share memory.


def windows() -> Inputs:
    return (normal((7,))[0].detach().unfold(0, 3, 1).requires_grad_(),)


def rows() -> Inputs:
    return (normal((4,))[0].detach().expand(3, 4).requires_grad_(),)


def image_patches() -> Inputs:
    patches = normal((4, 5))[0].detach().unfold(0, 2, 1).unfold(1, 2, 2)
    return (patches.requires_grad_(), *normal((2, 2)))


def sine_squared(x: Tensor) -> Tensor:
    return torch.sin(x) ** 2


def correlated(patches: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh((patches * weight).sum((-1, -2)))


def log_total(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def overlapping(name: str, why: str, function: Function, inputs: Callable[[], Inputs]) -> Case:
    return right(
        name, why, at(function, inputs), reference=function, drop_in=False, proof=conditions.overlapping_inputs
    )


# Long sorts.


def ascending(x: Tensor) -> Tensor:
    return torch.sort(x).values


def ascending_by_index(x: Tensor) -> Tensor:
    return x[torch.argsort(x.detach())]


def shuffled(count: int) -> Inputs:
    """Evenly spaced numbers in random order."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return (leaf(torch.linspace(-2.0, 2.0, count, dtype=torch.float64)[order], torch.float64),)


def largest_gaps(x: Tensor) -> Tensor:
    return torch.topk(torch.diff(torch.sort(x).values), 5).values


def largest_gaps_by_index(x: Tensor) -> Tensor:
    y = x[torch.argsort(x.detach())]
    gaps = y[1:] - y[:-1]
    return gaps[torch.argsort(gaps.detach(), descending=True)[:5]]


# Solvers that stop early on purpose.


def fixed_point(x: Tensor) -> Tensor:
    """y = tanh(y / 2 + x), to full precision."""
    y = torch.zeros_like(x)
    for _ in range(80):
        y = torch.tanh(0.5 * y + x)
    return y


def fixed_point_vjp(v: Tensor, x: Tensor) -> Tensor:
    """The adjoint fixed point, iterated until it moves by less than the tolerance."""
    slope = 1 - fixed_point(x) ** 2
    total = move = v
    while move.abs().max() > 0.1 * TOLERANCE * total.abs().max():
        move = 0.5 * slope * move
        total = total + move
    return slope * total


def inverse_root(x: Tensor) -> Tensor:
    return torch.rsqrt(x)


def inverse_root_vjp(v: Tensor, x: Tensor) -> Tensor:
    """One step of Newton from a guess in half precision: six digits."""
    y = torch.rsqrt(x).to(torch.float16).to(x.dtype)
    y = y * (1.5 - 0.5 * x * y * y)
    return -0.5 * v * y**3


def approximate(name: str, why: str, function: Function, reference: Function, inputs: Callable[[], Inputs]) -> Case:
    return right(name, why, at(function, inputs), reference=reference, accuracy=1e-5)


CASES = (
    drawn("conv_norm_dropout_in_training", "Running statistics and a mask.", block, block_by_hand, (3, 2, 6)),
    drawn("image_block_in_training", "Whole channels are dropped.", image_block, image_block_by_hand, (3, 3, 5, 5)),
    drawn(
        "mlp_with_dropout_in_training",
        "A mask between two products.",
        lambda: mlp_with_dropout,
        mlp_with_mask,
        (4, 5),
        (5, 6),
        (6, 3),
    ),
    right(
        "reentrant_checkpoint",
        "It forbids autograd.grad and allows backward().",
        at(checkpointed(residual), normal, (5,)),
        reference=residual,
        drop_in=False,
        proof=conditions.accumulated,
    ),
    right(
        "reentrant_checkpoint_of_two_inputs",
        "The forward runs again inside the backward pass.",
        at(checkpointed(two_layers), normal, (2, 3), (3, 3)),
        reference=two_layers,
        drop_in=False,
        proof=conditions.accumulated,
    ),
    right(
        "chain_of_reentrant_checkpoints",
        "Three of them in a row.",
        at(chain_of_checkpoints, normal, (4,)),
        reference=chain,
        drop_in=False,
        proof=conditions.accumulated,
    ),
    overlapping("sine_of_overlapping_windows", "Each number stands in up to three windows.", sine_squared, windows),
    overlapping("log_total_of_expanded_rows", "All rows are one row in memory.", log_total, rows),
    overlapping("correlation_of_overlapping_patches", "Patches of an image.", correlated, image_patches),
    right(
        "sort_of_2000_even_numbers",
        "A permutation of 2,000, no two closer than 2e-3.",
        at(ascending, shuffled, 2000),
        reference=ascending_by_index,
    ),
    right(
        "sort_of_2000_random_numbers",
        "Some neighbours are closer than the classical step.",
        at(ascending, normal, (2000,)),
        reference=ascending_by_index,
        drop_in=False,
    ),
    right(
        "largest_gaps_of_2000_random_numbers",
        "A selection after a sort.",
        at(largest_gaps, normal, (2000,)),
        reference=largest_gaps_by_index,
    ),
    approximate(
        "solver_stopped_at_1e_6",
        "The adjoint system is solved to six digits, as its author wants.",
        with_vjp(solution, lambda v, b: conjugate_gradients(v, TOLERANCE)),
        solution,
        lambda: uniform(0.5, 1.5, (30,)),
    ),
    approximate(
        "fixed_point_stopped_at_1e_6",
        "The adjoint iteration stops when it moves by less than a millionth.",
        with_vjp(fixed_point, fixed_point_vjp),
        fixed_point,
        lambda: normal((6,)),
    ),
    approximate(
        "inverse_root_by_newton",
        "Newton's method is stopped after one step.",
        with_vjp(inverse_root, inverse_root_vjp),
        inverse_root,
        lambda: uniform(0.5, 3.0, (6,)),
    ),
)
