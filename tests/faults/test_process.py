"""What a check leaves in a process: loaded modules, the user's classes; and what only a new process shows."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections import defaultdict
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

import gradvet
from gradvet.frontends.torch import process_state

SECTIONS = {
    "default device": """
torch.set_default_device("meta")
import gradvet
x = torch.ones(3, dtype=torch.float64, device="cpu")
gradvet.gradcheck
torch.set_default_device("cpu")
print(gradvet.check(torch.sin, x).verdict, gradvet.gradcheck(torch.sin, x.clone().requires_grad_()))
torch.set_default_device(None)
""",
    "first checks": """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad_output):
        return 2.0 * ctx.saved_tensors[0] * grad_output
gradvet.gradcheck(torch.sin, x.clone().requires_grad_(), check_forward_ad=True, check_batched_grad=True)
gradvet.check(torch.sin, x)
gradvet.check(Square, x)
gradvet.check(torch.nn.Linear(3, 2).double(), x)
gradvet.check(torch.sin, x.float())
print("torch._dynamo" in sys.modules)
""",
    "folder that is gone": """
folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
def square(x):
    return x * x
print(gradvet.check(square, x).verdict, gradvet.gradcheck(square, x.clone().requires_grad_()))
class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output
class Model(torch.nn.Linear):
    def forward(self, x):
        return Half.apply(super().forward(x))
model = Model(3, 2).double()
with gradvet.watch(model) as step:
    model(x)
print(*[culprit.what for culprit in (*gradvet.blame(model, x).culprits, *step.report().culprits)], sep="\\n")
os.chdir("/")
""",
    "constants in forward mode": """
gradvet.check(lambda x: x * x.detach() + torch.ones(3), x)
gradvet.check(lambda x: x / torch.arange(1.0, 4.0) - torch.ones(3), x.float(), order=2)
gradvet.gradcheck(lambda x: x * torch.ones(3), x.clone().requires_grad_(), check_forward_ad=True)
print("torch._dynamo" in sys.modules)
""",
    "derivative that is zero": """
for fast in (False, True):
    gradvet.gradgradcheck(torch.sgn, x.clone().requires_grad_(), fast_mode=fast)
print("torch._dynamo" in sys.modules)
""",
    "function that loads the compiler": """
from gradvet.frontends.torch.process_state import kernels_are_direct
def scaled(x):
    y = x * torch.ones(3)
    seen.append(kernels_are_direct())
    if seen[-1]:  # forward mode
        __import__("torch._dynamo")
    return y * torch.ones(3)
seen = []
print(gradvet.check(scaled, x).verdict, True in seen, seen[-1], kernels_are_direct())
""",
    "freed memory": """
freed = torch.ones(3, dtype=torch.float64)
freed.untyped_storage().resize_(0)
try:
    gradvet.check(torch.sin, freed)
except gradvet.InvalidProblemError:
    print("refused")
""",
}
"""What one new process does in turn: the compiler must not be there at first, and is loaded near the end."""


@pytest.fixture(scope="module")
def printed() -> Mapping[str, str]:
    """What each section prints. A section that raises ends the process; those after it print nothing."""
    sections = (f"print('== {name}', flush=True)\n{code}" for name, code in SECTIONS.items())
    program = "import os, sys, tempfile, torch\n" + "".join(sections)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    parts = [part.partition("\n") for part in done.stdout.split("== ")[1:]]
    return defaultdict(lambda: done.stderr, {name: text.strip() or done.stderr for name, _, text in parts})


def test_default_device_at_import_does_not_matter(printed: Mapping[str, str]) -> None:
    assert printed["default device"] == "PASS True"


LOADS_AT_ONCE = pytest.mark.skipif(not process_state._KERNELS, reason="the kernels of this torch load its compiler")


@LOADS_AT_ONCE
def test_first_checks_do_not_load_the_compiler(printed: Mapping[str, str]) -> None:
    assert printed["first checks"] == "False"


def test_check_works_in_a_working_folder_that_is_gone(printed: Mapping[str, str]) -> None:
    culprit = "autograd.Function Half"
    assert printed["folder that is gone"].splitlines() == ["PASS True", culprit, culprit]


@LOADS_AT_ONCE
def test_constants_in_forward_mode_do_not_load_the_compiler(printed: Mapping[str, str]) -> None:
    assert printed["constants in forward mode"] == "False"


def test_derivative_that_is_zero_does_not_load_the_compiler(printed: Mapping[str, str]) -> None:
    """torch's zeros without memory load it where they are multiplied or subtracted."""
    assert printed["derivative that is zero"] == "False"


@LOADS_AT_ONCE
def test_function_that_loads_the_compiler_itself_is_checked_as_others_are(printed: Mapping[str, str]) -> None:
    assert printed["function that loads the compiler"] == "PASS True False False"


def test_freed_memory_does_not_crash_the_process(printed: Mapping[str, str]) -> None:
    """Before, this was a segmentation fault."""
    assert printed["freed memory"] == "refused"


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
