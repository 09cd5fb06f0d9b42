"""Drop-in replacements for `torch.autograd.gradcheck` and `gradgradcheck`: same calls, same verdicts.

Slow mode gives the verdict of the entry-by-entry comparison, by a certificate where random projections give one. Fast
mode gives a verdict within a bounded number of evaluations; where it certifies nothing, torch's criterion decides.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError as TorchGradcheckError
from torch.overrides import is_tensor_like

from gradvet.checks import determinism, drop_in, linearity, outputs, transformations
from gradvet.compat.messages import message
from gradvet.core.context import Context
from gradvet.core.events import fresh_seed, has_listeners, one_at_a_time, publish
from gradvet.core.problem import Problem
from gradvet.core.provenance import environment, title_of
from gradvet.core.results import Finding, Report, Verdict
from gradvet.core.runner import CheckFunction, code_behind, make_report, run_until_failure
from gradvet.core.vectors import Array
from gradvet.errors import OutputsChangedError
from gradvet.frontends.torch import add_sparse_note, semantics, with_other_semantics_tried
from gradvet.frontends.torch.binding import drop_in_binding
from gradvet.frontends.torch.inputs import require_precision, require_values
from gradvet.frontends.torch.layouts import numbers_of
from gradvet.frontends.torch.preservation import PreservedState
from gradvet.frontends.torch.problem import TorchProblem
from gradvet.frontends.torch.second_order import drop_in_gradient, random_cotangents
from gradvet.options import Options, Tolerance

SLOW_MISS = 1e-9
FAST_MISS = 5e-2
"""Probabilities, at most, that an error just outside the tolerance goes unseen. A larger error is missed with a
probability that is smaller in proportion, in slow mode by its square or more."""

PROGRESS_DELAY_SECONDS = 2.0
"""Seconds after which a comparison of all entries is announced on a terminal."""


class GradcheckError(TorchGradcheckError):
    """The gradients are wrong; `report` says what was found."""

    def __init__(self, text: str, report: Report | None = None) -> None:
        super().__init__(text)
        self.report = report


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
    check_sparse_nnz: bool | None = None,
    exhaustive: bool = False,
) -> bool:
    """Check the derivatives of `func` at `inputs`, as `torch.autograd.gradcheck` does.

    With `exhaustive=True` every entry of the Jacobian is compared with its own difference, and no random projection
    stands for it: the miss probability is zero, and the cost grows with the number of entries.

    >>> import torch
    >>> x = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    >>> gradcheck(torch.sin, x)
    True
    """
    if not (check_forward_ad or check_backward_ad):
        raise AssertionError("Expected at least one of check_forward_ad or check_backward_ad to be True")
    if check_batched_grad and not check_backward_ad:
        raise AssertionError("check_batched_grad=True requires check_backward_ad to be True")
    if check_batched_forward_grad and not check_forward_ad:
        raise AssertionError("check_batched_forward_grad=True requires check_forward_ad to be True")
    _require_callable(func)
    eps, nondet_tol = _number("eps", eps), _number("nondet_tol", nondet_tol)
    if not 0.0 < eps < math.inf:
        raise ValueError(f"eps, the step of the differences, must be positive and finite, but it is {eps}")
    is_shown = raise_exception or has_listeners()
    options = Options(
        seed=fresh_seed(),
        step=eps,
        tolerance=Tolerance(_number("atol", atol), _number("rtol", rtol)),
        miss=FAST_MISS if fast_mode else SLOW_MISS,
        nondeterminism=nondet_tol,
        constant_within=nondet_tol if fast_mode else 0.0,
        masked=bool(chosen_semantics(masked, check_sparse_nnz)),
        exhaustive=bool(exhaustive),
        exact_types=bool(check_grad_dtypes),
        explains=is_shown,
    )
    catalogue = _catalogue(
        reverse=bool(check_backward_ad),
        forward=bool(check_forward_ad),
        undefined=bool(check_undefined_grad),
        batched=bool(check_batched_grad),
        batched_forward=bool(check_batched_forward_grad),
    )
    arguments = as_tuple(inputs)
    _check_inputs(arguments)
    started = time.perf_counter()
    context, findings = _examine(func, arguments, options, catalogue)
    seconds = time.perf_counter() - started
    # The last check is about detached outputs, and none runs after a failure.
    last = findings[-1] if findings else None
    failure = last if last is not None and last.verdict is Verdict.FAIL else None
    if last is not None and last.check == "detached":
        # torch does not warn: a suite that turns warnings into errors passes there.
        with suppress(UserWarning):
            warnings.warn(last.headline, stacklevel=2)
    if failure is not None and failure.check == "undefined grad_output":
        warnings.warn(
            "Backwards compatibility: New undefined gradient support checking feature found a function that does not "
            "treat an undefined grad_output as zero. Pass check_undefined_grad=False to leave this check out.",
            stacklevel=2,
        )
    if not (is_shown if failure else has_listeners()):
        return failure is None
    # Made only if it is shown.
    report = make_report(title_of(func), context, findings)
    if failure is not None and raise_exception:
        report = with_other_semantics_tried(
            report,
            arguments,
            options.masked,
            again=lambda masked: make_report(
                "", *_examine(func, arguments, replace(options, masked=masked), catalogue)
            ),
        )
    source = code_behind(report, context.problem, func)
    report = publish(replace(report, seconds=seconds, source=source, environment=environment()))
    if failure is None:
        return True
    if not raise_exception:
        return False
    raise GradcheckError(message(report.failures[0]), report)


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
    exhaustive: bool = False,
) -> bool:
    """Check the derivatives of the gradient of `func`, as `torch.autograd.gradgradcheck` does."""
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError("Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True")
    if check_undefined_grad and not check_rev_over_rev:
        raise AssertionError("check_undefined_grad=True requires check_rev_over_rev to be True")
    if check_batched_grad and not check_rev_over_rev:
        raise AssertionError("check_batched_grad=True requires check_rev_over_rev to be True")
    _require_callable(func)
    arguments = as_tuple(inputs)
    for index, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor) and argument.requires_grad:
            require_values(argument, f"input {index}")
            require_precision(argument, f"input {index}")
    if grad_outputs is None:
        cotangents = _drawn_cotangents(func, arguments, gen_non_contig_grad_outputs)
    else:
        cotangents = as_tuple(grad_outputs)
    if not cotangents:
        # torch calls the function without arguments then, which raises the same.
        raise TypeError("gradgradcheck needs a differentiable output, but no output of the function requires grad")
    try:
        return gradcheck(
            drop_in_gradient(func, arguments, cotangents),
            arguments + cotangents,
            eps=eps,
            atol=atol,
            rtol=rtol,
            raise_exception=raise_exception,
            nondet_tol=nondet_tol,
            check_undefined_grad=check_undefined_grad,
            check_grad_dtypes=check_grad_dtypes,
            check_batched_grad=check_batched_grad,
            check_forward_ad=check_fwd_over_rev,
            check_backward_ad=check_rev_over_rev,
            fast_mode=fast_mode,
            masked=masked,
            exhaustive=exhaustive,
        )
    except GradcheckError as error:
        text = f"{error}\nThese are second derivatives: outputs are gradients, and the last inputs are grad_outputs."
        raise GradcheckError(text, error.report) from None


def _require_callable(func: Any) -> None:
    if not callable(func):
        raise TypeError(f"a function was expected, found an object of type {type(func).__name__}")


def _number(name: str, given: Any) -> float:
    """A number, or what converts to one as a tensor does; a text does not count."""
    try:
        if not isinstance(given, (str, bytes)):
            return float(given)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise TypeError(f"{name} is a number of moderate size, found an object of type {type(given).__name__}")


def as_tuple(inputs: Any) -> tuple[Any, ...]:
    """Arguments as the caller may give them: several, or one alone."""
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs)
    return (inputs,)


def chosen_semantics(masked: bool | None, check_sparse_nnz: bool | None) -> bool | None:
    """The semantics of sparse tensors, by its present name or by its old one."""
    if check_sparse_nnz is None:
        return masked
    warnings.warn("check_sparse_nnz is the old name of masked: use masked", FutureWarning, stacklevel=3)
    if masked is not None and masked != check_sparse_nnz:
        raise ValueError(f"masked={masked} and check_sparse_nnz={check_sparse_nnz} contradict: give masked alone")
    return check_sparse_nnz


def torch_unit_vectors(problem: Problem) -> Callable[[int], Array]:
    """The vectors of torch's fast mode: it draws them at every call from a new generator with the default seed."""
    generator, home = torch.Generator("cpu"), problem.zeros(0).device

    def draw(size: int) -> torch.Tensor:
        vector = torch.rand(size, generator=generator, device="cpu").to(home, torch.float64)
        return vector.div_(torch.linalg.vector_norm(vector))

    return draw


def announced(text: str) -> AbstractContextManager[None]:
    """Print a line on a terminal if what is inside takes longer than two seconds."""
    return _announced(text) if sys.stderr.isatty() else SILENT


SILENT = nullcontext()


@contextmanager
def _announced(text: str) -> Iterator[None]:
    timer = threading.Timer(PROGRESS_DELAY_SECONDS, lambda: print(text, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


_reverse = functools.partial(drop_in.drop_in_reverse, draw=torch_unit_vectors, announce=announced)
_forward = functools.partial(drop_in.drop_in_forward, draw=torch_unit_vectors, announce=announced)


@functools.cache
def _catalogue(
    *, reverse: bool, forward: bool, undefined: bool, batched: bool, batched_forward: bool
) -> tuple[CheckFunction, ...]:
    """The checks of torch's gradcheck, in the order in which it reports them."""
    wanted: list[tuple[bool, CheckFunction]] = [
        (True, semantics),
        (True, outputs.constancy),
        (reverse, _reverse),
        (reverse, determinism.drop_in_determinism),
        (forward, outputs.drop_in_tangent_types),
        (forward, _forward),
        (forward and undefined, linearity.drop_in_undefined_tangents),
        (batched_forward, transformations.drop_in_batched_forward),
        (batched, transformations.drop_in_batched_reverse),
        (reverse, outputs.drop_in_metadata),
        (reverse, linearity.drop_in_zero_cotangent),
        (reverse and undefined, linearity.drop_in_undefined_cotangents),
        (True, outputs.drop_in_detached),
    ]
    return tuple(check for asked, check in wanted if asked)


@one_at_a_time
def _drawn_cotangents(func: Callable[..., Any], arguments: tuple[Any, ...], noncontiguous: bool) -> tuple[Any, ...]:
    state = PreservedState(func, arguments)
    with state, state:  # twice: the first restoration may be interrupted
        return random_cotangents(func, arguments, noncontiguous=noncontiguous)


@one_at_a_time
def _examine(
    func: Callable[..., Any], arguments: tuple[Any, ...], options: Options, catalogue: Sequence[CheckFunction]
) -> tuple[Context, list[Finding]]:
    """What the checks find, and the context in which they ran."""
    state = PreservedState(func, arguments)
    with state, state:  # twice: the first restoration may be interrupted
        try:
            problem = TorchProblem(drop_in_binding(func, arguments), options.seed, options.masked)
            _check_outputs(problem.differentiable_outputs)
            context = Context.of(problem, options)
            return context, run_until_failure(context, catalogue)
        except (RuntimeError, OutputsChangedError) as error:
            add_sparse_note(error, arguments, options.masked)
            raise


def _check_inputs(arguments: Sequence[Any]) -> None:
    checked = 0
    for index, argument in enumerate(arguments):
        if not is_tensor_like(argument) or not argument.requires_grad:
            continue
        checked += 1
        if isinstance(argument, torch.Tensor):
            require_values(argument, f"input {index}")
            require_precision(argument, f"input {index}")
        if argument.dtype not in (torch.float64, torch.complex128):
            warnings.warn(
                f"Input #{index} requires gradient and is not a double precision floating point or complex: it has "
                f"dtype {argument.dtype}, for which the default tolerances are too tight.",
                stacklevel=3,
            )
        numbers = numbers_of(argument)
        if (
            numbers is not None
            and 0 in numbers.stride()
            and any(step == 0 and length > 1 for step, length in zip(numbers.stride(), numbers.size(), strict=True))
        ):
            raise RuntimeError(
                f"The {index}th input has a dimension with stride 0: several of its elements share memory and cannot "
                "be moved apart. Pass input.contiguous() instead."
            )
    if not checked:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of the "
            f"{len(arguments)} arguments does; tensors inside containers are not checked."
        )


def _check_outputs(outputs: Sequence[Any]) -> None:
    for output in outputs:
        if getattr(output, "is_mkldnn", False):
            raise ValueError("MKLDNN output is not supported at gradcheck yet. Call to_dense() on it in func.")
        if output.layout is not torch.strided:
            raise ValueError(
                "Sparse output is not supported at gradcheck yet. Call to_dense(masked_grad=...) on it in func, or "
                "use as_sparse_gradcheck."
            )
