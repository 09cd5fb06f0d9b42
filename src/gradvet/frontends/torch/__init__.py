"""The torch frontend: `FRONTEND` is what the interfaces need of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from gradvet.core.float_format import Format
from gradvet.core.frontend import Frontend, Point, PointRequest, Request
from gradvet.core.problem import Problem
from gradvet.core.results import Report
from gradvet.core.spaces import Space
from gradvet.frontends.torch import domains, sparse_semantics, toolchain, user_reference
from gradvet.frontends.torch.arguments import require_output
from gradvet.frontends.torch.autograd_graph import custom_functions, is_unsupported_error
from gradvet.frontends.torch.binding import Binding, bind
from gradvet.frontends.torch.blame.investigation import Question, investigate
from gradvet.frontends.torch.blame.recording import Recorder, is_model, record_step
from gradvet.frontends.torch.blame.replaying import torch_stops, within
from gradvet.frontends.torch.blame.stops import StopMode
from gradvet.frontends.torch.branches import Branches, on_same_branches, on_smooth_piece
from gradvet.frontends.torch.numerical_jacobian import NumericalJacobian, jacobian_of
from gradvet.frontends.torch.points import PointSource, generated_points, generated_shapes
from gradvet.frontends.torch.preservation import preserved_state
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.frontends.torch.random_state import preserved_rng
from gradvet.frontends.torch.reference import may_round_products, reference_problem, rounded_as
from gradvet.frontends.torch.second_order import second_order_problem
from gradvet.frontends.torch.tf32 import tf32_products
from gradvet.frontends.torch.validation import nested_tensors

__all__ = [
    "FRONTEND",
    "Question",
    "Recorder",
    "StopMode",
    "TorchFrontend",
    "investigate",
    "is_model",
    "record_step",
    "torch_stops",
    "within",
]


class TorchFrontend:
    """`core.frontend.Frontend` for torch."""

    def bind(self, request: Request) -> Binding:
        return bind(request)

    def problem(self, binding: Binding, seed: int, *, masked: bool = False) -> TorchProblem:
        problem = TorchProblem(binding, seed, masked)
        require_output(problem)
        return problem

    def problem_at(self, problem: Problem, binding: Binding, seed: int) -> TorchProblem:
        return _own(problem).rebound(binding, seed)

    def isolated(self, problem: Problem, seed: int) -> TorchProblem:
        own = _own(problem)
        return own.rebound(replace(own.binding, isolates_passes=True), seed)

    def restricted(self, problem: Problem, leaves: Sequence[int], seed: int) -> TorchProblem:
        whole = _own(problem)
        part = whole.rebound(whole.binding.restricted([whole.domain.leaves[k].position for k in leaves]), seed)
        whole.release()
        return part.with_eps(whole.eps)

    def binding(self, problem: Problem) -> Binding:
        return _own(problem).binding

    def reference(self, problem: Problem, request: Request, seed: int) -> tuple[TorchProblem, TorchProblem] | None:
        return reference_problem(_own(problem), request, seed)

    def on_smooth_piece(self, problem: Problem) -> tuple[TorchProblem, Branches] | None:
        return on_smooth_piece(_own(problem))

    def on_same_branches(
        self, problem: Problem, reference: Problem, seed: int
    ) -> tuple[TorchProblem, TorchProblem, Branches] | None:
        return on_same_branches(_own(problem), _own(reference), seed)

    def rounded(self, problem: Problem, call: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        own = _own(problem)
        return rounded_as(own, call) if own.rules.are_builtin else None

    def plain_problem(self, problem: Problem, request: Request, seed: int) -> tuple[TorchProblem, Request]:
        return user_reference.plain_problem(_own(problem), request, seed)

    def formats(self, problem: Problem, space: Space) -> list[Format]:
        return user_reference.formats(_own(problem), space)

    def tf32_products(self, problem: Problem) -> AbstractContextManager[object] | None:
        return tf32_products() if may_round_products(_own(problem)) else None

    def cast(self, request: Request, dtype: Any) -> tuple[str, Request]:
        return user_reference.cast(request, dtype)

    def second_order(self, problem: Problem, composition: str, seed: int) -> TorchProblem:
        return second_order_problem(_own(problem), composition, seed)

    def points(self, problem: Problem, request: PointRequest) -> Iterator[Point]:
        return generated_points(_source(problem, request), request.thorough)

    def shapes(self, problem: Problem, request: PointRequest) -> Iterator[Point]:
        return generated_shapes(_source(problem, request), request.thorough, empty=request.empty)

    def is_strategy(self, value: Any) -> bool:
        return domains.is_strategy(value)

    def examples(self, strategy: Any, count: int, seed: int) -> list[Any]:
        return domains.examples(strategy, count, seed)

    def has_dimensions(self, problem: Problem) -> bool:
        return any(tensor.dim() for tensor in _own(problem).inputs)

    def device_type(self, problem: Problem) -> str:
        return _own(problem).home.type

    def has_lost_device(self, problem: Problem) -> bool:
        if self.device_type(problem) != "cuda":
            return False
        try:
            torch.cuda.synchronize(_own(problem).home)
        except Exception:
            return True
        return False

    def preserved_state(self, function: Any, arguments: Sequence[Any]) -> AbstractContextManager[None]:
        return preserved_state(function, nested_tensors(arguments), standard_settings=True)

    def preserved_random_state(self) -> AbstractContextManager[None]:
        return preserved_rng()

    def custom_rules(self, problem: Problem) -> list[Any]:
        return custom_functions(_own(problem).differentiable_outputs)

    def is_unsupported(self, error: BaseException) -> bool:
        return is_unsupported_error(error)

    def notes(self, problem: Problem) -> Iterator[str]:
        yield from _own(problem).binding.notes
        yield from _own(problem).output_notes
        if may_round_products(_own(problem)):
            yield "torch's own products of float32 numbers ran in full precision, not in TF32"
        yield from sparse_semantics.remarks(_own(problem))

    def add_note(self, error: Exception, arguments: Sequence[Any], masked: bool) -> None:
        sparse_semantics.add_sparse_note(error, arguments, masked)

    def with_other_semantics_tried(
        self, report: Report, arguments: Sequence[Any], masked: bool, again: Callable[[bool], Report]
    ) -> Report:
        return sparse_semantics.with_other_semantics_tried(report, arguments, masked, again)

    def registration_complaints(self, request: Request) -> Mapping[str, str] | None:
        return toolchain.opcheck_complaints(request)

    def draws_random_numbers(self, request: Request) -> bool:
        return toolchain.draws_random_numbers(request)

    def compiled(self, problem: Problem, request: Request) -> TorchProblem:
        return toolchain.compiled_problem(_own(problem), request)

    def numerical_jacobian(self, request: Request, seed: int) -> NumericalJacobian:
        return jacobian_of(request, seed)


def _own(problem: Problem) -> TorchProblem:
    if not isinstance(problem, TorchProblem):
        raise TypeError(f"a problem of the torch frontend was expected, found {type(problem).__name__}")
    return problem


def _source(problem: Problem, request: PointRequest) -> PointSource:
    return PointSource.of(_own(problem).binding, request.function, request.regions, request.seed)


FRONTEND: Frontend = TorchFrontend()
