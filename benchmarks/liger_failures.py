"""Shows with torch and Liger alone what `check` finds in six kernels of Liger 0.8.5. Fails if one of them is mended.

    python benchmarks/liger_failures.py

Each line compares two gradients, or two values of a `grad_output`, that should be the same. Without a GPU,
TRITON_INTERPRET=1 runs the first four; Triton's interpreter does not run the norms.
"""

import torch
from liger_kernel.transformers import functional as liger

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def normal(*shape):
    return torch.randn(*shape).to(DEVICE)


def transposed(x):
    """The same numbers, stored column by column."""
    return x.t().contiguous().t()


def gradient(function, inputs, number, requiring):
    """The gradient of one input for a `grad_output` of -1.5, or zeros. The inputs in `requiring` require grad."""
    leaves = [x.detach().clone(memory_format=torch.preserve_format) for x in inputs]
    for one in requiring:
        leaves[one].requires_grad_()
    (-1.5 * function(*leaves)).backward()
    found = leaves[number].grad
    return torch.zeros_like(leaves[number]) if found is None else found


def show(title, one, other):
    """Print the largest difference of what should be equal."""
    difference, largest = (one - other).abs().max().item(), one.abs().max().item()
    print(f"{title}: largest difference {difference:.2g}, largest entry {largest:.2g}")
    assert difference > 1e-3 * largest


def overwritten(function, *inputs):
    """The `grad_output` of the first output before and after the backward pass that it was given to."""
    output = function(*(x.detach().clone().requires_grad_() * 1.0 for x in inputs))
    first = output[0] if isinstance(output, tuple) else output
    given = normal(*first.shape)
    before = given.clone()
    first.backward(given)
    return before, given


logits, x, weight, targets = normal(6, 50), normal(6, 16), normal(50, 16), torch.randint(50, (6,)).to(DEVICE)
teacher, teacher_weight = normal(6, 16), normal(50, 16)
probabilities = normal(6, 50).softmax(-1)


def cross_entropy(x):
    return liger.liger_cross_entropy(x, targets)


def linear_cross_entropy(x, w):
    return liger.liger_fused_linear_cross_entropy(x, w, targets)


def linear_jsd(x, w):
    return liger.liger_fused_linear_jsd(x, w, teacher, teacher_weight)


def linear_kl_div(x, w):
    return liger.liger_fused_linear_kl_div(x, w, probabilities)


show(
    "cross_entropy, logits contiguous or transposed in memory",
    gradient(cross_entropy, [logits], 0, [0]),
    gradient(cross_entropy, [transposed(logits)], 0, [0]),
)
for name, function in (("fused_linear_jsd", linear_jsd), ("fused_linear_kl_div", linear_kl_div)):
    show(
        f"{name}, inputs contiguous or transposed in memory",
        gradient(function, [x, weight], 1, [0, 1]),
        gradient(function, [transposed(x), transposed(weight)], 1, [0, 1]),
    )
show(
    "fused_linear_cross_entropy, gradient of weight if the input requires grad or not",
    gradient(linear_cross_entropy, [x, weight], 1, [0, 1]),
    gradient(linear_cross_entropy, [x, weight], 1, [1]),
)
if DEVICE == "cuda":
    show(
        "rms_norm(in_place=True), grad_output before and after backward",
        *overwritten(lambda x, w: liger.liger_rms_norm(x, w, 1e-6, in_place=True), normal(6, 40), normal(40)),
    )
    show(
        "fused_add_rms_norm(in_place=True), grad_output before and after backward",
        *overwritten(
            lambda x, r, w: liger.liger_fused_add_rms_norm(x, r, w, 1e-6, in_place=True),
            normal(6, 40),
            normal(6, 40),
            normal(40),
        ),
    )
