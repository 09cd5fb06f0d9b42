"""Lines at which the gradient stops or is changed: `detach`, `.data`, `no_grad`, `item`, hooks.

`StopMode` notes them in one call, lets the gradient through at one of them, or holds their values constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from gradvet.core.provenance import is_foreign
from gradvet.core.results import SourceCode
from gradvet.frontends.torch.arguments import map_tensors, tensors_of
from gradvet.frontends.torch.blame import private
from gradvet.frontends.torch.blame.source_lines import (
    AUTOGRAD,
    DISTRIBUTIONS,
    FREEZING,
    FROZEN,
    INFERENCE,
    MARKED,
    NO_GRAD,
    NO_INPUT,
    NUMBERS,
    REGIONS,
    Candidate,
    Key,
    Region,
    calling_line,
    definition,
    entered_context,
    function_name,
    is_deliberate,
    is_in_place,
    is_setter,
    is_valueless,
    running_code,
    running_module,
    stop_sentence,
)
from gradvet.frontends.torch.blame.straight_through import Stairs
from gradvet.frontends.torch.private import FunctionMode, version

HOOKING = ("register_hook", "register_post_accumulate_grad_hook")
GRAD_MODE = ("_set_grad_enabled", "set_grad_enabled")
Place = tuple[str, str, int]
"""A stop, and its number among those of the same line in one call."""


@dataclass
class StopMode:
    """Between the user's code and torch's functions, outside the code of Functions.

    `released` are the keys at which the gradient flows; `held` those at which values are the ones of the first call,
    or None for all of them. `holds_torch` holds the deliberate stops of torch's own code alone.
    """

    released: frozenset[Key] = frozenset()
    held: frozenset[Key] | None = frozenset()
    holds_torch: bool = False
    surrogates: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    """Functions by class of `autograd.Function`: values of the class vary as those of its function do."""
    found: dict[Key, Candidate] = field(default_factory=dict)
    deliberate: dict[Key, str] = field(default_factory=dict)
    """The lines that call the code of torch whose deliberate stops were held."""
    stairs: Stairs = field(default_factory=Stairs)
    differentiates: bool = False
    """Whether the code takes derivatives that are part of the graph, as a gradient penalty does."""
    _values: dict[Place, Any] = field(default_factory=dict)
    _counts: Counter[Key] = field(default_factory=Counter)
    _regions: list[Region] = field(default_factory=list)
    """Where grad mode was switched off and on, the innermost last."""
    _samples: list[tuple[Tensor, Key]] = field(default_factory=list)
    """What distributions sampled in the first call, with the line."""
    _outside: dict[int, Tensor] = field(default_factory=dict)
    """Results of `.data` and `detach` outside the graph, and their views: what is written to them does not enter it."""
    _shared: list[tuple[Place, Tensor, Tensor, float]] = field(default_factory=list)
    """Results of `.data` in the first call, each with its tensor and the sum of their versions."""
    _is_first: bool = True
    _depth: int = 0

    def around(self, call: Callable[[], Any]) -> Any:
        """The result of a call in this mode."""
        for kept in (self._counts, self._regions, self._outside):
            kept.clear()
        self.stairs.restart(is_first=self._is_first)
        try:
            with ExitStack() as stack:
                stack.enter_context(private.applied_functions(self._applied))
                stack.enter_context(private.inference_mode_as(self._switch_inference))
                stack.enter_context(private.parameters_made_by(self._made))
                stack.enter_context(private.packing_if(self._packs))
                stack.enter_context(FunctionMode(self._intercepted))
                result = call()
            self._is_first = False  # a call that raises, as with inputs that must not require grad, is no first call
            return result
        finally:
            self._settle_shared()
            self._samples.clear()

    def _settle_shared(self) -> None:
        """Let those results of `.data` be held to which nothing was written: they share the memory of their tensors.

        Needed by `test_data_is_no_constant_where_the_model_writes_to_it`.
        """
        written = {place[:2] for place, *pair, count in self._shared if sum(map(version, pair)) != count}
        for place, *_ in self._shared:
            if place[:2] in written:
                self._values.pop(place, None)
            else:
                self.found[place[:2]] = replace(self.found[place[:2]], can_hold=True)
        self._shared.clear()

    @property
    def lines(self) -> list[str]:
        """The lines whose values are held, with their code."""
        return [f"{c.place} {c.place.code}".strip() for c in self.found.values() if c.can_hold]

    def _applied(self, cls: type, args: Any, kwargs: Any, apply: Callable[..., Any]) -> Any:
        if cls is CheckpointFunction and self._is_seen_through(args):
            return args[0](*args[2:])
        surrogate = self.surrogates.get(cls)
        self._depth += 1
        try:
            result = self._marked(MARKED + cls.__name__, args, apply(*args, **kwargs))
            if surrogate is not None:
                return self.stairs.varied(cls.__qualname__, lambda: surrogate(*args, **kwargs), result)
            if self.held is not None:
                return result
            return self.stairs.linearised(cls.__qualname__, lambda *given: apply(*given, **kwargs), args, result)
        finally:
            self._depth -= 1

    def _is_seen_through(self, args: Any) -> bool:
        """Whether the gradient flows through a reentrant checkpoint, so that its function can run in its place.

        If none of its inputs requires grad, it does not, and the parameters inside get no gradient.
        """
        if torch.is_grad_enabled() and not any(map(private.requires_grad, tensors_of(args))):
            return self._is_released("checkpoint", NO_INPUT)
        return torch.is_grad_enabled()

    def _is_released(self, name: str, what: str) -> bool:
        """Whether the gradient flows at the line that runs, which is no stop of values. Notes the line."""
        if (line := calling_line()) is None:
            return False
        candidate = Candidate(line, name, what, running_module(), can_hold=False)
        self.found.setdefault(candidate.key, candidate)
        return candidate.key in self.released

    def _marked(self, name: str, args: Any, result: Any) -> Any:
        """The result of a Function, stopped where it has no derivative."""
        is_attached = any(map(private.requires_grad, tensors_of(args)))

        def settled(tensor: Tensor) -> Any:
            if not (tensor.is_floating_point() or tensor.is_complex()):
                return tensor
            place = self._numbered(name)
            is_stopped = is_attached and not private.requires_grad(tensor)
            return self._stopped(name, tensor, place) if is_stopped else self._kept(place, tensor)

        return map_tensors(settled, result) if self._is_first or self._holds else result

    def _intercepted(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._samples and not self._region and running_code().startswith(DISTRIBUTIONS):
            self._accept_samples(args)
        result = self._called(func, args, kwargs)
        if self.holds_torch and self._is_first and self._region and self._regions[-1].code.startswith(DISTRIBUTIONS):
            self._samples += [(tensor, (str(self._region), NO_GRAD)) for tensor in tensors_of(result)]
        return result

    def _accept_samples(self, args: Any) -> None:
        """Count samples as deliberate that a distribution gets again."""
        for sample, key in self._samples:
            if key in self.found and any(tensor is sample for tensor in tensors_of(args)):
                self.deliberate[key] = f"{self.found[key].place} {self.found[key].place.code}".strip()

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = function_name(func)
        if self._depth or name == "grad":
            return func(*args, **kwargs) if func is not torch.autograd.grad else self._differentiated(args, kwargs)
        if name in GRAD_MODE and args:
            self._switch(bool(args[0]), entered_context())
            return func(*args, **kwargs)
        if name in HOOKING:
            return self._hooked(func, name, args, kwargs)
        if name in FREEZING and False in (*args[1:], *kwargs.values()) and private.requires_grad(args[0]):
            return args[0] if self._is_released(name, FROZEN) else func(*args, **kwargs)
        if name == "grad_fn" and (node := func(*args, **kwargs)) is not None and not is_foreign(running_code()):
            return private.HookedNode(node, self._hooked)
        if name.startswith("fake_quantize") and (self.holds_torch or self.held is None):
            result = self.stairs.linearised(name, lambda *given: func(*given, **kwargs), args, func(*args, **kwargs))
            self.deliberate.update(self.stairs.given)
            return result
        if name == "gumbel_softmax":
            return self._sampled(func, args, kwargs)
        if name == "embedding" and (self.holds_torch or self.held is None):
            return self._padded(func, args, kwargs)
        if is_valueless(name):
            return func(*args, **kwargs)
        # Counted whether or not its arguments require grad: they do not under no_grad, nor as constants for once.
        is_outside = bool(args) and id(args[0]) in self._outside
        is_alias = is_outside and is_in_place(name)
        place = self._numbered(name) if self._holds and (is_alias or self._may_stop(name)) else None
        if not any(map(private.requires_grad, tensors_of((args, kwargs)))):
            result = func(*args, **kwargs)
            if name in ("data", "detach") or (is_outside and private.is_view(result, args[0])):
                self._outside[id(result)] = result
            kept = self._kept(place, result)
            return args[0].copy_(kept) if is_alias and kept is not result else kept
        if self.released and (line := self._line) is not None and (str(line), self._kind(name)) in self.released:
            return self._released(func, name, args, kwargs)
        was_attached = bool(args) and isinstance(args[0], Tensor) and private.requires_grad(args[0])
        was_inner = was_attached and not args[0].is_leaf  # a view that is written to no longer says so
        result = func(*args, **kwargs)
        is_written = (is_in_place(name) and self._region) or is_setter(func)
        is_overwritten = (is_setter(func) or not was_inner) and any(map(private.requires_grad, tensors_of(args[1:])))
        is_outer = (is_written and (is_overwritten or not was_attached)) or (is_alias and not was_attached)
        if is_outer or name == "detach_":
            # What is written into a leaf or outside the graph, such as the weights of a teacher, is held in it.
            kept = self._stopped(name, args[0], place, can_hold=True)
            return result if kept is args[0] else args[0].copy_(kept)
        if self._goes_on(name, args, result, was_inner):
            return result
        if name != "data":
            return self._stopped(name, result, place)
        place = place or self._numbered(name)
        kept = self._stopped(name, result, place)
        if self._is_first and place[:2] in self.found:
            self._shared.append((place, args[0], result, version(args[0]) + version(result)))
        return kept

    def _made(self, make: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """`nn.Parameter`; where the gradient is let through, the tensor that it was made of."""
        found = self._called(make, args, kwargs)
        return found if isinstance(found, nn.Parameter) or not found.is_leaf else make(found, **kwargs)

    def _switch_inference(self, is_enabled: bool, is_entered: bool) -> None:
        """Switch grad mode as `inference_mode` does."""
        self._switch(is_enabled, is_entered, INFERENCE)
        self._depth += 1
        try:
            torch.set_grad_enabled(is_enabled)
        finally:
            self._depth -= 1

    def _switch(self, is_enabled: bool, entered: bool | None, kind: str = NO_GRAD) -> None:
        """Note the line that switches grad mode, until the context is left or a call switches it on again.

        `with set_grad_enabled(False):` is such a call too, before the context is entered.
        """
        if self._regions and (entered is False or self._regions[-1].is_call):
            self._regions.pop()
        if entered or not (is_enabled or entered is False):
            code = (None, "", None) if is_enabled else (calling_line(), running_code(), running_module())
            self._regions.append(Region(*code, is_call=entered is None, kind=kind))

    @property
    def _region(self) -> SourceCode | None:
        """The line of the context without grad mode that the call has entered."""
        return self._regions[-1].line if self._regions and not torch.is_grad_enabled() else None

    def _differentiated(self, args: Any, kwargs: Any) -> Any:
        """`torch.autograd.grad`, which stops the gradient without `create_graph`."""
        result = torch.autograd.grad(*args, **kwargs)
        self.differentiates |= any(map(private.requires_grad, tensors_of(result)))
        goes_on = self._depth or any(map(private.requires_grad, tensors_of(result)))
        return result if goes_on else self._stopped(AUTOGRAD, result)

    def _sampled(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`gumbel_softmax`, whose code the mode does not see: with hard=True the rounding is stopped."""
        words = {**dict(zip(("logits", "tau", "hard"), args, strict=False)), **kwargs}
        if not words.get("hard"):
            return func(*args, **kwargs)
        soft = func(**{**words, "hard": False})
        dim = words.get("dim", -1)
        rounded = torch.zeros_like(soft).scatter_(dim, soft.argmax(dim, keepdim=True), 1.0)
        return soft + self._stopped("detach", (rounded - soft).detach(), code="torch.nn.functional")

    def _padded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`embedding`, whose row `padding_idx` has no gradient by definition."""
        words = {**dict(zip(("input", "weight", "padding_idx"), args, strict=False)), **kwargs}
        result, row = func(*args, **kwargs), words.get("padding_idx")
        if row is None or not bool((padded := words["input"] == row % len(words["weight"])).any()):
            return result
        held = self._stopped("padding_idx", result.detach(), code="torch.nn.functional")
        return torch.where(padded[..., None], held, result)

    def _goes_on(self, name: str, args: Any, result: Any, was_inner: bool) -> bool:
        """Whether the gradient flows through the result, or there is none to flow."""
        if name in NUMBERS:
            return not args[0].is_floating_point()
        if is_in_place(name):
            # Under no_grad a write to a tensor of the graph is not recorded.
            return not (was_inner and not torch.is_grad_enabled())
        numeric = [tensor for tensor in tensors_of(result) if tensor.is_floating_point() or tensor.is_complex()]
        is_zero = name in (private.PARAMETER, "normal")  # torch defines the derivatives of `normal` as zero
        return not numeric or (not is_zero and any(map(private.requires_grad, numeric)))

    def _stopped(
        self, name: str, result: Any, place: Place | None = None, code: str = "", *, can_hold: bool = False
    ) -> Any:
        line, kind = self._line, self._kind(name)
        if line is None:
            return result
        place = place or self._numbered(name)
        key = place[:2]
        # Not of `.data`, nor of what writes to tensors of the graph. The rest of such a region under no_grad is held:
        # needed by `test_model_that_changes_its_own_state_passes`.
        can_hold = can_hold or (name != "data" and not is_in_place(name))
        if self._is_first and (key not in self.found or (can_hold and not self.found[key].can_hold)):
            owner = self._regions[-1].owner if kind in REGIONS else running_module()
            self.found[key] = Candidate(line, kind, stop_sentence(kind, name), owner, can_hold=can_hold)
        is_held = self.held is None or key in self.held
        if self.holds_torch and self._is_deliberate(kind, code):
            is_held = True
            self.deliberate[key] = f"{line} {line.code}".strip()
        elif self.holds_torch and kind == NO_GRAD and self._regions[-1].code.startswith(DISTRIBUTIONS):
            is_held = self._is_first or key in self.deliberate
        if not is_held or not (can_hold or name == "data") or key not in self.found:
            return result
        if self._is_first:
            self._values[place] = map_tensors(lambda tensor: tensor.detach().clone(), result)
        return self._kept(place, result)

    @property
    def _holds(self) -> bool:
        return self.holds_torch or self.held is None or bool(self.held)

    def _may_stop(self, name: str) -> bool:
        return name in ("detach", "detach_", "data", private.PARAMETER, *NUMBERS) or self._region is not None

    def _numbered(self, name: str) -> Place:
        """The line and kind of a stop, and how often it was reached before in this call."""
        key = (str(self._line), self._kind(name))
        self._counts[key] += 1
        return (*key, self._counts[key] - 1)

    def _kept(self, place: Place | None, result: Any) -> Any:
        """The value of the first call in place of a result; the result where none was kept."""
        kept = None if self._is_first or place is None else self._values.get(place)
        is_held = place is not None and (self.held is None or not self.holds_torch or place[:2] in self.deliberate)
        return _in_format_of(result, kept) if kept is not None and is_held else result

    def _released(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """The result with its gradient."""
        if name in ("detach", "detach_", "data", private.PARAMETER):
            return args[0] if is_in_place(name) else args[0].view_as(args[0])
        with torch.enable_grad():
            return func(*args, **kwargs)

    def _hooked(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if self._is_released(name, "a hook changes the gradient here"):
            return func(args[0], lambda *gradients: None)
        return func(*args, **kwargs)

    def _packs(self, hook: Any) -> bool:
        """Whether a context is entered whose hook packs the tensors that are saved for the backward pass."""
        what = "hooks change the tensors that are saved for the backward pass here"
        return definition(hook) is None or not self._is_released("saved_tensors_hooks", what)

    def _is_deliberate(self, kind: str, code: str) -> bool:
        return is_deliberate(kind, code or (self._regions[-1].code if kind in REGIONS else running_code()))

    @property
    def _line(self) -> SourceCode | None:
        """The line that stops the gradient: of the `with` statement under no_grad, of the call otherwise."""
        return self._region or calling_line()

    def _kind(self, name: str) -> str:
        return self._regions[-1].kind if self._region is not None and name not in ("detach", "data") else name


def _in_format_of(result: Any, kept: Any) -> Any:
    """Kept values as tensors of the formats of a result."""
    formats = iter(tensors_of(result))
    return map_tensors(lambda tensor: tensor.to(next(formats, tensor).dtype).clone(), kept)
