"""scatter_reduce with prod is wrong in forward mode

Here the output is (x₀ x₁, x₂), so that its derivative along t is (x₁ t₀ + x₀ t₁, t₂). Reverse mode agrees.
"""

import torch
from torch.func import jvp, vjp

x = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64)
t = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
index = torch.tensor([0, 0, 1])


def product(x):
    return torch.ones(2, dtype=torch.float64).scatter_reduce(0, index, x, "prod", include_self=False)


value, forward = jvp(product, (x,), (t,))
right = torch.stack([x[1] * t[0] + x[0] * t[1], t[2]])
_, pull = vjp(product, x)
print("value       ", value.tolist())
print("right       ", right.tolist())
print("reverse mode", [(pull(row)[0] * t).sum().item() for row in torch.eye(2, dtype=torch.float64)])
print("forward mode", forward.tolist())
assert not torch.allclose(forward, right)
