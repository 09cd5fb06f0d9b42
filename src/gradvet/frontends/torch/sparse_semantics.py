"""Masked or unmasked semantics of sparse tensors: notes for reports, and the verdict under the other semantics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from gradvet.core.context import Context
from gradvet.core.results import Finding, Report, Verdict
from gradvet.errors import OutputsChangedError
from gradvet.frontends.torch.binding import is_differentiable
from gradvet.frontends.torch.layouts import is_sparse, unspecified
from gradvet.frontends.torch.problem import TorchProblem

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
    leaves = problem.domain.leaves + problem.codomain.leaves
    for leaf, tensor in zip(leaves, problem.inputs + problem.differentiable_outputs, strict=True):
        if is_sparse(tensor):
            yield f"{leaf.name} is {_remark(tensor, problem.masked)}"


def explained(report_for: Callable[[bool], Report], arguments: Sequence[Any], masked: bool) -> Report:
    """The report for these semantics, with a sentence about the other ones if it fails; exceptions get a note."""
    try:
        report = report_for(masked)
    except (RuntimeError, OutputsChangedError) as error:
        add_sparse_note(error, arguments, masked)
        raise
    return with_other_semantics_tried(report, arguments, masked, report_for) if report.failures else report


def with_other_semantics_tried(
    report: Report, arguments: Sequence[Any], masked: bool, again: Callable[[bool], Report]
) -> Report:
    """A failed report with a sentence about the verdict under the other semantics, if that may differ."""
    holes = sum(unspecified(a) for a in arguments if isinstance(a, Tensor) and is_differentiable(a))
    if not 0 < holes <= MAX_UNSPECIFIED:
        return report
    try:
        passes = not again(not masked).failures
    except Exception:  # the function does not accept the other semantics
        return report
    used, other = ("masked", "unmasked") if masked else ("unmasked", "masked")
    sentence = (
        f"This is the verdict of {used} semantics; with masked={not masked} ({other} semantics) the check "
        f"{'passes: is that what the function means?' if passes else 'fails too.'}"
    )
    failure = report.failures[0]
    explained = replace(
        failure,
        # If the check passes under the other semantics, that is the diagnosis.
        advice=sentence if passes else f"{failure.advice} {sentence}".lstrip(),
        facts={**failure.facts, "masked": masked, "passes otherwise": passes},
    )
    return replace(report, findings=tuple(explained if finding is failure else finding for finding in report.findings))


def add_sparse_note(error: Exception, arguments: Sequence[Any], masked: bool) -> None:
    """Add a note to an exception if there are sparse inputs: torch lacks many operators for them."""
    kinds = sorted({_kind(a) for a in arguments if isinstance(a, Tensor) and is_sparse(a)})
    if kinds and hasattr(error, "add_note"):
        error.add_note(_note(error, ", ".join(kinds), masked))


def _note(error: Exception, kinds: str, masked: bool) -> str:
    if isinstance(error, OutputsChangedError) and not masked:
        return (
            f"The check had inputs of layout {kinds} and unmasked semantics: next to the point, all their elements are "
            "specified. A function whose outputs depend on the pattern needs masked=True."
        )
    return (
        f"The check had inputs of layout {kinds}. If torch lacks an operator or a derivative for them, this says "
        "nothing about the gradient; as_sparse_gradcheck may get around it."
    )


def _remark(tensor: Tensor, masked: bool) -> str:
    total, holes = tensor.numel(), unspecified(tensor)
    if not holes:
        return f"{_kind(tensor)} with all of its {total} elements specified"
    meaning = "masked semantics: only those count" if masked else "unmasked semantics: the others count as zeros"
    return f"{_kind(tensor)} with {total - holes} of {total} elements specified; {meaning}"


def _kind(tensor: Tensor) -> str:
    return str(tensor.layout).removeprefix("torch.")
