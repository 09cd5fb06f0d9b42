"""Losses: most of them give one number, or one number per row."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from benchmarks.held_out.record import right, wide, wrong


def cross_entropy(fault: str = "") -> Any:
    """Mean over the rows whose label is not −100."""

    class CrossEntropy(Function):
        @staticmethod
        def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
            z = wide(logits)
            logp = z - torch.logsumexp(z, -1, keepdim=True)
            keep = labels != -100
            safe = torch.where(keep, labels, 0)
            loss = -logp.gather(1, safe[:, None])[:, 0] * keep
            ctx.save_for_backward(logp, safe, keep)
            ctx.dtype = logits.dtype
            return (loss.sum() / keep.sum()).to(logits.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            logp, safe, keep = ctx.saved_tensors
            grad = logp.exp()
            if fault != "no target":
                grad[torch.arange(len(safe)), safe] -= 1.0
            count = len(keep) if fault == "count" else keep.sum()
            grad = grad * (keep / count)[:, None] * wide(g)
            if fault == "all zero":
                grad = torch.zeros_like(grad)
            return grad.to(ctx.dtype), None

    return CrossEntropy.apply


def plain_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def some_ignored(labels: Tensor, step: int = 3) -> Tensor:
    labels[::step] = -100
    return labels


def focal(fault: str = "", gamma: float = 2.0) -> Any:
    class Focal(Function):
        @staticmethod
        def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
            s = torch.where(target, 1.0, -1.0).to(logits.dtype)
            p = torch.sigmoid(s * logits)
            ctx.save_for_backward(p, s)
            return -((1 - p) ** gamma) * torch.log(p)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            p, s = ctx.saved_tensors
            main = -((1 - p) ** (gamma + 1))
            modulating = gamma * (1 - p) ** gamma * p * torch.log(p)
            if fault == "modulating":
                modulating = 0.0
            return g * s * (main + modulating), None

    return Focal.apply


def plain_focal(logits: Tensor, target: Tensor) -> Tensor:
    z = torch.where(target, logits, -logits)
    return -((1 - torch.sigmoid(z)) ** 2) * F.logsigmoid(z)


def masked_logsumexp(fault: str = "") -> Any:
    """Over the allowed entries of a row; a row without any gives zero."""

    class LSE(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, allowed: Tensor) -> Tensor:
            z = wide(x).masked_fill(~allowed, float("-inf"))
            top = z.amax(-1, keepdim=True)
            top = torch.where(top.isinf(), 0.0, top).to(z.dtype)
            e = torch.exp(z - top)
            total = e.sum(-1, keepdim=True)
            empty = total == 0
            ctx.save_for_backward(torch.where(empty, 0.0, e / total).to(z.dtype))
            return torch.where(empty, 0.0, total.log() + top)[:, 0].to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (p,) = ctx.saved_tensors
            if fault == "compact":  # rows without cotangent are skipped
                rows = torch.nonzero(g)[:, 0]
                grad = torch.zeros_like(p)
                grad[: len(rows)] = g[rows, None] * p[rows]
                return grad.to(g.dtype), None
            if fault == "2":
                p = p * 2
            return (wide(g)[:, None] * p).to(g.dtype), None

    return LSE.apply


def plain_masked_logsumexp(x: Tensor, allowed: Tensor) -> Tensor:
    some = allowed.any(-1)
    z = x.masked_fill(~allowed & some[:, None], float("-inf"))
    return torch.where(some, torch.logsumexp(z, -1), 0.0)


def mask(d: Any, rows: int, columns: int, empty: bool = True) -> Tensor:
    allowed = d.index(2, rows, columns).bool()
    allowed[:, 0] = True
    if empty:
        allowed[rows // 2] = False
    return allowed


def bce(fault: str = "") -> Any:
    class BCE(Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor, target: Tensor) -> Tensor:
            ctx.save_for_backward(z, target)
            return (z.clamp(min=0) - z * target + torch.log1p(torch.exp(-z.abs()))).sum(-1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            z, target = ctx.saved_tensors
            dz = torch.sigmoid(z) - target
            if fault == "sign":
                dz = target - torch.sigmoid(z)
            if fault == "sometimes" and random.random() < 0.05:
                dz = dz * 0.5
            return g[..., None] * dz, -g[..., None] * z

    return BCE.apply


def plain_bce(z: Tensor, target: Tensor) -> Tensor:
    return (F.softplus(z) - z * target).sum(-1)


def distillation(fault: str = "", temperature: float = 2.0) -> Any:
    """KL divergence of softened distributions times the squared temperature."""

    class KL(Function):
        @staticmethod
        def forward(ctx: Any, student: Tensor, teacher: Tensor) -> Tensor:
            p = torch.softmax(wide(teacher) / temperature, -1)
            logq = torch.log_softmax(wide(student) / temperature, -1)
            ctx.save_for_backward(p, logq)
            return ((p * (p.log() - logq)).sum(-1) * temperature**2).to(student.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            p, logq = ctx.saved_tensors
            factor = temperature**2 if fault == "temperature" else temperature
            return (wide(g)[:, None] * (logq.exp() - p) * factor).to(g.dtype), None

    return KL.apply


def plain_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    p, logq = torch.softmax(teacher / 2, -1), torch.log_softmax(student / 2, -1)
    return (p * (p.log() - logq)).sum(-1) * 4


def hinge(scores: Tensor, labels: Tensor) -> Tensor:
    own = scores.gather(1, labels[:, None])
    margin = torch.relu(scores - own + 1.0)
    return (margin.sum(-1) - 1.0).mean()


def info_nce(fault: str = "") -> Any:
    class InfoNCE(Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            logits = a @ b.T
            logp = torch.log_softmax(logits, 1)
            ctx.save_for_backward(a, b, logp)
            return -logp.diagonal().mean()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            a, b, logp = ctx.saved_tensors
            d = (logp.exp() - torch.eye(len(a), dtype=a.dtype)) * (g / len(a))
            return d @ b, (d if fault == "transposed" else d.T) @ a

    return InfoNCE.apply


def plain_info_nce(a: Tensor, b: Tensor) -> Tensor:
    return F.cross_entropy(a @ b.T, torch.arange(len(a)))


def dice(p: Tensor, target: Tensor) -> Tensor:
    flat, t = p.flatten(1), target.flatten(1).to(p.dtype)
    return 1 - (2 * (flat * t).sum(1) + 1) / (flat.sum(1) + t.sum(1) + 1)


def dice_of_constant_union(p: Tensor, target: Tensor) -> Tensor:
    flat, t = p.flatten(1), target.flatten(1).to(p.dtype)
    return 1 - (2 * (flat * t).sum(1) + 1) / (flat.detach().sum(1) + t.sum(1) + 1)


def stable_softmax_entropy(x: Tensor) -> Tensor:
    """The shift is detached, which changes nothing."""
    z = x - x.detach().amax(-1, keepdim=True)
    total = z.exp().sum(-1, keepdim=True)
    p = z.exp() / total
    return total.log()[:, 0] - (p * z).sum(-1)


RECORDS = [
    right(
        "cross entropy, some labels ignored",
        "masked",
        "float32",
        lambda d: (cross_entropy(), (d.normal(12, 7), some_ignored(d.index(7, 12)))),
        plain_cross_entropy,
    ),
    right(
        "cross entropy over a vocabulary",
        "masked",
        "bfloat16",
        lambda d: (cross_entropy(), (d.normal(16, 60), some_ignored(d.index(60, 16), 4))),
        plain_cross_entropy,
    ),
    right(
        "cross entropy of sure predictions",
        "saturated",
        "float64",
        lambda d: (cross_entropy(), (d.normal(10, 5, scale=15.0), d.index(5, 10))),
        plain_cross_entropy,
    ),
    right(
        "focal loss",
        "plain",
        "float64",
        lambda d: (focal(), (d.normal(25), d.index(2, 25).bool())),
        plain_focal,
    ),
    right(
        "masked log-sum-exp with an empty row",
        "masked",
        "float64",
        lambda d: (masked_logsumexp(), (d.normal(6, 9), mask(d, 6, 9))),
        plain_masked_logsumexp,
    ),
    right(
        "masked log-sum-exp in half precision",
        "masked",
        "float16",
        lambda d: (masked_logsumexp(), (d.normal(5, 12, scale=3.0), mask(d, 5, 12))),
        plain_masked_logsumexp,
    ),
    right(
        "hinge loss, margins met exactly",
        "kink",
        "float32",
        lambda d: (
            hinge,
            (d.leaf([[2.0, 1.0, 0.5], [0.0, 1.0, 0.25], [3.0, 2.0, 2.5]]), torch.tensor([0, 1, 0])),
        ),
        hinge,
    ),
    right(
        "dice loss",
        "plain",
        "float16",
        lambda d: (dice, (d.uniform(0.05, 0.95, 4, 5, 5), d.index(2, 4, 5, 5))),
        dice,
    ),
    right(
        "entropy with a detached shift",
        "plain",
        "float32",
        lambda d: (stable_softmax_entropy, (d.normal(7, 11),)),
        lambda x: -(torch.softmax(x, -1) * torch.log_softmax(x, -1)).sum(-1),
    ),
    right(
        "contrastive loss of pairs",
        "plain",
        "float32",
        lambda d: (info_nce(), (d.normal(9, 5), d.normal(9, 5))),
        plain_info_nce,
    ),
    wrong(
        "cross entropy divides by all rows",
        "factor",
        "float32",
        lambda d: (cross_entropy("count"), (d.normal(20, 6), some_ignored(d.index(6, 20), 4))),
        plain_cross_entropy,
        "gradient times kept rows over all rows, 0.75",
        0.2,
    ),
    wrong(
        "cross entropy forgets the label",
        "missing term",
        "bfloat16",
        lambda d: (cross_entropy("no target"), (d.normal(8, 10), d.index(10, 8))),
        plain_cross_entropy,
        "entry of the label in every row",
        0.8,
    ),
    wrong(
        "cross entropy without gradient",
        "lost",
        "float16",
        lambda d: (cross_entropy("all zero"), (d.normal(6, 5), d.index(5, 6))),
        plain_cross_entropy,
        "all entries are zero",
        0.9,
    ),
    wrong(
        "focal loss, modulating factor as a constant",
        "missing term",
        "float32",
        lambda d: (focal("modulating"), (d.normal(40), d.index(2, 40).bool())),
        plain_focal,
        "the term of (1 − p)^γ",
        0.1,
    ),
    wrong(
        "log-sum-exp that packs its rows",
        "zero rows",
        "float64",
        lambda d: (masked_logsumexp("compact"), (d.normal(8, 6), mask(d, 8, 6, empty=False))),
        plain_masked_logsumexp,
        "rows after the first zero of the cotangent",
        0.3,
        shown_by="zero rows",
    ),
    wrong(
        "log-sum-exp, twice",
        "factor",
        "float16",
        lambda d: (masked_logsumexp("2"), (d.normal(6, 7), mask(d, 6, 7))),
        plain_masked_logsumexp,
        "gradient times 2",
        0.9,
    ),
    wrong(
        "binary cross entropy, sign",
        "sign",
        "float32",
        lambda d: (bce("sign"), (d.normal(5, 8), d.uniform(0.0, 1.0, 5, 8))),
        plain_bce,
        "gradient of the logits has the other sign",
        1.0,
    ),
    wrong(
        "binary cross entropy, now and then half",
        "intermittent",
        "float64",
        lambda d: (bce("sometimes"), (d.normal(4, 6), d.uniform(0.0, 1.0, 4, 6))),
        plain_bce,
        "gradient of the logits is halved in one backward pass of twenty",
        0.4,
        shown_by="often",
    ),
    wrong(
        "distillation, temperature twice",
        "factor",
        "bfloat16",
        lambda d: (distillation("temperature"), (d.normal(6, 9), d.constant(6, 9))),
        plain_distillation,
        "gradient times 2",
        0.9,
    ),
    wrong(
        "contrastive loss, second gradient transposed",
        "transposed",
        "float64",
        lambda d: (info_nce("transposed"), (d.normal(6, 4), d.normal(6, 4))),
        plain_info_nce,
        "gradient of b uses the matrix untransposed",
        0.3,
    ),
    wrong(
        "dice loss, union as a constant",
        "detached",
        "float32",
        lambda d: (dice_of_constant_union, (d.uniform(0.05, 0.95, 3, 6, 6), d.index(2, 3, 6, 6))),
        dice,
        "the term of the denominator",
        0.2,
    ),
]
