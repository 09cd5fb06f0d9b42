"""Checks the modules of a model from the root down, and finds the line in the code of the one to blame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import nn

from gradvet.core.blame import MODULE, Culprit, Piece, Stop, TreeNode, cause_of, input_of, main_finding
from gradvet.core.results import Finding, Report, Verdict
from gradvet.frontends.torch.arguments import unfilled
from gradvet.frontends.torch.blame.backward_pass import unsound_operations
from gradvet.frontends.torch.blame.pieces import Examiner, piece_of
from gradvet.frontends.torch.blame.recording import Recorder, is_below, scripted_paths
from gradvet.frontends.torch.blame.replaying import Around, plainly, run, torch_stops
from gradvet.frontends.torch.blame.sketches import Call
from gradvet.frontends.torch.blame.source_lines import (
    COMPILED,
    Candidate,
    Key,
    has_own_code,
    persistent_hooks,
    without,
)
from gradvet.frontends.torch.blame.stops import StopMode
from gradvet.frontends.torch.preservation import PreservedState, reachable_objects
from gradvet.frontends.torch.private import CompiledAsPython

TORCH_STOPS = "what torch's own code stops deliberately is held constant"

CODE = "the code of"
"""Beginning of what is to blame if it is a module and no line in it was found."""

MAX_CANDIDATES = 12
"""Number of lines that are tried one by one, each with a check."""


class ModuleTree:
    """The recorded modules, checked from the root down: children of a module that passes are not checked."""

    def __init__(
        self, recorder: Recorder, examiner: Examiner, known: Report | None = None, surrogates: Iterable[Piece] = ()
    ) -> None:
        self.examiner = replace(examiner, options=replace(examiner.options, explains=False))
        """Explains no failure: most are those of modules around the culprit, and of lines that are not to blame."""
        self.explaining_examiner, self.edges, self.known = examiner, recorder.edges, known
        self.surrogates = list(surrogates)
        """Functions whose derivative is a surrogate by design."""
        self.calls: dict[str, Call] = {call.path: call for call in recorder.calls if call.kind == MODULE}
        self.pieces: dict[str, Piece] = {}
        self.culprits: list[Culprit] = []
        self.accepted: dict[tuple[str, str], Stop] = {}
        modules = recorder.model.named_modules() if recorder.model is not None else ()
        self.paths = {id(module): path for path, module in modules}
        self.scripted = scripted_paths(recorder.model) if recorder.model is not None else []

    def visit(self, path: str) -> bool:
        """Check a module and, unless it passes, those below; whether there is a fault in it or below."""
        if path in self.pieces or path not in self.calls:
            return path in self.pieces and self.pieces[path].verdict is Verdict.FAIL
        piece = self.pieces[path] = self._piece(self.calls[path])
        if piece.verdict is Verdict.PASS:
            return False
        hits = [self.visit(child) for child in self.edges.get(path, ())]
        if piece.verdict is Verdict.FAIL and not any(hits):
            self.culprits.append(self._culprit(self.calls[path], piece))
        if piece.verdict is Verdict.INCONCLUSIVE and not self._undecided(path):
            lines = [f"{one.place} ({one.name})" for one in self._candidates(self.calls[path], []) if one.can_hold]
            reason = f"the gradient stops at {', '.join(lines)}" if lines else piece.reason
            self.pieces[path] = replace(piece, reason=reason)
        return piece.verdict is Verdict.FAIL or any(hits)

    def explains_away(self, call: Call, report: Report) -> bool:
        """Whether the slopes of a Function are wrong alone and right as the model calls it. Checks the modules around.

        Its argument may be a symmetric matrix: what it does to others does not matter. Needed by
        `test_function_of_symmetric_matrices_is_a_warning`.
        """
        around = [self.calls.get(path) for path in dict.fromkeys((call.within, "")) if path is not None]
        # Modules that are checked may run as plain Python where the model runs compiled code.
        is_unknown = call.within is None or call.name == COMPILED
        if is_unknown or not any(finding.check == "reverse" for finding in report.failures):
            return False
        reports = [self._piece(one).report for one in around if one is not None]
        right = [found for found in reports if found is not None and _slopes_of(found) == {Verdict.PASS}]
        return len(right) == len(around)

    def is_fault_inside(self, call: Call) -> bool:
        """Whether a module that a Function gets, as adjoint methods and reversible layers do, is wrong. Checks them.

        Needed by `test_stop_in_a_module_that_a_function_calls_is_named`.
        """
        given = [thing for thing in reachable_objects(unfilled(call.template)) if isinstance(thing, nn.Module)]
        paths = {self.paths.get(id(inner), "") for module in given for inner in module.modules()}
        return any(self.visit(path) for path in sorted(paths) if not is_below(call.path, path))

    def _piece(self, call: Call) -> Piece:
        if call.path == "" and self.known is not None and any(f.check == "reverse" for f in self.known.failures):
            return piece_of(call, Verdict.FAIL, "", self.known)
        if not self.examiner.accepts_stops:
            piece = self.examiner.piece(call)
            return piece if piece.verdict is not Verdict.FAIL else self._with_torch_stops(call, piece)
        mode = StopMode(held=None)
        piece = self.examiner.piece(call, mode.around)
        for key, candidate in mode.found.items():
            if candidate.can_hold:
                self.accepted[key] = Stop(candidate.place, candidate.what)
        inside = [one for one in self.surrogates if is_below(one.path, call.path)]
        # Those whose values varied as their derivative says.
        given = {name.rpartition(".")[2] for _, name in mode.stairs.given}
        inside = [one for one in inside if one.name.rpartition(".")[2] not in given]
        if piece.verdict is Verdict.FAIL and inside:
            reason = f"not decided: the derivative of {inside[0].name} inside is a surrogate"
            return replace(piece, verdict=Verdict.SKIPPED, reason=reason, report=None)
        return piece

    def _with_torch_stops(self, call: Call, piece: Piece) -> Piece:
        """A piece that fails, checked again with the deliberate stops of torch's own code as constants."""
        with PreservedState(call.target, call.tensors):
            lines = torch_stops(lambda: run(call))
        if not lines:
            return piece
        held = self.examiner.piece(call, StopMode(holds_torch=True).around)
        return piece if held.verdict is Verdict.FAIL else replace(held, reason=f"{TORCH_STOPS}: {', '.join(lines)}")

    def _culprit(self, call: Call, piece: Piece) -> Culprit:
        """The line in the module's own code without which its derivative is right, or its forward pass."""
        finding = self._finding(call, piece)
        undecided = self._undecided(call.path)
        candidates = self._candidates(call, undecided)
        explained = self._unsound(call) or self._explained(call, candidates)
        stops = tuple(Stop(one.place, one.what, one in explained, one.can_hold) for one in candidates)
        if explained:
            first, name = explained[0], input_of(finding)
            path = self.paths.get(id(first.owner), piece.path)
            stops = tuple(stop for stop in stops if stop.explains)
            return Culprit(path, first.name, first.place, first.what, name, None, (), stops, finding)
        path, name, place, cause = piece.path, piece.name, piece.place, cause_of(finding)
        if len(undecided) == 1 and not has_own_code(call.target):
            inner = call.target.get_submodule(undecided[0].removeprefix(f"{path}."))
            path, name, place = undecided[0], getattr(inner, "original_name", type(inner).__name__), None
        elif undecided:
            cause += f"; or in {', '.join(undecided)}, which could not be checked alone"
        what = f"{CODE} {name}.forward"
        return Culprit(path, what, place, cause, input_of(finding), piece.called, (), stops, finding)

    def _finding(self, call: Call, piece: Piece) -> Finding:
        """What is wrong with a module that fails, explained if there is time. Calls function and derivative."""
        assert piece.report is not None
        if piece.report is self.known:
            return main_finding(piece.report)
        around = StopMode(held=None).around if self.examiner.accepts_stops else plainly
        again = self.explaining_examiner.piece(call, around)
        if again.report is None or not again.report.failures:
            return main_finding(piece.report)
        self.pieces[call.path] = again
        return main_finding(again.report)

    def _unsound(self, call: Call) -> list[Candidate]:
        """Operations whose own gradient is wrong. Calls function and derivative."""
        try:
            with CompiledAsPython():
                return unsound_operations(call)
        except Exception:  # some code does not run in such a mode
            return []

    def _undecided(self, path: str) -> list[str]:
        """The modules called by a module that have no verdict or an undecided one, and scripted ones inside."""
        pieces = [self.pieces[child] for child in self.edges.get(path, ()) if child in self.pieces]
        undecided = [piece.path for piece in pieces if piece.verdict in (Verdict.SKIPPED, Verdict.INCONCLUSIVE)]
        return undecided + [other for other in self.scripted if is_below(other, path)]

    def _explained(self, call: Call, candidates: list[Candidate]) -> list[Candidate]:
        """The candidate without which the derivative is right, or those that explain it only together.

        Of these the ones that change a gradient come first: a hook may replace the gradient that another line stops, as
        in an equilibrium model.
        """
        for candidate in candidates[:MAX_CANDIDATES]:
            if self._is_right_without(call, [candidate]):
                return [candidate]
        if len(candidates) < 2 or not self._is_right_without(call, candidates):
            return []
        needed = list(candidates)
        for candidate in candidates[:MAX_CANDIDATES] if len(candidates) > 2 else ():
            others = [one for one in needed if one is not candidate]
            if self._is_right_without(call, others):
                needed = others
        return sorted(needed, key=lambda candidate: candidate.can_hold)

    def _candidates(self, call: Call, undecided: list[str]) -> list[Candidate]:
        """Stops and hooks in the code of a module and of undecided ones below it; if there are none, all below it.

        Code of a module outside of it runs in its hooks.
        Stops that are accepted as constants are none. Calls the function.
        """
        mode = StopMode()
        try:
            with PreservedState(call.target, call.tensors), CompiledAsPython():
                run(call, mode.around)
        except Exception:  # some code does not run in such a mode
            mode.found.clear()
        found = [*mode.found.values(), *persistent_hooks(call.target)]
        found = [candidate for candidate in found if not (self.examiner.accepts_stops and candidate.can_hold)]
        below = set(map(id, call.target.modules())) - {id(call.target)}
        first = [candidate for candidate in found if id(candidate.owner) not in below]
        if undecided:
            first += [c for c in found if self.paths.get(id(c.owner), "").startswith(tuple(undecided))]
        return first or found

    def _is_right_without(self, call: Call, candidates: list[Candidate]) -> bool:
        """Whether the check no longer fails if what these lines stop is constant, or if the gradient flows there.

        Calls function and derivative.
        """
        stops = [candidate for candidate in candidates if candidate.hook is None]
        keys = frozenset(stop.key for stop in stops)
        held: frozenset[Key] | None = None if self.examiner.accepts_stops else frozenset()
        with without(candidates):
            if stops and all(stop.can_hold for stop in stops) and self._passes(call, StopMode(held=keys).around):
                return True
            return self._passes(call, StopMode(released=keys, held=held).around)

    def _passes(self, call: Call, around: Around) -> bool:
        with CompiledAsPython():
            piece = self.examiner.piece(call, around)
        return piece.report is not None and not piece.report.failures


def _slopes_of(report: Report) -> set[Verdict]:
    return {finding.verdict for finding in report.findings if finding.check == "reverse"}


def shown_tree(model: nn.Module, pieces: list[Piece], culprits: list[Culprit]) -> TreeNode:
    """All modules of a model with what is known about each."""
    wrong_paths = {path for culprit in culprits for path in (culprit.path, *culprit.others)}

    def node(path: str, module: nn.Module) -> TreeNode:
        children = [
            node(f"{path}.{name}" if path else name, child)
            for name, child in module.named_children()
            if child is not None
        ]
        own = next((piece for piece in pieces if piece.kind == MODULE and piece.path == path), None)
        inside = tuple(piece for piece in pieces if piece.kind != MODULE and piece.path == path)
        verdict, note = (own.verdict, own.reason) if own else (Verdict.SKIPPED, "")
        if path in wrong_paths:
            verdict = Verdict.FAIL
        elif any(child.verdict is Verdict.FAIL for child in children):
            verdict, note = Verdict.FAIL, "contains the fault"
        return TreeNode(path, type(module).__name__, verdict, note, tuple(children), inside)

    return node("", model)
