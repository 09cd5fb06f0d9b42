"""Private names of torch that recording and replaying use, each with a public fallback.

`GRADVET_PUBLIC_ONLY=1` in the environment switches all fallbacks on, as in `frontends.torch.private`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.frontends.torch.private import (
    AFTER_ACCUMULATION,
    PUBLIC_ONLY,
    hooks_of,
    storage_reference,
    tensor_hooks,
)
from gradvet.frontends.torch.process_state import (
    APPLY,
    NO_METHOD,
    TRANSFORMED_CALL,
    own_method,
    set_method,
)

Apply = Callable[..., Any]
Handle = Callable[[type, tuple[Any, ...], dict[str, Any], Apply], Any]
"""Stands between `Function.apply` and its caller: (class, args, kwargs, the original apply) ↦ result."""

MAPPED = "Vmapped"
"""Beginning of the names of Functions that `vmap` generates for one with `generate_vmap_rule`."""

PARAMETER = "nn.Parameter"

GENERATED_PREFIX = "GeneratedBackwardFor_"
"""Beginning of the name of the Function behind an operator of `torch.library`."""


def handled_by(handle: Handle) -> Any:
    """What to put in place of `apply` of all Functions, so that every call passes through `handle`."""
    before, owner = own_method(APPLY), APPLY[0]

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        inner = before.__get__(None, cls) if before is not NO_METHOD else super(owner, cls).apply
        return handle(cls, args, kwargs, inner)

    return classmethod(apply)


def transformed_by(handle: Handle) -> Any:
    """What to put in place of what runs Functions under transforms, so that every call passes through `handle`."""
    before = own_method(TRANSFORMED_CALL)

    def call(operator: Any, cls: type, *args: Any, **kwargs: Any) -> Any:
        return handle(cls, args, kwargs, functools.partial(before, operator, cls))

    return NO_METHOD if before is NO_METHOD else call


def applied_functions(handle: Handle) -> AbstractContextManager[None]:
    """Pass every call of an `autograd.Function` through `handle`."""
    return _replaced(APPLY[0], apply=handled_by(handle))


@contextmanager
def inference_mode_as(switch: Callable[[bool, bool], object]) -> Iterator[None]:
    """Let `torch.inference_mode` only call a function: (the grad mode that it asks for, whether it is entered) ↦ any.

    Its own tensors can get no gradient, and modes do not see it. Needed by
    `test_fault_is_named_with_its_path_and_line` of the autoencoder.
    """

    def enter(context: Any) -> None:
        context.before = torch.is_grad_enabled()
        switch(not context.mode, True)

    def leave(context: Any, *exception: object) -> None:
        switch(context.before, False)

    with _replaced(torch.inference_mode, __enter__=enter, __exit__=leave):
        yield


@contextmanager
def _replaced(cls: type, **methods: Any) -> Iterator[None]:
    """Replace methods of a class inside a block, `apply` or some of those in `PATCHED_METHODS`.

    Only these are restored: after an interruption Python may end this block when others have been restored already.
    """
    before = {name: own_method((cls, name)) for name in methods}
    try:
        for name, method in methods.items():
            set_method((cls, name), method)
        yield
    finally:
        for name, method in before.items():
            set_method((cls, name), method)


@contextmanager
def packing_if(decide: Callable[[Any], bool]) -> Iterator[None]:
    """Let `saved_tensors_hooks` be entered if a function of its pack hook says so.

    Needed by `test_fault_is_named_with_its_path_and_line` of the solver.
    """
    cls = torch.autograd.graph.saved_tensors_hooks
    before = cls.__enter__, cls.__exit__

    def enter(context: Any) -> None:
        context.is_entered = decide(context.pack_hook)
        if context.is_entered:
            before[0](context)

    def leave(context: Any, *exception: object) -> None:
        if context.is_entered:
            before[1](context, *exception)

    with _replaced(cls, __enter__=enter, __exit__=leave):
        yield


@contextmanager
def parameters_made_by(handle: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]) -> Iterator[None]:
    """Pass every call of `nn.Parameter` through a function: (what makes the parameter, args, kwargs) ↦ parameter.

    Modes do not see it. Needed by `test_fault_is_named_with_its_path_and_line` of the solver.
    """
    before = nn.Parameter.__new__

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        def parameter(*args: Any, **kwargs: Any) -> Any:
            return before(cls, *args, **kwargs)

        parameter.__name__ = PARAMETER
        return handle(parameter, args, kwargs)

    with _replaced(nn.Parameter, __new__=staticmethod(new)):
        yield


def operator_call(cls: type, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The operator of `torch.library` behind a generated Function, with its arguments; None for other Functions."""
    if PUBLIC_ONLY or not cls.__name__.startswith(GENERATED_PREFIX):
        return None
    operators = [value for value in _closed_over(cls.forward) if isinstance(value, torch._ops.OpOverload)]  # type: ignore[attr-defined]
    if not operators:
        return None
    if hasattr(args[-1], "input_spec"):  # an operator with lists of tensors: the Function gets them flat
        from torch.utils import _pytree

        args = tuple(_pytree.tree_unflatten(list(args[:-1]), args[-1].input_spec))
    metadata = args[-1]
    return operators[0], tuple(args[:-1]), dict(getattr(metadata, "keyword_only_args", {}))


def operator_backward(cls: type) -> Callable[..., Any] | None:
    """The backward function that was registered for the operator behind a generated Function."""
    backward = getattr(cls, "backward", None)
    found = [getattr(value, "_backward_fn", None) for value in _closed_over(backward)]
    return next((value for value in found if callable(value)), None)


def mapped_function(cls: type) -> type:
    """The Function that `vmap` runs by one that torch generates for it; other classes as they are."""
    if not cls.__name__.startswith(MAPPED) or not cls.__module__.startswith("torch."):
        return cls
    found = (value for value in _closed_over(cls.forward) if isinstance(value, type))  # type: ignore[attr-defined]
    return next((value for value in found if issubclass(value, torch.autograd.Function)), cls)


def has_rule(cls: type, name: str) -> bool:
    """Whether a Function has a rule of its own for a transform, `vmap` or `jvp`."""
    return getattr(cls, name, None) is not getattr(torch.autograd.Function, name)


def is_forward_mode() -> bool:
    """Whether the code runs in forward mode, by `torch.func.jvp` or `dual_level`; False without private names."""
    return not PUBLIC_ONLY and torch.autograd.forward_ad._current_level >= 0


def batch_of(values: Sequence[Any]) -> tuple[list[Any], tuple[int | None, ...]] | None:
    """The whole tensors behind those that code under one `vmap` sees, and the dimension over which each is mapped.

    None under no transform, another one or several. Needed by `test_wrong_rule_of_a_transform_is_named_with_its_line`.
    """
    if PUBLIC_ONLY or not any(isinstance(value, Tensor) and is_wrapped(value) for value in values):
        return None
    functorch = torch._C._functorch
    tensors, dims = list(values), list[int | None]([None] * len(values))
    for n, value in enumerate(values):
        if isinstance(value, Tensor) and functorch.is_batchedtensor(value):
            tensors[n], dims[n] = functorch.get_unwrapped(value), functorch.maybe_get_bdim(value)
        if isinstance(tensors[n], Tensor) and is_wrapped(tensors[n]):
            return None
    return tensors, tuple(dims)


def outside_transforms() -> Any:
    """Runs functions of torch inside as if there were no transform around."""
    return torch._C._DisableFuncTorch()


@functools.lru_cache
def batched_function(cls: type, dims: tuple[int | None, ...]) -> type:
    """A Function whose `apply` is that of another one under `vmap`, over these dimensions of its arguments."""
    apply = torch.vmap(cls.apply, dims)  # type: ignore[attr-defined]
    return type(f"{cls.__name__} under vmap", (cls,), {"apply": staticmethod(apply), "__module__": cls.__module__})


def _closed_over(function: Any, depth: int = 3) -> Iterator[Any]:
    """The values that a function closes over, and those that functions among them close over."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        yield value
        if isinstance(value, FunctionType) and depth:
            yield from _closed_over(value, depth - 1)


def requires_grad(tensor: Tensor) -> bool:
    """Whether a tensor requires grad; under transforms, one of those that it stands for.

    Needed by `test_stop_under_vmap_is_named`.
    """
    while not (required := tensor.requires_grad) and not PUBLIC_ONLY and is_wrapped(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return required


def is_view(result: Any, tensor: Tensor) -> bool:
    """Whether a result shares the memory of a tensor."""
    return isinstance(result, Tensor) and storage_reference(result) == storage_reference(tensor)


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a tensor belongs to a transform such as vmap, so that its values cannot be kept."""
    if not PUBLIC_ONLY:
        functorch = torch._C._functorch
        return bool(functorch.is_functorch_wrapped_tensor(tensor))
    try:
        tensor.data_ptr()
    except RuntimeError:
        return tensor.layout is torch.strided
    return False


def is_opaque(module: nn.Module) -> bool:
    """Whether a module runs compiled or scripted code, into which no hooks can be put."""
    compiled = not PUBLIC_ONLY and module._compiled_call_impl is not None
    return compiled or isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule"


class Replica(nn.Module):
    """A module with the parameters, buffers and children of another one under the same names, and another forward pass.

    That is `run`, which gets the other one first. Without private names, the other one is a child. Attributes of its
    own begin with `gradvet_`: a child of the other one may have any name.
    """

    gradvet_run: Callable[..., Any]

    def __init__(self, inner: nn.Module, run: Callable[..., Any], name: str) -> None:
        super().__init__()
        self.__dict__.update(gradvet_run=run, __name__=name)
        if PUBLIC_ONLY:
            self.gradvet_inner = inner
        else:
            self.__dict__["gradvet_inner"] = inner
            self._parameters, self._buffers, self._modules = inner._parameters, inner._buffers, inner._modules
        self.training = inner.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.gradvet_run(self.gradvet_inner, *args, **kwargs)


Hooks = dict[int, Callable[..., Any]]

MODULE_HOOKS = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}


def module_hooks(module: nn.Module) -> Iterator[tuple[str, Hooks]]:
    """The hooks of a module by kind; none without private names."""
    for attribute, kind in MODULE_HOOKS.items():
        if not PUBLIC_ONLY and (hooks := getattr(module, attribute, None)):
            yield kind, hooks


def remove_hooks(module: nn.Module, numbers: range) -> None:
    """Remove the hooks of these numbers from a module, also if their registration was interrupted."""
    for hooks in hooks_of(module):
        for number in [number for number in hooks if number in numbers]:
            del hooks[number]


@contextmanager
def without_hooks(found: Sequence[tuple[Hooks, int]]) -> Iterator[None]:
    """Take hooks, given by table and key, out inside a block, and put them back at their places."""
    before = [(hooks, dict(hooks)) for hooks, _ in found]
    try:
        for hooks, key in found:
            del hooks[key]
        yield
    finally:
        for hooks, kept in before:
            hooks.clear()
            hooks.update(kept)


def without_accumulation_hooks(tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Take out the hooks that run after a gradient was added to `.grad`, such as steps of an optimiser."""
    tables = [hooks for tensor in tensors for kind, hooks in tensor_hooks(tensor) if kind == AFTER_ACCUMULATION]
    return without_hooks([(hooks, key) for hooks in tables for key in hooks])


class HookedNode:
    """Stands for a node of the graph; hooks are registered through a function.

    The function gets (how it is done for a node and a hook, the name of the method, node and hook, no keywords).
    """

    def __init__(self, node: Any, register: Callable[[Any, str, tuple[Any, Any], dict[str, Any]], Any]) -> None:
        self._node, self._register = node, register

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._node, name)
        if name not in ("register_hook", "register_prehook"):
            return own
        return lambda hook: self._register(lambda _, given: own(given), name, (self._node, hook), {})
