"""Random compositions of torch operations, right by construction, and the same with a planted fault.

A program is a list of operations on earlier values. It runs in any precision, because constants take the dtype of what
they meet. A fault replaces one value by itself with a wrong backward pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Maker = Callable[[random.Random, Sequence[torch.Size]], Callable[..., Tensor] | None]
"""From the shapes of the operands to the operation; None where it does not apply to them."""

MAX_ELEMENTS = 4096
"""Number of elements of a value."""

MAX_STEPS = 10
"""Number of operations of a program."""


@dataclass(frozen=True)
class Step:
    """One operation of a program: its name, and which values it takes."""

    name: str
    call: Callable[..., Tensor]
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Fault:
    """A wrong gradient of one operand of one operation."""

    kind: str
    step: int
    operand: int
    change: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Program:
    """A function of several tensors."""

    inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    fault: Fault | None = None

    def __call__(self, *inputs: Tensor) -> Any:
        values = list(inputs)
        for number, step in enumerate(self.steps):
            operands = [values[place] for place in step.operands]
            if self.fault is not None and self.fault.step == number:
                operands[self.fault.operand] = spoiled(operands[self.fault.operand], self.fault.change)
            values.append(step.call(*operands))
        found = tuple(values[place] for place in self.outputs)
        return found[0] if len(found) == 1 else found

    @property
    def words(self) -> str:
        """The operations by name, and the fault."""
        names = " ".join(f"{step.name}({','.join(map(str, step.operands))})" for step in self.steps)
        return names if self.fault is None else f"{names} [{self.fault.kind} at {self.fault.step}.{self.fault.operand}]"


def spoiled(value: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The value itself, with a gradient that is changed."""

    class Spoiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
            return change(cotangents[0])

    return Spoiled.apply(value)  # type: ignore[no-any-return, no-untyped-call]


# Operations


def elementwise(call: Callable[[Tensor], Tensor]) -> Maker:
    return lambda rng, shapes: call if len(shapes) == 1 else None


def ranked(least: int, call: Callable[[Tensor], Tensor]) -> Maker:
    """An operation on tensors of at least so many dimensions, none of them empty."""
    return lambda rng, shapes: call if len(shapes) == 1 and len(shapes[0]) >= least and shapes[0].numel() else None


def binary(call: Callable[[Tensor, Tensor], Tensor]) -> Maker:
    def make(rng: random.Random, shapes: Sequence[torch.Size]) -> Callable[..., Tensor] | None:
        return call if len(shapes) == 2 and _broadcasts(*shapes) else None

    return make


def _broadcasts(one: torch.Size, other: torch.Size) -> bool:
    try:
        return torch.broadcast_shapes(one, other).numel() <= MAX_ELEMENTS
    except RuntimeError:
        return False


def product(call: Callable[[Tensor, Tensor], Tensor]) -> Maker:
    """Products of matrices whose inner lengths fit."""

    def make(rng: random.Random, shapes: Sequence[torch.Size]) -> Callable[..., Tensor] | None:
        fits = len(shapes) == 2 and all(len(shape) == 2 for shape in shapes) and shapes[0][1] == shapes[1][0]
        return call if fits and shapes[0][0] * shapes[1][1] <= MAX_ELEMENTS else None

    return make


def clamped(rng: random.Random, shapes: Sequence[torch.Size]) -> Callable[..., Tensor] | None:
    low, high = rng.choice([(-1.0, 1.0), (0.0, 1.0), (-0.5, 2.0)])
    return (lambda x: x.clamp(low, high)) if len(shapes) == 1 else None


def gathered(rng: random.Random, shapes: Sequence[torch.Size]) -> Callable[..., Tensor] | None:
    """Rows in another order, some twice and some not at all."""
    if len(shapes) != 1 or not shapes[0] or not shapes[0][0]:
        return None
    length = shapes[0][0]
    index = torch.tensor([rng.randrange(length) for _ in range(length)])
    return lambda x: x.index_select(0, index)


def scattered(rng: random.Random, shapes: Sequence[torch.Size]) -> Callable[..., Tensor] | None:
    if len(shapes) != 1 or not shapes[0] or not shapes[0][0]:
        return None
    length = shapes[0][0]
    index = torch.tensor([rng.randrange(length) for _ in range(length)])
    return lambda x: torch.zeros_like(x).index_add(0, index, x)


def masked(rng: random.Random, shapes: Sequence[torch.Size]) -> Callable[..., Tensor] | None:
    if len(shapes) != 1:
        return None
    mask = torch.tensor([rng.random() < 0.7 for _ in range(shapes[0].numel())]).reshape(shapes[0])
    return lambda x: torch.where(mask, x, x.new_zeros(()))


def cross_entropy(rng: random.Random, shapes: Sequence[torch.Size]) -> Callable[..., Tensor] | None:
    if len(shapes) != 1 or len(shapes[0]) != 2 or not shapes[0].numel():
        return None
    rows, classes = shapes[0]
    target = torch.tensor([rng.randrange(classes) for _ in range(rows)])
    smoothing, reduction = rng.choice([0.0, 0.1]), rng.choice(["none", "mean", "sum"])
    return lambda x: F.cross_entropy(x, target, reduction=reduction, label_smoothing=smoothing)


def positive(x: Tensor) -> Tensor:
    """A well-conditioned positive definite matrix made from the rows of x."""
    size = x.shape[-1]
    return x.mT @ x / x.shape[-2] + torch.eye(size, dtype=x.dtype)


def solved(x: Tensor) -> Tensor:
    return torch.linalg.solve(positive(x), x.mT)


def pooled(kind: str) -> Maker:
    def make(rng: random.Random, shapes: Sequence[torch.Size]) -> Callable[..., Tensor] | None:
        if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][1] < 4:
            return None
        width = rng.choice([2, 3])
        pool = F.max_pool1d if kind == "max" else F.avg_pool1d
        return lambda x: pool(x[None], width, stride=2)[0]

    return make


def convolved(rng: random.Random, shapes: Sequence[torch.Size]) -> Callable[..., Tensor] | None:
    """A convolution of the first operand's rows with the second one's values as its kernel."""
    if len(shapes) != 2 or len(shapes[0]) != 2 or len(shapes[1]) != 1 or not 1 <= shapes[1][0] <= 5:
        return None
    if shapes[0][1] < shapes[1][0] or not shapes[0][0]:
        return None
    return lambda x, w: F.conv1d(x[:, None], w[None, None], padding=1)[:, 0]


def largest(rng: random.Random, shapes: Sequence[torch.Size]) -> Callable[..., Tensor] | None:
    if len(shapes) != 1 or not shapes[0] or shapes[0][-1] < 2:
        return None
    count = rng.randrange(1, shapes[0][-1])
    return lambda x: x.topk(count, -1).values


UNARY: dict[str, Maker] = {
    "sin": elementwise(torch.sin),
    "tanh": elementwise(torch.tanh),
    "sigmoid": elementwise(torch.sigmoid),
    "exp_tanh": elementwise(lambda x: torch.exp(torch.tanh(x))),
    "log1p_square": elementwise(lambda x: torch.log1p(x * x)),
    "sqrt_square": elementwise(lambda x: torch.sqrt(x * x + 0.5)),
    "reciprocal": elementwise(lambda x: 1.0 / (1.0 + x * x)),
    "square": elementwise(lambda x: x * x),
    "cube": elementwise(lambda x: x**3 / 3.0),
    "affine": elementwise(lambda x: 0.7 * x - 0.3),
    "negative": elementwise(lambda x: -x),
    "atan": elementwise(torch.atan),
    "gelu": elementwise(F.gelu),
    "silu": elementwise(F.silu),
    "softplus": elementwise(F.softplus),
    "erf": elementwise(torch.erf),
    "one_plus_erf": elementwise(lambda x: 1.0 + torch.erf(x)),
    "mish": elementwise(F.mish),
    "elu": elementwise(F.elu),
    "logsigmoid": elementwise(F.logsigmoid),
    "relu": elementwise(F.relu),
    "abs": elementwise(torch.abs),
    "leaky_relu": elementwise(F.leaky_relu),
    "hardtanh": elementwise(F.hardtanh),
    "hardswish": elementwise(F.hardswish),
    "softshrink": elementwise(F.softshrink),
    "clamp": clamped,
    "masked": masked,
    "wide": elementwise(lambda x: 6.0 * x),
    "sum": ranked(1, lambda x: x.sum(-1)),
    "mean": ranked(1, lambda x: x.mean(-1)),
    "total": ranked(1, torch.sum),
    "var": ranked(2, lambda x: x.var(0, correction=0)),
    "norm": ranked(1, lambda x: torch.sqrt((x * x).sum(-1) + 1e-3)),
    "vector_norm": ranked(1, lambda x: torch.linalg.vector_norm(x, dim=-1)),
    "one_norm": ranked(1, lambda x: torch.linalg.vector_norm(x, 1, dim=-1)),
    "amax": ranked(1, lambda x: x.amax(-1)),
    "max": ranked(1, lambda x: x.max(-1).values),
    "min": ranked(1, lambda x: x.min(-1).values),
    "prod": ranked(1, lambda x: torch.tanh(x).prod(-1)),
    "logsumexp": ranked(1, lambda x: x.logsumexp(-1)),
    "softmax": ranked(1, lambda x: x.softmax(-1)),
    "log_softmax": ranked(1, lambda x: x.log_softmax(-1)),
    "softmin_0": ranked(2, lambda x: F.softmin(x, 0)),
    "layer_norm": ranked(1, lambda x: F.layer_norm(x, x.shape[-1:])),
    "rms_norm": ranked(1, lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)),
    "batch_norm": ranked(2, lambda x: F.batch_norm(x.reshape(x.shape[0], -1), None, None, training=True)),
    "normalize": ranked(1, lambda x: F.normalize(x, dim=-1)),
    "cross_entropy": cross_entropy,
    "sort": ranked(1, lambda x: x.sort(-1).values),
    "topk": largest,
    "cumsum": ranked(1, lambda x: x.cumsum(-1)),
    "cumprod": ranked(1, lambda x: torch.tanh(x).cumprod(-1)),
    "logcumsumexp": ranked(1, lambda x: x.logcumsumexp(-1)),
    "diff": ranked(1, lambda x: x - x.roll(1, -1)),
    "flip": ranked(1, lambda x: x.flip(-1)),
    "transpose": ranked(2, lambda x: x.transpose(0, 1)),
    "flatten": ranked(1, torch.flatten),
    "gather": gathered,
    "scatter": scattered,
    "tril": ranked(2, torch.tril),
    "max_pool": pooled("max"),
    "avg_pool": pooled("avg"),
    "glu": ranked(1, lambda x: x * torch.sigmoid(x.roll(1, -1))),
    "gram": ranked(2, lambda x: torch.einsum("...ij,...kj->...ik", x, x)),
    "cholesky": ranked(2, lambda x: torch.linalg.cholesky(positive(x))),
    "solve": ranked(2, solved),
    "logdet": ranked(2, lambda x: torch.linalg.slogdet(positive(x)).logabsdet),
    "attention": ranked(2, lambda x: torch.softmax(x @ x.mT / x.shape[-1] ** 0.5, -1) @ x),
    "real_part": elementwise(lambda x: x.real + 0.5 * x.imag if x.is_complex() else x),
}

BINARY: dict[str, Maker] = {
    "add": binary(torch.add),
    "sub": binary(torch.sub),
    "mul": binary(torch.mul),
    "div": binary(lambda x, y: x / (1.0 + y * y)),
    "gate": binary(lambda x, y: x * torch.sigmoid(y)),
    "maximum": binary(torch.maximum),
    "minimum": binary(torch.minimum),
    "hypot": binary(lambda x, y: torch.sqrt(x * x + y * y + 0.1)),
    "mse": binary(lambda x, y: (x - y).square().mean()),
    "smooth_l1": binary(lambda x, y: F.smooth_l1_loss(*torch.broadcast_tensors(x, y), reduction="none")),
    "logaddexp": binary(torch.logaddexp),
    "bce": binary(lambda x, y: F.binary_cross_entropy_with_logits(*torch.broadcast_tensors(x, torch.sigmoid(y)))),
    "kl": binary(lambda x, y: (x.softmax(-1) * (x.log_softmax(-1) - y.log_softmax(-1))).sum() if x.dim() else x * y),
    "matmul": product(torch.matmul),
    "einsum": product(lambda x, y: torch.einsum("ij,jk->ki", x, y)),
    "linear": product(lambda x, y: F.linear(x, y.mT)),
    "conv": convolved,
    "outer": lambda rng, shapes: (
        torch.outer
        if len(shapes) == 2 and all(len(s) == 1 for s in shapes) and shapes[0].numel() * shapes[1].numel() <= 4096
        else None
    ),
    "cosine": binary(lambda x, y: F.cosine_similarity(*torch.broadcast_tensors(x, y), dim=-1) if x.dim() else x - y),
}

COMPLEX = [
    "sin",
    "tanh",
    "square",
    "affine",
    "negative",
    "sum",
    "mean",
    "total",
    "prod",
    "reciprocal",
    "cumsum",
    "flip",
    "transpose",
    "flatten",
    "gather",
    "scatter",
    "tril",
    "masked",
    "abs",
    "gram",
    "diff",
    "real_part",
    "vector_norm",
    "add",
    "sub",
    "mul",
    "matmul",
    "einsum",
    "conv",
    "outer",
    "exp_tanh",
    "wide",
]
"""Operations on complex numbers."""

SHAPES = ((), (1,), (3,), (5,), (7,), (16,), (64,), (3, 4), (5, 3), (4, 4), (2, 3, 4), (8, 16), (16, 8), (40, 50))
VALUES = ("normal", "wide", "tiny", "large", "integer", "padded", "repeated", "uniform", "zero_mixed")


def tensor_of(rng: random.Random, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An input of random kind: mostly ordinary numbers, else small, large, with ties or with exact zeros."""
    kind = rng.choice(VALUES) if rng.random() < 0.5 else "normal"
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    x = torch.randn(shape, dtype=wide, generator=generator)
    if kind == "integer":
        x = torch.round(x * 1.5) if not dtype.is_complex else torch.complex(torch.round(x.real), torch.round(x.imag))
    elif kind == "padded" and x.dim():
        x[x.shape[0] // 2 :] = 0.0
    elif kind == "repeated" and x.dim():
        x[:] = x[:1].clone()
    elif kind == "uniform" and not dtype.is_complex:
        x = torch.rand(shape, dtype=wide, generator=generator)
    elif kind == "zero_mixed":
        x = torch.where(torch.rand(shape, generator=generator) < 0.3, torch.zeros_like(x), x)
    else:
        x = x * {"wide": 8.0, "tiny": 1e-6, "large": 1e4}.get(kind, 1.0)
    return x.to(dtype).requires_grad_()


def related_shape(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that can be combined with the given one."""
    options: list[tuple[int, ...]] = [shape, shape[-1:], ()]
    if len(shape) == 2:
        options += [(shape[1], rng.choice([2, 5, 8])), (shape[1],), (3,)]
    return rng.choice(options)


def draw(rng: random.Random, dtype: torch.dtype) -> tuple[Program, tuple[Tensor, ...]]:
    """A program with one to three inputs and one to eight operations."""
    first = rng.choice(SHAPES)
    shapes = [first, *(related_shape(rng, first) for _ in range(rng.choice([0, 0, 1, 1, 2])))]
    inputs = [tensor_of(rng, shape, dtype) for shape in shapes]
    values: list[Tensor] = [x.detach() for x in inputs]
    steps: list[Step] = []
    used: set[int] = set()
    wanted = rng.choice([1, 2, 3, 4, 5, 6, 8])
    for _ in range(40 * wanted):
        unused = [place for place in range(len(values)) if place not in used]
        if len(steps) >= wanted and (len(unused) == 1 or len(steps) >= MAX_STEPS):
            break
        is_binary = len(values) > 1 and rng.random() < (0.35 if len(unused) < 2 else 0.7)
        names = BINARY if is_binary else UNARY
        name = rng.choice(list(names))
        if dtype.is_complex and name not in COMPLEX:
            continue
        last = unused[-1] if rng.random() < 0.8 else rng.randrange(len(values))
        operands = (last, rng.choice(unused if len(unused) > 1 else range(len(values)))) if is_binary else (last,)
        if is_binary and operands[0] == operands[1] and rng.random() < 0.9:
            continue  # x - x is zero, and so is its gradient
        if is_binary and rng.random() < 0.5:
            operands = operands[::-1]
        found = applied(rng, names[name], [values[place] for place in operands])
        if found is None:
            continue
        used.update(operands)
        values.append(found[1])
        steps.append(Step(name, found[0], operands))
    outputs = [place for place in range(len(inputs), len(values)) if place not in used]
    return _without_unused(Program(len(inputs), tuple(steps), tuple(outputs)), inputs)


def _without_unused(program: Program, inputs: Sequence[Tensor]) -> tuple[Program, tuple[Tensor, ...]]:
    """Inputs that no operation takes become outputs of their own: doubled, so that they are no views."""
    taken = {place for step in program.steps for place in step.operands}
    lonely = [place for place in range(len(inputs)) if place not in taken]
    for place in lonely:
        double = Step("double", lambda x: x + x, (place,))
        number = program.inputs + len(program.steps)
        program = replace(program, steps=(*program.steps, double), outputs=(*program.outputs, number))
    return program, tuple(inputs)


def applied(
    rng: random.Random, maker: Maker, operands: Sequence[Tensor]
) -> tuple[Callable[..., Tensor], Tensor] | None:
    """The operation and its value; None where it does not apply, or gives nothing finite."""
    call = maker(rng, [value.shape for value in operands])
    if call is None:
        return None
    try:
        value = call(*operands)
    except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
        return None
    is_good = value.numel() and value.numel() <= MAX_ELEMENTS and bool(torch.isfinite(value).all())
    return (call, value) if is_good and (value.is_floating_point() or value.is_complex()) else None


# Faults


def _doubled_entry(place: float) -> Callable[[Tensor], Tensor]:
    def change(g: Tensor) -> Tensor:
        flat = g.clone(memory_format=torch.contiguous_format).view(-1)
        flat[int(place * flat.numel())] *= 2.0
        return flat.view(g.shape)

    return change


def _lost_row(place: float) -> Callable[[Tensor], Tensor]:
    def change(g: Tensor) -> Tensor:
        g = g.clone(memory_format=torch.contiguous_format)
        if not g.dim():
            return torch.zeros_like(g)
        g[int(place * g.shape[0])] = 0.0
        return g

    return change


def _lost_tail(g: Tensor) -> Tensor:
    flat = g.clone(memory_format=torch.contiguous_format).view(-1)
    flat[flat.numel() - max(1, flat.numel() // 8) :] = 0.0
    return flat.view(g.shape)


FAULTS: dict[str, Callable[[float], Callable[[Tensor], Tensor]]] = {
    "x0.9": lambda place: lambda g: 0.9 * g,
    "x1.03": lambda place: lambda g: 1.03 * g,
    "sign": lambda place: torch.neg,
    "zero": lambda place: torch.zeros_like,
    "entry": _doubled_entry,
    "row": _lost_row,
    "tail": lambda place: _lost_tail,
    "term": lambda place: lambda g: g - 0.5 * g.mean(),
    "flipped": lambda place: lambda g: g.flip(-1) if g.dim() else -g,
    "ones": lambda place: lambda g: torch.ones_like(g) * g.abs().mean(),
    "missing": lambda place: lambda g: g - 0.5 * g.sum(-1, keepdim=True) if g.dim() else 0.5 * g,
}
"""Changes of a gradient; a number between 0 and 1 chooses the place."""


def with_fault(rng: random.Random, program: Program) -> Program:
    """The program with a fault of random kind in a random operand."""
    kind, number = rng.choice(list(FAULTS)), rng.randrange(len(program.steps))
    operand = rng.randrange(len(program.steps[number].operands))
    return replace(program, fault=Fault(kind, number, operand, FAULTS[kind](rng.random())))
