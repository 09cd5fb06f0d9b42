"""Every private name of torch that the frontend uses, each behind a function with a public fallback.

Those of open contexts are in `process_state`, those of the random generators of Python and NumPy in `random_state`.

Tested with torch 2.13, Python 3.11, NumPy 2.4. `GRADVET_PUBLIC_ONLY=1` in the environment switches all fallbacks on.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

PUBLIC_ONLY = os.environ.get("GRADVET_PUBLIC_ONLY") == "1"
"""Whether every fallback is in use."""


def _found(owner: Any, path: str) -> Any:
    """The attribute at a dotted path, or None if a name is missing or fallbacks are in use."""
    for name in path.split("."):
        owner = None if PUBLIC_ONLY else getattr(owner, name, None)
    return owner


# Derivatives.

ENGINE = _found(torch.autograd.Variable, "_execution_engine")
"""Runs backward passes without checks of the arguments; None without private names."""

PLAIN_TYPES = frozenset({Tensor, nn.Parameter})
"""Types of tensors whose operators are those of torch."""


def without_cotangent(output: Any) -> Any:
    """The output through an identity whose backward pass returns an undefined gradient."""
    return _Undefined.apply(output)  # type: ignore[no-untyped-call]


def node_eps(node: Any) -> float:
    """The eps of the coarsest format among the values whose gradients a node takes; infinite if that is unknown."""
    values = _found(node, "_input_metadata")
    return math.inf if values is None else max((torch.finfo(value.dtype).eps for value in values), default=0.0)


class _Undefined(torch.autograd.Function):
    """The identity, whose backward pass returns an undefined gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> None:
        return None


def dual_vmap() -> Any:
    """The vmap with which torch itself batches backward passes and dual numbers; None if there is none.

    The public vmap does not map `make_dual`, only `torch.func.jvp`.
    """
    if PUBLIC_ONLY:
        return None
    from torch._vmap_internals import _vmap

    return _vmap


# Tensors.

_PYTREE_NODES: Mapping[type, Any] = _found(torch, "utils._pytree.SUPPORTED_NODES") or {}


def coo_values(tensor: Tensor) -> Tensor:
    """The stored numbers of a COO tensor. The public method refuses tensors that are not coalesced."""
    return tensor.values() if PUBLIC_ONLY and tensor.is_coalesced() else tensor._values()


def coo_indices(tensor: Tensor) -> Tensor:
    """The stored indices of a COO tensor, coalesced or not."""
    return tensor.indices() if PUBLIC_ONLY and tensor.is_coalesced() else tensor._indices()


def version(tensor: Tensor) -> float:
    """The number of counted writes to a tensor; NaN, which equals nothing, where that is unknown."""
    return float("nan") if PUBLIC_ONLY or tensor.is_inference() else tensor._version


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor belongs to a `FakeTensorMode`: it has a shape and a device, but no values."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


_IS_FUNCTIONAL = _found(torch, "_is_functional_tensor")


def is_functional(tensor: Tensor) -> bool:
    """Whether a tensor is a wrapper of torch's functionalisation, in which writes by address end the process."""
    return _IS_FUNCTIONAL is not None and bool(_IS_FUNCTIONAL(tensor))


def is_view_of_grad(tensor: Tensor) -> bool:
    """Whether a leaf is a view of a tensor that requires grad.

    Without private names, whether it is part of a larger storage.
    """
    if PUBLIC_ONLY:
        whole = tensor.layout is not torch.strided or tensor.untyped_storage().nbytes() == tensor.nbytes
        return tensor.is_leaf and not whole
    base = tensor._base if tensor.is_leaf and tensor._is_view() else None
    return base is not None and base.requires_grad


# Modules and hooks.

MODULE_ATTRIBUTES = frozenset((*vars(nn.Module()), "flatten_parameters", "_flat_weights", "_flat_weight_refs"))
"""Attributes that every module has, and those in which recurrent ones keep their parameters."""


def attributes_of(module: nn.Module) -> list[tuple[str, Any]]:
    """The attributes of a module that not every module has."""
    return [(name, value) for name, value in vars(module).items() if name not in MODULE_ATTRIBUTES]


def hooks_of(module: nn.Module) -> list[dict[int, Any]]:
    """The tables of hooks of a module. There is no public way to list them; without such names there are none."""
    return [table for name, table in vars(module).items() if "_hooks" in name and isinstance(table, dict)]


AFTER_ACCUMULATION = "post-accumulate-grad hook"


def tensor_hooks(tensor: Tensor) -> list[tuple[str, dict[int, Any]]]:
    """The tables of hooks that a tensor has, with their kind; none without private names."""
    if PUBLIC_ONLY:
        return []
    tables = (("hook", tensor._backward_hooks), (AFTER_ACCUMULATION, tensor._post_accumulate_grad_hooks))
    return [(kind, table) for kind, table in tables if table]


def buffers_of(module: nn.Module) -> Mapping[str, Tensor | None]:
    """The buffers of a module by name, those that are None included; the public method leaves None out."""
    return dict(module.named_buffers(recurse=False, remove_duplicate=False)) if PUBLIC_ONLY else module._buffers


@contextmanager
def with_state(module: nn.Module, state: Mapping[str, Any]) -> Iterator[None]:
    """The module with other tensors as parameters and buffers inside a block, by name.

    They replace the module's own in all of its tables, so that tied ones are replaced too, and get their attributes.
    """
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    given = {id(named[name]): tensor for name, tensor in state.items()}
    places = [
        (table, name, own)
        for inner in module.modules()
        for table in vars(inner).values()
        if isinstance(table, dict)
        for name, own in table.items()
        if id(own) in given
    ]
    if given.keys() - {id(own) for _, _, own in places}:
        raise RuntimeError("the parameters of this module cannot be replaced")
    try:
        for table, name, own in places:
            vars(given[id(own)]).update(vars(own))
            table[name] = given[id(own)]
        yield
    finally:
        for table, name, own in places:
            table[name] = own


def hook_count() -> float:
    """The number of hooks registered so far in this process; NaN, which equals nothing, where that is unknown."""
    return math.nan if PUBLIC_ONLY else RemovableHandle.next_id


def has_hooks(values: Sequence[Any], since: float, modules: Sequence[nn.Module] = ()) -> bool:
    """Whether a tensor among the values has hooks, which no graph shows, or hooks were registered since a count.

    Forward hooks of these modules do not count: the graph shows what they do. Needed by
    `test_forward_hooks_of_the_first_call_leave_the_rules_builtin`. True where all that is unknown.
    """
    registered = hook_count()
    for module in modules if not PUBLIC_ONLY else ():
        registered -= sum(key >= since for key in (*module._forward_hooks, *module._forward_pre_hooks))
    if registered != since:
        return True
    for value in values:
        if isinstance(value, Tensor) and (value._backward_hooks or value._post_accumulate_grad_hooks):
            return True
    return False


# Operators.


Operators = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
"""Called in place of each operator or function of torch that a function calls: (operator, args, kwargs) ↦ result."""


class FunctionMode(TorchFunctionMode):
    """A context in which every function of torch goes through `handle`."""

    def __init__(self, handle: Operators) -> None:
        super().__init__()
        self._handle = handle

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._handle(func, args, kwargs or {})


def observing(notice: Callable[[Any, Sequence[Any], Any], None]) -> FunctionMode:
    """The context that calls `notice(function, positional and keyword arguments, result)` after every call of torch."""

    def observed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        notice(func, (*args, *kwargs.values()), result)
        return result

    return FunctionMode(observed)


def compiler_stance() -> Any:
    """Whether compiled functions run compiled, as torch keeps it; None without a compiler."""
    return _found(sys.modules.get("torch._dynamo.eval_frame"), "_stance")


def set_compiler_stance(stance: Any) -> None:
    if None not in (stance, compiler_stance()):
        sys.modules["torch._dynamo.eval_frame"]._set_stance(stance)


class CompiledAsPython:
    """Runs compiled functions as plain Python inside, whose lines and operators can be seen.

    It may be entered twice, as `PreservedState` is. Needed by `test_stop_in_a_compiled_part_is_named`.
    """

    def __init__(self) -> None:
        self._stance = compiler_stance()

    def __enter__(self) -> None:
        if "torch._dynamo" in sys.modules:
            torch.compiler.set_stance("force_eager")

    def __exit__(self, *raised: object) -> None:
        if self._stance is not None:
            set_compiler_stance(self._stance)
        elif "torch._dynamo" in sys.modules:  # it was not loaded, or fallbacks are in use
            torch.compiler.set_stance("default")


class OperatorMode(TorchDispatchMode):
    """A context in which every operator below autograd goes through `handle`.

    Compiled functions run as plain Python inside: one that torch's compiler meets in such a mode is never compiled
    again. Needed by `test_check_leaves_a_compiled_module_compiled`.
    """

    def __init__(self, handle: Operators) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handle = handle
        self._stances: list[CompiledAsPython] = []  # one for each time that the mode is open

    @property
    def is_open(self) -> bool:
        return bool(self._stances)

    def __enter__(self) -> Any:
        self._stances.append(CompiledAsPython())
        self._stances[-1].__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> Any:
        try:
            return super().__exit__(*raised)  # type: ignore[no-untyped-call]
        finally:
            self._stances.pop().__exit__(*raised)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise the first operator loads the compiler (seconds).
        return "torch._dynamo" in sys.modules

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._handle(func, args, kwargs or {})


def operator_mode(handle: Operators) -> OperatorMode | None:
    """The mode with this `handle`; None without private names."""
    return None if PUBLIC_ONLY else OperatorMode(handle)


def largest_over_operators(call: Callable[[], object], measure: Callable[[Sequence[Any], Any], float]) -> float:
    """The largest measure of an operator that a call runs: (all arguments, result) ↦ number from 0 on.

    Zero, without a call, if there is no way to see operators.
    """
    found = 0.0

    def measured(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        nonlocal found
        result = operator(*args, **kwargs)
        found = max(found, measure((*args, *kwargs.values()), result))
        return result

    mode = operator_mode(measured)
    if mode is not None:
        with mode:
            call()
    return found


def storage_reference(tensor: Tensor) -> Any:
    """A weak reference to the memory of a strided tensor, equal to other references to the same memory."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())


def operator_body(operator: Any) -> Callable[..., Any] | None:
    """The Python function behind an operator of `torch.library.custom_op`; None for other operators."""
    if PUBLIC_ONLY or operator.namespace in ("aten", "prim"):
        return None
    from torch._library.custom_ops import OPDEFS

    return _found(OPDEFS.get(schema_of(operator).name), "_init_fn")  # type: ignore[no-any-return]


def schema_of(operator: Any) -> Any:
    return operator._schema


def registered_container(value: Any, make: Callable[..., Any]) -> Any:
    """The result of `make` for labels, items and rebuilding of a type registered with torch's pytree; None for others.

    There is no public way: without private names such types are not opened.
    """
    node = None if PUBLIC_ONLY else _PYTREE_NODES.get(type(value))
    if node is None:
        return None
    items, kind = node.flatten_fn(value)
    keyed = getattr(node, "flatten_with_keys_fn", None)
    labels = [str(key) for key, _ in keyed(value)[0]] if keyed else [f"[{k}]" for k in range(len(items))]
    return make(labels, items, lambda others: node.unflatten_fn(list(others), kind))
