"""Right functions that oscillate, are stiff, chaotic or iterated: their higher derivatives are large."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gallery import proofs
from tests.gallery.case import Function, right
from tests.gallery.inputs import at, normal, point, spread, uniform


def wave(frequency: float) -> Function:
    return lambda x: torch.sin(frequency * x)


def chirp(x: Tensor) -> Tensor:
    return torch.sin(40 * x**2)


def weierstrass(x: Tensor) -> Tensor:
    """A smooth sum of ever faster waves."""
    return torch.stack([0.5**k * torch.sin(3.0**k * x) for k in range(9)]).sum(0)


def logistic_map(steps: int) -> Function:
    def iterated(x: Tensor) -> Tensor:
        for _ in range(steps):
            x = 3.9 * x * (1 - x)
        return x

    return iterated


def henon(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(7):
        x, y = 1 - 1.4 * x**2 + y, 0.3 * x
    return x, y


def lorenz(state: Tensor) -> Tensor:
    """Explicit Euler, 40 steps."""
    x, y, z = state
    for _ in range(40):
        x, y, z = x + 0.1 * (y - x), y + 0.01 * (x * (28 - z) - y), z + 0.01 * (x * y - 8 / 3 * z)
    return torch.stack([x, y, z])


def stiff_decay(rate: Tensor) -> Tensor:
    """Implicit Euler: stable for rates of 1e4."""
    u = torch.ones_like(rate)
    for _ in range(20):
        u = u / (1 + 0.1 * rate)
    return u


def stiff_system(start: Tensor) -> Tensor:
    matrix = torch.tensor([[-1e5, 1.0], [1.0, -1.0]], dtype=start.dtype)
    step = torch.linalg.inv(torch.eye(2, dtype=start.dtype) - 0.01 * matrix)
    for _ in range(10):
        start = step @ start
    return start


def kepler(position: Tensor, velocity: Tensor) -> Tensor:
    """Thirty leapfrog steps around a sun."""
    for _ in range(30):
        velocity = velocity - 0.025 * position / position.norm() ** 3
        position = position + 0.05 * velocity
        velocity = velocity - 0.025 * position / position.norm() ** 3
    return torch.cat([position, velocity])


def van_der_pol(state: Tensor) -> Tensor:
    def field(s: Tensor) -> Tensor:
        return torch.stack([s[1], 5 * (1 - s[0] ** 2) * s[1] - s[0]])

    for _ in range(20):
        k1 = field(state)
        k2 = field(state + 0.025 * k1)
        state = state + 0.05 * k2
    return state


def root_by_newton(x: Tensor) -> Tensor:
    y = torch.ones_like(x)
    for _ in range(8):
        y = (y + x / y) / 2
    return y


def pendulum(angle: Tensor) -> Tensor:
    speed = torch.zeros_like(angle)
    for _ in range(120):
        speed = speed - 0.05 * torch.sin(angle)
        angle = angle + 0.05 * speed
    return angle


def recurrent(x: Tensor, weight: Tensor) -> Tensor:
    hidden = torch.zeros(weight.shape[0], dtype=x.dtype)
    for entry in x:
        hidden = torch.tanh(weight @ hidden + entry)
    return hidden


def sharp_step(x: Tensor) -> Tensor:
    return torch.tanh(3000 * x)


CASES = (
    right("wave_of_frequency_100", "A fast wave.", at(wave(100.0), normal, (5,)), order=2),
    right(
        "wave_of_frequency_1e5",
        "A step of 1e-6 is a tenth of a radian: the difference is off, not the gradient.",
        at(wave(1e5), normal, (5,)),
        drop_in=False,
        proof=proofs.differences(1e-9),
    ),
    right("chirp", "The frequency grows with the input.", at(chirp, uniform, -2.0, 2.0, (6,))),
    right(
        "weierstrass_sum", "Structure at nine scales, and smooth all the same.", at(weierstrass, spread, 0.1, 0.9, 5)
    ),
    right("logistic_map_8_steps", "Mildly chaotic.", at(logistic_map(8), uniform, 0.1, 0.9, (4,))),
    right(
        "logistic_map_24_steps",
        "A slope of 1e5 and a curvature of 1e10: small steps are still too large.",
        at(logistic_map(24), uniform, 0.1, 0.9, (4,)),
        drop_in=False,
        proof=proofs.differences(1e-10),
        resolution=1e-3,
    ),
    right("henon_map", "Two coupled chaotic outputs.", at(henon, uniform, -0.5, 0.5, (3,), (3,))),
    right("lorenz_system", "Forty steps of a chaotic flow.", at(lorenz, point, [1.0, 2.0, 20.0])),
    right("stiff_decay", "Slopes from 1 down to 1e-40.", at(stiff_decay, point, [0.1, 1.0, 100.0, 1e4])),
    right("stiff_system", "Time scales of 1e-5 and 1 in one matrix.", at(stiff_system, normal, (2,)), order=2),
    right("kepler_orbit", "Thirty steps of a symplectic integrator.", at(kepler, point, [1.0, 0.1], [0.0, 0.9])),
    right("van_der_pol", "A relaxation oscillator near its fast phase.", at(van_der_pol, point, [1.8, -0.3])),
    right(
        "root_by_newton",
        "An iteration whose derivative converges with it.",
        at(root_by_newton, uniform, 0.5, 3.0, (5,)),
    ),
    right("pendulum", "One hundred and twenty steps.", at(pendulum, normal, (4,))),
    right("recurrent_network", "One weight used at every step.", at(recurrent, normal, (6,), (3, 3))),
    right(
        "double_exponential",
        "exp(exp(x)) grows faster than its own noise.",
        at(lambda x: torch.exp(torch.exp(x)), uniform, 0.0, 2.0, (4,)),
        order=2,
    ),
    right(
        "sharp_step",
        "A transition of width 3e-4: smooth only to steps below that.",
        at(sharp_step, point, [1e-4, -2e-4, 3e-5]),
    ),
    right(
        "very_sharp_step",
        "A transition of width 1e-6: to the classical step it is a jump.",
        at(lambda x: torch.tanh(1e6 * x), point, [1e-7, -3e-7]),
        drop_in=False,
        proof=proofs.differences(1e-9),
    ),
)
