"""Every private name of torch, NumPy and Python that the frontend uses, each behind a function with a public fallback.

Tested with torch 2.13, Python 3.11, NumPy 2.4. `GRADVET_PUBLIC_ONLY=1` in the environment switches all fallbacks on.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import random
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as _decorated_checkpoint
from torch.utils.hooks import RemovableHandle

PUBLIC_ONLY = os.environ.get("GRADVET_PUBLIC_ONLY") == "1"
"""Whether every fallback is in use."""


def _found(owner: Any, path: str) -> Any:
    """The attribute at a dotted path, or None if a name is missing or fallbacks are in use."""
    for name in path.split("."):
        owner = None if PUBLIC_ONLY else getattr(owner, name, None)
    return owner


# Derivatives.

_ENGINE = _found(torch.autograd.Variable, "_execution_engine")
_UNDEFINED_GRAD = _found(torch, "_C._functions.UndefinedGrad")


def run_backward(outputs: tuple[Any, ...], sources: tuple[Any, ...], cotangents: tuple[Any, ...]) -> Sequence[Any]:
    """`torch.autograd.grad` without its checks of the arguments, which cost as much as a small backward pass.

    For plain tensors. The graph is kept, and a source without a gradient gives None.
    """
    if _ENGINE is None:
        return torch.autograd.grad(outputs, sources, cotangents, retain_graph=True, allow_unused=True)
    found: Sequence[Any] = _ENGINE.run_backward(outputs, cotangents, True, False, sources, True, accumulate_grad=False)
    return found


def without_cotangent(output: Any) -> Any:
    """The output through an identity whose backward pass returns an undefined gradient."""
    if _UNDEFINED_GRAD is None:
        return _Undefined.apply(output)  # type: ignore[no-untyped-call]
    return _UNDEFINED_GRAD()(output)


def node_eps(node: Any) -> float:
    """The eps of the coarsest format among the values whose gradients a node takes; infinite if that is unknown."""
    values = _found(node, "_input_metadata")
    return math.inf if values is None else max((torch.finfo(value.dtype).eps for value in values), default=0.0)


class _Undefined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> None:
        return None


def dual_vmap() -> Callable[..., Any] | None:
    """The vmap with which torch itself batches dual numbers; None if there is none.

    The public vmap does not map `make_dual`, only `torch.func.jvp`.
    """
    if PUBLIC_ONLY:
        return None
    from torch._vmap_internals import _vmap

    return _vmap


checkpoint: Callable[..., Any] = _found(_decorated_checkpoint, "__wrapped__") or _decorated_checkpoint
"""`torch.utils.checkpoint.checkpoint` without its decorator, which loads the compiler (seconds)."""


# Tensors.

_FLATTEN = _found(torch, "_C._nn.flatten_dense_tensors")
_UNFLATTEN = _found(torch, "_C._nn.unflatten_dense_tensors")
_FOREACH_ADD = _found(torch, "_foreach_add_")
_FOREACH_COPY = _found(torch, "_foreach_copy_")


def flatten_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """One vector of several dense tensors of one dtype."""
    if _FLATTEN is None:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])
    vector: Tensor = _FLATTEN(list(tensors))
    return vector


def unflatten_vector(vector: Tensor, like: Sequence[Tensor]) -> Sequence[Tensor]:
    """The inverse: views of the vector in the shapes of these tensors."""
    if _UNFLATTEN is None:
        parts = vector.split([tensor.numel() for tensor in like])
        return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
    views: Sequence[Tensor] = _UNFLATTEN(vector, list(like))
    return views


def add_in_turn(tensors: Sequence[Tensor], parts: Sequence[Tensor], scale: float) -> None:
    """Add scale · part to each tensor in place, one after the other."""
    if _FOREACH_ADD is not None:
        _FOREACH_ADD(list(tensors), list(parts), alpha=scale)
        return
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.add_(part, alpha=scale)


def copy_in_turn(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy a value into each tensor, one after the other."""
    if _FOREACH_COPY is not None:
        _FOREACH_COPY(list(tensors), list(values))
        return
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def coo_values(tensor: Tensor) -> Tensor:
    """The stored numbers of a COO tensor. The public method refuses tensors that are not coalesced."""
    return tensor.values() if PUBLIC_ONLY and tensor.is_coalesced() else tensor._values()


def coo_indices(tensor: Tensor) -> Tensor:
    """The stored indices of a COO tensor, coalesced or not."""
    return tensor.indices() if PUBLIC_ONLY and tensor.is_coalesced() else tensor._indices()


def version(tensor: Tensor) -> float:
    """The number of counted writes to a tensor; NaN, which equals nothing, where that is unknown."""
    return float("nan") if PUBLIC_ONLY or tensor.is_inference() else tensor._version


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

_NEXT_HOOK = "next_id"
_unknown = itertools.count()


def buffers_of(module: nn.Module) -> Mapping[str, Tensor | None]:
    """The buffers of a module by name, those that are None included; the public method leaves None out."""
    return dict(module.named_buffers(recurse=False, remove_duplicate=False)) if PUBLIC_ONLY else module._buffers


def hook_count() -> int:
    """The number of hooks registered so far in this process; it grows with every call if that is unknown."""
    count = _found(RemovableHandle, _NEXT_HOOK)
    return next(_unknown) if count is None else int(count)


def has_hooks(tensor: Tensor) -> bool:
    """Whether a tensor has hooks; a tensor of which that is unknown has some."""
    return PUBLIC_ONLY or bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


# Operators.


Operators = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
"""Stands between a function and the operators that it calls: (operator, args, kwargs) ↦ result."""


def operator_mode(handle: Operators) -> AbstractContextManager[Any] | None:
    """A context in which every operator below autograd goes through `handle`; None if there is no way to do that."""
    if PUBLIC_ONLY:
        return None
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return handle(func, args, kwargs or {})

    return Mode()  # type: ignore[no-untyped-call]


def watch_operators(call: Callable[[], object], look: Callable[[Sequence[Any]], float]) -> list[float]:
    """Make a call; `look` at the arguments and results of each operator.

    Returns nothing, without a call, if operators cannot be watched.
    """
    found: list[float] = []

    def watched(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = operator(*args, **kwargs)
        found.append(look((*args, *kwargs.values(), result)))
        return result

    mode = operator_mode(watched)
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


def custom_operator_type() -> type | tuple[()]:
    """The type of what `torch.library.custom_op` makes; no type if this torch has none by that name."""
    kind: type | None = getattr(torch.library, "CustomOpDef", None)
    if kind is None and not PUBLIC_ONLY:
        from torch._library.custom_ops import CustomOpDef

        return CustomOpDef
    return kind or ()


def operator_database() -> Sequence[Any]:
    """The operators of PyTorch's own tests. There is no public way; the import takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    # The import forbids `torch.backends.x.flag = value` in the whole process.
    torch.backends.__allow_nonbracketed_mutation_flag = True
    return list(op_db)


@contextmanager
def quick_samples() -> Iterator[None]:
    """Draw samples without the search for the calling test and without seeding absent GPUs, which dominate the cost."""
    from torch.testing._internal import common_utils

    with ExitStack() as stack:
        stack.enter_context(patch.object(common_utils, "extract_test_fn", lambda: None, create=True))
        if not torch.cuda.is_available():
            stack.enter_context(patch.object(torch.cuda, "manual_seed_all", lambda seed: None))
        yield


# Global generators of Python and NumPy. Their public `getstate` takes 12 and 74 µs, called seven times in one check:
# 6 % of `check(torch.sin, x)` at n = 10 and 15 % of `gradcheck`. Memory is read only; it is never written.

_PYTHON_TWISTER = struct.Struct("=i624I")
"""CPython's Mersenne twister behind the head of the object: position, then 624 words."""

_NUMPY_TWISTER = struct.Struct("=624Ii")
"""NumPy's: 624 words, then the position."""

_NUMPY_GAUSS = struct.Struct("=i4xd")
"""Whether a second normal number is kept, and that number."""


class _View:
    """The bytes at the address of a generator's state; the address is found anew for another generator."""

    def __init__(self, locate: Callable[[Any], tuple[int, int]]) -> None:
        self._locate = locate
        self._generator: Any = None
        self._memory: Any = None

    def read(self, generator: Any) -> bytes:
        if generator is not self._generator:
            address, size = self._locate(generator)
            self._generator, self._memory = generator, (ctypes.c_char * size).from_address(address)
        state: bytes = self._memory.raw
        return state


def _locate_python(generator: Any) -> tuple[int, int]:
    return id(generator) + object.__basicsize__, _PYTHON_TWISTER.size


def _locate_numpy(generator: Any) -> tuple[int, int]:
    return int(generator.ctypes.state_address), _NUMPY_TWISTER.size


def _locate_gauss(source: Any) -> tuple[int, int]:
    """Search an example whose number is known for the place of that number; size 0 if it is not found."""
    example = type(source)(1)
    example.standard_normal()
    expected = _NUMPY_GAUSS.pack(*example.get_state()[3:])
    place = ctypes.string_at(id(example), type(example).__basicsize__).find(expected)
    return (id(source) + place, _NUMPY_GAUSS.size) if place >= 0 else (id(source), 0)


_PYTHON_VIEW, _NUMPY_VIEW, _GAUSS_VIEW = _View(_locate_python), _View(_locate_numpy), _View(_locate_gauss)


def _decode_python(memory: bytes) -> tuple[int, ...]:
    position, *words = _PYTHON_TWISTER.unpack(memory)
    return (*words, position)


def _can_read_python() -> bool:
    """Whether this Python keeps the state where it is expected, shown by an example."""
    if PUBLIC_ONLY or sys.implementation.name != "cpython" or not hasattr(random, "_inst"):
        return False
    example = random.Random(1)
    example.random()
    return bool(_decode_python(ctypes.string_at(*_locate_python(example))) == example.getstate()[1])


READS_PYTHON = _can_read_python()
READS_NUMPY = not PUBLIC_ONLY


def python_state() -> tuple[Any, ...]:
    """The state of Python's global generator, to be compared with `==` and passed to `set_python_state`."""
    if not READS_PYTHON:
        return random.getstate()
    generator: Any = random._inst
    return _PYTHON_VIEW.read(generator), generator.gauss_next


def set_python_state(state: tuple[Any, ...]) -> None:
    if isinstance(state[0], bytes):
        state = (random.Random.VERSION, _decode_python(state[0]), state[1])
    random.setstate(state)


def numpy_state() -> Any:
    """The state of NumPy's global generator in the same way; None if NumPy is not loaded."""
    source: Any = getattr(sys.modules.get("numpy"), "random", None)
    if source is None:
        return None
    current = getattr(source, "get_bit_generator", None)
    if READS_NUMPY and current is not None and type(current()).__name__ == "MT19937":
        gauss = _GAUSS_VIEW.read(source.mtrand._rand)
        if gauss:
            return _NUMPY_VIEW.read(current()), gauss
    return _Comparable(source.get_state(legacy=False))


def set_numpy_state(state: Any) -> None:
    """Restore a state, unless a generator of another kind has taken the place of the one it belongs to."""
    numpy: Any = sys.modules["numpy"]
    official = state.value if isinstance(state, _Comparable) else _decode_numpy(*state)
    if numpy.random.get_state(legacy=False)["bit_generator"] == official["bit_generator"]:
        numpy.random.set_state(official)


def _decode_numpy(memory: bytes, gauss: bytes) -> dict[str, Any]:
    *words, position = _NUMPY_TWISTER.unpack(memory)
    has_gauss, number = _NUMPY_GAUSS.unpack(gauss)
    twister = {"key": words, "pos": position}
    return {"bit_generator": "MT19937", "state": twister, "has_gauss": has_gauss, "gauss": number}


class _Comparable:
    """A public state of NumPy, compared by its text because it holds arrays."""

    def __init__(self, state: Any) -> None:
        self.value = dict(state)
        self._text = _text(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Comparable) and other._text == self._text

    __hash__ = None  # type: ignore[assignment]


def _text(value: Any) -> str:
    """A state as text with all its numbers; `repr` of an array leaves out the middle."""
    if isinstance(value, dict):
        return str({key: _text(item) for key, item in value.items()})
    return str(value.tolist()) if hasattr(value, "tolist") else repr(value)
