"""Right functions with randomness (the same at every call, or given the random state) and with noisy internals."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.functions import with_vjp
from tests.gallery import conditions
from tests.gallery.case import Function, right
from tests.gallery.inputs import at, normal, uniform
from tests.gallery.solvers import conjugate_gradients, solution

MASK = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)


def seeded_dropout(x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return x**2 * (torch.rand(x.shape, generator=generator) > 0.3) / 0.7


def forked_dropout(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return F.dropout(x**2, 0.3)


def masked(x: Tensor) -> Tensor:
    return torch.tanh(x) * MASK


def free_dropout(x: Tensor) -> Tensor:
    """Another mask at every call, unless the random state is restored."""
    return F.dropout(x**2, 0.3)


def free_dropout_by_mask(x: Tensor) -> Tensor:
    return x**2 * F.dropout(torch.ones_like(x), 0.3)


def free_noise(x: Tensor) -> Tensor:
    return x * torch.randn_like(x) + x**2


def reparametrised(mean: Tensor, log_scale: Tensor) -> Tensor:
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(2), dtype=mean.dtype)
    return mean + torch.exp(log_scale) * noise


def gumbel_softmax(logits: Tensor) -> Tensor:
    uniform_draw = torch.rand(logits.shape, generator=torch.Generator().manual_seed(4), dtype=logits.dtype)
    return torch.softmax((logits - torch.log(-torch.log(uniform_draw))) / 0.7, -1)


def monte_carlo(x: Tensor) -> Tensor:
    nodes = torch.rand(64, generator=torch.Generator().manual_seed(9), dtype=x.dtype)
    return torch.sin(x[:, None] * nodes).mean(-1)


def batch_norm_in_training() -> Function:
    """The running statistics move at every call; the output does not depend on them."""
    mean, variance = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    return lambda x: F.batch_norm(x, mean, variance, training=True)


def in_single(function: Function) -> Function:
    """`function` computed in float32, for inputs and outputs in float64."""
    return lambda *inputs: function(*(x.float() for x in inputs)).double()


def row_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def energy(x: Tensor) -> Tensor:
    return (torch.sin(x) ** 2).sum(-1)


CASES = (
    right("dropout_with_own_generator", "The same mask at every call.", at(seeded_dropout, normal, (8,)), order=2),
    right(
        "dropout_under_fork_rng",
        "Seeds itself and leaves the random state alone.",
        at(forked_dropout, normal, (8,)),
        order=2,
    ),
    right("fixed_mask", "Entries without any gradient.", at(masked, normal, (6,)), order=2),
    right(
        "dropout_of_the_global_generator",
        "Right for every mask; the classical check sees another mask at every call.",
        at(free_dropout, normal, (8,)),
        reference=free_dropout_by_mask,
        drop_in=False,
        proof=conditions.same_random_state,
    ),
    right(
        "noise_of_the_global_generator",
        "Multiplicative noise, new at every call.",
        at(free_noise, normal, (5,)),
        reference=lambda x: torch.randn_like(x) * x + x * x,
        drop_in=False,
        proof=conditions.same_random_state,
    ),
    right(
        "reparametrised_normal",
        "Noise that does not depend on the inputs.",
        at(reparametrised, normal, (4,), (4,)),
        order=2,
    ),
    right("gumbel_softmax", "A relaxed sample.", at(gumbel_softmax, normal, (3, 4))),
    right("monte_carlo_mean", "Nodes drawn once and for all.", at(monte_carlo, normal, (3,))),
    right(
        "batch_norm_in_training",
        "Side effects on buffers that the output does not read.",
        lambda: (batch_norm_in_training(), normal((4, 3))),
        order=2,
    ),
    right(
        "sine_in_float32_inside",
        "Noise of 1e-7 in the values: 5 per cent at the classical step.",
        at(in_single(torch.sin), normal, (5,)),
        reference=torch.sin,
        drop_in=False,
        resolution=1e-5,
    ),
    right(
        "softmax_in_float32_inside",
        "Mixed precision is the rule in networks.",
        at(in_single(row_softmax), normal, (2, 4)),
        reference=row_softmax,
        drop_in=False,
        resolution=1e-5,
    ),
    right(
        "energy_in_float32_inside",
        "A reduction in float32.",
        at(in_single(energy), normal, (3, 6)),
        reference=energy,
        drop_in=False,
        resolution=1e-5,
    ),
    right(
        "product_in_float32_inside",
        "Both operands are rounded on the way.",
        at(in_single(torch.matmul), normal, (2, 3), (3, 4)),
        reference=torch.matmul,
        drop_in=False,
        resolution=1e-5,
    ),
    right(
        "solver_with_implicit_gradient",
        "The gradient solves another system and does not unroll this one.",
        at(
            with_vjp(lambda b: conjugate_gradients(b, 1e-12), lambda v, b: conjugate_gradients(v, 1e-12)),
            uniform,
            0.5,
            1.5,
            (30,),
        ),
        reference=solution,
    ),
)
