"""The power of a complex zero has a gradient that is not a number

zʷ has the derivative zʷ log z by w. At z = 0 that is 0 where the real part of w is positive: the value stays 0. Where w
is real torch knows; where it is not, one such element makes the gradient of all elements not a number.
"""

import torch

z = torch.tensor([0.0, 1.0 + 1.0j], dtype=torch.complex128)
for exponent in (2.0, 2.0 + 0.3j):
    w = torch.tensor(exponent, dtype=torch.complex128, requires_grad=True)
    value = torch.pow(z, w)
    (gradient,) = torch.autograd.grad(value.real.sum(), w)
    moved = [(torch.pow(z, w.detach() + h) - torch.pow(z, w.detach() - h)).real.sum() / (2 * h) for h in (1e-3, 1e-4)]
    formula = (z[1] ** exponent * torch.log(z[1])).real
    print("exponent        ", exponent)
    print("value           ", [complex(f"{number:.4f}") for number in value.tolist()])
    print("by the formula  ", f"{formula:.8f}")
    print("by differences  ", ", ".join(f"{number:.8f}" for number in moved))
    print("reverse mode    ", f"{gradient.real:.8f}")
assert torch.isnan(gradient)
