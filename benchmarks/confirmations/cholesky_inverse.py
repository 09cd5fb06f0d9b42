"""cholesky_inverse is wrong in forward mode

B = (L Lᵀ)⁻¹ changes by -B (D Lᵀ + L Dᵀ) B when L moves along D. Reverse mode and differences agree with that; forward
mode does not.
"""

import torch
from torch.func import jvp, vjp

L = torch.tensor([[1.0, 0.0, 0.0], [2.0, 1.5, 0.0], [-1.0, 0.5, 2.0]], dtype=torch.float64)
D = torch.tensor([[0.3, 0.0, 0.0], [-0.7, 0.2, 0.0], [0.4, 0.9, -0.5]], dtype=torch.float64)
V = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]], dtype=torch.float64)

B, forward = jvp(torch.cholesky_inverse, (L,), (D,))
formula = -B @ (D @ L.T + L @ D.T) @ B
_, pull = vjp(torch.cholesky_inverse, L)
print(f"V · dB by the formula   {(V * formula).sum():.10f}")
print(f"V · dB in reverse mode  {(pull(V)[0].tril() * D).sum():.10f}")
for h in (1e-2, 1e-3, 1e-4):
    difference = (torch.cholesky_inverse(L + h * D) - torch.cholesky_inverse(L - h * D)) / (2 * h)
    print(f"V · dB by differences   {(V * difference).sum():.10f}  with h = {h:g}")
print(f"V · dB in forward mode  {(V * forward).sum():.10f}")
assert (forward - formula).abs().max() > 0.1
