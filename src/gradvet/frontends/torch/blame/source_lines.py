"""Lines of the user's code: the one that runs, those that define a function or a hook, and candidates for a cause.

Functions of torch are told apart by their names here.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from gradvet.core.provenance import is_foreign, is_hidden, shown_path
from gradvet.core.results import SourceCode
from gradvet.frontends.torch.blame import private
from gradvet.frontends.torch.private import AFTER_ACCUMULATION, tensor_hooks

MACHINERY = ("gradvet.", "contextlib.", "torch.overrides.", "torch._tensor.", "torch.autograd.", "torch.utils.")
"""Beginnings of the names of modules between the code that calls a function of torch, or opens a context, and a mode.
"""

VALUELESS_ENDS, VALUELESS_STARTS = ("_like",), ("new_",)
"""Names of functions that read shape and format of a tensor, not its values."""

NUMBERS = ("item", "tolist", "__float__", "__array__", "numpy")
"""Methods that turn values of a tensor into numbers outside the graph."""

AUTOGRAD = "autograd.grad"
NO_GRAD, INFERENCE = REGIONS = ("no_grad", "inference_mode")
MARKED = "non-differentiable output of "
"""Beginning of the kind of a stop by `mark_non_differentiable`."""

DISTRIBUTIONS = "torch.distributions."
DELIBERATE = {NO_GRAD: ("torch.nn.",), "detach": ("torch.nn.", DISTRIBUTIONS), "padding_idx": ("torch.nn.",)}
"""Stops in torch's own code that are part of a method, by kind: the vectors of spectral norm, straight-through
estimators, the row of an embedding that `padding_idx` freezes. `sample` of a distribution, which is under no_grad as
well, is one if a distribution gets the sample again, as `log_prob` of a policy gradient does: elsewhere users may have
meant `rsample`."""

COMPILED = "CompiledFunction"
"""The Function in which torch.compile runs a compiled region."""

TORCH_FOLDER = str(Path(torch.__file__).parent)


def is_custom(cls: type) -> bool:
    """Whether a Function is not torch's own."""
    name, own = cls.__name__, private.mapped_function(cls)
    return name.startswith(private.GENERATED_PREFIX) or name == COMPILED or not is_foreign(own.__module__)


def has_own_code(module: nn.Module) -> bool:
    """Whether the derivative of a module may be wrong though those of its children are right.

    Torch's own modules without hooks are left out.
    """
    hooks = [
        hook
        for hooks in (private.module_hooks(module), *(map(tensor_hooks, module.parameters(recurse=False))))
        for _, by_key in hooks
        for hook in by_key.values()
    ]
    names = [getattr(hook, "__module__", None) or type(hook).__module__ for hook in hooks]
    return not all(map(is_foreign, (type(module).__module__, *names)))


def _frames(frame: FrameType | None = None) -> Iterator[FrameType]:
    """The frames that are running, or a frame and those that have called it, the innermost first."""
    frame = frame or inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def calling_line(frame: FrameType | None = None) -> SourceCode | None:
    """The innermost line of the user's code that is running, or that has called a frame; None if there is none.

    A decorator such as `@torch.no_grad()` runs in behalf of the function that it decorates.
    """
    for caller in _frames(frame):
        if not is_hidden(caller):
            return line_of(caller)
        # From torch 2.15 on, the wrapper is named after the decorator.
        decorated = caller.f_locals.get("func") if "ctx_factory" in caller.f_code.co_freevars else None
        if decorated is not None and (line := definition(decorated)) is not None:
            return line
    return None


def line_of(frame: FrameType) -> SourceCode:
    """The line that a frame runs."""
    return _line(frame.f_code.co_filename, frame.f_lineno)


def _is_machinery(frame: FrameType) -> bool:
    return f"{frame.f_globals.get('__name__')}.".startswith(MACHINERY)


def running_code() -> str:
    """The name of the Python module whose code is running, torch's machinery of modes and contexts left out."""
    return str(next(itertools.dropwhile(_is_machinery, _frames())).f_globals.get("__name__"))


def entered_context() -> bool | None:
    """Whether a context is being entered (True) or left (False) by torch's own code; None if neither."""
    names = (frame.f_code.co_name for frame in itertools.takewhile(_is_machinery, _frames()))
    return next((name == "__enter__" for name in names if name in ("__enter__", "__exit__")), None)


def definition(function: Any) -> SourceCode | None:
    """The line with the `def` of a function; None if its code is not Python or is foreign."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")  # of an object that can be called
    code = getattr(function, "__code__", None)
    if code is None or is_foreign(getattr(function, "__module__", None)) or code.co_filename.startswith(TORCH_FOLDER):
        return None
    # The first line of a function is that of its first decorator.
    is_lambda = code.co_name == "<lambda>"
    for number in () if is_lambda else range(code.co_firstlineno, code.co_firstlineno + MAX_DECORATOR_LINES):
        if linecache.getline(code.co_filename, number).lstrip().startswith(("def ", "async def ")):
            return _line(code.co_filename, number)
    return _line(code.co_filename, code.co_firstlineno)


MAX_DECORATOR_LINES = 20
"""Number of lines below the first one that are searched for `def`."""


def unpreserved_checkpoint() -> FrameType | None:
    """The frame of a checkpoint without `preserve_rng_state` that is running; None if there is none."""
    frames = (frame for frame in _frames() if frame.f_globals.get("__name__") == checkpoint.__name__)
    names = "preserve", "preserve_rng_state"
    return next((frame for frame in frames if False in map(frame.f_locals.get, names)), None)


def running_module(frame: FrameType | None = None) -> nn.Module | None:
    """The module one of whose methods runs the innermost line of the user's code, or that which has called a frame.

    A function belongs to the module that calls it: needed by
    `test_stop_in_a_function_of_a_module_that_cannot_be_replayed_has_its_path`.
    """
    owners = map(_owner, itertools.dropwhile(is_hidden, _frames(frame)))
    return next((owner for owner in owners if owner is not None), None)


def running_node() -> Any:
    """The node of the graph whose backward pass, written by the user, runs the innermost line; None if there is none.

    Needed by `test_function_called_by_a_backward_pass_has_the_path_of_its_module`.
    """
    first = next(map(_first_argument, itertools.dropwhile(is_hidden, _frames())), None)
    return first if isinstance(first, torch.autograd.graph.Node) else None


def running_layer() -> nn.Module | None:
    """The innermost module that runs, if it is one of torch's own."""
    owners = map(_owner, itertools.takewhile(is_hidden, _frames()))
    return next((owner for owner in owners if owner is not None and is_foreign(type(owner).__module__)), None)


def _first_argument(frame: FrameType) -> Any:
    return frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None


def _owner(frame: FrameType) -> nn.Module | None:
    """The module one of whose methods or properties, decorated or not, a frame runs."""
    owner, code = _first_argument(frame), frame.f_code
    if not isinstance(owner, nn.Module):
        return None
    found = [vars(base)[code.co_name] for base in type(owner).__mro__ if code.co_name in vars(base)]
    codes = [getattr(inspect.unwrap(getattr(one, "fget", one)), "__code__", None) for one in found]
    return owner if code in codes else None


def line_writing(cls: type, attribute: str) -> SourceCode | None:
    """The first line of a class or its bases that assigns to `x.attribute` or calls a method such as `add_` of it."""
    writes = re.compile(rf"\.{attribute}\.\w+_\(|^[^=(]*\.{attribute}\b[^=(]*=(?!=)")
    for base in (base for base in cls.__mro__ if not is_foreign(base.__module__)):
        try:
            lines, start = inspect.getsourcelines(base)
        except (OSError, TypeError):
            continue
        for number, line in enumerate(lines, max(start, 1)):
            if writes.search(line):
                return _line(inspect.getsourcefile(base) or "", number)
    return None


def _line(file: str, number: int) -> SourceCode:
    return SourceCode(shown_path(file), number, linecache.getline(file, number).strip())


def is_deliberate(kind: str, code: str) -> bool:
    """Whether a stop in a Python module, given by its name, is part of a method of torch; `state_dict` is none."""
    return f"{code}.".startswith(DELIBERATE.get(kind, ("?",))) and code != nn.modules.module.__name__


FREEZING = "requires_grad_", "requires_grad"
"""Names of what switches the gradient of a tensor off, a method and an attribute."""

FROZEN = "no gradient flows to this tensor from here on"
NO_INPUT = (
    "none of the inputs of this reentrant checkpoint requires grad, so no gradient flows to the parameters inside"
)


def is_valueless(name: str) -> bool:
    """Whether a function does not read the values of its arguments."""
    return name.endswith(VALUELESS_ENDS) or (name.startswith(VALUELESS_STARTS) and name != "new_tensor")


def function_name(func: Any) -> str:
    """The name of a function of torch; of the getter or setter of an attribute, that of the attribute."""
    name = str(getattr(func, "__name__", ""))
    owner = getattr(func, "__self__", None)
    return str(getattr(owner, "__name__", name)) if name in ("__get__", "__set__") else name


def is_setter(func: Any) -> bool:
    """Whether a function of torch assigns to an attribute of a tensor, as `x.data = y` does."""
    return getattr(func, "__name__", "") == "__set__"


def is_in_place(name: str) -> bool:
    """Whether a function of this name writes to its first argument."""
    return (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__iadd__", "__imul__")


def stop_sentence(kind: str, name: str) -> str:
    """What happens at a stop of a kind by a function of torch."""
    if kind in REGIONS:
        return f"no gradient flows through what is computed under {kind} here"
    if kind.startswith(MARKED):
        return "no gradient flows through an output that the Function marks with mark_non_differentiable()"
    if name == AUTOGRAD:
        return "autograd.grad() without create_graph=True gives constants here"
    if name == private.PARAMETER:
        return "nn.Parameter() makes a new parameter of these values here, and no gradient flows to what they come from"
    if name in NUMBERS:
        return f"{name}() takes a number out of the graph here, and no gradient flows through it"
    return f"no gradient flows through {'.data' if name == 'data' else f'{name}()'} here"


@dataclass(frozen=True, slots=True)
class Region:
    """Code that runs in another grad mode; without a line if that is on."""

    line: SourceCode | None
    code: str
    """The Python module whose code switched it."""
    owner: nn.Module | None
    is_call: bool
    """Whether a call of `set_grad_enabled` switched it, and no context."""
    kind: str


Key = tuple[str, str]
"""The line and the name of a stop."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A line that may be the cause of a wrong gradient."""

    place: SourceCode
    name: str
    what: str
    owner: nn.Module | None = None
    """The module whose code it is in."""
    hook: tuple[private.Hooks, int] | None = None
    """A hook that was there before the call, and its key."""
    can_hold: bool = True
    """Whether its values can be held constant: not those of a hook, or of `.data` that is written to."""

    @property
    def key(self) -> Key:
        return str(self.place), self.name


def persistent_hooks(module: nn.Module) -> Iterator[Candidate]:
    """The hooks that modules and parameters have, torch's own left out."""
    for path, inner in module.named_modules():
        where = f"module {path or type(module).__name__}"
        for kind, hooks in private.module_hooks(inner):
            yield from _hooks(hooks, f"{kind} on {where}", inner)
        for name, parameter in inner.named_parameters(recurse=False):
            for kind, hooks in tensor_hooks(parameter):
                yield from _hooks(hooks, f"{kind} on parameter {name}", inner)


def accumulation_hooks(module: nn.Module) -> Iterator[tuple[Candidate, nn.Parameter]]:
    """The hooks that run after a gradient was added to `.grad` of a parameter, torch's own left out."""
    for inner in module.modules():
        for name, parameter in inner.named_parameters(recurse=False):
            for kind, hooks in tensor_hooks(parameter):
                if kind == AFTER_ACCUMULATION:
                    yield from ((hook, parameter) for hook in _hooks(hooks, f"{kind} on parameter {name}", inner))


def _hooks(hooks: private.Hooks, name: str, owner: nn.Module) -> Iterator[Candidate]:
    for key, hook in hooks.items():
        is_own = is_foreign(getattr(hook, "__module__", None))
        # torch's hook on several tensors has that of the user in its closure.
        inner = inspect.getclosurevars(hook).nonlocals.values() if is_own and inspect.isfunction(hook) else [hook]
        place = next(filter(None, map(definition, inner)), None)
        if place is not None:
            yield Candidate(place, name, "this hook changes the gradient", owner, (hooks, key), can_hold=False)


def without(candidates: Iterable[Candidate]) -> AbstractContextManager[None]:
    """Take the persistent hooks among some candidates out inside a block."""
    return private.without_hooks([candidate.hook for candidate in candidates if candidate.hook is not None])
