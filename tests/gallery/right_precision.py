"""Right functions in float32, bfloat16 and float16. The classical tolerance rejects every one of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.gallery import proofs
from tests.gallery.case import Case, Function, right
from tests.gallery.inputs import at, indices, leaf, normal, point

SHORT = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
LABELS = indices([1, 0, 2])


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def layer_norm_by_hand(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-5)


def loss(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, LABELS)


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.mT / 2, -1) @ value


def energy(x: Tensor) -> Tensor:
    return (x**2).sum()


def convolution(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv1d(x, weight, padding=1)


def accumulated_in_single(x: Tensor) -> Tensor:
    """A long sum that is kept in at least float32."""
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    return (wide**2).mean().to(x.dtype)


def capped(x: Tensor, cap: Tensor) -> Tensor:
    return torch.erf(torch.minimum(x, cap.min()))


def with_tiny_cap() -> tuple[Tensor, ...]:
    x, cap = normal((5, 3), (3,), dtype=torch.float32)
    return x, leaf(1e-6 * cap, torch.float32)


def chain(x: Tensor, y: Tensor) -> Tensor:
    inner = 1.0 / (1.0 + y * y)
    return torch.logaddexp(1.0 / (1.0 + inner * inner), x.abs())


def _cases(
    name: str, why: str, function: Function, *shapes: tuple[int, ...], dtypes: str = "float32 bfloat16 float16"
) -> list[Case]:
    """One case for each dtype, proved by the same function in float64."""
    return [
        right(
            f"{name}_in_{short}",
            why,
            at(function, normal, *shapes, dtype=dtype),
            reference=function,
            dtype=dtype,
            drop_in=False,
            proof=proofs.precision,
        )
        for dtype, short in SHORT.items()
        if short in dtypes.split()
    ]


CASES = (
    *_cases("sine", "One rounding of the value, one of the slope.", torch.sin, (6,)),
    *_cases("softmax", "Coupled entries.", softmax, (2, 5)),
    *_cases("layer_norm", "Statistics in higher precision inside.", layer_norm, (2, 6)),
    *_cases("layer_norm_by_hand", "Statistics in the dtype of the data.", layer_norm_by_hand, (2, 6), dtypes="float32"),
    *_cases("matrix_product", "Sums of products.", torch.matmul, (3, 4), (4, 2)),
    *_cases("cross_entropy", "A loss as it stands at the end of networks.", loss, (3, 4)),
    *_cases("gelu", "An error function.", F.gelu, (6,)),
    *_cases("attention", "Two products and a softmax.", attention, (3, 4), (3, 4), (3, 2), dtypes="float32 bfloat16"),
    *_cases("energy", "A sum of squares.", energy, (20,), dtypes="float32 float16"),
    *_cases("convolution", "A small kernel.", convolution, (1, 2, 6), (2, 2, 3), dtypes="float32"),
    *_cases("long_mean", "A thousand terms, summed in float32.", accumulated_in_single, (1000,), dtypes="bfloat16"),
    right(
        "minimum_with_a_tiny_number_in_float32",
        "The roundoff of the values is as large as the second input, and that of the gradient is not.",
        lambda: (capped, with_tiny_cap()),
        reference=capped,
        dtype=torch.float32,
        drop_in=False,
        proof=proofs.precision,
    ),
    right(
        "chain_of_scalar_activations_in_bfloat16",
        "One entry, rounded four times on the way: its error is no common factor.",
        at(chain, point, 0.8984375, -0.349609375, dtype=torch.bfloat16),
        reference=chain,
        dtype=torch.bfloat16,
        drop_in=False,
        proof=proofs.precision,
    ),
)
