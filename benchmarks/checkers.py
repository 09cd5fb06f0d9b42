"""Several gradient checkers on the same functions with hand-written gradients: `python -m benchmarks.checkers`.

Every function is written once, over the array library that a checker uses, together with its gradient: f(x) elementwise
or as a whole, and the vector-Jacobian product that a user would write. Each checker gets it in its own form (an
`autograd.Function`, a `custom_vjp`, a component with partials, a scalar function and its gradient) with its default
tolerances. A checker is right if it accepts the right gradients and refuses the wrong ones. Needs
`pip install jax chex openmdao scipy` beside gradvet; checkers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

SCIPY_THRESHOLD = 1e-6
"""`scipy.optimize.check_grad` returns the norm of the error and leaves the judgement to the user. Accepted is a norm of
at most this, relative to the norm of the gradient."""

Function = Callable[[Any, Any], Any]
"""(array library, x) -> f(x)."""
Product = Callable[[Any, Any, Any], Any]
"""(array library, x, grad_output) -> gradient of x."""


@dataclass(frozen=True)
class Case:
    """A function, its gradient, and whether that is right."""

    name: str
    function: Function
    product: Product
    point: np.ndarray
    is_right: bool


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkers", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the names of the functions to check")
    wanted = parser.parse_args(arguments)
    checkers = dict(available())
    print("| function | gradient | " + " | ".join(checkers) + " |")
    print("| --- | --- |" + " --- |" * len(checkers))
    false_alarms, misses, undecided = dict.fromkeys(checkers, 0), dict.fromkeys(checkers, 0), dict.fromkeys(checkers, 0)
    chosen = [case for case in cases() if wanted.only in case.name]
    for case in chosen:
        cells = []
        for name, checker in checkers.items():
            answer = answer_of(checker, case)
            false_alarms[name] += answer is False and case.is_right
            misses[name] += answer is True and not case.is_right
            undecided[name] += answer is None
            word = {True: "accepts", False: "refuses", None: "undecided"}[answer]
            cells.append(word if answer is case.is_right else f"**{word}**")
        print(f"| {case.name} | {'right' if case.is_right else 'wrong'} | " + " | ".join(cells) + " |", flush=True)
    right = sum(case.is_right for case in chosen)
    for title, counts, total in [
        ("right gradients refused", false_alarms, right),
        ("wrong gradients accepted", misses, len(chosen) - right),
        ("undecided", undecided, len(chosen)),
    ]:
        print(f"| {title} | of {total} | " + " | ".join(map(str, counts.values())) + " |")
    return 0


def answer_of(checker: Callable[[Case], bool | None], case: Case) -> bool | None:
    """What a checker says, without its output; a raised exception is a refusal."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            return checker(case)
        except (AssertionError, RuntimeError, ValueError):
            return False


def available() -> Iterator[tuple[str, Callable[[Case], bool | None]]]:
    """The checkers that are installed, by the name of their column."""
    yield "gradvet", by_gradvet
    yield "torch gradcheck", lambda case: by_torch(case, fast=False)
    yield "torch, fast mode", lambda case: by_torch(case, fast=True)
    for name, package, checker in [
        ("jax check_grads", "jax", by_jax),
        ("chex", "chex", by_chex),
        ("OpenMDAO", "openmdao", by_openmdao),
        ("scipy check_grad", "scipy", by_scipy),
    ]:
        try:
            __import__(package)
        except ImportError:
            print(f"{package} is not installed", file=sys.stderr)
        else:
            yield name, checker


# The checkers.


def torch_function(case: Case) -> tuple[Callable[..., Any], Any]:
    import torch

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return case.function(torch, x)

        @staticmethod
        def backward(ctx: Any, grad_output: Any) -> Any:
            (x,) = ctx.saved_tensors
            return case.product(torch, x, grad_output)

    return Custom.apply, torch.tensor(case.point, requires_grad=True)


def by_gradvet(case: Case) -> bool | None:
    import gradvet

    function, x = torch_function(case)
    verdict = gradvet.check(function, x, order=1, seed=0).verdict
    return {gradvet.Verdict.PASS: True, gradvet.Verdict.FAIL: False}.get(verdict)


def by_torch(case: Case, fast: bool) -> bool:
    import torch

    torch.manual_seed(0)
    function, x = torch_function(case)
    return torch.autograd.gradcheck(function, (x,), fast_mode=fast)


def jax_function(case: Case) -> tuple[Callable[..., Any], Any]:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    @jax.custom_vjp
    def function(x: Any) -> Any:
        return case.function(jnp, x)

    function.defvjp(lambda x: (case.function(jnp, x), x), lambda x, g: (case.product(jnp, x, g),))
    return function, jnp.asarray(case.point)


def by_jax(case: Case) -> bool:
    from jax.test_util import check_grads

    function, x = jax_function(case)
    check_grads(function, (x,), order=1, modes=("rev",))
    return True


def by_chex(case: Case) -> bool:
    import chex

    function, x = jax_function(case)
    chex.assert_numerical_grads(function, (x,), order=1, modes=("rev",))
    return True


def jacobian_of(case: Case) -> np.ndarray:
    """The Jacobian matrix that the hand-written product gives, row by row."""
    outputs = np.asarray(case.function(np, case.point))
    rows = np.eye(outputs.size).reshape(outputs.size, *outputs.shape)
    return np.stack([np.asarray(case.product(np, case.point, row)).ravel() for row in rows])


def by_openmdao(case: Case) -> bool:
    import openmdao.api as om
    from openmdao.utils.assert_utils import assert_check_partials

    shape = np.shape(case.function(np, case.point))

    class Component(om.ExplicitComponent):
        def setup(self) -> None:
            self.add_input("x", case.point)
            self.add_output("y", shape=shape)
            self.declare_partials("y", "x")

        def compute(self, inputs: Any, outputs: Any) -> None:
            outputs["y"] = case.function(np, inputs["x"])

        def compute_partials(self, inputs: Any, partials: Any) -> None:
            partials["y", "x"] = jacobian_of(case)

    # OpenMDAO writes files of its own into the current folder.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        problem = om.Problem(reports=False)
        problem.model.add_subsystem("component", Component())
        problem.setup()
        problem.run_model()
        assert_check_partials(problem.check_partials(out_stream=None))
    return True


def by_scipy(case: Case) -> bool:
    from scipy.optimize import check_grad

    weights = np.random.default_rng(0).standard_normal(np.shape(case.function(np, case.point)))

    def gradient(x: np.ndarray) -> np.ndarray:
        return np.asarray(case.product(np, x.reshape(case.point.shape), weights)).ravel()

    error = check_grad(
        lambda x: float(np.sum(weights * case.function(np, x.reshape(case.point.shape)))), gradient, case.point.ravel()
    )
    return bool(error <= SCIPY_THRESHOLD * max(1.0, float(np.linalg.norm(gradient(case.point)))))


# The functions.


def cases() -> Iterator[Case]:
    """Right and wrong gradients of ordinary kinds."""
    rng = np.random.default_rng(20)
    normal, long = rng.standard_normal((4, 6)), rng.standard_normal(1000)
    positive = np.abs(normal) + 0.5
    for name, function, product, point in [
        ("sin(x)", lambda xp, x: xp.sin(x), lambda xp, x, g: g * xp.cos(x), normal),
        ("x / (1 + exp(-x))", swish, swish_product, normal),
        ("softmax over rows", softmax, softmax_product, normal),
        ("log of 1,000 numbers", lambda xp, x: xp.log(x), lambda xp, x, g: g / x, np.abs(long) + 0.1),
        ("exp(10 x)", lambda xp, x: xp.exp(10 * x), lambda xp, x, g: 10 * g * xp.exp(10 * x), normal),
        ("sin(100 x)", lambda xp, x: xp.sin(100 * x), lambda xp, x, g: 100 * g * xp.cos(100 * x), normal),
        ("1e-6 x^3", lambda xp, x: 1e-6 * x**3, lambda xp, x, g: 3e-6 * g * x**2, normal),
        ("x^2 at 1e5", lambda xp, x: x**2, lambda xp, x, g: 2 * g * x, normal * 1e5),
        ("1e8 + x^2", lambda xp, x: 1e8 + x**2, lambda xp, x, g: 2 * g * x, normal),
        ("relu, one entry at 0", relu, relu_product, np.where(np.arange(24).reshape(4, 6) == 7, 0.0, normal)),
        ("abs(x), 1e-7 from 0", lambda xp, x: abs(x), lambda xp, x, g: g * xp.sign(x), normal * 1e-7),
        ("sqrt(x) at 1e-8", lambda xp, x: xp.sqrt(x), lambda xp, x, g: g / (2 * xp.sqrt(x)), positive * 1e-8),
        ("1 / x at 1e-4", lambda xp, x: 1 / x, lambda xp, x, g: -g / x**2, positive * 1e-4),
    ]:
        yield Case(name, function, product, point, is_right=True)
    for name, function, product, point in [
        ("sin(x): sign", lambda xp, x: xp.sin(x), lambda xp, x, g: -g * xp.cos(x), normal),
        ("swish: second term missing", swish, lambda xp, x, g: g / (1 + xp.exp(-x)), normal),
        ("softmax: sum left out", softmax, lambda xp, x, g: g * softmax(xp, x), normal),
        ("sin(x): factor 1.0005", lambda xp, x: xp.sin(x), lambda xp, x, g: 1.0005 * g * xp.cos(x), normal),
        ("2 x: one of 1,000 off by a tenth", lambda xp, x: 2 * x, one_of_many, long),
        ("2 x: one of 1,000 off by 1 %", lambda xp, x: 2 * x, lambda xp, x, g: one_of_many(xp, x, g, 0.01), long),
        ("1e-6 x^3: gradient zero", lambda xp, x: 1e-6 * x**3, lambda xp, x, g: 0 * g * x, normal),
        ("1e-6 x^3: factor 2", lambda xp, x: 1e-6 * x**3, lambda xp, x, g: 6e-6 * g * x**2, normal),
        ("x^2 at 1e5: factor 1.001", lambda xp, x: x**2, lambda xp, x, g: 2.002 * g * x, normal * 1e5),
        ("1e8 + x^2: gradient zero", lambda xp, x: 1e8 + x**2, lambda xp, x, g: 0 * g * x, normal),
        ("relu: gradient 1 below 0", relu, lambda xp, x, g: g + 0 * x, normal),
        ("exp(10 x): factor 11", lambda xp, x: xp.exp(10 * x), lambda xp, x, g: 11 * g * xp.exp(10 * x), normal),
        (
            "sqrt(x) at 1e-8: factor 1.01",
            lambda xp, x: xp.sqrt(x),
            lambda xp, x, g: 1.01 * g / (2 * xp.sqrt(x)),
            positive * 1e-8,
        ),
    ]:
        yield Case(name, function, product, point, is_right=False)


def swish(xp: Any, x: Any) -> Any:
    return x / (1 + xp.exp(-x))


def swish_product(xp: Any, x: Any, g: Any) -> Any:
    s = 1 / (1 + xp.exp(-x))
    return g * (s + x * s * (1 - s))


def softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x)
    return e / e.sum(-1)[..., None]


def softmax_product(xp: Any, x: Any, g: Any) -> Any:
    y = softmax(xp, x)
    return y * (g - (g * y).sum(-1)[..., None])


def relu(xp: Any, x: Any) -> Any:
    return (x + abs(x)) / 2


def relu_product(xp: Any, x: Any, g: Any) -> Any:
    return g * (x > 0)


def one_of_many(xp: Any, x: Any, g: Any, excess: float = 0.1) -> Any:
    """Twice grad_output, with entry 17 too large."""
    position = xp.arange(len(x))
    return 2 * g * (1 + excess * (position == 17))


if __name__ == "__main__":
    raise SystemExit(main())
