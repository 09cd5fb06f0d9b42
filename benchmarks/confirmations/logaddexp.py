"""The second derivative of logaddexp is not a number where one of the two is minus infinity

log(exp x + exp y) has the derivative 1 / (1 + exp(x - y)) by y. At y = -∞ that is 0 whatever x is, so its derivative by
x is 0 too. The first backward pass says the one, the second does not say the other. Minus infinity is what
`torch.masked.logaddexp` puts in place of a masked element.
"""

import torch

x = torch.tensor([0.3, 0.3], dtype=torch.float64, requires_grad=True)
y = torch.tensor([1.1, -torch.inf], dtype=torch.float64, requires_grad=True)


def by_y(x):
    return torch.autograd.grad(torch.logaddexp(x, y).sum(), y, create_graph=True)[0]


def shown(numbers):
    return ", ".join(f"{number:.8f}" for number in numbers.tolist())


weight = 1.0 / (1.0 + torch.exp(x - y).detach())
(second,) = torch.autograd.grad(by_y(x).sum(), x)
print("y                                ", y.tolist())
print("derivative by y                  ", shown(by_y(x)))
print("of that by x, from the formula   ", shown(-weight * (1.0 - weight)))
for h in (1e-3, 1e-4):
    ahead, behind = (by_y((x.detach() + step).requires_grad_()) for step in (h, -h))
    print("of that by x, from differences   ", shown((ahead - behind) / (2 * h)), f"with h = {h:g}")
print("of that by x, in reverse mode    ", shown(second))
assert torch.isnan(second[1])
