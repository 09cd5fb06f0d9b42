"""Checks one recorded call alone, and says in one sentence what is wrong with it."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradvet.core.blame import MODULE, Culprit, Piece, cause_of, input_of, main_finding
from gradvet.core.events import announce_stage
from gradvet.core.frontend import Request
from gradvet.core.neighbourhood import named_slices
from gradvet.core.results import Report, Verdict
from gradvet.errors import InvalidProblemError, first_line
from gradvet.frontends.torch.arguments import tensors_of
from gradvet.frontends.torch.binding import callable_of, widened_copy
from gradvet.frontends.torch.blame.replaying import (
    Around,
    arguments_of,
    is_locally_constant,
    plainly,
    refusal,
    request_of,
)
from gradvet.frontends.torch.blame.sketches import Call
from gradvet.frontends.torch.blame.source_lines import definition, line_writing
from gradvet.frontends.torch.blame.stops import StopMode
from gradvet.frontends.torch.preservation import PreservedState
from gradvet.frontends.torch.random_state import preserved_rng
from gradvet.options import Options

Examine = Callable[[Request, Call, Options, int], Report]
"""Checks a request that replays a call with these options, up to an order of derivatives."""

MAX_PIECE_SECONDS = 20.0
"""Time for the check of one piece."""

OUT_OF_TIME = "not checked: the time was spent"
SURROGATE = "accepted: the function is locally constant, so its derivative is one by design (stops='constant')"
IS_SURROGATE = (
    "the values do not change when this input does, and the derivative is not zero: that of a surrogate, as for a "
    "straight-through estimator (if it is meant so, pass surrogate={{{}: function}} with the function that has it)"
)
FORWARD_CHECK, ACCUMULATION_CHECK = "forward", "accumulation"
RIGHT_HERE = "wrong alone, and right with the arguments that the model gives it"
HAZARD = "right as it was called here, and wrong under other conditions"


@dataclass
class Examiner:
    """Checks pieces until the time is spent, which `investigate` begins to count."""

    examine: Examine
    options: Options
    seconds: float
    order: int = 1
    accepts_stops: bool = False
    surrogates: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    """Functions whose derivatives classes of `autograd.Function` are meant to have."""
    started: float = 0.0

    @property
    def seconds_left(self) -> float:
        return self.started + self.seconds - time.perf_counter()

    def piece(self, call: Call, around: Around = plainly) -> Piece:
        """The piece with its verdict. Calls the function and its derivative."""
        if self.seconds_left <= 0:
            return piece_of(call, Verdict.SKIPPED, OUT_OF_TIME)
        announce_stage(f"{call.path or 'the model'}: {call.kind} {call.name}")
        with PreservedState(call.target, call.tensors), torch.enable_grad():
            if reason := refusal(call):
                return piece_of(call, Verdict.SKIPPED, f"could not be replayed: {reason}")
            try:
                report = self._report(call, around)
            except InvalidProblemError as error:
                return piece_of(call, Verdict.SKIPPED, f"nothing to check: {error}")
            except Exception as error:
                words = f"could not be checked: {type(error).__name__}: {first_line(error)}"
                return piece_of(call, Verdict.SKIPPED, words)
        if self.accepts_stops and report.failures and _is_surrogate(call, report):
            return piece_of(call, Verdict.PASS, SURROGATE, report)
        return piece_of(call, report.verdict, "", report)

    def _report(self, call: Call, around: Around) -> Report:
        options = replace(self.options, seconds=min(self.seconds_left, MAX_PIECE_SECONDS))
        with preserved_rng():
            call.random.restore()
            return self.examine(self._request(call, around), call, options, self.order)

    def _request(self, call: Call, around: Around) -> Request:
        if not self.surrogates or around is not plainly:
            return request_of(call, around)
        if call.kind == MODULE:
            return request_of(call, StopMode(surrogates=self.surrogates).around)
        return replace(request_of(call), surrogate=self.surrogates.get(call.target))


def piece_of(call: Call, verdict: Verdict, reason: str, report: Report | None = None) -> Piece:
    """What is known about a call."""
    return Piece(call.path, call.kind, call.name, verdict, call.place, call.called, reason, call.number, report)


def _is_surrogate(call: Call, report: Report) -> bool:
    """Whether the function does not vary at all with the inputs whose derivatives are wrong. Calls the function."""
    names = {entry.input.name for finding in report.failures for entry in finding.mismatches}
    try:
        positions = [int(name.removeprefix("input ").partition("[")[0]) for name in names]
        return bool(positions) and call.kind != MODULE and is_locally_constant(call, positions)
    except (ValueError, IndexError):  # an input with another name
        return False


def culprit_of(call: Call, piece: Piece, others: tuple[str, ...] = (), *, has_known_surrogate: bool = False) -> Culprit:
    """The culprit for a Function or an operator that fails. Calls the function."""
    finding = main_finding(_report_of(piece))
    name = input_of(finding)
    cause = (wrong_range(call, name) if finding.check == "reverse" and name else "") or cause_of(finding)
    if not has_known_surrogate and _is_surrogate(call, _report_of(piece)):
        cause = IS_SURROGATE.format(piece.name)
    place = piece.place or piece.called
    if finding.check == FORWARD_CHECK:
        place = definition(call.target.jvp) or piece.called
    elif finding.check == ACCUMULATION_CHECK and isinstance(call.target, type):
        place = line_writing(call.target, "grad") or place
    return Culprit(piece.path, f"{piece.kind} {piece.name}", place, cause, name, piece.called, others, (), finding)


def _report_of(piece: Piece) -> Report:
    assert piece.report is not None
    return piece.report


RELATIVE_STEP = 1e-6
SAME = 1e-3
"""Relative difference up to which two slopes count as equal here."""


MAX_SLICES = 8
"""Slices of a wrong range that are compared one by one."""


def wrong_range(call: Call, name: str) -> str:
    """A clause such as `the sign of the second half is wrong`; nothing if no part is right. Calls the Function.

    `name` is the input as a report names it, `input 0`.
    """
    try:
        with preserved_rng(), torch.enable_grad():
            call.random.restore()
            return _clause(call, int(name.removeprefix("input ")))
    except Exception:  # no such input, no double precision, or an error of the function
        return ""


def _clause(call: Call, position: int) -> str:
    """The clause about one argument, by the gradient of random sums of the outputs in double precision."""
    args, kwargs = arguments_of(call, list(map(widened_copy, call.tensors)))
    x, generator = args[position].detach(), torch.Generator().manual_seed(0)

    def random(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like.device)

    def outputs(x: Tensor) -> list[Tensor]:
        call.random.restore()
        results = tensors_of(callable_of(call.target)(*args[:position], x, *args[position + 1 :], **kwargs))
        return [y for y in results if y.is_floating_point() and (y.requires_grad or not x.requires_grad)]

    point = x.clone().requires_grad_()
    values = outputs(point)
    cotangents = [random(y) for y in values]
    gradient = torch.autograd.grad(values, point, cotangents)[0]
    step = RELATIVE_STEP * max(1.0, float(x.abs().max()))

    def ratio(axis: int, start: int, stop: int) -> float:
        """Gradient over difference along a random direction in a range; not a number where two of them disagree."""
        found = []
        for _ in range(2):
            u = torch.zeros_like(x)
            u.narrow(axis, start, stop - start).copy_(random(x).narrow(axis, start, stop - start))
            pairs = zip(outputs(x + step * u), outputs(x - step * u), cotangents, strict=True)
            difference = sum(float(((ahead - behind) * v).sum()) for ahead, behind, v in pairs) / (2.0 * step)
            slope = float((gradient * u).sum())
            found.append(slope / difference if difference else math.nan if slope else 1.0)
        return found[0] if math.isclose(*found, rel_tol=SAME, abs_tol=SAME) else math.nan

    def is_right(axis: int, start: int, stop: int) -> bool:
        return start == stop or math.isclose(ratio(axis, start, stop), 1.0, rel_tol=SAME)

    def is_right_before_the_end(axis: int, size: int) -> bool:
        return is_right(axis, x.shape[axis] - size, x.shape[axis])

    for axis in reversed(range(x.dim())):
        length = x.shape[axis]
        if not (is_right(axis, 0, 1) or is_right(axis, length - 1, length)):
            continue
        start = _largest(length, functools.partial(is_right, axis, 0))
        after = _largest(length - start, functools.partial(is_right_before_the_end, axis))
        wrong = range(start, length - after)
        # Between wrong slices may be right ones, and then there is no range to name.
        if 0 < len(wrong) < length and not any(
            is_right(axis, place, place + 1) for place in wrong[:: -(-len(wrong) // MAX_SLICES)]
        ):
            return _described(_named(wrong, axis, x.shape), ratio(axis, start, wrong.stop))
    return ""


def _named(wrong: range, axis: int, lengths: Sequence[int]) -> str:
    """The slices of a range along one dimension."""
    for half, start in (("first half", 0), ("second half", lengths[axis] // 2)):
        if lengths[axis] == 2 * len(wrong) and wrong.start == start:
            return f"the {half}" + ("" if axis == len(lengths) - 1 else f" along dimension {axis}")
    return named_slices(wrong, axis, lengths)


def _largest(most: int, is_right: Callable[[int], bool]) -> int:
    """The largest size, at most `most`, up to which all sizes are right: by bisection."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_right(middle) else (low, middle - 1)
    return low


def _described(where: str, ratio: float) -> str:
    if math.isclose(ratio, -1.0, rel_tol=SAME):
        return f"the sign of {where} is wrong"
    if abs(ratio) <= SAME:
        return f"{where} of the gradient is zero"
    return f"{where} of the gradient is wrong" + ("" if math.isnan(ratio) else f" by a factor of {ratio:.4g}")
