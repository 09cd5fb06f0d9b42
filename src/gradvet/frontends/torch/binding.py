"""What users pass, as a function of a flat list of tensors: which of them are checked, and what each is called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradvet.core.provenance import title_of
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch.randomness import RandomState
from gradvet.frontends.torch.trees import Slot, Tree, filled


@dataclass(frozen=True, slots=True)
class Binding:
    """A function of flat arguments, some of which are checked."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    names: tuple[str, ...]
    """What each argument is called, in the order of the arguments."""
    title: str
    notes: tuple[str, ...] = ()
    surrogate: Callable[..., Any] | None = None
    """Another function of the same flat arguments, whose slopes the derivative is held to."""
    output: str = "output"
    """What the results are called."""
    derived: bool = False
    """Whether the function is a derivative of the user's, made by torch."""

    @property
    def checked(self) -> list[int]:
        """The places of the arguments that are checked."""
        return [i for i, argument in enumerate(self.arguments) if isinstance(argument, Tensor) and _live(argument)]

    def restricted(self, places: Sequence[int]) -> Binding:
        """Only some of the arguments are checked; the others are constants."""
        return self.at(
            argument.detach() if i not in places and isinstance(argument, Tensor) and _live(argument) else argument
            for i, argument in enumerate(self.arguments)
        )

    def at(self, arguments: Iterable[Any]) -> Binding:
        """The same with other arguments."""
        unchanged = (self.names, self.title, self.notes, self.surrogate, self.output, self.derived)
        return Binding(self.function, tuple(arguments), *unchanged)


@dataclass(frozen=True, slots=True)
class Request:
    """What the user passed."""

    func: Callable[..., Any]
    inputs: Any
    kwargs: Mapping[str, Any] | None = None
    surrogate: Callable[..., Any] | None = None


def bind(request: Request, *, widened: bool = False) -> Binding:
    """Find the tensors among inputs and keywords, and the parameters if the function is a module.

    A tuple is the positional arguments; anything else is the one argument. Widened, all floating-point numbers are
    copies in double precision.
    """
    func, tree = request.func, Tree()
    call = callable_of(func)
    positional = request.inputs if type(request.inputs) is tuple else (request.inputs,)
    templates = [tree.template(value, f"input {number}") for number, value in enumerate(positional)]
    keywords = {name: tree.template(value, name) for name, value in (request.kwargs or {}).items()}
    change = wide if widened else _itself
    tensors, notes = _prepared(tree, change)
    parameters, buffers = _state(func, change)
    own = list(dict(func.named_parameters()).values()) if isinstance(func, nn.Module) else []
    own = [parameter for parameter in own if parameter.requires_grad]
    count = len(tensors)
    in_order = [template.index if isinstance(template, Slot) else None for template in templates] == list(range(count))
    as_given = in_order and not keywords and not parameters and all(expand is _itself for _, expand in tensors)

    def arranged(target: Any, values: Sequence[Any]) -> Any:
        shown = [expand(value) for value, (_, expand) in zip(values[:count], tensors, strict=True)]
        args, words = [filled(t, shown) for t in templates], {name: filled(t, shown) for name, t in keywords.items()}
        given = values[count:]
        if target is not func or all(one is other for one, other in zip(given, own, strict=True)):
            return (call if target is func else target)(*args, **words)
        state = {**buffers, **dict(zip(parameters, given, strict=True))}
        return torch.func.functional_call(call, state, tuple(args), words)

    steady = _Steady(func)
    bound = Binding(
        steady.around(call if as_given else lambda *values: arranged(func, values)),
        (*(tensor for tensor, _ in tensors), *parameters.values()),
        (*tree.names, *parameters),
        title_of(func),
        tuple(notes),
        steady.around(lambda *values: arranged(request.surrogate, values)) if request.surrogate else None,
    )
    if not bound.checked:
        found = ", ".join(f"{n}: {_kind(t)}" for n, t in zip(tree.names, tree.tensors, strict=True)) or "no tensor"
        raise InvalidProblemError(
            f"there is nothing to differentiate: a floating-point or complex tensor was expected among the inputs, "
            f"found {found}. Pass at least one such tensor."
        )
    return bound


def wide(tensor: Tensor) -> Tensor:
    """A copy in double precision; what is not floating-point or complex is itself."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    double = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.detach().to(double, copy=True).requires_grad_(tensor.requires_grad)


def _state(func: Any, change: Callable[[Any], Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters that are checked, and everything else that a module holds where it has to be changed."""
    if not isinstance(func, nn.Module):
        return {}, {}
    parameters = {name: change(p) for name, p in func.named_parameters() if p.requires_grad}
    if change is _itself:
        return parameters, {}
    fixed = {name: change(p) for name, p in func.named_parameters() if not p.requires_grad}
    return parameters, {**fixed, **{name: change(buffer) for name, buffer in func.named_buffers()}}


class _Steady:
    """The same random state, and the same buffers of a module, before every call."""

    def __init__(self, owner: Any) -> None:
        self.start = RandomState()
        self._torch_alone: bool | None = None
        self._buffers = _Buffers(owner)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def steady(*values: Any) -> Any:
            self.start.restore_torch() if self._torch_alone else self.start.restore()
            self._buffers.renew()
            result = function(*values)
            # Looked at once: what draws from Python's or NumPy's generators does so in the first call.
            if self._torch_alone is None:
                self._torch_alone = self.start.is_torch_alone()
            return result

        return steady


class _Buffers:
    """Buffers that a call changes are given to the next call as they were at first, in memory of their own."""

    def __init__(self, owner: Any) -> None:
        modules = owner.modules() if isinstance(owner, nn.Module) else ()
        self._first = [
            (module, name, buffer, buffer.detach().clone(), buffer._version)
            for module in modules
            for name, buffer in module._buffers.items()
            if buffer is not None and not buffer.is_inference()
        ]

    def renew(self) -> None:
        for module, name, buffer, copy, version in self._first:
            now = module._buffers[name]
            # batch_norm writes behind the version's back, in training only.
            if module.training or now is not buffer or buffer._version != version:
                module._buffers[name] = copy.clone()


def _prepared(tree: Tree, change: Callable[[Any], Any]) -> tuple[list[tuple[Any, Callable[[Any], Any]]], list[str]]:
    """Each tensor as it is moved, and how the function's own argument is made of it again."""
    asked = any(_live(tensor) for tensor in tree.tensors)
    prepared: list[tuple[Any, Callable[[Any], Any]]] = []
    notes = []
    for tensor, name in zip(tree.tensors, tree.names, strict=True):
        floating = tensor.is_floating_point() or tensor.is_complex()
        if not asked and floating:
            # Nobody asked for a gradient, so the caller's tensor stays out of the graph.
            tensor = tensor.detach() if _is_expanded(tensor) else tensor.detach().clone()
            tensor.requires_grad_()
        if _live(tensor) and _is_unrecorded_view(tensor):
            tensor = tensor.detach().requires_grad_()
        if _live(tensor) and _is_expanded(tensor):
            notes.append(f"{name} is expanded: it is moved through the storage behind it")
            prepared.append((change(_behind(tensor)), functools.partial(_expanded, size=tensor.size())))
        else:
            prepared.append((change(tensor), _itself))
    return prepared, notes


def _live(tensor: Any) -> bool:
    return bool(tensor.requires_grad) and bool(tensor.is_floating_point() or tensor.is_complex())


def _is_unrecorded_view(tensor: Tensor) -> bool:
    """Whether it was made in no-grad mode of one that requires grad: it says that it does too, and is in no graph."""
    return bool(tensor.is_leaf and tensor._is_view() and tensor._base is not None and tensor._base.requires_grad)


def _is_expanded(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    return any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.size(), strict=True))


def _behind(tensor: Tensor) -> Tensor:
    """The numbers behind an expanded tensor, each once."""
    for dimension, step in enumerate(tensor.stride()):
        if step == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor.detach().requires_grad_()


def _expanded(tensor: Any, size: torch.Size) -> Any:
    return tensor.expand(size)


def _itself(tensor: Any) -> Any:
    return tensor


def callable_of(func: Any) -> Any:
    """What to call: of an `autograd.Function` its `apply`."""
    if isinstance(func, type) and issubclass(func, torch.autograd.Function):
        return func.apply
    if not callable(func):
        raise InvalidProblemError(f"a function, a module or an autograd.Function was expected, found {func!r}")
    return func


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
