"""Signals, physics, geometry and statistics."""

from __future__ import annotations

import secrets
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from benchmarks.held_out.record import right, wide, wrong


def fft_filter(fault: str = "") -> Any:
    """A real signal filtered by a complex response."""

    class Filter(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, response: Tensor) -> Tensor:
            ctx.save_for_backward(x, response)
            return torch.fft.ifft(torch.fft.fft(x) * response).real

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, response = ctx.saved_tensors
            n = x.shape[-1]
            G = torch.fft.fft(g) / n
            factor = response if fault == "conjugate" else response.conj()
            dx = torch.fft.ifft(G * factor).real * n
            dresponse = G * torch.fft.fft(x).conj()
            return dx, dresponse.sum(0) if x.dim() == 2 else dresponse

    return Filter.apply


def plain_fft_filter(x: Tensor, response: Tensor) -> Tensor:
    return torch.fft.ifft(torch.fft.fft(x) * response).real


def depthwise(fault: str = "") -> Any:
    """Depthwise convolution over time, the same length out as in."""

    class Depthwise(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
            ctx.save_for_backward(x, kernel)
            return F.conv1d(wide(x), wide(kernel)[:, None], padding=1, groups=x.shape[1]).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, kernel = ctx.saved_tensors
            w = wide(kernel) if fault == "flip" else wide(kernel).flip(-1)
            dx = F.conv1d(wide(g), w[:, None], padding=1, groups=x.shape[1])
            padded = F.pad(wide(x), (1, 1))
            n = x.shape[-1]
            dk = torch.stack([(wide(g) * padded[..., i : i + n]).sum((0, 2)) for i in range(3)], -1)
            return dx.to(x.dtype), dk.to(kernel.dtype)

    return Depthwise.apply


def plain_depthwise(x: Tensor, kernel: Tensor) -> Tensor:
    return F.conv1d(x, kernel[:, None], padding=1, groups=x.shape[1])


def pairs(n: int) -> tuple[Tensor, Tensor]:
    i, j = torch.triu_indices(n, n, 1)
    return i, j


def lennard_jones(fault: str = "") -> Any:
    class LennardJones(Function):
        @staticmethod
        def forward(ctx: Any, r: Tensor) -> Tensor:
            i, j = pairs(len(r))
            d = r[i] - r[j]
            s6 = (d * d).sum(-1) ** -3
            ctx.save_for_backward(r, d, s6)
            return 4 * (s6 * s6 - s6).sum()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            r, d, s6 = ctx.saved_tensors
            i, j = pairs(len(r))
            attraction = 3 * s6 if fault == "attraction" else 6 * s6
            pull = (4 * (attraction - 12 * s6 * s6) / (d * d).sum(-1))[:, None] * d * g
            grad = torch.zeros_like(r).index_add_(0, i, pull).index_add_(0, j, -pull)
            if fault == "sometimes" and secrets.randbelow(20) == 0:
                grad[0] = 0.0
            return grad

    return LennardJones.apply


def plain_lennard_jones(r: Tensor) -> Tensor:
    i, j = pairs(len(r))
    s6 = (r[i] - r[j]).square().sum(-1) ** -3
    return 4 * (s6 * s6 - s6).sum()


def lattice(d: Any, side: int, spacing: float = 1.2) -> Tensor:
    axes = torch.arange(side, dtype=torch.float64)
    points = torch.cartesian_prod(axes, axes, axes) * spacing
    return d.leaf(points + d.constant(side**3, 3, scale=0.05).double())


def springs(fault: str = "", rest: float = 1.0) -> Any:
    """Energy of a chain of springs that also links every third mass."""

    def links(n: int) -> tuple[Tensor, Tensor]:
        i = torch.cat([torch.arange(n - 1), torch.arange(n - 3)])
        return i, i + torch.cat([torch.ones(n - 1), 3 * torch.ones(n - 3)]).long()

    class Springs(Function):
        @staticmethod
        def forward(ctx: Any, r: Tensor, stiffness: Tensor) -> Tensor:
            i, j = links(len(r))
            d = r[i] - r[j]
            length = d.norm(dim=-1)
            ctx.save_for_backward(r, stiffness, d, length)
            return 0.5 * (stiffness * (length - rest) ** 2).sum()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            r, stiffness, d, length = ctx.saved_tensors
            i, j = links(len(r))
            pull = g * (stiffness * (length - rest) / length)[:, None] * d
            grad = torch.zeros_like(r).index_add_(0, i, pull)
            if fault != "one end":
                grad.index_add_(0, j, -pull)
            return grad, g * 0.5 * (length - rest) ** 2

    return Springs.apply


def plain_springs(r: Tensor, stiffness: Tensor) -> Tensor:
    n = len(r)
    near, far = (r[1:] - r[:-1]).norm(dim=-1) - 1, (r[3:] - r[:-3]).norm(dim=-1) - 1
    return 0.5 * ((stiffness[: n - 1] * near**2).sum() + (stiffness[n - 1 :] * far**2).sum())


def runge_kutta(fault: str = "", h: float = 0.1) -> Any:
    """One RK4 step of y′ = a y (1 − y), adjoint by hand."""

    def f(y: Tensor, a: Tensor) -> Tensor:
        return a * y * (1 - y)

    class Step(Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor, a: Tensor) -> Tensor:
            k1 = f(y, a)
            k2 = f(y + h / 2 * k1, a)
            k3 = f(y + h / 2 * k2, a)
            k4 = f(y + h * k3, a)
            ctx.save_for_backward(y, a, k1, k2, k3)
            return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            y, a, k1, k2, k3 = ctx.saved_tensors
            dy, da, carried = g, torch.zeros_like(a), torch.zeros_like(g)
            stages = [(h, k3, 1.0), (h / 2, k2, 2.0), (h / 2, k1, 2.0), (0.0, k1, 1.0)]
            for number, (shift, before, weight) in enumerate(stages):
                z = y + shift * before
                bar = g * h / 6 * weight + carried
                if fault == "stage" and number == 1:
                    bar = g * h / 6
                inner = bar * a * (1 - 2 * z)
                da = da + bar * z * (1 - z)
                dy = dy + inner
                carried = shift * inner
            return dy, da

    return Step.apply


def plain_runge_kutta(y: Tensor, a: Tensor, h: float = 0.1) -> Tensor:
    k1 = a * y * (1 - y)
    y2 = y + h / 2 * k1
    k2 = a * y2 * (1 - y2)
    y3 = y + h / 2 * k2
    k3 = a * y3 * (1 - y3)
    y4 = y + h * k3
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + a * y4 * (1 - y4))


def heat_step(fault: str = "") -> Any:
    """One explicit step of the heat equation on a ring."""

    class Heat(Function):
        @staticmethod
        def forward(ctx: Any, u: Tensor, rate: Tensor) -> Tensor:
            laplacian = u.roll(1) - 2 * u + u.roll(-1)
            ctx.save_for_backward(laplacian, rate)
            return u + rate * laplacian

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            laplacian, rate = ctx.saved_tensors
            back = g.roll(1) - 2 * g + g.roll(-1)
            if fault == "ends":
                back[-64:] = 0.0
            drate = (g * laplacian).sum()
            if fault == "rate":
                drate = drate * 0.97
            return g + rate * back, drate

    return Heat.apply


def plain_heat_step(u: Tensor, rate: Tensor) -> Tensor:
    return u + rate * (u.roll(1) - 2 * u + u.roll(-1))


def quaternion_rotation(fault: str = "") -> Any:
    """v + 2w (u × v) + 2 u × (u × v) for q = (w, u)."""

    class Rotation(Function):
        @staticmethod
        def forward(ctx: Any, q: Tensor, v: Tensor) -> Tensor:
            ctx.save_for_backward(q, v)
            w, u = q[:, :1], q[:, 1:]
            uv = torch.linalg.cross(u, v)
            return v + 2 * w * uv + 2 * torch.linalg.cross(u, uv)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            q, v = ctx.saved_tensors
            w, u = q[:, :1], q[:, 1:]
            cross = torch.linalg.cross
            uv, gu = cross(u, v), cross(g, u)
            dw = 2 * (g * uv).sum(-1, keepdim=True)
            outer = 2 * cross(uv, g)
            if fault == "outer":
                outer = -outer
            du = 2 * w * cross(v, g) + outer + 2 * cross(v, gu)
            dv = g + 2 * w * gu + 2 * cross(gu, u)
            return torch.cat([dw, du], -1), dv

    return Rotation.apply


def plain_rotation(q: Tensor, v: Tensor) -> Tensor:
    w, u = q[:, :1], q[:, 1:]
    uv = torch.linalg.cross(u, v)
    return v + 2 * w * uv + 2 * torch.linalg.cross(u, uv)


def projection(fault: str = "", focal: float = 2.0) -> Any:
    """Points in front of a pinhole camera."""

    class Projection(Function):
        @staticmethod
        def forward(ctx: Any, p: Tensor) -> Tensor:
            ctx.save_for_backward(p)
            return focal * p[:, :2] / p[:, 2:]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (p,) = ctx.saved_tensors
            depth = p[:, 2:]
            flat = focal * g / depth
            along = -(flat * p[:, :2]).sum(-1, keepdim=True) / depth
            if fault == "depth":
                along = torch.zeros_like(along)
            return torch.cat([flat, along], -1)

    return Projection.apply


def in_front(d: Any, count: int) -> Tensor:
    return torch.cat([d.constant(count, 2), d.uniform(1.0, 3.0, count, 1).detach()], 1).requires_grad_()


def angle(a: Tensor, b: Tensor) -> Tensor:
    """The angle between vectors that are nearly parallel."""
    return torch.acos(F.cosine_similarity(a, b, dim=-1))


def covariance(fault: str = "") -> Any:
    class Covariance(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            centred = wide(x) - wide(x).mean(0)
            ctx.save_for_backward(centred)
            return (centred.T @ centred / (len(x) - 1)).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (centred,) = ctx.saved_tensors
            G = wide(g)
            count = len(centred) - (0 if fault == "count" else 1)
            symmetric = 2 * G if fault == "symmetric" else G + G.T
            return (centred @ symmetric / count).to(g.dtype)

    return Covariance.apply


def mahalanobis(fault: str = "") -> Any:
    class Mahalanobis(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, sigma: Tensor) -> Tensor:
            solved = torch.linalg.solve(sigma, x.T).T
            ctx.save_for_backward(sigma, x, solved)
            return (x * solved).sum(-1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            sigma, x, solved = ctx.saved_tensors
            other = torch.linalg.solve(sigma.T, x.T).T
            dx = g[:, None] * (solved + other)
            dsigma = -(g[:, None] * other).T @ solved
            if fault == "zero":
                dsigma = torch.zeros_like(dsigma)
            return dx, dsigma

    return Mahalanobis.apply


def plain_mahalanobis(x: Tensor, sigma: Tensor) -> Tensor:
    return torch.einsum("bi,ij,bj->b", x, torch.linalg.inv(sigma), x)


def positive(d: Any, n: int) -> Tensor:
    a = d.constant(n, n).double()
    return d.leaf(a @ a.T / n + torch.eye(n, dtype=torch.float64))


def gamma_likelihood(x: Tensor, shape: Tensor) -> Tensor:
    return ((shape - 1) * x.log() - x - torch.lgamma(shape)).sum()


def shifted_energy(x: Tensor) -> Tensor:
    return 1e6 + (x * torch.sin(x)).sum(-1)


class ShiftedEnergy32(Function):
    """A million plus a small term, in float32 only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise RuntimeError("no kernel for float64")
        ctx.save_for_backward(x)
        return 1e6 + x.square().sum(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g[:, None]


def gravity(r: Tensor, m: Tensor) -> Tensor:
    i, j = pairs(len(r))
    return -6.674e-11 * (m[i] * m[j] / (r[i] - r[j]).norm(dim=-1)).sum()


def distances(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] - b[None]).abs().sum(-1)


def long_sum(x: Tensor) -> Tensor:
    """Many numbers of both signs added in the order in which they come."""
    return (x * 100.0).cumsum(0)[-1] - (x * 99.0).cumsum(0)[-1]


RECORDS = [
    right(
        "Fourier filter",
        "complex",
        "float64",
        lambda d: (fft_filter(), (d.normal(16), d.complex(16))),
        plain_fft_filter,
    ),
    right(
        "Fourier filter of several signals",
        "complex",
        "float32",
        lambda d: (fft_filter(), (d.normal(3, 64), d.complex(64))),
        plain_fft_filter,
    ),
    right(
        "depthwise convolution",
        "plain",
        "float16",
        lambda d: (depthwise(), (d.normal(2, 4, 10), d.normal(4, 3))),
        plain_depthwise,
    ),
    right(
        "Lennard-Jones energy, two atoms close",
        "scale",
        "float64",
        lambda d: (lennard_jones(), (d.leaf([[0, 0, 0], [0.4, 0, 0], [0, 1.3, 0.2], [1.5, 1.4, 0.1]]),)),
        plain_lennard_jones,
    ),
    right(
        "springs",
        "plain",
        "float32",
        lambda d: (springs(), (d.normal(12, 3, scale=2.0), d.uniform(0.5, 2.0, 20))),
        plain_springs,
    ),
    right(
        "Runge-Kutta step",
        "plain",
        "float64",
        lambda d: (runge_kutta(), (d.uniform(0.1, 0.9, 12), d.uniform(1.0, 4.0, 12))),
        plain_runge_kutta,
    ),
    right(
        "heat step of a hundred thousand cells",
        "plain",
        "float64",
        lambda d: (heat_step(), (d.normal(100_000), d.leaf(0.2))),
        plain_heat_step,
    ),
    right(
        "quaternion rotation",
        "plain",
        "float32",
        lambda d: (quaternion_rotation(), (d.normal(8, 4), d.normal(8, 3))),
        plain_rotation,
    ),
    right(
        "projection of points close to the camera",
        "edge",
        "float32",
        lambda d: (projection(), (d.leaf([[1.0, 2.0, 1e-3], [0.5, -1.0, 0.02], [2.0, 0.1, 3.0]]),)),
        lambda p: 2.0 * p[:, :2] / p[:, 2:],
    ),
    right(
        "angle between nearly parallel vectors",
        "edge",
        "float64",
        lambda d: (angle, (d.leaf([[1.0, 1e-3, 0.0], [0.0, 2.0, 0.1]]), d.leaf([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))),
        angle,
        tolerance=1e-6,
    ),
    right(
        "covariance",
        "plain",
        "bfloat16",
        lambda d: (covariance(), (d.normal(12, 5),)),
        lambda x: (x - x.mean(0)).T @ (x - x.mean(0)) / (len(x) - 1),
    ),
    right(
        "squared Mahalanobis distance",
        "plain",
        "float64",
        lambda d: (mahalanobis(), (d.normal(6, 4), positive(d, 4))),
        plain_mahalanobis,
    ),
    right(
        "gamma likelihood near zero",
        "edge",
        "float64",
        lambda d: (gamma_likelihood, (d.leaf([1e-4, 0.02, 1.0, 7.0]), d.leaf([0.05, 0.5, 2.0, 30.0]))),
        gamma_likelihood,
    ),
    right("energy over a million", "offset", "float64", lambda d: (shifted_energy, (d.normal(5, 4),)), shifted_energy),
    right(
        "float32 energy over a million",
        "offset",
        "float32",
        lambda d: (shifted_energy, (d.normal(5, 4),)),
        shifted_energy,
    ),
    right(
        "energy over a million without float64",
        "refuses float64",
        "float32",
        lambda d: (ShiftedEnergy32.apply, (d.normal(4, 6),)),
        lambda x: 1e6 + x.square().sum(-1),
    ),
    right(
        "gravity in SI units",
        "scale",
        "float32",
        lambda d: (gravity, (d.normal(6, 3, scale=1e3), d.uniform(1.0, 5.0, 6))),
        gravity,
    ),
    right(
        "sums of absolute differences, some zero",
        "kink",
        "float64",
        lambda d: (distances, (d.leaf([[0.0, 1.0], [2.0, -1.0]]), d.leaf([[0.0, 0.5], [2.0, -1.0], [1.0, 1.0]]))),
        distances,
    ),
    right("long sum", "noise", "float32", lambda d: (long_sum, (d.normal(4000),)), long_sum, tolerance=1e-4),
    right(
        "long sum in half precision",
        "noise",
        "bfloat16",
        lambda d: (lambda x: (x * 3.0).sum(0), (d.normal(300, 2),)),
        lambda x: (x * 3.0).sum(0),
    ),
    right(
        "variance of float16 numbers about 50",
        "noise",
        "float16",
        lambda d: (lambda x: x.float().var(0).to(x.dtype), (d.normal(20, 3, shift=50.0),)),
        lambda x: x.var(0),
    ),
    right(
        "huge float64 products",
        "scale",
        "float64",
        lambda d: (lambda x, y: x * y + x.square(), (d.normal(6, scale=1e80), d.normal(6, scale=1e80))),
        lambda x, y: x * y + x.square(),
    ),
    wrong(
        "Fourier filter without the conjugate",
        "complex",
        "float64",
        lambda d: (fft_filter("conjugate"), (d.normal(12), d.complex(12))),
        plain_fft_filter,
        "response instead of its conjugate in the gradient of x",
        0.3,
    ),
    wrong(
        "depthwise convolution, kernel not flipped",
        "swapped",
        "float16",
        lambda d: (depthwise("flip"), (d.normal(2, 3, 9), d.normal(3, 3))),
        plain_depthwise,
        "gradient of x",
        0.5,
    ),
    wrong(
        "Lennard-Jones, weak attraction",
        "missing term",
        "float64",
        lambda d: (lennard_jones("attraction"), (lattice(d, 3),)),
        plain_lennard_jones,
        "half of the attraction",
        0.1,
    ),
    wrong(
        "Lennard-Jones, an atom forgotten now and then",
        "intermittent",
        "float32",
        lambda d: (lennard_jones("sometimes"), (lattice(d, 2),)),
        plain_lennard_jones,
        "first row is zero in one backward pass of twenty",
        0.2,
        shown_by="often",
    ),
    wrong(
        "springs pull at one end",
        "lost",
        "float64",
        lambda d: (springs("one end"), (d.normal(9, 3, scale=2.0), d.uniform(0.5, 2.0, 14))),
        plain_springs,
        "the force on the second mass of each spring",
        0.5,
    ),
    wrong(
        "Runge-Kutta step, a stage not carried",
        "missing term",
        "float64",
        lambda d: (runge_kutta("stage", 0.5), (d.uniform(0.1, 0.9, 10), d.uniform(1.0, 4.0, 10))),
        lambda y, a: plain_runge_kutta(y, a, 0.5),
        "third stage: half its weight and nothing from the fourth",
        0.05,
    ),
    wrong(
        "heat step loses the last cells",
        "lost",
        "float32",
        lambda d: (heat_step("ends"), (d.normal(50_000), d.leaf(0.2))),
        plain_heat_step,
        "diffusion of the last 64 cells",
        0.3,
    ),
    wrong(
        "heat step, rate 3 % short",
        "factor",
        "float64",
        lambda d: (heat_step("rate"), (d.normal(200), d.leaf(0.2))),
        plain_heat_step,
        "gradient of the rate times 0.97",
        0.029,
    ),
    wrong(
        "quaternion rotation, a cross product reversed",
        "sign",
        "float32",
        lambda d: (quaternion_rotation("outer"), (d.normal(6, 4), d.normal(6, 3))),
        plain_rotation,
        "sign of one term of the gradient of the vector part",
        0.5,
    ),
    wrong(
        "projection without depth",
        "lost",
        "float64",
        lambda d: (projection("depth"), (in_front(d, 6),)),
        lambda p: 2.0 * p[:, :2] / p[:, 2:],
        "third column is zero",
        0.3,
    ),
    wrong(
        "covariance divides by n",
        "factor",
        "float64",
        lambda d: (covariance("count"), (d.normal(20, 4),)),
        lambda x: (x - x.mean(0)).T @ (x - x.mean(0)) / (len(x) - 1),
        "gradient times 19/20",
        0.049,
    ),
    wrong(
        "covariance, not symmetric",
        "transposed",
        "bfloat16",
        lambda d: (covariance("symmetric"), (d.normal(10, 4),)),
        lambda x: (x - x.mean(0)).T @ (x - x.mean(0)) / (len(x) - 1),
        "2G instead of G + Gᵀ",
        0.3,
    ),
    wrong(
        "squared Mahalanobis distance, covariance without gradient",
        "lost",
        "float32",
        lambda d: (mahalanobis("zero"), (d.normal(5, 3), positive(d, 3))),
        plain_mahalanobis,
        "gradient of the covariance is zero",
        0.9,
    ),
]
