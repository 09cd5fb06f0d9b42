"""Functions beside torch's gradcheck: `as_sparse_gradcheck`, and three Jacobian helpers that other code imports.

The matrices of the helpers are (input numel, output numel), the transpose of what gradvet uses everywhere else, and
hold complex numbers where the input is complex: the real output's derivative by the real part plus i times that by the
imaginary.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradvet.compat.gradcheck import as_tuple, chosen_semantics
from gradvet.compat.gradcheck import gradcheck as own_gradcheck
from gradvet.core.events import one_at_a_time
from gradvet.core.modes import CentralDifferences, ReverseJacobian
from gradvet.core.projections import Projections
from gradvet.core.vectors import Space
from gradvet.frontends.torch.arguments import map_tensors, tensors_in
from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.layouts.sparse import is_sparse, materialised, stored_numbers, with_numbers
from gradvet.frontends.torch.preservation import PreservedState
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.options import Options

Checker = Callable[..., bool]


def as_sparse_gradcheck(gradcheck: Checker | None = None) -> Checker:
    """A check like `gradcheck` (gradvet's own if None) for functions that take or return sparse tensors.

    The checker need only know dense tensors: it sees the stored numbers of each sparse input, and sparse outputs made
    dense; the function sees the sparse tensors that they belong to. First order only: torch's derivative of building a
    sparse tensor has no derivative itself. As with `torch.sparse.as_sparse_gradcheck`, `masked` says whether only the
    specified elements count.

    >>> import torch
    >>> x = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=torch.float64).to_sparse().requires_grad_()
    >>> as_sparse_gradcheck()(lambda x: x * x, x, masked=True)
    True
    """
    check = own_gradcheck if gradcheck is None else gradcheck

    def sparse_gradcheck(
        func: Callable[..., Any],
        inputs: Any,
        *args: Any,
        masked: bool | None = None,
        check_sparse_nnz: bool | None = None,
        **options: Any,
    ) -> bool:
        semantics = bool(chosen_semantics(masked, check_sparse_nnz))
        pairs = [_stored(argument, semantics) for argument in as_tuple(inputs)]

        def dense_func(*numbers: Any) -> Any:
            outputs = func(*(rebuilt(stored) for (_, rebuilt), stored in zip(pairs, numbers, strict=True)))
            return map_tensors(lambda output: _dense(output, semantics), outputs)

        return check(dense_func, tuple(stored for stored, _ in pairs), *args, **options)

    return sparse_gradcheck


def _stored(argument: Any, masked: bool) -> tuple[Any, Callable[[Any], Any]]:
    """What the checker is given for an argument, and the way back. Only differentiable sparse tensors change."""
    if not _concerned(argument):
        return argument, lambda value: value
    tensor = argument.detach() if masked else materialised(argument)
    return stored_numbers(tensor).requires_grad_(), partial(with_numbers, tensor)


def _dense(output: Any, masked: bool) -> Any:
    return output.to_dense(masked_grad=masked) if _concerned(output) else output


def _concerned(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and is_sparse(value)


@one_at_a_time
def get_numerical_jacobian(
    fn: Callable[..., Any], inputs: Any, target: Any = None, eps: float = 1e-3, grad_out: float = 1.0
) -> tuple[Tensor, ...]:
    """One matrix of differences per target, for the first output; `fn` takes the inputs as one tuple."""
    _deprecated("get_numerical_jacobian", grad_out)
    arguments = as_tuple(inputs)
    chosen = arguments if target is None else as_tuple(target)
    state = PreservedState(fn, arguments)
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
    mismatches = problem.gradient(problem.zeros(problem.codomain.size) + 1.0).mismatches
    attributes = {mismatch.attribute for mismatch in mismatches}
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
    state = PreservedState(fn, arguments)
    with state, state:  # twice: the first restoration may be interrupted
        problem = _problem(fn, arguments)
        leaf = [leaf.position for leaf in problem.domain.leaves].index(input_idx)
        columns = problem.domain.slices[leaf]
        numerical = CentralDifferences(Projections(problem, Options(seed=0, step=eps)))
        block = numerical.everything(columns.start, columns.stop)
    results = Space(problem.codomain.leaves + problem.nondifferentiable.leaves)
    order = sorted(range(len(results.leaves)), key=lambda i: results.leaves[i].position)
    return tuple(_transposed(block[results.slices[i]], arguments[input_idx]) for i in order)


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
    parts = zip(problem.domain.slices, problem.inputs, strict=True)
    return tuple(_transposed(columns(part.start, part.stop), tensor) for part, tensor in parts)


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
