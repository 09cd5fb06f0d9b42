"""Records the calls of Functions, operators and modules, with copies of their arguments and sketches of their results.

The memory of the copies is bounded. Of calls of one Function by one line with the same shapes, the first two and the
last are kept; of the calls of one module, the first.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradvet.core.blame import FUNCTION, MODULE, OPERATOR, CodeLine
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.arguments import ArgumentTree, fill, unfilled
from gradvet.frontends.torch.blame import private
from gradvet.frontends.torch.blame.sketches import Sketch, copied
from gradvet.frontends.torch.blame.source_lines import calling_line, definition, is_foreign, running_module
from gradvet.frontends.torch.module_state import Attributes, TensorState, without_gradients
from gradvet.frontends.torch.preservation import reachable_objects
from gradvet.frontends.torch.private import version
from gradvet.frontends.torch.private_state import function_apply, set_function_apply
from gradvet.frontends.torch.random_state import RandomState
from gradvet.frontends.torch.validation import nested_tensors, require_values

MAX_KEPT_CALLS = 3
"""Number of calls kept of one Function by one line with the same shapes."""

MAX_SIGNATURES = 6
"""Number of different shapes kept of one Function by one line."""

COMPILED = "CompiledFunction"
"""The Function in which torch.compile runs a compiled region."""


@dataclass(slots=True, eq=False)
class Call:
    """One recorded call."""

    kind: str
    name: str
    path: str
    target: Any
    """The Function, the operator or the module."""
    place: CodeLine | None
    called: CodeLine | None
    template: Any
    """Positional and keyword arguments with slots in place of tensors."""
    tensors: list[Tensor]
    """Copies of the tensors among the arguments; parameters of modules that are called are kept themselves."""
    requires_grad: list[bool]
    random: RandomState
    autocast: dict[str, torch.dtype]
    attributes: Attributes | None = None
    """The attributes of all modules, for a module that is called."""
    state: TensorState | None = None
    """The buffers of all modules, likewise; the parameters of modules among the arguments of a Function."""
    modules: tuple[nn.Module, ...] = ()
    """Modules that a Function gets beside their parameters, as adjoint methods do: its backward pass calls them."""
    number: int = 1
    outputs: list[Sketch] = field(default_factory=list)
    has_returned: bool = False


class Recorder:
    """Records calls from `start` to the end of the context; `calls` holds them in order."""

    def __init__(self, model: nn.Module | None, max_bytes: int, *, keeps_parameters: bool = False) -> None:
        self.model, self.max_bytes, self.keeps_parameters = model, max_bytes, keeps_parameters
        self.attributes: Attributes | None = None
        """The attributes of the model's modules when the recording began."""
        self._tensors: TensorState | None = None
        self.calls: list[Call] = []
        self.seen: Counter[tuple[str, str, str]] = Counter()
        """Number of calls by kind, path and name, kept or not."""
        self.edges: dict[str, dict[str, None]] = {}
        """The recorded modules that a recorded module calls, through modules that are not recorded too."""
        self.bytes = 0
        self.dropped: Counter[str] = Counter()
        """Number of calls whose arguments were not kept, by reason."""
        self.is_recording = False
        self._stack: list[str] = []
        """Paths of the modules that are running."""
        self._owners: list[str] = []
        """Those of them that are recorded."""
        self._open: list[tuple[nn.Module, Call | None]] = []
        self._kept: dict[Any, list[Call]] = {}
        self._signatures: dict[Any, set[Any]] = {}
        self._copies: dict[int, tuple[Any, float, Tensor]] = {}
        self._apply: tuple[Any, ...] = ()
        self._hooks = range(0)
        self._paths = {id(module): path for path, module in model.named_modules()} if model is not None else {}

    def start(self) -> None:
        """Begin to record, until the context is left."""
        if self.model is not None and self.attributes is None:
            self.attributes, self._tensors = Attributes(self.model), TensorState(self._changing(self.model))
        first, self._apply = RemovableHandle.next_id, function_apply()
        # Until all hooks are there, every new one is removed: an interruption may come in between.
        self._hooks, self.is_recording = range(first, sys.maxsize), True
        set_function_apply(private.handled_by(self._applied))
        for path, module in _hookable(self.model) if self.model is not None else ():
            self._hook(path, module)
        self._hooks = range(first, RemovableHandle.next_id)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove all hooks and patches. It is entered twice, as `PreservedState` is."""
        if self.is_recording:
            set_function_apply(self._apply)
        for module in self.model.modules() if self.model is not None else ():
            private.remove_hooks(module, self._hooks)
        self.is_recording = False
        for kept in (self._copies, self._open, self._stack, self._owners):
            kept.clear()

    def _changing(self, model: nn.Module) -> Iterator[Tensor]:
        """Buffers and the parameters that may change: without an optimiser, those that do not require grad."""
        yield from model.buffers()
        yield from (p for p in model.parameters() if self.keeps_parameters or not p.requires_grad)

    def rewind(self) -> None:
        """Give the model the state that it had when the recording began."""
        if self.attributes is not None and self._tensors is not None:
            self.attributes.restore()
            self._tensors.restore()

    @contextmanager
    def as_recorded(self) -> Iterator[None]:
        """Give the model that state inside a block, and no gradients; put its present state back afterwards."""
        if self.model is None:
            yield
            return
        attributes, tensors = Attributes(self.model), TensorState(self._changing(self.model))
        try:
            with without_gradients(self.model):
                self.rewind()
                yield
        finally:
            attributes.restore()
            tensors.restore()

    def count(self, call: Call) -> int:
        """How often a Function or operator was called, kept or not."""
        return sum(number for (kind, _, name), number in self.seen.items() if (kind, name) == (call.kind, call.name))

    # Functions and operators.

    def _applied(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], apply: Callable[..., Any]) -> Any:
        if not is_custom(cls) or not self._is_recordable((args, kwargs)):
            return apply(*args, **kwargs)
        call = self._function_call(cls, args, kwargs)
        result = apply(*args, **kwargs)
        if call is not None:
            self._finish(call, result)
        return result

    def _is_recordable(self, value: Any) -> bool:
        """Whether a call takes part in a gradient and its arguments can be kept."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self._copyable(value) or ())

    def _copyable(self, value: Any) -> list[Tensor] | None:
        """The tensors in a value, if all can be copied: outside of transforms, and of kinds that checks accept."""
        if private.is_tracing() or torch.compiler.is_compiling():
            return None
        try:
            tensors = nested_tensors(value)
            for tensor in tensors:
                if private.is_wrapped(tensor):
                    return None
                require_values(tensor, "an argument")
        except InvalidProblemError as refusal:
            self.dropped[str(refusal).partition(":")[0]] += 1
            return None
        return tensors

    def _function_call(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        operator = private.operator_call(cls, args)
        called = calling_line()
        path = self._path(called)
        if operator is None:
            own = private.mapped_function(cls)
            kind, name, target, place = FUNCTION, own.__name__, cls, definition(getattr(own, "backward", None))
            place = place or definition(getattr(own, "vjp", None))
        else:
            target, args, kwargs = operator
            kind, name = OPERATOR, str(target.name())
            place = definition(private.operator_backward(cls))
        self.seen[kind, path, name] += 1
        line = (private.mapped_function(cls), path, str(called))
        tree = ArgumentTree()
        template = tree.template((args, kwargs), "")
        signature = (*((t.shape, t.dtype, t.requires_grad) for t in tree.tensors), _constants((args, kwargs)))
        signatures = self._signatures.setdefault(line, set())
        if signature not in signatures and len(signatures) >= MAX_SIGNATURES:
            return None
        signatures.add(signature)
        kept = self._kept.setdefault((line, signature), [])
        call = self._call(kind, name, path, target, template, tree)
        if call is None:
            return None
        call.place, call.called, call.number = place, called, self.seen[kind, path, name]
        if len(kept) >= MAX_KEPT_CALLS:
            last = kept.pop()
            self.calls.remove(last)
            self.bytes -= sum(tensor.nbytes for tensor in last.tensors if not isinstance(tensor, nn.Parameter))
        kept.append(call)
        self.calls.append(call)
        return call

    def _path(self, called: CodeLine | None) -> str:
        """The path of the module whose code is running, be it forward or another method; without a model, the line."""
        if self.model is None:
            return str(called or "")
        return self._paths.get(id(running_module())) or (self._stack[-1] if self._stack else "")

    def _call(self, kind: str, name: str, path: str, target: Any, template: Any, tree: ArgumentTree) -> Call | None:
        """A call with copies of its tensors; None if there is no memory for them."""
        needed = sum(t.nbytes for t in tree.tensors if t.layout is torch.strided)
        if self.bytes + needed > self.max_bytes:
            self.dropped[f"they would exceed {self.max_bytes / 2**20:.0f} MiB"] += 1
            return None
        parameters = [t for t in tree.tensors if isinstance(t, nn.Parameter)]
        modules = _owners(parameters, template) if kind == FUNCTION else ()
        if kind == FUNCTION:
            owned = {id(p) for module in modules for p in module.parameters()}
            parameters = [p for p in parameters if id(p) in owned]
        kept = set(map(id, parameters))
        tensors = [t if id(t) in kept else self._copy(t) for t in tree.tensors]
        flags = [tensor.requires_grad for tensor in tree.tensors]
        call = Call(kind, name, path, target, None, None, template, tensors, flags, RandomState(), _autocast())
        if modules:
            call.modules, call.state = modules, TensorState(parameters)
        return call

    def _copy(self, tensor: Tensor) -> Tensor:
        """A copy; the same one as long as the tensor is not written to."""
        reference, number, copy = self._copies.get(id(tensor), (None, 0.0, tensor))
        if reference is not None and reference() is tensor and number == version(tensor):
            return copy
        copy = copied(tensor)
        self.bytes += copy.nbytes if copy.layout is torch.strided else 0
        self._copies[id(tensor)] = (weakref.ref(tensor), version(tensor), copy)
        return copy

    def _finish(self, call: Call, result: Any) -> None:
        tensors = self._copyable(result)
        if tensors is None:
            return
        call.outputs = [Sketch.of(tensor) for tensor in tensors]
        call.has_returned = True

    # Modules.

    def _hook(self, path: str, module: nn.Module) -> None:
        """Put hooks on a module."""
        has_code = path == "" or has_own_code(module)

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._stack.append(path)
            if has_code:
                above = next((other for other in reversed(self._owners) if other != path), None)
                self.edges.setdefault(above, {}).setdefault(path) if above is not None else None
                self._owners.append(path)
            record = has_code and (MODULE, path, type(module).__name__) not in self.seen
            record = record and torch.is_grad_enabled() and self._copyable((args, kwargs)) is not None
            call = None
            if record:
                self.seen[MODULE, path, type(module).__name__] += 1
                tree = ArgumentTree()
                template = tree.template((args, kwargs), "")
                call = self._call(MODULE, type(module).__name__, path, module, template, tree)
            if call is not None:
                call.place, call.called = definition(type(module).forward), calling_line()
                call.attributes, call.state = self.attributes, self._tensors
                self.calls.append(call)
            self._open.append((module, call))

        def after(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            while self._open:
                opened, call = self._open.pop()
                if self._stack and self._owners and self._owners[-1] == self._stack[-1]:
                    self._owners.pop()
                if self._stack:
                    self._stack.pop()
                if opened is module:
                    if call is not None and result is not None:
                        self._finish(call, result)
                    break

        module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
        module.register_forward_hook(after, with_kwargs=True, always_call=True)


def is_model(value: Any) -> bool:
    """Whether a value is a module."""
    return isinstance(value, nn.Module)


def is_custom(cls: type) -> bool:
    """Whether a Function is not torch's own."""
    name, own = cls.__name__, private.mapped_function(cls)
    return name.startswith(private.GENERATED) or name == COMPILED or not is_foreign(own.__module__)


def has_own_code(module: nn.Module) -> bool:
    """Whether the derivative of a module may be wrong though those of its children are right.

    Torch's own modules without hooks are left out.
    """
    hooks = [
        hook
        for hooks in (private.module_hooks(module), *(map(private.tensor_hooks, module.parameters(recurse=False))))
        for _, by_key in hooks
        for hook in by_key.values()
    ]
    return not is_foreign(type(module).__module__) or any(not is_foreign(_module_of(hook)) for hook in hooks)


def _module_of(hook: Any) -> str:
    return str(getattr(hook, "__module__", None) or type(hook).__module__)


def _hookable(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules by path, without those inside compiled or scripted ones."""
    opaque: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{prefix}.") if prefix else path for prefix in opaque):
            continue
        if private.is_opaque(module):
            opaque.append(path)
            if isinstance(module, torch.jit.ScriptModule):
                continue
        yield path, module


def _owners(parameters: list[nn.Parameter], template: Any) -> tuple[nn.Module, ...]:
    """The modules among the other arguments that have some of these parameters."""
    wanted = set(map(id, parameters))
    found = [thing for thing in reachable_objects(unfilled(template)) if isinstance(thing, nn.Module)] if wanted else []
    return tuple(module for module in found if any(id(p) in wanted for p in module.parameters()))


def _constants(value: Any) -> tuple[str, ...]:
    """The numbers and words among arguments, as text."""
    if isinstance(value, (tuple, list)):
        return tuple(text for item in value for text in _constants(item))
    if isinstance(value, dict):
        return tuple(f"{key}={text}" for key, item in value.items() for text in _constants(item))
    return (repr(value),) if isinstance(value, (bool, int, float, complex, str, torch.dtype)) else ()


def _autocast() -> dict[str, torch.dtype]:
    """The formats of autocast by kind of device, where it is switched on."""
    return {kind: torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}


def arguments_of(call: Call, tensors: list[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with these tensors in their places."""
    args, kwargs = fill(call.template, tensors)
    return tuple(args), dict(kwargs)
