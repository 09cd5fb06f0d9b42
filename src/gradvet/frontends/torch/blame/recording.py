"""Records the calls of Functions, operators and modules, with copies of their arguments and sketches of their results.

The memory of the copies is bounded. Of calls of one Function by one line with the same shapes, the first two and the
last are kept; of the calls of one module, the first.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradvet.core.blame import FUNCTION, MODULE, OPERATOR
from gradvet.core.results import SourceCode
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.arguments import ArgumentTree, nested_tensors, tensors_of, unfilled
from gradvet.frontends.torch.blame import private
from gradvet.frontends.torch.blame.sketches import Call, copied, sketch_of
from gradvet.frontends.torch.blame.source_lines import (
    calling_line,
    definition,
    has_own_code,
    is_custom,
    running_module,
    running_node,
)
from gradvet.frontends.torch.inputs import require_values
from gradvet.frontends.torch.preservation import PreservedGradients, kept_objects, reachable_objects
from gradvet.frontends.torch.private import buffers_of, version
from gradvet.frontends.torch.process_state import (
    APPLY,
    TRANSFORMED_CALL,
    Place,
    own_method,
    set_method,
)
from gradvet.frontends.torch.random_state import RandomState, generators_among
from gradvet.frontends.torch.state import Restore, kept_attributes, kept_tensors

MAX_KEPT_CALLS = 3
"""Number of calls kept of one Function by one line with the same shapes."""

MAX_SIGNATURES = 6
"""Number of different shapes kept of one Function by one line."""


class _Running(NamedTuple):
    """A module that is running."""

    module: nn.Module
    path: str
    is_recorded: bool
    call: Call | None


class Recorder:
    """Records calls from `start` to the end of the context; `calls` holds them in order."""

    def __init__(self, model: nn.Module | None, max_bytes: int, *, keeps_parameters: bool = False) -> None:
        self.model, self.max_bytes, self.keeps_parameters = model, max_bytes, keeps_parameters
        self.restore_attributes: Restore | None = None
        """Restores the attributes of the model's modules when the recording began."""
        self._restore_tensors: Restore | None = None
        self.calls: list[Call] = []
        self.seen: Counter[tuple[str, str, str]] = Counter()
        """Number of calls by kind, path and name, kept or not."""
        self.edges: dict[str, dict[str, None]] = {}
        """The recorded modules that a recorded module calls, through modules that are not recorded too."""
        self.bytes = 0
        self.dropped: Counter[str] = Counter()
        """Number of calls whose arguments were not kept, by reason."""
        self.is_recording = False
        self._roots = 0
        """Number of calls of the model."""
        self._running: list[_Running] = []
        self._applying: list[Call | None] = []
        self._kept: dict[Any, dict[Any, list[Call]]] = {}
        """Calls by Function and line, and by shapes."""
        self._copies: dict[int, tuple[Any, float, Tensor]] = {}
        self._forward: set[type] = set()
        """Functions with a `jvp` of their own that were called in forward mode."""
        self._nodes: dict[Any, str] = {}
        """The paths of the Functions whose backward passes are these nodes of the graph."""
        self._replaced: dict[Place, Any] = {}
        """Methods of torch that are replaced while it records, as they were before."""
        self._hooks = range(0)
        self._generators = generators_among([model])
        self._paths = {id(module): path for path, module in model.named_modules()} if model is not None else {}

    def start(self) -> None:
        """Begin to record, until the context is left."""
        if self.model is not None and self.restore_attributes is None:
            self.restore_attributes = kept_attributes(self.model)
            self._restore_tensors = self._kept_tensors(self.model)
        first = RemovableHandle.next_id
        self._replaced = {place: own_method(place) for place in (APPLY, TRANSFORMED_CALL)}
        # Until all hooks are there, every new one is removed: an interruption may come in between.
        self._hooks, self.is_recording = range(first, sys.maxsize), True
        set_method(APPLY, private.handled_by(self._applied))
        set_method(TRANSFORMED_CALL, private.transformed_by(self._applied))
        for path, module in _hookable(self.model) if self.model is not None else ():
            self._hook(path, module)
        self._hooks = range(first, RemovableHandle.next_id)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove all hooks and patches. It is entered twice, as `PreservedState` is."""
        for place, method in self._replaced.items() if self.is_recording else ():
            set_method(place, method)
        for module in self.model.modules() if self.model is not None else ():
            private.remove_hooks(module, self._hooks)
        self.is_recording = False
        for kept in (self._copies, self._nodes, self._running):
            kept.clear()

    def _kept_tensors(self, model: nn.Module) -> Restore:
        """Keeps the buffers, also those that the model replaces by others, and the parameters that may change.

        Without an optimiser, those of a large model that require grad are left out. Needed by
        `test_right_model_has_no_culprit` and by the autoencoder of `test_fault_is_named_with_its_path_and_line`.
        """
        buffers = [(module, name, buffer) for module in model.modules() for name, buffer in buffers_of(module).items()]
        is_small = sum(p.nbytes for p in model.parameters()) <= self.max_bytes // 8
        parameters = [p for p in model.parameters() if self.keeps_parameters or is_small or not p.requires_grad]
        restore_values = kept_tensors([*(buffer for _, _, buffer in buffers if buffer is not None), *parameters])

        def restore() -> bool:
            replaced = [place for place in buffers if getattr(*place[:2]) is not place[2]]
            for place in replaced:
                setattr(*place)
            return restore_values() or bool(replaced)

        return restore

    def rewind(self) -> None:
        """Give the model the state that it had when the recording began."""
        if self.restore_attributes is not None and self._restore_tensors is not None:
            self.restore_attributes()
            self._restore_tensors()

    @contextmanager
    def as_recorded(self) -> Iterator[None]:
        """Give the model that state inside a block, and no gradients; put its present state back afterwards."""
        if self.model is None:
            yield
            return
        restore_attributes, restore_tensors = kept_attributes(self.model), self._kept_tensors(self.model)
        try:
            with PreservedGradients(self.model.parameters()):
                self.rewind()
                yield
        finally:
            restore_attributes()
            restore_tensors()

    def count(self, call: Call) -> int:
        """How often a Function or operator was called, kept or not."""
        return sum(number for (kind, _, name), number in self.seen.items() if (kind, name) == (call.kind, call.name))

    # Functions and operators.

    def _applied(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], apply: Callable[..., Any]) -> Any:
        if is_custom(cls) and private.is_forward_mode() and private.has_rule(cls, "jvp"):
            self._forward.add(cls)
        target, given = cls, args
        batch = private.batch_of(args) if is_custom(cls) and private.has_rule(cls, "vmap") else None
        if batch is not None:
            target, given = private.batched_function(cls, batch[1]), tuple(batch[0])
        if not is_custom(cls) or not self._is_recordable((given, kwargs)):
            return apply(*args, **kwargs)
        with private.outside_transforms() if batch is not None else nullcontext():
            call = self._function_call(target, given, kwargs)
        self._applying.append(call)
        try:
            result = apply(*args, **kwargs)
        except BaseException:
            if call is not None:
                self._forget(call)  # such as the last call of a checkpoint, which runs no further
            raise
        finally:
            self._applying.pop()
        if call is not None and batch is None:
            nodes = (tensor.grad_fn for tensor in tensors_of(result) if tensor.grad_fn is not None)
            self._nodes.update(dict.fromkeys(nodes, call.path))
            call.note_writes()
            self._finish(call, result)
        elif call is not None:
            call.place, call.checks, call.given = definition(cls.vmap), ("constancy",), []  # type: ignore[attr-defined]
            self._finish_batch(call, result)
        return result

    def _finish_batch(self, call: Call, result: Any) -> None:
        """Keep the values of a call under `vmap`, all of the batch."""
        batch = private.batch_of(tensors_of(result))
        if batch is not None:
            with private.outside_transforms():
                self._finish(call, [t if n is None else t.movedim(n, 0) for t, n in zip(*batch, strict=True)])

    def _is_recordable(self, value: Any) -> bool:
        """Whether a call takes part in a gradient and its arguments can be kept."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self._copyable(value) or ())

    def _copyable(self, value: Any) -> list[Tensor] | None:
        """The tensors in a value, if all can be copied: outside of transforms, and of kinds that checks accept."""
        if torch.jit.is_tracing() or torch.compiler.is_compiling():  # type: ignore[attr-defined,no-untyped-call]
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
        template = (tree := ArgumentTree()).template((args, kwargs), "")
        signature = (*((t.shape, t.dtype, t.requires_grad) for t in tree.tensors), _constants((args, kwargs)))
        calls = self._kept.setdefault(line, {})
        if signature not in calls and len(calls) >= MAX_SIGNATURES:
            return None
        kept = calls.setdefault(signature, [])
        call = self._call(kind, name, path, target, template, tree)
        if call is None:
            return None
        call.place, call.called, call.number = place, called, self.seen[kind, path, name]
        call.within = self._recorded_path() if self._roots == 1 else None
        call.outer = next(filter(None, reversed(self._applying)), None)
        call.checks = ("forward",) if cls in self._forward else ()
        if len(kept) >= MAX_KEPT_CALLS:
            self._forget(kept[-1])
        kept.append(call)
        self.calls.append(call)
        return call

    def _forget(self, call: Call) -> None:
        """Keep a call of a Function or operator no longer."""
        self.calls.remove(call)
        for kept in (kept for calls in self._kept.values() for kept in calls.values() if call in kept):
            kept.remove(call)
        self.bytes -= sum(tensor.nbytes for tensor in call.tensors if not isinstance(tensor, nn.Parameter))

    def _path(self, called: SourceCode | None) -> str:
        """The path of the module whose code is running, be it forward or another method; without a model, the line."""
        if self.model is None:
            return str(called or "")
        inner = self._nodes.get(running_node())
        return inner or self._paths.get(id(running_module())) or (self._running[-1].path if self._running else "")

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
        given = tree.tensors if kind != MODULE else []
        random = RandomState([*self._generators, *generators_among(unfilled(template))])
        call = Call(kind, name, path, target, None, None, template, tensors, given, flags, random, _autocast())
        if modules:
            call.modules, call.restore_tensors = modules, kept_tensors(parameters)
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
        if (tensors := self._copyable(result)) is not None:
            call.outputs = list(map(sketch_of, tensors))
            call.has_returned = True

    # Modules.

    def _recorded_path(self, other_than: str | None = None) -> str | None:
        """The path of the innermost recorded module that is running, other than a given one."""
        return next((one.path for one in reversed(self._running) if one.is_recorded and one.path != other_than), None)

    def _hook(self, path: str, module: nn.Module) -> None:
        """Put hooks on a module. It is recorded if it has code of its own, or if no module calls it."""
        has_code = path == "" or has_own_code(module)

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._roots += path == ""
            if is_recorded := has_code or not self._running:
                above = self._recorded_path(other_than=path)
                if above is not None:
                    self.edges.setdefault(above, {})[path] = None
            record = is_recorded and (MODULE, path, type(module).__name__) not in self.seen
            record = record and torch.is_grad_enabled() and self._copyable((args, kwargs)) is not None
            call = None
            if record:
                self.seen[MODULE, path, type(module).__name__] += 1
                template = (tree := ArgumentTree()).template((args, kwargs), "")
                call = self._call(MODULE, type(module).__name__, path, module, template, tree)
            if call is not None:
                call.place, call.called = definition(type(module).forward), calling_line()
                call.restore_attributes, call.restore_tensors = self.restore_attributes, self._restore_tensors
                call.restore_objects = kept_objects(unfilled(template))
                self.calls.append(call)
            self._running.append(_Running(module, path, is_recorded, call))

        def after(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            while self._running:
                opened = self._running.pop()
                if opened.module is module:
                    if opened.call is not None and result is not None:
                        self._finish(opened.call, result)
                    break

        module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
        module.register_forward_hook(after, with_kwargs=True, always_call=True)


def is_model(value: Any) -> bool:
    """Whether a value is a module."""
    return isinstance(value, nn.Module)


def scripted_paths(model: nn.Module) -> list[str]:
    """The paths of the outermost modules that run scripted code, whose lines nothing in Python sees."""
    paths = [path for path, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)]
    return [path for path in paths if not any(path != other and is_below(path, other) for other in paths)]


def is_below(path: str, other: str) -> bool:
    """Whether a path is that of a module inside another one, or its own."""
    return not other or f"{path}.".startswith(f"{other}.")


def _hookable(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules by path, without those inside compiled or scripted ones."""
    opaque: list[str] = []
    for path, module in model.named_modules():
        if any(is_below(path, other) for other in opaque):
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
