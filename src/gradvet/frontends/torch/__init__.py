"""The torch frontend: `FRONTEND` is what the interfaces need of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from gradvet.core.frontend import Frontend, Point, Request
from gradvet.frontends.torch import sparse_semantics, toolchain, user_reference
from gradvet.frontends.torch.arguments import require_output
from gradvet.frontends.torch.autograd_graph import custom_functions
from gradvet.frontends.torch.binding import Binding, bind, with_constant_inputs
from gradvet.frontends.torch.blame.investigation import Question, investigate
from gradvet.frontends.torch.blame.recording import Recorder, is_model
from gradvet.frontends.torch.blame.replaying import record_step, torch_stops, within
from gradvet.frontends.torch.blame.stops import StopMode
from gradvet.frontends.torch.branches import on_same_branches, on_smooth_piece
from gradvet.frontends.torch.numerical_jacobian import jacobian_of
from gradvet.frontends.torch.points import PointSource, generated_points, generated_shapes
from gradvet.frontends.torch.preservation import preserved_state
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.frontends.torch.reference import may_round_products, reference_problem, rounded_as
from gradvet.frontends.torch.second_order import second_order_problem
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
    """`core.frontend.Frontend` for torch; its docstrings say what each function does."""

    bind = staticmethod(bind)
    with_constant_inputs = staticmethod(with_constant_inputs)
    reference = staticmethod(reference_problem)
    on_smooth_piece = staticmethod(on_smooth_piece)
    on_same_branches = staticmethod(on_same_branches)
    plain_problem = staticmethod(user_reference.plain_problem)
    formats = staticmethod(user_reference.formats)
    cast = staticmethod(user_reference.cast)
    second_order = staticmethod(second_order_problem)
    explained = staticmethod(sparse_semantics.explained)
    registration_complaints = staticmethod(toolchain.opcheck_complaints)
    compiled = staticmethod(toolchain.compiled_problem)
    numerical_jacobian = staticmethod(jacobian_of)

    def problem(self, binding: Binding, seed: int, *, masked: bool = False) -> TorchProblem:
        problem = TorchProblem(binding, seed, masked)
        require_output(problem)
        return problem

    def isolated(self, problem: TorchProblem, seed: int) -> TorchProblem:
        return problem.rebound(replace(problem.binding, isolates_passes=True), seed)

    def restricted(self, problem: TorchProblem, leaves: Sequence[int], seed: int) -> TorchProblem:
        positions = [problem.domain.leaves[k].position for k in leaves]
        part = problem.rebound(problem.binding.restricted(positions), seed)
        problem.release()
        return part.with_eps(problem.eps)

    def rounded(self, problem: TorchProblem, call: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        return rounded_as(problem, call) if problem.rules.are_builtin else None

    def tf32_products(self, problem: TorchProblem) -> AbstractContextManager[object] | None:
        return user_reference.tf32_products() if may_round_products(problem) else None

    def points(
        self, problem: TorchProblem, request: Request, domain: Any, seed: int, *, thorough: bool
    ) -> Iterator[Point]:
        return generated_points(PointSource.of(problem.binding, request.func, domain, seed), thorough)

    def shapes(
        self, problem: TorchProblem, request: Request, domain: Any, seed: int, *, thorough: bool, empty: bool
    ) -> Iterator[Point]:
        return generated_shapes(PointSource.of(problem.binding, request.func, domain, seed), thorough, empty=empty)

    def has_dimensions(self, problem: TorchProblem) -> bool:
        return any(tensor.dim() for tensor in problem.inputs)

    def has_lost_device(self, problem: TorchProblem) -> bool:
        if problem.home.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(problem.home)
        except Exception:
            return True
        return False

    def preserved_state(self, function: Any, arguments: Sequence[Any]) -> AbstractContextManager[None]:
        return preserved_state(function, nested_tensors(arguments), standard_settings=True)

    def custom_rules(self, problem: TorchProblem) -> list[Any]:
        return custom_functions(problem.recorded_outputs())

    def notes(self, problem: TorchProblem) -> Iterator[str]:
        yield from problem.binding.notes
        yield from problem.output_notes
        if may_round_products(problem):
            yield "torch's own products of float32 numbers ran in full precision, not in TF32"
        yield from sparse_semantics.remarks(problem)


FRONTEND: Frontend = TorchFrontend()
