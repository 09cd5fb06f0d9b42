"""F12: wrong only above some size: incomplete grids, counters that overflow, lost chunks.

Each input here is large enough to show the fault. Only a check whose cost does not grow with the size can be run there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery.case import Family
from tests.gallery.inputs import normal
from tests.gallery.mutants import wrong_entries, wrong_where

BLOCK = 1024


def energy(x: Tensor) -> Tensor:
    return (torch.sin(x) ** 2).sum()


def norms(x: Tensor) -> Tensor:
    return x.pow(2).sum(-1)


def norms_with_byte_index(v: Tensor, x: Tensor) -> Tensor:
    """The row number is kept in eight bits."""
    rows = torch.arange(len(x)) % 256
    return 2 * x * v[rows, None]


def log_total(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def log_total_of_shared_memory(v: Tensor, x: Tensor) -> Tensor:
    """Only the first 512 entries of a row fit into the fast memory that the sum is made from."""
    total = torch.logsumexp(x[..., :512], -1, keepdim=True)
    return v[..., None] * torch.exp(x - total)


def centred_square(x: Tensor) -> Tensor:
    return ((x - x.mean()) ** 2).sum() / 100


def centred_square_with_signed_byte_count(v: Tensor, x: Tensor) -> Tensor:
    """The count wraps at 128, so that the mean is a sum over all divided by too few."""
    count = (x.numel() - 1) % 128 + 1
    return 2 * v * (x - x.sum() / count) / 100


def mixing(x: Tensor) -> Tensor:
    """Neighbours on a ring."""
    return torch.tanh(x + 0.5 * torch.roll(x, 1))


def one_entry_off(v: Tensor, x: Tensor) -> Tensor:
    """One entry of the Jacobian, (17, 211), is 8 instead of 0."""
    g = v * (1 - mixing(x) ** 2)
    gradient = g + 0.5 * torch.roll(g, -1)
    return gradient + 8.0 * v[17] * (torch.arange(len(x)) == 211)


def chunked_attention(query: Tensor, key: Tensor) -> Tensor:
    return torch.softmax(query @ key.mT, -1) @ key


def chunked_attention_without_last_chunk(v: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Keys come in chunks of 64; the query's gradient forgets the chunk that is not full."""
    weights = torch.softmax(query @ key.mT, -1)
    g = weights * (v @ key.mT - (v @ key.mT * weights).sum(-1, keepdim=True))
    whole = len(key) - len(key) % 64
    return g[:, :whole] @ key[:whole], g.mT @ query + weights.mT @ v


wrong = Family("F12")

CASES = (
    wrong("energy_beyond_one_block", "The grid has one block; what lies beyond it keeps a zero gradient.").at(
        wrong_entries(energy, slice(BLOCK, None)), energy, normal, (1500,)
    ),
    wrong("norms_with_byte_index", "A row number that overflows takes its cotangent from another row.").at(
        with_vjp(norms, norms_with_byte_index), norms, normal, (300, 2)
    ),
    wrong("log_total_of_shared_memory", "A row longer than the fast memory is summed in part.").at(
        with_vjp(log_total, log_total_of_shared_memory), log_total, normal, (2, 700)
    ),
    wrong("centred_square_with_signed_byte_count", "A count that wraps around divides by too little.").at(
        with_vjp(centred_square, centred_square_with_signed_byte_count), centred_square, normal, (300,)
    ),
    wrong("mixing_with_one_entry_off", "One of 90,000 entries of the Jacobian is wrong.").at(
        with_vjp(mixing, one_entry_off), mixing, normal, (300,)
    ),
    wrong("chunked_attention_without_last_chunk", "Seventy keys are one chunk of 64 and a rest that is forgotten.").at(
        with_vjp(chunked_attention, chunked_attention_without_last_chunk), chunked_attention, normal, (3, 4), (70, 4)
    ),
    wrong("energy_wrong_in_the_last_of_4000", "The last of 4,000 entries has the wrong sign.").at(
        wrong_where(energy, lambda x: torch.arange(len(x)) == len(x) - 1, -1.0), energy, normal, (4000,)
    ),
)
