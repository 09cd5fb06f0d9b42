"""F13: an option of the forward that the backward does not know of. At its default the derivative would be right."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from tests.functions import with_vjp
from tests.gallery.case import Family, Function
from tests.gallery.inputs import indices, normal

LABELS = indices([1, 0, 2, -1])
KEPT = LABELS >= 0


def gelu(x: Tensor, exact: bool) -> Tensor:
    if exact:
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_exactly(v: Tensor, x: Tensor) -> Tensor:
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return v * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density)


def softplus(x: Tensor, beta: float) -> Tensor:
    return torch.log1p(torch.exp(beta * x)) / beta


def softplus_without_beta(v: Tensor, x: Tensor) -> Tensor:
    return v * torch.sigmoid(x)


def padded_mean(x: Tensor, mode: str) -> Tensor:
    """Means of three neighbours, the ends padded by `mode`."""
    padded = torch.nn.functional.pad(x[None], (1, 1), mode=mode)[0]
    return padded.unfold(-1, 3, 1).mean(-1)


def padded_mean_with_zeros(v: Tensor, x: Tensor) -> Tensor:
    return padded_mean(v, "constant")


def convolution(x: Tensor, kernel: Tensor, stride: int, dilation: int) -> Tensor:
    return torch.nn.functional.conv1d(x[None, None], kernel[None, None], stride=stride, dilation=dilation)[0, 0]


def convolution_without_dilation(v: Tensor, x: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    taps = len(kernel)
    shifted = [torch.nn.functional.pad(v * kernel[k], (k, len(x) - len(v) - k)) for k in range(taps)]
    return torch.stack(shifted).sum(0), torch.stack([(v * x[2 * k : 2 * k + len(v)]).sum() for k in range(taps)])


def smoothed_loss(logits: Tensor, smoothing: float) -> Tensor:
    return torch.nn.functional.cross_entropy(logits, LABELS.clamp(min=0), label_smoothing=smoothing)


def loss_without_smoothing(v: Tensor, logits: Tensor) -> Tensor:
    target = torch.nn.functional.one_hot(LABELS.clamp(min=0), 3).to(logits)
    return v * (torch.softmax(logits, -1) - target) / len(logits)


def partial_loss(logits: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits, LABELS, ignore_index=-1)


def partial_loss_over_all(v: Tensor, logits: Tensor) -> Tensor:
    """Ignored rows have no gradient, and they do not count in the mean either."""
    target = torch.nn.functional.one_hot(LABELS.clamp(min=0), 3).to(logits)
    return v * KEPT[:, None] * (torch.softmax(logits, -1) - target) / len(logits)


def stretched(x: Tensor, align_corners: bool) -> Tensor:
    """Linear interpolation from n to 2n points, as a matrix that depends on the option."""
    return stretching(len(x), align_corners, x.dtype) @ x


def stretching(count: int, align_corners: bool, dtype: torch.dtype) -> Tensor:
    steps = torch.arange(2 * count, dtype=dtype)
    aligned = steps * (count - 1) / (2 * count - 1)
    centred = ((steps + 0.5) / 2 - 0.5).clamp(0, count - 1)
    place = aligned if align_corners else centred
    return (1 - (place[:, None] - torch.arange(count, dtype=dtype)).abs()).clamp(min=0)


def stretched_without_corners(v: Tensor, x: Tensor) -> Tensor:
    return stretching(len(x), False, x.dtype).mT @ v


def leaky(x: Tensor, slope: float) -> Tensor:
    return torch.where(x > 0, x, slope * x)


def leaky_by_default(v: Tensor, x: Tensor) -> Tensor:
    return v * torch.where(x > 0, 1.0, 0.01)


def attention(scores: Tensor, causal: bool) -> Tensor:
    mask = torch.ones_like(scores, dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~mask, -1e9) if causal else scores, -1)


def attention_without_mask(v: Tensor, scores: Tensor) -> Tensor:
    y = torch.softmax(scores, -1)
    return y * (v - (v * y).sum(-1, keepdim=True))


def softmax_at(x: Tensor, temperature: float) -> Tensor:
    return torch.softmax(x / temperature, -1)


def softmax_without_temperature(v: Tensor, x: Tensor) -> Tensor:
    y = torch.softmax(x / 0.5, -1)
    return y * (v - (v * y).sum(-1, keepdim=True))


def normalised(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt((x**2).mean(-1, keepdim=True) + eps)


def normalised_with_default_eps(v: Tensor, x: Tensor) -> Tensor:
    r = torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-5)
    return r * v - x * r**3 * (v * x).mean(-1, keepdim=True)


def absolute_error(x: Tensor, reduction: str) -> Tensor:
    return getattr(torch.log(torch.cosh(x - 0.3)), reduction)()


def absolute_error_of_sum(v: Tensor, x: Tensor) -> Tensor:
    return v * torch.tanh(x - 0.3)


def convolution_with_dilation(x: Tensor, kernel: Tensor) -> Tensor:
    return convolution(x, kernel, 1, 2)


OPTIONS: dict[str, tuple[Function, Function, list[tuple[int, ...]]]] = {
    "gelu_with_exact_backward": (partial(gelu, exact=False), gelu_exactly, [(6,)]),
    "softplus_without_beta": (partial(softplus, beta=2.0), softplus_without_beta, [(5,)]),
    "reflected_mean_with_zeros": (partial(padded_mean, mode="reflect"), padded_mean_with_zeros, [(2, 5)]),
    "convolution_without_dilation": (convolution_with_dilation, convolution_without_dilation, [(8,), (3,)]),
    "loss_without_smoothing": (partial(smoothed_loss, smoothing=0.1), loss_without_smoothing, [(4, 3)]),
    "partial_loss_over_all": (partial_loss, partial_loss_over_all, [(4, 3)]),
    "stretched_without_corners": (partial(stretched, align_corners=True), stretched_without_corners, [(4,)]),
    "leaky_by_default_slope": (partial(leaky, slope=0.2), leaky_by_default, [(6,)]),
    "attention_without_mask": (partial(attention, causal=True), attention_without_mask, [(3, 3)]),
    "softmax_without_temperature": (partial(softmax_at, temperature=0.5), softmax_without_temperature, [(2, 4)]),
    "normalised_with_default_eps": (partial(normalised, eps=0.1), normalised_with_default_eps, [(2, 5)]),
    "mean_error_as_sum": (partial(absolute_error, reduction="mean"), absolute_error_of_sum, [(5,)]),
}
WHY = {
    "gelu_with_exact_backward": "The forward takes the tanh form, the backward the exact one: 1e-3 apart.",
    "softplus_without_beta": "The steepness of the forward is 1 in the backward.",
    "reflected_mean_with_zeros": "Reflected ends send their gradient back inside; zeros lose it.",
    "convolution_without_dilation": "The taps lie two apart in the forward and side by side in the backward.",
    "loss_without_smoothing": "The targets of the forward are soft, those of the backward hard.",
    "partial_loss_over_all": "Ignored rows must not count in the mean.",
    "stretched_without_corners": "Two conventions of interpolation place the samples differently.",
    "leaky_by_default_slope": "The slope given by the caller is replaced by the default.",
    "attention_without_mask": "What the forward must not see sends back a gradient.",
    "softmax_without_temperature": "The inner derivative of the division is missing.",
    "normalised_with_default_eps": "A large eps in the forward is the small default one in the backward.",
    "mean_error_as_sum": "The reduction is applied in the forward only.",
}

wrong = Family("F13")

CASES = tuple(
    wrong(name, WHY[name]).at(with_vjp(forward, backward), forward, normal, *shapes)
    for name, (forward, backward, shapes) in OPTIONS.items()
)
