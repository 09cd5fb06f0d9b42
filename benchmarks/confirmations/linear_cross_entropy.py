"""linear_cross_entropy in chunks gives a gradient that no longer depends on anything

With `create_graph=True` a gradient must be differentiable again. In chunks it is not, and whatever is added to it is
differentiated as if it were constant: the second derivative is silently left out.
"""

import torch
import torch.nn.functional as F
from torch.nn import LinearCrossEntropyOptions

x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
weight = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 1.0], [0.3, -0.2, 0.1], [2.0, 1.0, -1.0]], dtype=torch.float64)
target, t = torch.tensor(1), torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)


def slope(x, **options):
    """The derivative of the loss along t."""
    loss = F.linear_cross_entropy(x, weight, target, **options)
    return (torch.autograd.grad(loss, x, create_graph=True)[0] * t).sum()


def second(**options):
    y = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(slope(y, **options) + 0 * y.sum(), y)
    return (found * t).sum().item()


def difference(h, **options):
    above, below = (slope((x + step * t).requires_grad_(), **options) for step in (h, -h))
    return ((above - below) / (2 * h)).item()


chunks = {"options": LinearCrossEntropyOptions(batch_chunk_size=2)}
for h in (1e-2, 1e-3, 1e-4):
    print(f"by differences  {difference(h, **chunks):.8f}")
print(f"in one piece    {second():.8f}")
print(f"in chunks       {second(**chunks):.8f}")
assert second(**chunks) == 0.0
