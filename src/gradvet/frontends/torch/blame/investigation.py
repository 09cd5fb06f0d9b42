"""Finds what is wrong in what was recorded: Functions and operators first, then writes, then the module tree."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from gradvet.core.blame import FUNCTION, MODULE, OPERATOR, ROOT, BlameReport, Culprit, Piece, Stop, is_hazard
from gradvet.core.provenance import environment, title_of
from gradvet.core.results import Report, SourceCode, Verdict
from gradvet.frontends.torch import private
from gradvet.frontends.torch.arguments import tensors_of
from gradvet.frontends.torch.autograd_graph import leaves_behind
from gradvet.frontends.torch.blame.backward_pass import (
    SAVED_TENSOR_WRITE,
    accumulation_hooks_that_change_grad,
    hook_that_writes_to_grad,
    overwritten_saved_tensors,
    writes_to_grad,
)
from gradvet.frontends.torch.blame.module_tree import CODE, ModuleTree, shown_tree
from gradvet.frontends.torch.blame.pieces import HAZARD, RIGHT_HERE, SURROGATE, Examiner, culprit_of
from gradvet.frontends.torch.blame.recording import Recorder, is_below, scripted_paths
from gradvet.frontends.torch.blame.replaying import run
from gradvet.frontends.torch.blame.sketches import Call
from gradvet.frontends.torch.blame.source_lines import line_writing
from gradvet.frontends.torch.blame.stops import StopMode
from gradvet.frontends.torch.preservation import PreservedState
from gradvet.frontends.torch.private import CompiledAsPython

SCRIPTED = "{} is scripted: nothing in it can be checked alone (pass the model before torch.jit.script or trace)"


@dataclass
class _Answer:
    culprits: list[Culprit] = field(default_factory=list)
    warnings: list[Culprit] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    accepted: list[Stop] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_complete: bool = False


def investigate(recorder: Recorder, examiner: Examiner, known: Report | None = None) -> BlameReport:
    """The report about a recording; `known` is the one about the whole model. Replays the recorded calls."""
    examiner = replace(examiner, started=time.perf_counter())
    with recorder.as_recorded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of replayed code, which gave them when it ran first
        return _report(recorder, examiner, known)


def _report(recorder: Recorder, examiner: Examiner, known: Report | None) -> BlameReport:
    answer = _Answer()
    _check_functions(recorder, examiner, answer)
    model = recorder.model
    if model is not None and not answer.culprits:
        for top in _tops(recorder):
            _find_writes(recorder, examiner, top, answer)
            with suppress(Exception), PreservedState(top.target, top.tensors):
                answer.warnings += _loose_parameters(model, tensors_of(run(top)))
    if model is not None and not answer.culprits:
        _check_modules(recorder, examiner, answer, known)
        _check_second_derivatives(recorder, examiner, answer)
    answer.notes += _notes(recorder, model)
    return BlameReport(
        title=title_of(type(model)) if model is not None else "watched code",
        culprits=tuple(answer.culprits),
        pieces=tuple(answer.pieces),
        tree=shown_tree(model, answer.pieces, answer.culprits) if model is not None else None,
        seconds=time.perf_counter() - examiner.started,
        seed=examiner.options.seed,
        warnings=tuple(answer.warnings),
        accepted=tuple(answer.accepted),
        notes=tuple(answer.notes),
        is_complete=answer.is_complete,
        environment=environment(),
    )


def _check_functions(recorder: Recorder, examiner: Examiner, answer: _Answer) -> None:
    """Check each Function and operator. Of the failures of one Function, the first is the culprit."""
    calls = [call for call in recorder.calls if call.kind in (FUNCTION, OPERATOR)]
    # One call of each Function first, so that all of them are checked before the time is spent.
    firsts = {id(call.target): call for call in reversed(calls)}
    order = [*(call for call in calls if firsts[id(call.target)] is call)]
    order += [call for call in calls if firsts[id(call.target)] is not call]
    pieces = {id(call): examiner.piece(call) for call in order}
    failed: dict[int, list[Call]] = {}
    tree = ModuleTree(recorder, examiner)
    for call in calls:
        piece = pieces[id(call)]
        if piece.verdict is not Verdict.FAIL or piece.report is None:
            continue
        report, is_right_here = piece.report, tree.explains_away(call, piece.report)
        if is_right_here:
            answer.warnings.append(replace(culprit_of(call, piece), cause=RIGHT_HERE))
            report = replace(report, findings=tuple(one for one in report.findings if one.check != "reverse"))
            piece = pieces[id(call)] = replace(piece, report=report)
        if not report.failures:
            pieces[id(call)] = replace(piece, verdict=Verdict.PASS, reason=RIGHT_HERE)
            continue
        if is_hazard(report, called_once=recorder.count(call) == 1, is_right_here=is_right_here):
            answer.warnings.append(culprit_of(call, piece))
            pieces[id(call)] = replace(piece, verdict=Verdict.INCONCLUSIVE, reason=HAZARD)
            continue
        if not tree.is_fault_inside(call):
            failed.setdefault(id(call.target), []).append(call)
    answer.pieces += [*(pieces[id(call)] for call in calls), *tree.pieces.values()]
    answer.culprits += _merged(tree.culprits)
    for found in _innermost(failed):
        others = tuple(call.path for call in found[1:] if call.path != found[0].path)
        known = found[0].target in examiner.surrogates
        answer.culprits.append(culprit_of(found[0], pieces[id(found[0])], others, has_known_surrogate=known))
    answer.is_complete = recorder.model is None and bool(calls) and not recorder.dropped


def _innermost(failed: dict[int, list[Call]]) -> list[list[Call]]:
    """The failing calls of Functions whose forward passes call no other one that fails, as that explains them too."""
    pairs = [(call.target, call.outer.target) for calls in failed.values() for call in calls if call.outer is not None]
    around = {id(outer) for target, outer in pairs if outer is not target}
    inner = [calls for target, calls in failed.items() if target not in around]
    return inner or list(failed.values())  # Functions that call each other


def _check_second_derivatives(recorder: Recorder, examiner: Examiner, answer: _Answer) -> None:
    """Where no line explains a wrong module, check the second derivatives of its Functions.

    Only if the model uses them, as gradient penalties do.
    """
    is_unexplained = any(culprit.what.startswith(CODE) for culprit in answer.culprits)
    has_functions = any(piece.kind != MODULE for piece in answer.pieces)
    if not (is_unexplained and has_functions and _differentiates(recorder)):
        return
    second = _Answer()
    _check_functions(recorder, replace(examiner, order=2), second)
    if second.culprits:
        answer.culprits = second.culprits
        answer.pieces = [*second.pieces, *(piece for piece in answer.pieces if piece.kind == MODULE)]


def _differentiates(recorder: Recorder) -> bool:
    """Whether derivatives that the model takes are part of its graph. Calls the model.

    Needed by `test_function_without_second_derivatives_is_not_blamed_for_another_line`.
    """
    mode = StopMode()
    for call in recorder.calls:
        if call.kind == MODULE and call.path == "":
            with suppress(Exception), PreservedState(call.target, call.tensors), CompiledAsPython():
                run(call, mode.around)
    return mode.differentiates


def _find_writes(recorder: Recorder, examiner: Examiner, root: Call, answer: _Answer) -> None:
    """Writes to saved tensors and to `.grad`. Code that does not run in such a mode is left out.

    Reversible layers add gradients of their parameters to `.grad` by themselves: that is a fault if they are wrong.
    """
    paths = {id(module): path for path, module in recorder.model.named_modules()} if recorder.model is not None else {}
    try:
        with PreservedState(root.target, root.tensors), CompiledAsPython():
            written = overwritten_saved_tensors(root)
            hooks = accumulation_hooks_that_change_grad(root)
            accumulates = not (written or hooks) and writes_to_grad(root, StopMode().around)  # sees through checkpoints
            hook = hook_that_writes_to_grad(root) if accumulates else None
            accumulates &= hook is not None or examiner.piece(root).verdict is Verdict.FAIL
    except Exception as error:
        answer.notes.append(f"writes to saved tensors and to .grad were not looked for ({type(error).__name__})")
        return
    answer.culprits += [
        Culprit(paths.get(id(one.owner), ""), SAVED_TENSOR_WRITE, one.line, what) for one, what in written
    ]
    answer.culprits += [Culprit(paths.get(id(one.owner), ""), one.name, one.place, one.what) for one in hooks]
    if accumulates:
        path = paths.get(id(hook.owner), "") if hook else ""
        answer.culprits.append(_accumulation(recorder, path, hook.place if hook else None))


def _accumulation(recorder: Recorder, path: str, place: SourceCode | None) -> Culprit:
    """The hook whose path and line are given, or the Function whose code writes to `.grad`, if there is one."""
    subject = "the backward pass" if place is None else "a hook that is registered or defined here"
    cause = f"{subject} changes .grad of a parameter beside the gradient that autograd adds"
    for call in recorder.calls if place is None else ():
        line = line_writing(call.target, "grad") if call.kind == FUNCTION else None
        if line is not None:
            return Culprit(call.path, "write to .grad", line, cause, called=call.called)
    return Culprit(path, "write to .grad", place, cause)


def _loose_parameters(model: nn.Module, outputs: list[Tensor]) -> Iterator[Culprit]:
    """Warnings of leaves behind the outputs that attributes of modules hold and that are no registered parameters."""
    own = {id(parameter) for parameter in model.parameters()}
    leaves = leaves_behind([y for y in outputs if y.requires_grad])
    loose = {id(leaf): leaf for leaf in leaves if id(leaf) not in own}
    for path, module in model.named_modules() if loose else ():
        for attribute, value in private.attributes_of(module):
            for tensor in tensors_of(value) if not isinstance(value, nn.Module) else ():
                if loose.pop(id(tensor), None) is not None:
                    shape = "x".join(map(str, tensor.shape)) or "scalar"
                    cause = f"a tensor ({shape}) that requires grad takes part in the forward pass and is no registered"
                    place = line_writing(type(module), attribute)
                    yield Culprit(path, f"attribute {attribute}", place, f"{cause} parameter")


def _check_modules(recorder: Recorder, examiner: Examiner, answer: _Answer, known: Report | None) -> None:
    surrogates = [piece for piece in answer.pieces if piece.reason == SURROGATE]
    answer.notes += dict.fromkeys(
        f"derivative taken as given, of values that are constant by themselves: {piece}" for piece in surrogates
    )
    tree = ModuleTree(recorder, examiner, known, surrogates)
    tops = [call.path for call in _tops(recorder)]
    for path in tops:
        tree.visit(path)
    answer.culprits += _merged(tree.culprits)
    answer.accepted += tree.accepted.values()
    answer.pieces += tree.pieces.values()
    reports = [report for path in tops if (report := tree.pieces[path].report) is not None]
    answer.notes += [f.headline for r in reports for f in r.findings if f.check == "detached" and f.facts]
    passes = bool(tops) and all(tree.pieces[path].verdict is Verdict.PASS for path in tops)
    answer.is_complete = passes and (tops == [""] or not recorder.dropped)


def _tops(recorder: Recorder) -> list[Call]:
    """The call of the model; where it was not called as a whole, those of modules that no recorded one contains."""
    calls = [call for call in recorder.calls if call.kind == MODULE]
    paths = {call.path for call in calls}
    return [call for call in calls if not any(is_below(call.path, other) for other in paths - {call.path})]


def _merged(culprits: list[Culprit]) -> list[Culprit]:
    """The culprits with those of the same line in one."""
    by_line: dict[tuple[str, str], list[Culprit]] = {}
    for culprit in culprits:
        by_line.setdefault((culprit.what, str(culprit.place)), []).append(culprit)
    return [replace(found[0], others=tuple(other.path for other in found[1:])) for found in by_line.values()]


def _notes(recorder: Recorder, model: nn.Module | None) -> list[str]:
    """What was recorded and kept."""
    kinds = (FUNCTION, OPERATOR)
    seen = sum(count for (kind, _, _), count in recorder.seen.items() if kind in kinds)
    kept = sum(call.kind in kinds for call in recorder.calls)
    notes = [f"calls of custom Functions and operators: {seen} recorded, {kept} kept and replayed"] if seen else []
    if not seen:
        more = "; gradvet.watch(model) checks modules too" if model is None else ""
        notes.append(f"no custom Function or operator was called with a tensor that requires grad{more}")
    for reason, number in recorder.dropped.items():
        notes.append(f"the arguments of {number} call{'s' * (number != 1)} were not kept: {reason}")
    scripted = scripted_paths(model) if model is not None else []
    notes += [SCRIPTED.format(path or ROOT) for path in scripted]
    tops = [call.path for call in _tops(recorder)]
    if model is not None and tops != [""] and not recorder.dropped and not scripted:
        checked = f": {', '.join(tops)} were checked, and the code that calls them was not" if tops else ""
        notes.append(f"the model was not called as a whole with grad mode on{checked}")
    return notes
