"""The torch frontend: `FRONTEND` is what the interfaces need of torch.

It has what no other module of the folder has: `opcheck`, `torch.compile`, and what reports say about masked and
unmasked semantics of sparse tensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.core.context import Context
from gradvet.core.frontend import Frontend, Point, Request
from gradvet.core.results import Finding, Report, Verdict
from gradvet.core.runner import undecided_because
from gradvet.errors import InvalidProblemError, OutputsChangedError
from gradvet.frontends.torch import user_reference
from gradvet.frontends.torch.arguments import map_tensors, nested_tensors, require_output
from gradvet.frontends.torch.autograd_graph import leaves_behind
from gradvet.frontends.torch.binding import (
    LEAF_WRITTEN,
    Binding,
    bind,
    callable_of,
    is_differentiable,
    settle,
    with_constant_inputs,
)
from gradvet.frontends.torch.blame.investigation import investigate
from gradvet.frontends.torch.blame.pieces import Examiner
from gradvet.frontends.torch.blame.recording import Recorder, is_model
from gradvet.frontends.torch.blame.replaying import record_step, torch_stops, within
from gradvet.frontends.torch.blame.sketches import Call
from gradvet.frontends.torch.blame.source_lines import COMPILED
from gradvet.frontends.torch.blame.stops import StopMode
from gradvet.frontends.torch.branches import on_same_branches, on_smooth_piece
from gradvet.frontends.torch.inputs import require_separate, require_state
from gradvet.frontends.torch.layouts.sparse import is_sparse, unspecified
from gradvet.frontends.torch.points import PointSource, generated_points, generated_shapes
from gradvet.frontends.torch.preservation import PreservedState
from gradvet.frontends.torch.private import CompiledAsPython
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.frontends.torch.second_order import second_order_problem
from gradvet.frontends.torch.wider_version import may_round_products, rounded_as, wider_problem

__all__ = [
    "COMPILED",
    "FRONTEND",
    "Call",
    "CompiledAsPython",
    "Examiner",
    "Recorder",
    "StopMode",
    "TorchFrontend",
    "investigate",
    "is_model",
    "record_step",
    "require_state",
    "torch_stops",
    "within",
]


OWN_NAMESPACES = ("aten", "prims", "prim", "quantized", "inductor")
"""Namespaces of torch's own operators."""

OVERLOAD, OVERLOAD_PACKET = type(torch.ops.aten.add.Tensor), type(torch.ops.aten.add)


def opcheck_complaints(request: Request) -> Mapping[str, str] | None:
    """The complaint of each test of `opcheck`, empty if it passes; None if the function is no custom operator."""
    operator: Any = request.func
    if not _is_custom(operator):
        return None
    inputs = tuple(map_tensors(_copied, argument) for argument in request.positional)
    keywords = {name: map_tensors(_copied, value) for name, value in (request.kwargs or {}).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.library.opcheck(operator, inputs, keywords, raise_exception=False)
    return {name.removeprefix("test_"): _complaint(answer) for name, answer in found.items()}


def _is_custom(operator: Any) -> bool:
    if isinstance(operator, OVERLOAD):
        return operator.namespace not in OWN_NAMESPACES
    if isinstance(operator, OVERLOAD_PACKET):
        return _is_custom(getattr(operator, operator.overloads()[0]))
    return isinstance(operator, getattr(torch.library, "CustomOpDef", ()))  # of `torch.library.custom_op`


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that requires grad wherever its dtype allows it, as `opcheck` expects."""
    floating = tensor.is_floating_point() or tensor.is_complex()
    return tensor.detach().clone().requires_grad_(floating)


def _complaint(answer: Any) -> str:
    return "" if answer == "SUCCESS" else " ".join(str(answer).split()) or type(answer).__name__


def compiled_problem(problem: TorchProblem, request: Request) -> TorchProblem:
    """The problem with the function compiled, at the same point."""
    # Compiled code of an earlier function with the same name must not be reused.
    torch.compiler.reset()
    function = callable_of(request.func)

    def plain(*args: Any, **kwargs: Any) -> Any:  # `torch.compile` accepts neither classes nor operators
        return function(*args, **kwargs)

    compiled = torch.compile(function if isinstance(function, nn.Module) else plain, dynamic=False)
    binding = replace(bind(replace(request, func=compiled)), isolates_passes=problem.isolates_passes)
    return TorchProblem(binding, 0, problem.masked)


MAX_UNSPECIFIED = 10_000
"""Unspecified elements up to which a failed check is repeated with the other semantics."""


def semantics(context: Context) -> Iterator[Finding]:
    """A passing finding for every sparse input and output, which says which elements were compared."""
    problem = context.problem
    assert isinstance(problem, TorchProblem)
    for remark in remarks(problem):
        yield Finding("semantics", Verdict.PASS, remark)


def remarks(problem: TorchProblem) -> Iterator[str]:
    """A sentence for every sparse input and output about the elements that count."""
    meaning = (
        "masked semantics: only those count" if problem.masked else "unmasked semantics: the others count as zeros"
    )
    leaves = problem.domain.leaves + problem.codomain.leaves
    for leaf, tensor in zip(leaves, problem.inputs + problem.differentiable_outputs, strict=True):
        if is_sparse(tensor):
            total, holes = tensor.numel(), unspecified(tensor)
            counted = f"{total - holes} of {total} elements specified; {meaning}"
            yield f"{leaf.name} is {_kind(tensor)} with " + (
                counted if holes else f"all of its {total} elements specified"
            )


def explained(report_for: Callable[[bool], Report], arguments: Sequence[Any], masked: bool) -> Report:
    """The report for these semantics, with a sentence about the other ones unless it passes; exceptions get a note."""
    try:
        report = report_for(masked)
    except (RuntimeError, OutputsChangedError) as error:
        add_sparse_note(error, arguments, masked)
        raise
    return report if report.passed else with_other_semantics_tried(report, arguments, masked, report_for)


def with_other_semantics_tried(
    report: Report, arguments: Sequence[Any], masked: bool, again: Callable[[bool], Report]
) -> Report:
    """A report that does not pass, with a sentence about the verdict under the other semantics, if that may differ."""
    undecided = (finding for finding in report.findings if finding.verdict is Verdict.INCONCLUSIVE)
    shown = next(iter((*report.failures, *undecided)), None)
    holes = sum(unspecified(a) for a in arguments if isinstance(a, Tensor) and is_differentiable(a))
    if shown is None or not 0 < holes <= MAX_UNSPECIFIED:
        return report
    try:
        other_report = again(not masked)
    except Exception:  # the function does not accept the other semantics
        return report
    passes = not other_report.failures if report.failures else other_report.passed
    if not passes and not report.failures:
        return report
    used, other = ("masked", "unmasked") if masked else ("unmasked", "masked")
    sentence = (
        f"This is the verdict of {used} semantics; with masked={not masked} ({other} semantics) the check "
        f"{'passes: is that what the function means?' if passes else 'fails too.'}"
    )
    explained = replace(
        shown,
        # If the check passes under the other semantics, that is the diagnosis.
        advice=sentence if passes else f"{shown.advice} {sentence}".lstrip(),
        facts={**shown.facts, "masked": masked, "passes otherwise": passes},
    )
    if not report.failures:
        # Unspecified elements are equal, which the comparison takes for a kink that may explain a difference.
        undecided_in = f"undecided in {used} semantics"
        explained = replace(explained, headline=undecided_in)
        report = undecided_because(report, undecided_in)
    return replace(report, findings=tuple(explained if finding is shown else finding for finding in report.findings))


def add_sparse_note(error: Exception, arguments: Sequence[Any], masked: bool) -> None:
    """Add a note to an exception if there are sparse inputs: torch lacks many operators for them."""
    kinds = ", ".join(sorted({_kind(a) for a in arguments if isinstance(a, Tensor) and is_sparse(a)}))
    if not kinds or not hasattr(error, "add_note"):
        return
    if isinstance(error, OutputsChangedError) and not masked:
        error.add_note(
            f"The check had inputs of layout {kinds} and unmasked semantics: next to the point, all their elements are "
            "specified. A function whose outputs depend on the pattern needs masked=True."
        )
    else:
        error.add_note(
            f"The check had inputs of layout {kinds}. If torch lacks an operator or a derivative for them, this says "
            "nothing about the gradient; as_sparse_gradcheck may get around it."
        )


def _kind(tensor: Tensor) -> str:
    return str(tensor.layout).removeprefix("torch.")


class TorchFrontend(Frontend):
    """`core.frontend.Frontend` for torch; its docstrings say what each function does."""

    bind = staticmethod(bind)
    settle = staticmethod(settle)
    with_constant_inputs = staticmethod(with_constant_inputs)
    wider_version = staticmethod(wider_problem)
    on_smooth_piece = staticmethod(on_smooth_piece)
    on_same_branches = staticmethod(on_same_branches)
    plain_problem = staticmethod(user_reference.plain_problem)
    formats = staticmethod(user_reference.formats)
    cast = staticmethod(user_reference.cast)
    second_order = staticmethod(second_order_problem)
    explained = staticmethod(explained)
    registration_complaints = staticmethod(opcheck_complaints)
    compiled = staticmethod(compiled_problem)

    def problem(self, binding: Binding, seed: int, *, masked: bool = False) -> TorchProblem:
        try:
            problem = TorchProblem(binding, seed, masked)
        except RuntimeError as error:
            if LEAF_WRITTEN not in str(error):
                raise
            raise InvalidProblemError(
                "the function writes to a parameter or captured tensor that requires grad, which torch refuses: "
                "write to a copy of it"
            ) from error
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
        return rounded_as(problem, call)

    def tf32_products(self, problem: TorchProblem) -> AbstractContextManager[object] | None:
        return user_reference.tf32_products() if may_round_products(problem) else None

    def points(
        self, problem: TorchProblem, request: Request, domain: Any, seed: int, *, thorough: bool
    ) -> Iterator[Point]:
        return generated_points(PointSource(problem, request.func, domain, seed), thorough)

    def shapes(
        self, problem: TorchProblem, request: Request, domain: Any, seed: int, *, thorough: bool, empty: bool
    ) -> Iterator[Point]:
        return generated_shapes(PointSource(problem, request.func, domain, seed), thorough, empty=empty)

    def has_lost_device(self, problem: TorchProblem) -> bool:
        if problem.home.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(problem.home)
        except Exception:
            return True
        return False

    def require_separate(self, request: Request) -> None:
        for tensor in nested_tensors((request.inputs, request.kwargs)):
            require_separate(tensor)

    def preserved_state(self, function: Any, arguments: Sequence[Any]) -> AbstractContextManager[None]:
        return PreservedState(function, nested_tensors(arguments), standard_settings=True)

    def notes(self, problem: TorchProblem) -> Iterator[str]:
        yield from problem.binding.notes
        yield from problem.output_notes
        if may_round_products(problem):
            yield "torch's own products of float32 numbers ran in full precision, not in TF32"
        yield from remarks(problem)
        for leaf, tensor in zip(problem.domain.leaves, problem.inputs, strict=True):
            if tensor.layout is torch.strided and not bool(torch.isfinite(tensor).all()):
                yield f"{leaf.name} contains NaN or infinity: no step changes these elements, so they were not compared"
        leaves = set(map(id, leaves_behind(problem.differentiable_outputs)))
        if captured := len(leaves.difference(map(id, problem.arguments))):
            words = "tensors that require grad and are no inputs were not checked"
            yield f"{words} ({captured}): pass them as inputs, or check the module itself"


FRONTEND: Frontend = TorchFrontend()
