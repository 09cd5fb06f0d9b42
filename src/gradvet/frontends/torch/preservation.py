"""The state that a check may change, and its restoration: tensors, modules, and the settings of `process_state`."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType, ModuleType, NoneType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.core.provenance import is_foreign
from gradvet.frontends.torch import private
from gradvet.frontends.torch.autograd_graph import leaves_behind, nodes_behind
from gradvet.frontends.torch.layouts import numbers_of
from gradvet.frontends.torch.process_state import SEARCH_SETTINGS, SETTINGS, ProcessState, use_standard_settings
from gradvet.frontends.torch.random_state import RandomState, generators_among
from gradvet.frontends.torch.state import KeptItems, Restore, kept_tensors

MAX_OBJECTS = 24
"""Callables, containers and objects that are entered in search of modules, the nearest first."""

MAX_SEARCHED_OBJECTS = 256
"""The same in search of tensors, which are deeper inside."""

MAX_ITEMS = 32
"""Items of one container or object that are considered."""

OPAQUE_TYPES = (nn.Module, Tensor, type, ModuleType, str, int, float, complex, NoneType)
"""Types of objects that are not entered."""


class PreservedState:
    """All state that a check may change, as it was when this was made. Leaving the context restores it.

    It is entered twice, as `with state, state:`. An exception such as KeyboardInterrupt may come at any line, also
    while the state is restored; the outer exit then restores it once more. What a check sets itself is set on the
    second entry.

    - process: the settings listed in `process_state`, warnings filters, open modes, transforms and levels of dual
      numbers, random generators;
    - arguments: values, `.grad`, `requires_grad`;
    - modules that the function refers to: attributes with the lists and mappings in them, among these hooks, buffers
      and parameters; of the tensors there `.grad` and `requires_grad`, and the values of those that require no grad;
    - other tensors that it refers to: `.grad`, `requires_grad`; random generators: their state.
    """

    def __init__(self, function: Any, arguments: Sequence[Any], *, standard_settings: bool = False) -> None:
        """`function` may be a tuple of all objects that are called.

        With `standard_settings`, gradients are recorded inside, and torch's own products of float32 numbers are not
        rounded to the ten bits of TF32.
        """
        self._standard_settings = standard_settings
        self._process = ProcessState(SEARCH_SETTINGS if standard_settings else SETTINGS)
        reached = reachable_objects(function, *arguments)
        modules = _modules_in(reached)
        generators = generators_among(reached)
        given, tensors = set(map(id, arguments)), [*arguments, *reached]
        attributes = KeptItems(map(vars, modules))
        own = {id(one): one for one in attributes.tensors()}
        self._modules = modules
        # The modes come first: in a mode that is still open, copying would go through it.
        self._steps: list[Callable[[], object]] = [self._process.restore, attributes.restore]
        # A call may write to them, also to parameters of a teacher.
        self._steps.append(kept_tensors(tensor for tensor in own.values() if not tensor.requires_grad))
        for key, tensor in ({id(one): one for one in tensors if isinstance(one, Tensor)} | own).items():
            copied = [tensor] if key in given else []
            if tensor.is_leaf or tensor.retains_grad:  # a backward pass writes to its `.grad`
                self._steps.append(_kept_gradient(tensor))
                if copied and tensor.grad is not None:  # and adds to it, if the function calls backward itself
                    copied.append(tensor.grad)
            self._steps += [kept_tensors([numbers]) for one in copied if (numbers := numbers_of(one)) is not None]
        self._steps.append((RandomState(generators) if generators else self._process.random).restore)
        self._is_entered = self._is_restored = False

    def __enter__(self) -> None:
        self._is_restored = False
        if self._is_entered:  # an interruption here leaves the first context, which restores the state
            for module in self._modules:
                _keep_memory(module)
            if self._standard_settings:
                use_standard_settings()
        self._is_entered = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_restored:
            return
        failures: list[Exception] = []
        steps = self._steps
        if kind is not None and not issubclass(kind, Exception):
            ends = functools.partial(_end_generators, traceback), self._process.close_contexts
            steps = [*ends, *steps]
        for restore in steps:
            try:
                restore()
            except Exception as error:  # the others are restored all the same
                failures.append(error)
        self._is_restored = True
        if failures and kind is None:
            raise failures[0]


def _end_generators(traceback: TracebackType | None) -> None:
    """End the generators behind `with` statements whose `__enter__` or `__exit__` was interrupted, the last one first.

    Python would end them when the traceback is deleted. What they close, such as a level of torch's transforms, is
    closed by then, and a complaint about that would be printed.
    """
    generators = []
    while traceback is not None:
        manager = traceback.tb_frame.f_locals.get("self")
        if traceback.tb_frame.f_code.co_filename == contextlib.__file__:
            generators.append(getattr(manager, "gen", None))
        traceback = traceback.tb_next
    for generator in reversed(generators):
        if isinstance(generator, GeneratorType):
            generator.close()


def _kept_gradient(tensor: Tensor) -> Callable[[], None]:
    """Keeps the `.grad`, `requires_grad` and hooks of a tensor; returns their restoration."""
    gradient, requires_grad, is_leaf = tensor.grad, tensor.requires_grad, tensor.is_leaf
    hooks = [(table, dict(table)) for _, table in private.tensor_hooks(tensor)]

    def restore() -> None:
        for table, kept in hooks:
            if list(table.items()) != list(kept.items()):
                table.clear()
                table.update(kept)
        if is_leaf and not tensor.is_leaf:  # a result was written into it
            try:
                tensor.detach_()
            except RuntimeError:  # a view, which torch takes out of no graph
                return
        if tensor.requires_grad != requires_grad:
            tensor.requires_grad_(requires_grad)
        if tensor.grad is not gradient:
            tensor.grad = gradient

    return restore


def _as_they_are() -> None:
    """Leaves parameters where they are in memory."""


def _keep_memory(module: nn.Module) -> None:
    """No recurrent module moves parameters to other memory when it is called with others than last time.

    It would move them while they are perturbed, and backward passes recorded before would see those values.
    """
    if isinstance(module, nn.RNNBase):
        vars(module)["flatten_parameters"] = _as_they_are
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")


def _kept_containers(things: Sequence[Any], limit: int) -> Restore:
    """Keeps what the lists, mappings and sets to which these refer hold, and the attributes of the user's objects.

    Returns their restoration. Tensors are kept as they are, without their values.
    """
    reached = reachable_objects(*things, limit=limit)
    return KeptItems([*reached, *(vars(thing) for thing in reached if _has_attributes(thing))]).restore


def _has_attributes(thing: Any) -> bool:
    """Whether a thing is an object of a class of the user, such as a cache of keys; no module."""
    has_own = hasattr(thing, "__dict__") and not isinstance(thing, (*OPAQUE_TYPES, FunctionType))
    return has_own and not is_foreign(type(thing).__module__)


def kept_objects(things: Iterable[Any]) -> Restore | None:
    """Keeps the attributes of the user's objects among some things; None if there are none."""
    objects = list(filter(_has_attributes, things))
    return _kept_containers(objects, MAX_SEARCHED_OBJECTS) if objects else None


@contextlib.contextmanager
def preserved_containers(*things: Any, limit: int = MAX_OBJECTS) -> Iterator[None]:
    """Restores the lists, mappings and sets to which these refer, and the attributes of the user's objects."""
    restore = _kept_containers(things, limit)
    try:
        yield
    finally:
        restore()


class PreservedGradients:
    """The leaves without `.grad`; on exit they have their own again. It is entered twice, as `PreservedState` is."""

    def __init__(self, leaves: Iterable[Any]) -> None:
        self._before = {id(leaf): (leaf, leaf.grad) for leaf in leaves}

    def __enter__(self) -> None:
        for leaf, _ in self._before.values():
            leaf.grad = None

    def __exit__(self, *exception: object) -> None:
        for leaf, gradient in self._before.values():
            leaf.grad = gradient


def accumulating_leaves(outputs: Sequence[Any]) -> Iterator[Any]:
    """The leaves that a backward pass adds gradients to, those that checkpointed functions use included."""
    yield from leaves_behind(outputs)
    for node in nodes_behind(outputs):
        for thing in reachable_objects(getattr(node, "run_function", None)):
            if isinstance(thing, nn.Module):
                yield from thing.parameters()
            elif isinstance(thing, Tensor) and thing.is_leaf and thing.requires_grad:
                yield thing


def _modules_in(things: Sequence[Any]) -> list[nn.Module]:
    """The modules among some objects, with all their children, each once."""
    found: dict[int, nn.Module] = {}
    for thing in things:
        if isinstance(thing, nn.Module):
            found |= {id(module): module for module in thing.modules()}
    return list(found.values())


def reachable_objects(*things: Any, limit: int = MAX_OBJECTS) -> list[Any]:
    """Objects that these refer to, the nearest first. Modules and tensors are not entered."""
    found: list[Any] = []
    seen: set[int] = set()
    ahead = deque(things)
    while ahead and len(seen) < limit:
        thing = ahead.popleft()
        found.append(thing)
        if not isinstance(thing, OPAQUE_TYPES) and id(thing) not in seen:
            seen.add(id(thing))
            ahead.extend(_inside(thing))
    return found


def _inside(thing: Any) -> Iterator[Any]:
    """The objects to which a callable, a container or an object refers directly."""
    if isinstance(thing, FunctionType):
        if thing.__defaults__ or thing.__kwdefaults__:
            yield from (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values())
        for cell in thing.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # the cell is still empty
                continue
        # Globals that the function names, without functions of other files.
        for name in thing.__code__.co_names:
            value = thing.__globals__.get(name)
            if value is not None and (not isinstance(value, FunctionType) or value.__globals__ is thing.__globals__):
                yield value
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, (tuple, list, dict)):
        items = list(thing.values() if isinstance(thing, dict) else thing)
        yield from (item for item in items if isinstance(item, nn.Module))
        yield from items[:MAX_ITEMS]
    elif isinstance(thing, (MethodType, BuiltinMethodType)):
        if isinstance(thing.__self__, type(torch.autograd.Function)):  # its passes are methods of the class
            yield from (thing.__self__, *(getattr(thing.__self__, name, None) for name in ("forward", "backward")))
        elif isinstance(thing, MethodType):
            yield from (thing.__self__, thing.__func__)
    else:
        yield from islice(getattr(thing, "__dict__", {}).values(), MAX_ITEMS)
