"""Says whether a gradient is wrong in one half of its input only, as that of a rotary embedding with a wrong sign.

This describes a failure that a check has found; it decides none.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradvet.frontends.torch.arguments import tensors_of
from gradvet.frontends.torch.binding import callable_of, widened_copy
from gradvet.frontends.torch.blame.recording import Call, arguments_of
from gradvet.frontends.torch.random_state import preserved_rng

RELATIVE_STEP = 1e-6
SAME = 1e-3
"""Relative difference up to which two slopes count as equal here."""


def wrong_half(call: Call, name: str) -> str:
    """A clause such as `the sign of the second half is wrong`; nothing if no half is right. Calls the Function.

    `name` is the input as a report names it, `input 0`.
    """
    try:
        with preserved_rng(), torch.enable_grad():
            call.random.restore()
            return _Halves(call, int(name.removeprefix("input "))).clause()
    except Exception:  # no such input, no double precision, or an error of the function
        return ""


class _Halves:
    """A Function in double precision with one cotangent, as a function of one of its arguments."""

    def __init__(self, call: Call, position: int) -> None:
        self.call = call
        tensors = [widened_copy(tensor, torch.float64) for tensor in call.tensors]
        self.args, self.kwargs = arguments_of(call, tensors)
        self.position, self.x = position, self.args[position].detach()
        self.generator = torch.Generator().manual_seed(0)
        point = self.x.clone().requires_grad_()
        outputs = self._outputs(point)
        self.cotangents = [self._random(y) for y in outputs]
        self.gradient: Tensor = torch.autograd.grad(outputs, point, self.cotangents)[0]

    def _random(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, dtype=torch.float64, device="cpu").to(like.device)

    def _outputs(self, x: Tensor) -> list[Tensor]:
        args = [x if number == self.position else value for number, value in enumerate(self.args)]
        self.call.random.restore()
        results = tensors_of(callable_of(self.call.target)(*args, **self.kwargs))
        return [y for y in results if y.is_floating_point() and (y.requires_grad or not x.requires_grad)]

    def _slopes(self, u: Tensor) -> tuple[float, float]:
        """The slope along u by the gradient and by a central difference."""
        step = RELATIVE_STEP * max(1.0, float(self.x.abs().max()))
        ahead, behind = (self._outputs(self.x + sign * step * u) for sign in (1.0, -1.0))
        moved = sum(
            float(((one - other) * v).sum()) for one, other, v in zip(ahead, behind, self.cotangents, strict=True)
        )
        return float((self.gradient * u).sum()), moved / (2.0 * step)

    def clause(self) -> str:
        for axis in reversed(range(self.x.dim())):
            size = self.x.shape[axis]
            if size < 2 or size % 2:
                continue
            ratios = [self._ratio(axis, half) for half in range(2)]
            wrong = [half for half, ratio in enumerate(ratios) if not math.isclose(ratio, 1.0, rel_tol=SAME)]
            if len(wrong) == 1:
                where = f"the {('first', 'second')[wrong[0]]} half"
                where += "" if axis == self.x.dim() - 1 else f" along dimension {axis}"
                return _described(where, ratios[wrong[0]])
        return ""

    def _ratio(self, axis: int, half: int) -> float:
        """Gradient over difference along a random direction in one half; not a number where two of them disagree."""
        found = []
        for _ in range(2):
            u = self._random(self.x)
            u.narrow(axis, (1 - half) * (self.x.shape[axis] // 2), self.x.shape[axis] // 2).zero_()
            derivative, difference = self._slopes(u)
            found.append(derivative / difference if difference else math.nan)
        return found[0] if math.isclose(*found, rel_tol=SAME, abs_tol=SAME) else math.nan


def _described(where: str, ratio: float) -> str:
    if math.isclose(ratio, -1.0, rel_tol=SAME):
        return f"the sign of {where} is wrong"
    if abs(ratio) <= SAME:
        return f"{where} of the gradient is zero"
    return f"{where} of the gradient is wrong" + ("" if math.isnan(ratio) else f" by a factor of {ratio:.4g}")
