"""What a check leaves in the process: loaded modules, the user's classes; and a working folder that is gone."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from torch import Tensor, nn

import gradvet
from gradvet.frontends.torch import private_state


def outcome(code: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_first_checks_do_not_load_the_compiler() -> None:
    code = """
import sys, torch, gradvet
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad_output):
        return 2.0 * ctx.saved_tensors[0] * grad_output
x = torch.ones(3, dtype=torch.float64)
gradvet.gradcheck(torch.sin, x.clone().requires_grad_(), check_forward_ad=True, check_batched_grad=True)
gradvet.check(torch.sin, x)
gradvet.check(Square, x)
gradvet.check(torch.nn.Linear(3, 2).double(), x)
gradvet.check(torch.sin, x.float())
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""
    # The first custom function loads sympy, where torch looks for its vmap rule.
    assert "torch._dynamo" not in outcome(code)


LOADS_AT_ONCE = pytest.mark.skipif(not private_state._KERNELS, reason="the kernels of this torch load its compiler")


@LOADS_AT_ONCE
def test_constants_in_forward_mode_do_not_load_the_compiler() -> None:
    code = """
import sys, torch, gradvet
x = torch.ones(3, dtype=torch.float64)
gradvet.check(lambda x: x * x.detach() + torch.ones(3), x)
gradvet.check(lambda x: x / torch.arange(1.0, 4.0) - torch.ones(3), x.float(), order=2)
gradvet.gradcheck(lambda x: x * torch.ones(3), x.clone().requires_grad_(), check_forward_ad=True)
print("torch._dynamo" in sys.modules)
"""
    assert outcome(code) == "False"


@LOADS_AT_ONCE
def test_function_that_loads_the_compiler_itself_is_checked_as_others_are() -> None:
    code = """
import torch, gradvet
from gradvet.frontends.torch.private_state import kernels_are_direct
def scaled(x):
    y = x * torch.ones(3)
    seen.append(kernels_are_direct())
    __import__("torch._dynamo")
    return y * torch.ones(3)
seen = []
print(gradvet.check(scaled, torch.ones(3, dtype=torch.float64)).verdict, True in seen, seen[-1], kernels_are_direct())
"""
    assert outcome(code) == "PASS True False False"


def test_check_works_in_a_working_folder_that_is_gone() -> None:
    code = """
import os, tempfile, torch, gradvet
folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
x = torch.ones(3, dtype=torch.float64)
def square(x):
    return x * x
print(gradvet.check(square, x).verdict, gradvet.gradcheck(square, x.requires_grad_()))
"""
    assert outcome(code) == "PASS True"


def test_classes_defined_in_functions_are_not_kept_alive() -> None:
    def made() -> tuple[type, type]:
        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx: object, x: Tensor) -> Tensor:
                ctx.save_for_backward(x)  # type: ignore[attr-defined]
                return x * x

            @staticmethod
            def backward(ctx: object, *grad_outputs: Tensor) -> Tensor:
                (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
                return 2.0 * x * grad_outputs[0]

        class Scale(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return 2.0 * x

        return Square, Scale

    function, module = made()
    x = torch.linspace(0.3, 1.1, 3, dtype=torch.float64)
    assert gradvet.check(function, x).passed
    assert gradvet.check(module(), x).passed
    classes = [weakref.ref(function), weakref.ref(module)]
    del function, module
    gc.collect()
    assert [reference() for reference in classes] == [None, None]
