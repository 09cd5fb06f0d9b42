"""logcumsumexp of large complex numbers is not a number in forward mode

The derivative is a weighted mean, Σ exp(zᵢ) tᵢ / Σ exp(zᵢ), and the weights stay finite when one z is subtracted from
all first. The value and reverse mode are right; forward mode is not a number.
"""

import torch
from torch.func import jvp, vjp

z = torch.tensor([1000.0 + 0.5j, 1001.0 - 0.2j], dtype=torch.complex128)
t = torch.tensor([1.0 + 2.0j, 3.0 - 1.0j], dtype=torch.complex128)


def last(z):
    return torch.logcumsumexp(z, 0)[-1]


weights = torch.exp(z - z[-1])
value, forward = jvp(last, (z,), (t,))
(gradient,) = vjp(last, z)[1](torch.ones_like(value))
print("value                    ", value.item())
print("derivative by the formula", ((weights * t).sum() / weights.sum()).item())
print("derivative, reverse mode ", (gradient.conj() * t).sum().item())
print("derivative, forward mode ", forward.item())
assert torch.isnan(forward)
