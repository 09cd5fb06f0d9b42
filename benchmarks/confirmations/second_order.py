"""Second derivatives are wrong, not a number or refused where forward mode is differentiated again

Each row is one number, v · d²f(t, u), the second derivative along two directions t and u: first by mixed differences of
the values alone with steps h and h/2 and their Richardson extrapolation, then in the four compositions of reverse (r)
and forward (f) mode, such as r/f, reverse over forward. What is off by more than a thousandth is marked. Reverse over
reverse, what `create_graph=True` does, is right in all of them.
"""

import warnings

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch.func import jvp

warnings.simplefilter("ignore")  # triangular_solve is deprecated
torch.manual_seed(0)
A, B, E = torch.randn(3, 3).double(), torch.randn(3, 2).double(), torch.eye(3).double()
X, TAU = torch.randn(4, 3).double(), torch.tensor([0.7, 0.4]).double()
ZERO = torch.tensor([1.5, 0.0, -0.8]).double()
CASES = {
    "linalg.det": (torch.linalg.det, A),
    "linalg.slogdet": (lambda x: torch.linalg.slogdet(x)[1], A),
    "logdet": (lambda x: torch.logdet(x @ x.mT + E), A),
    "linalg.solve": (lambda x: torch.linalg.solve(x, B), A + 2 * E),
    "linalg.householder_product": (lambda x: torch.linalg.householder_product(x, TAU), B),
    "triangular_solve": (lambda x: torch.triangular_solve(B, x)[0], A.triu() + 3 * E),
    "linalg.eigh": (lambda x: torch.linalg.eigh(x + x.mT)[1] ** 2, A),
    "linalg.eig": (lambda x: torch.linalg.eig(x)[1].abs(), A),
    "nn.functional.layer_norm": (lambda x: F.layer_norm(x, (3,)), X),
    "nn.functional.batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), X),
    "nn.functional.instance_norm": (lambda x: F.instance_norm(x[None]), X),
    "cumprod": (lambda x: torch.cumprod(x, 0), ZERO),
    "softmax": (lambda x: torch.softmax(x, -1), X),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), X),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), X),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, -1), X),
    "nn.functional.cross_entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 2, 1, 1])), X),
    "linalg.vector_norm": (lambda x: torch.linalg.vector_norm(x, 1) ** 2, X),
}


def reverse_over_reverse(f, x, t, u, v):
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(x), x, v, create_graph=True)
    return (torch.autograd.grad((g * t).sum(), x)[0] * u).sum()


def forward_over_reverse(f, x, t, u, v):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.clone().requires_grad_(), u)
        (g,) = torch.autograd.grad(f(dual), dual, v, create_graph=True)
        return (forward_ad.unpack_dual(g).tangent * t).sum()


def reverse_over_forward(f, x, t, u, v):
    x = x.clone().requires_grad_()
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(x, t))).tangent
        return (torch.autograd.grad((tangent * v).sum(), x)[0] * u).sum()


def forward_over_forward(f, x, t, u, v):
    return (jvp(lambda x: jvp(f, (x,), (t,))[1], (x,), (u,))[1] * v).sum()


def differences(f, x, t, u, v, h):
    corners = [(a * b, f(x + a * h * t + b * h * u)) for a in (1, -1) for b in (1, -1)]
    return sum(sign * (value * v).sum() for sign, value in corners) / (4 * h * h)


def shown(compute, arguments, right):
    try:
        found = compute(*arguments)
    except RuntimeError:
        return "raises *"
    return f"{found:.5f}{' ' if abs(found - right) <= 1e-3 * abs(right) else '*'}"


print(f"{'':27}{'h':>10}{'h/2':>11}{'limit':>11}   {'r/r':>11}{'f/r':>11}{'r/f':>11}{'f/f':>11}")
for name, (f, x) in CASES.items():
    t, u, v = torch.randn_like(x), torch.randn_like(x), torch.randn_like(f(x))
    coarse, fine = (differences(f, x, t, u, v, h) for h in (2e-3, 1e-3))
    right = (4 * fine - coarse) / 3
    modes = (reverse_over_reverse, forward_over_reverse, reverse_over_forward, forward_over_forward)
    answers = [shown(mode, (f, x, t, u, v), right) for mode in modes]
    print(f"{name:27}{coarse:10.5f} {fine:10.5f} {right:10.5f}   " + "".join(f"{answer:>11}" for answer in answers))
    assert "*" in "".join(answers[1:])
    assert "*" not in answers[0]
