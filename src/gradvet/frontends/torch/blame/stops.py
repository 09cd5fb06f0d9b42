"""Lines at which the gradient stops or is changed: `detach`, `.data`, `no_grad`, `item`, hooks.

`StopMode` notes them in one call, lets the gradient through at one of them, or holds their values constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gradvet.core.blame import CodeLine
from gradvet.frontends.torch.arguments import map_tensors, tensors_of
from gradvet.frontends.torch.blame import private
from gradvet.frontends.torch.blame.source_lines import (
    calling_line,
    definition,
    entered_context,
    function_name,
    is_foreign,
    is_in_place,
    is_valueless,
    running_code,
    running_module,
)
from gradvet.frontends.torch.blame.straight_through import Linearised

HOOKING = ("register_hook", "register_post_accumulate_grad_hook")
NUMBERS = ("item", "tolist", "__float__", "__array__", "numpy")
"""Methods that turn values of a tensor into numbers outside the graph."""

AUTOGRAD = "autograd.grad"
GRAD_MODE = ("_set_grad_enabled", "set_grad_enabled")

DISTRIBUTIONS = "torch.distributions."
DELIBERATE = {"no_grad": ("torch.nn.",), "detach": ("torch.nn.", DISTRIBUTIONS), "padding_idx": ("torch.nn.",)}
"""Stops in torch's own code that are part of a method, by kind: the vectors of spectral norm, straight-through
estimators, the row of an embedding that `padding_idx` freezes. `sample` of a distribution, which is under no_grad as
well, is one if a distribution gets the sample again, as `log_prob` of a policy gradient does: elsewhere users may have
meant `rsample`."""

Key = tuple[str, str]
"""The line and the name of a stop."""

Place = tuple[str, str, int]
"""A stop, and its number among those of the same line in one call."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A line that may be the cause of a wrong gradient."""

    place: CodeLine
    name: str
    what: str
    owner: nn.Module | None = None
    """The module whose code it is in."""
    hook: tuple[private.Hooks, int] | None = None
    """A hook that was there before the call, and its key."""
    can_hold: bool = True
    """Whether its values can be held constant: `.data` shares the memory of its tensor, which may be written to."""

    @property
    def key(self) -> Key:
        return str(self.place), self.name


@dataclass
class StopMode(TorchFunctionMode):
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
    given: dict[Key, str] = field(default_factory=dict)
    """The lines that call functions of stairs whose derivatives were taken as given."""
    _values: dict[Place, Any] = field(default_factory=dict)
    _counts: Counter[Key] = field(default_factory=Counter)
    _regions: list[tuple[CodeLine | None, str, nn.Module | None]] = field(default_factory=list)
    """The lines that switched grad mode off and on, with code and module of each, the innermost last."""
    _samples: list[tuple[Tensor, Key]] = field(default_factory=list)
    """What distributions sampled in the first call, with the line."""
    _aliases: dict[int, Tensor] = field(default_factory=dict)
    """Results of `.data` under no_grad in this call."""
    _is_first: bool = True
    _depth: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def around(self, call: Callable[[], Any]) -> Any:
        """The result of a call in this mode."""
        for kept in (self._counts, self._regions, self._aliases):
            kept.clear()
        try:
            with private.applied_functions(self._applied), self:
                return call()
        finally:
            self._is_first = False
            self._samples.clear()

    @property
    def lines(self) -> list[str]:
        """The lines whose values are held, with their code."""
        return [f"{c.place} {c.place.code}".strip() for c in self.found.values() if c.can_hold]

    def _applied(self, cls: type, args: Any, kwargs: Any, apply: Callable[..., Any]) -> Any:
        surrogate = self.surrogates.get(cls)
        self._depth += 1
        try:
            result = apply(*args, **kwargs)
            if surrogate is None and self.held is None:
                return self._linearised(cls.__qualname__, lambda *given: apply(*given, **kwargs), args, result)
            return result if surrogate is None else self._varied(cls, surrogate, args, kwargs, result)
        finally:
            self._depth -= 1

    def _varied(self, cls: type, surrogate: Callable[..., Any], args: Any, kwargs: Any, result: Tensor) -> Tensor:
        """The value of the first call plus the change of the surrogate since then, with the derivative of the class."""
        with torch.no_grad():
            now = surrogate(*args, **kwargs)
        key = ("", cls.__qualname__, self._counts["", cls.__qualname__])
        self._counts[key[:2]] += 1
        if self._is_first:
            self._values[key] = (result.detach() - now).clone()
        if key not in self._values:
            return result
        return torch.add(result, (self._values[key].to(now.dtype) + now - result).detach())

    def _linearised(self, name: str, function: Callable[..., Any], args: Any, result: Any) -> Any:
        """The result; of a function of stairs, with values that vary as its derivative says."""
        if not isinstance(result, Tensor):
            return result
        place = ("", name, self._counts["", name])
        self._counts[place[:2]] += 1
        if self._is_first and result.requires_grad:
            self._values[place] = Linearised.of(function, args)
            if self._values[place] is not None and (line := calling_line()) is not None:
                self.given[str(line), name] = f"{line} {line.code}".strip()
        linear = self._values.get(place)
        value = None if linear is None or self._is_first else linear.value(args)
        return result if value is None else torch.add(result, value - result.detach())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._samples and not self._region and running_code().startswith(DISTRIBUTIONS):
            self._accept_samples(args)
        result = self._called(func, args, kwargs or {})
        if self.holds_torch and self._is_first and self._region and self._regions[-1][1].startswith(DISTRIBUTIONS):
            self._samples += [(tensor, (str(self._region), "no_grad")) for tensor in tensors_of(result)]
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
            self._switch(bool(args[0]))
            return func(*args, **kwargs)
        if name in HOOKING:
            return self._hooked(func, name, args, kwargs)
        if name.startswith("fake_quantize") and (self.holds_torch or self.held is None):
            result = self._linearised(name, lambda *given: func(*given, **kwargs), args, func(*args, **kwargs))
            self.deliberate.update(self.given)
            return result
        if name == "gumbel_softmax":
            return self._sampled(func, args, kwargs)
        if name == "embedding" and (self.holds_torch or self.held is None):
            return self._padded(func, args, kwargs)
        if is_valueless(name):
            return func(*args, **kwargs)
        # Counted whether or not its arguments require grad: they do not under no_grad, nor as constants for once.
        place = self._numbered(name) if self._holds and self._may_stop(name) else None
        if not any(map(self._is_attached, tensors_of((args, kwargs)))):
            return self._kept(place, func(*args, **kwargs))
        if self.released and (line := self._line) is not None and (str(line), self._kind(name)) in self.released:
            return self._released(func, name, args, kwargs)
        was_attached = bool(args) and isinstance(args[0], Tensor) and args[0].requires_grad
        result = func(*args, **kwargs)
        if is_in_place(name) and not was_attached and self._region:
            # What is written into a tensor outside the graph, such as the weights of a teacher, is held in it.
            kept = self._stopped(name, args[0], place, can_hold=True)
            return result if kept is args[0] else args[0].copy_(kept)
        if self._goes_on(name, args, result, was_attached):
            return result
        if name == "data" and self._region:
            self._aliases[id(result)] = result
        return self._stopped(name, result, place)

    def _is_attached(self, tensor: Tensor) -> bool:
        """Whether a tensor is in the graph or, under no_grad, shares the memory of one that is."""
        return tensor.requires_grad or (id(tensor) in self._aliases and self._region is not None)

    def _switch(self, is_enabled: bool) -> None:
        """Note the line that switches grad mode, until the context is left."""
        entered = entered_context()
        if entered:
            self._regions.append((None, "", None) if is_enabled else (calling_line(), running_code(), running_module()))
        elif entered is False and self._regions:
            self._regions.pop()

    @property
    def _region(self) -> CodeLine | None:
        """The line of the context without grad mode that the call has entered."""
        return self._regions[-1][0] if self._regions and not torch.is_grad_enabled() else None

    def _differentiated(self, args: Any, kwargs: Any) -> Any:
        """`torch.autograd.grad`, which stops the gradient without `create_graph`."""
        line = calling_line()
        if line is not None and (str(line), AUTOGRAD) in self.released:
            names = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")
            words = {**dict(zip(names, args, strict=False)), **kwargs}
            return torch.autograd.grad(**{**words, "create_graph": True})
        result = torch.autograd.grad(*args, **kwargs)
        goes_on = self._depth or any(tensor.requires_grad for tensor in tensors_of(result))
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

    def _goes_on(self, name: str, args: Any, result: Any, was_attached: bool) -> bool:
        """Whether the gradient flows through the result, or there is none to flow."""
        if name in NUMBERS:
            return not args[0].is_floating_point()
        if is_in_place(name):
            # Under no_grad a write to a tensor of the graph is not recorded.
            unrecorded = was_attached and not torch.is_grad_enabled() and not args[0].is_leaf
            return not unrecorded and name != "detach_"
        numeric = [tensor for tensor in tensors_of(result) if tensor.is_floating_point() or tensor.is_complex()]
        return not numeric or any(tensor.requires_grad for tensor in numeric)

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
            owner = self._regions[-1][2] if kind == "no_grad" else running_module()
            self.found[key] = Candidate(line, kind, _sentence(kind, name), owner, can_hold=can_hold)
        is_held = self.held is None or key in self.held
        if self.holds_torch and self._is_deliberate(kind, code):
            is_held = True
            self.deliberate[key] = f"{line} {line.code}".strip()
        elif self.holds_torch and kind == "no_grad" and self._regions[-1][1].startswith(DISTRIBUTIONS):
            is_held = self._is_first or key in self.deliberate
        if not is_held or not can_hold or key not in self.found:
            return result
        if self._is_first:
            self._values[place] = map_tensors(lambda tensor: tensor.detach().clone(), result)
        return self._kept(place, result)

    @property
    def _holds(self) -> bool:
        return self.holds_torch or self.held is None or bool(self.held)

    def _may_stop(self, name: str) -> bool:
        return name in ("detach", *NUMBERS) or self._region is not None

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
        if name in ("detach", "data"):
            return args[0].view_as(args[0])
        if name == "detach_":
            return args[0]
        with torch.enable_grad():
            return func(*args, **kwargs)

    def _hooked(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        line = calling_line()
        if line is not None and self._is_first:
            what = "a hook on a tensor changes the gradient here"
            self.found.setdefault((str(line), name), Candidate(line, name, what, running_module(), can_hold=False))
        if line is not None and (str(line), name) in self.released:
            return func(args[0], lambda gradient: None)
        return func(*args, **kwargs)

    def _is_deliberate(self, kind: str, code: str) -> bool:
        found = code or (self._regions[-1][1] if kind == "no_grad" else running_code())
        return f"{found}.".startswith(DELIBERATE.get(kind, ("?",)))

    @property
    def _line(self) -> CodeLine | None:
        """The line that stops the gradient: of the `with` statement under no_grad, of the call otherwise."""
        return self._region or calling_line()

    def _kind(self, name: str) -> str:
        return "no_grad" if self._region is not None and name not in ("detach", "data") else name


def _sentence(kind: str, name: str) -> str:
    if kind == "no_grad":
        return "no gradient flows through what is computed under no_grad here"
    if name == AUTOGRAD:
        return "autograd.grad() without create_graph=True gives constants here"
    if name in NUMBERS:
        return f"{name}() takes a number out of the graph here, and no gradient flows through it"
    return f"no gradient flows through {'.data' if name == 'data' else f'{name}()'} here"


def _in_format_of(result: Any, kept: Any) -> Any:
    """Kept values as tensors of the formats of a result."""
    formats = iter(tensors_of(result))
    return map_tensors(lambda tensor: tensor.to(next(formats, tensor).dtype).clone(), kept)


def persistent_hooks(module: nn.Module) -> Iterator[Candidate]:
    """The hooks that modules and parameters have, torch's own left out."""
    for path, inner in module.named_modules():
        where = f"module {path or type(module).__name__}"
        for kind, hooks in private.module_hooks(inner):
            yield from _hooks(hooks, f"{kind} on {where}", inner)
        for name, parameter in inner.named_parameters(recurse=False):
            for kind, hooks in private.tensor_hooks(parameter):
                yield from _hooks(hooks, f"{kind} on parameter {name}", inner)


def _hooks(hooks: private.Hooks, name: str, owner: nn.Module) -> Iterator[Candidate]:
    for key, hook in hooks.items():
        place = definition(hook)
        if place is not None and not is_foreign(getattr(hook, "__module__", None)):
            yield Candidate(place, name, f"a {name} changes the gradient", owner, (hooks, key), can_hold=False)


@contextmanager
def without(candidate: Candidate) -> Iterator[None]:
    """Take a persistent hook out inside a block."""
    if candidate.hook is None:
        yield
    else:
        with private.without_hook(*candidate.hook):
            yield
