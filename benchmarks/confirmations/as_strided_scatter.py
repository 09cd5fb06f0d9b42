"""as_strided_scatter gives the gradient to what is replaced

The output is the input with some elements replaced by `source`. So the derivative by the input is 1 where nothing was
replaced and 0 where something was. Reverse mode answers the opposite.
"""

import torch

x = torch.zeros(6, dtype=torch.float64)
source = torch.tensor([7.0, 8.0], dtype=torch.float64)


def scatter(x):
    return torch.as_strided_scatter(x, source, (2,), (1,), 0)


replaced = (scatter(x) != x).double()
(gradient,) = torch.autograd.grad(scatter(x.requires_grad_()).sum(), x)
print("output               ", scatter(x).tolist())
print("gradient of its sum  ", gradient.tolist())
print("right, 1 - replaced  ", (1 - replaced).tolist())
assert not torch.equal(gradient, 1 - replaced)
