"""Small test suites on which the plugin is tested."""

from __future__ import annotations

WRONG = """
    import torch

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return 2.2 * x * dy

    POINT = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -3.0]], dtype=torch.float64)
"""

NATIVE = (
    WRONG
    + """
    def test_right(gradient_checker):
        gradient_checker(torch.sin, POINT)

    def test_wrong(gradient_checker):
        gradient_checker(Wrong, POINT)
"""
)

CLASSICAL = (
    WRONG
    + """
    from torch.autograd import gradcheck, gradgradcheck

    def test_right():
        assert gradcheck(torch.sin, POINT.clone().requires_grad_())

    def test_wrong():
        assert gradcheck(Wrong.apply, POINT.clone().requires_grad_())

    def test_refused_without_an_exception():
        assert not gradcheck(Wrong.apply, POINT.clone().requires_grad_(), raise_exception=False)

    def test_second_order():
        assert gradgradcheck(torch.sin, POINT.clone().requires_grad_())
"""
)
