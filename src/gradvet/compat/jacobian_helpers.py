"""The three Jacobian helpers that other code imports from `torch.autograd.gradcheck`.

Their matrices are (input numel, output numel), the transpose of what gradvet uses everywhere else, and hold complex
numbers where the input is complex: the real output's derivative by the real part plus i times that by the imaginary.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradvet.compat.gradcheck import as_tuple
from gradvet.core.events import one_at_a_time
from gradvet.core.jacobians import CentralDifferences, ReverseJacobian
from gradvet.core.projections import Projections
from gradvet.core.spaces import Space
from gradvet.frontends.torch.arguments import tensors_in
from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.preservation import preserved_state
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.options import Options


@one_at_a_time
def get_numerical_jacobian(
    fn: Callable[..., Any], inputs: Any, target: Any = None, eps: float = 1e-3, grad_out: float = 1.0
) -> tuple[Tensor, ...]:
    """One matrix of differences per target, for the first output; `fn` takes the inputs as one tuple."""
    _deprecated("get_numerical_jacobian", grad_out)
    arguments = as_tuple(inputs)
    chosen = arguments if target is None else as_tuple(target)
    state = preserved_state(fn, arguments)
    with state, state:  # twice: the first restoration may be interrupted
        problem = _problem(lambda *values: _first(fn(values)), arguments)
        numerical = CentralDifferences(Projections(problem, Options(seed=0, step=eps)))
        # An output without grad has differences too: that is what the helper is used for.
        matrices = _matrices(problem, numerical.everything)
    return tuple(
        matrix for matrix, tensor in zip(matrices, problem.inputs, strict=True) if any(tensor is t for t in chosen)
    )


@one_at_a_time
def get_analytical_jacobian(
    inputs: Any, output: Tensor, nondet_tol: float = 0.0, grad_out: float = 1.0
) -> tuple[tuple[Tensor, ...], bool, bool, bool]:
    """The Jacobians by reverse mode; whether they are reproducible; whether sizes, and dtypes, are right."""
    _deprecated("get_analytical_jacobian", grad_out)
    arguments = as_tuple(inputs)
    problem = _problem(lambda *values: output, arguments)
    options = Options(seed=0)
    matrices = _matrices(problem, ReverseJacobian(Projections(problem, options)).columns)
    again = _matrices(problem, ReverseJacobian(Projections(problem, options)).columns)
    reproducible = all(
        not one.numel() or bool((one - other).abs().max() <= nondet_tol)
        for one, other in zip(matrices, again, strict=True)
    )
    misfits = problem.gradient(problem.zeros(problem.codomain.size) + 1.0).misfits
    attributes = {misfit.attribute for misfit in misfits}
    return matrices, reproducible, "shape" not in attributes, "dtype" not in attributes


@one_at_a_time
def get_numerical_jacobian_wrt_specific_input(
    fn: Callable[..., Any],
    input_idx: int,
    inputs: Sequence[Any],
    outputs: Any,
    eps: float,
    input: Any = None,
    is_forward_ad: bool = False,
) -> tuple[Tensor, ...]:
    """One matrix of differences per output, for one of the inputs; `fn` takes the inputs as arguments."""
    arguments = list(inputs)
    if input is not None:
        arguments[input_idx] = input
    if not arguments[input_idx].requires_grad:
        raise AssertionError("Expected input to have requires_grad=True")
    state = preserved_state(fn, arguments)
    with state, state:  # twice: the first restoration may be interrupted
        problem = _problem(fn, arguments)
        leaf = [leaf.position for leaf in problem.domain.leaves].index(input_idx)
        columns = problem.domain.slice(leaf)
        numerical = CentralDifferences(Projections(problem, Options(seed=0, step=eps)))
        block = numerical.everything(columns.start, columns.stop)
    results = Space(problem.codomain.leaves + problem.nondifferentiable.leaves)
    order = sorted(range(len(results.leaves)), key=lambda i: results.leaves[i].position)
    return tuple(_transposed(block[results.slice(i)], arguments[input_idx]) for i in order)


def _problem(function: Callable[..., Any], arguments: Sequence[Any]) -> TorchProblem:
    return TorchProblem(drop_in_binding(function, arguments), seed=0)


def _first(result: Any) -> Tensor:
    output: Tensor = tensors_in(result)[0]
    _reject_complex(output)
    return output


def _reject_complex(output: Tensor) -> None:
    if output.is_complex():
        raise ValueError("Expected output to be non-complex: check its real and imaginary parts apart, with gradcheck.")


def _matrices(problem: TorchProblem, columns: Callable[[int, int], Tensor]) -> tuple[Tensor, ...]:
    for output in problem.outputs:
        _reject_complex(output)
    return tuple(_transposed(columns(*_span(problem, leaf)), tensor) for leaf, tensor in enumerate(problem.inputs))


def _span(problem: TorchProblem, leaf: int) -> tuple[int, int]:
    section = problem.domain.slice(leaf)
    return section.start, section.stop


def _transposed(block: Tensor, tensor: Tensor) -> Tensor:
    """(input numel, output numel), in the input's dtype."""
    if tensor.is_complex():
        block = torch.complex(block[:, ::2], block[:, 1::2])
    return block.T.to(tensor.dtype).contiguous()


def _deprecated(name: str, grad_out: float) -> None:
    warnings.warn(
        f"{name} was part of PyTorch's private API; gradvet keeps it for code that still imports it. "
        "Use gradcheck instead.",
        FutureWarning,
        stacklevel=3,
    )
    if grad_out != 1.0:
        raise ValueError("Expected grad_out to be 1.0: scale the Jacobian afterwards instead.")
