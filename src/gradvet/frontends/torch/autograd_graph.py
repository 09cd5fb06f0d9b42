"""The autograd graph behind the outputs: its nodes, builtin or custom rules, hooks, and the cause of an exception.

Backward passes themselves are in `derivatives`. `is_computed_by_operators` is about the forward pass: whether it is
torch's own as well.
"""

from __future__ import annotations

import functools
import inspect
import re
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradvet.core.problem import DerivativeRules
from gradvet.errors import DerivativeError, HookError, UnsupportedError, first_line, raise_interruption
from gradvet.frontends.torch import private
from gradvet.frontends.torch.arguments import tensors_of
from gradvet.frontends.torch.blame.private import applied_functions

if TYPE_CHECKING:
    from gradvet.frontends.torch.problem import TorchProblem

BUILTIN = re.compile(r"\w+Backward\d+|torch::autograd::\w+|CopyBackwards|CopySlices")
"""Names of torch's own nodes. The node of an `autograd.Function` is named after its class, without a number."""

WRAPPERS = frozenset({"CopySlices", "torch::autograd::CopySlices"})
"""Nodes of operators that wrote to a view. They hide the operator's own node, which may be custom."""

ACCUMULATION = "torch::autograd::AccumulateGrad"
"""The node of a leaf."""

DECOMPOSITIONS = ("LinalgEig", "LinalgSvd", "LinalgQr")
"""Beginnings of the names of operators whose derivatives divide by differences of eigenvalues or by pivots."""

SMOOTH_OPERATORS = re.compile(
    r"""
    AccumulateGrad | Add | Addbmm | Addcdiv | Addcmul | Addmm | Addmv | AsStrided | Atan | Atanh | Asinh | Baddbmm |
    Bmm | Cat | Clone | Complex | Conj | ConjPhysical | Convolution | CopySlices | Cos | Cosh | Cumsum | Diagonal |
    Digamma | Div | Dot | Erf | Erfc | Exp | Exp2 | Expand | Expm1 | Flip | Imag | IndexSelect | Index |
    Lgamma | Log | Log10 | Log1P | Log2 | LogSigmoid | LogSoftmax | Logaddexp | Logcumsumexp | Logsumexp | Mean |
    Mm | Mul | Mv | Neg | Permute | Polygamma | Pow | Real | Reciprocal | Repeat | ReshapeAlias | Roll |
    Rsqrt | Rsub | Select | Sigmoid | Silu | Sin | Sinc | Sinh | Slice | Softmax | Softplus | SpecialErfcx | Split |
    SplitWithSizes | Sqrt | Squeeze | Stack | Sub | Sum | T | Tan | Tanh | ToCopy | Trace | Transpose |
    Tril | Triu | Unbind | UnsafeView | Unsqueeze | Var | View | ViewAsComplex | ViewAsReal | Where
    """,
    re.VERBOSE,
)
"""Operators without kinks. Needed by `test_branch_that_has_the_value_and_not_the_slope_fails_at_its_point`."""

REJECTIONS = frozenset({"StandardGammaBackward0", "_DirichletBackward"})
"""Operators of `rsample` of Gamma, Beta, Dirichlet and StudentT."""

MISUSE_PHRASES = ("inplace operation", "second time")
"""Phrases in messages of torch's nodes about a graph that the function's code made unusable."""

HOOK_ERRORS = (AttributeError, NameError, ZeroDivisionError)
"""Exceptions that hooks raise and torch's own nodes do not."""

USED_UP = "non-empty donated buffers"
"""Part of the message of a compiled function whose graph cannot be kept."""

UNSUPPORTED_PHRASES = (
    USED_UP,
    "not implemented",
    "has not been implemented",
    "does not support it",
    "must implement the jvp",
    "must implement a jvp",
    "once_differentiable",
    "setup_context",
    "vmap staticmethod",
    "generate_vmap_rule",
    "does not support forward",
    "not support for forward ad",
    "not supported for forward",
    "does not currently support",
    "is not supported",
    "not differentiable",
    "double backward",
    "sparse csr tensors do not have",
    "cannot access data pointer",
    "data-dependent control flow",
    "torch.utils.checkpoint",
    "do not have strides",
    "zerotensors are immutable",
)
"""Phrases, in lower case, of torch's messages about operators without a derivative of some kind."""

MEANINGS = {
    "implement the jvp": "the autograd.Function has no jvp, which forward mode needs",
    "override the setup_context": "the autograd.Function has no setup_context, which vmap needs",
    "jvp is not returning a view": "forward mode cannot call the jvp: forward returns an input or a view of one, and "
    "jvp must return a view of its tangent then, such as tangent.view_as(tangent)",
}
"""Parts of torch's messages about an autograd.Function, and what they mean."""


def nodes_behind(outputs: Sequence[Any]) -> list[Any]:
    """Every node of the graph behind some outputs, once."""
    found: list[Any] = []
    seen = {output.grad_fn for output in outputs} - {None}
    waiting = list(seen)
    seen.add(None)
    while waiting:
        node = waiting.pop()
        found.append(node)
        for following, _ in node.next_functions:
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def leaves_behind(outputs: Sequence[Any]) -> list[Tensor]:
    """The leaves in the graph behind some outputs, each once."""
    return [node.variable for node in nodes_behind(outputs) if node.name() == ACCUMULATION]


class TorchRules(DerivativeRules):
    """The derivative rules in the graph of a problem. Refers to its function and arguments, not to the problem."""

    def __init__(self, problem: TorchProblem) -> None:
        nodes = nodes_behind(problem.differentiable_outputs)
        self.node_names = frozenset([node.name() for node in nodes])
        """The names of all nodes in the graph of the differentiable outputs."""
        self._node_types = dict.fromkeys(map(type, nodes))
        self._call = functools.partial(problem.function, *problem.arguments)
        self._restart = problem.binding.restart
        self._cost, self._is_hooked = problem.cost, problem.is_hooked
        safe = problem.binding.safe_devices
        self._is_safe = safe is None or problem.home.type in safe

    @property
    def are_builtin(self) -> bool:
        return not self.has_custom and not self._is_hooked

    @functools.cached_property
    def has_custom(self) -> bool:
        if not all(map(BUILTIN.fullmatch, self.node_names)):
            return True
        if self.node_names.isdisjoint(WRAPPERS):
            return False
        self._cost.forwards += 1
        applied: list[type] = []

        def noted(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], apply: Callable[..., Any]) -> Any:
            applied.append(cls)
            return apply(*args, **kwargs)

        with applied_functions(noted):
            self._call()
        return bool(applied)

    @functools.cached_property
    def keeps_tensors(self) -> bool:
        """A tensor that a call inside vmap leaves behind cannot be used by the next one.

        Needed by `test_function_that_keeps_its_input_passes`.
        """
        made: list[weakref.ref[Tensor]] = []

        def notice(_: object, given: Sequence[Any], result: Any) -> None:
            for one in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(one, Tensor) and not any(one is other for other in given):
                    made.append(weakref.ref(one))

        self._cost.forwards += 1
        try:
            with torch.no_grad(), private.observing(notice):
                self._call.func(*[torch.clone(x) if _requires_grad(x) else x for x in self._call.args])
        except Exception as error:  # as the call inside vmap would
            raise_interruption(error)
            return True
        self._restart()
        return any(one() is not None for one in made)

    @property
    def may_crash(self) -> bool:
        return not self._is_safe and not self.are_builtin

    @property
    def is_smooth_branch(self) -> bool:
        return "WhereBackward0" in self.node_names and all(map(_is_smooth, self.node_names))

    @property
    def decomposes(self) -> bool:
        return any(name.startswith(DECOMPOSITIONS) for name in self.node_names)

    @property
    def draws_by_rejection(self) -> bool:
        return not self.node_names.isdisjoint(REJECTIONS)

    def custom(self) -> list[Any]:
        """The classes of `autograd.Function` whose nodes are in the graph, each once."""
        values = (value for node_type in self._node_types for value in vars(node_type).values())
        found = (value for value in values if isinstance(value, type) and issubclass(value, torch.autograd.Function))
        return list(dict.fromkeys(found))

    def calls_one_operator(self) -> bool:
        """Whether user code makes one call of torch that takes or gives a tensor that requires grad.

        `detach` and `item` count too; what a function of torch, such as a loss or a module, calls counts as one.
        """
        callers: set[object] = set()

        def notice(function: Any, given: Sequence[Any], result: Any) -> None:
            parts = result if isinstance(result, (tuple, list)) else (result,)
            takes = any(map(_requires_grad, given)) and any(
                isinstance(part, (Tensor, float, complex)) for part in parts
            )
            if takes or any(map(_requires_grad, parts)):
                callers.add(_outermost_in_torch(inspect.currentframe()) or object())

        self._cost.forwards += 1
        with private.observing(notice):
            self._call()
        return len(callers) == 1 and self.are_builtin  # none is seen inside a scripted function

    def largest_inside(self) -> float:
        def largest(_: object, result: Any) -> float:
            tensors = result if isinstance(result, (list, tuple)) else [result]
            numbers = [t for t in tensors if isinstance(t, Tensor) and t.dtype.is_floating_point and t.numel()]
            return max((float(t.detach().nan_to_num(0.0, 0.0, 0.0).abs().max()) for t in numbers), default=0.0)

        def call() -> None:
            self._cost.forwards += 1
            self._call()

        try:
            with torch.no_grad():
                return private.largest_over_operators(call, largest)
        except Exception:  # what refuses the mode is not known
            return 0.0

    def is_unsupported(self, error: BaseException) -> bool:
        return is_unsupported_error(error)

    def meaning(self, error: BaseException) -> str:
        return next((meaning for part, meaning in MEANINGS.items() if part in str(error)), "")


def _is_smooth(name: str) -> bool:
    """Whether the operator of a node, such as `Exp` of `ExpBackward0`, has no kinks."""
    operator = name.removeprefix("torch::autograd::").rstrip("0123456789").removesuffix("Backward")
    return SMOOTH_OPERATORS.fullmatch(operator) is not None


def is_unsupported_error(error: BaseException) -> bool:
    """Whether an exception is about an operation that torch does not support.

    So does a failed assertion in the code of its transforms: needed by
    `test_function_mapped_by_torch_without_forward_mode_passes`.
    """
    if isinstance(error, NotImplementedError):
        return True
    if isinstance(error, AssertionError):
        innermost = traceback.extract_tb(error.__traceback__, limit=-1)
        return bool(innermost) and str(Path("torch", "_functorch")) in innermost[0].filename
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(phrase in text for phrase in UNSUPPORTED_PHRASES)


def classify_backward_error(error: Exception, rules: TorchRules, *, users_graph: bool) -> None:
    """Raise the cause of an exception of a backward pass: a custom rule, or an operator without a derivative.

    `users_graph` says that the user's code recorded the graph and may have made it unusable. If neither cause is known,
    nothing is raised.
    """
    if isinstance(error, (torch.OutOfMemoryError, DerivativeError, UnsupportedError)) or is_unsupported_error(error):
        return
    line = first_line(error, 300) or _raising_line(error)
    misused = users_graph and any(phrase in str(error) for phrase in MISUSE_PHRASES)
    if not misused and not isinstance(error, HOOK_ERRORS) and not rules.has_custom:
        raise UnsupportedError(f"{type(error).__name__}: {line}") from error
    kind = HookError if _is_by_hook(error) else DerivativeError
    raise kind(f"the backward pass raises {type(error).__name__}: {line}") from error


def _is_by_hook(error: Exception) -> bool:
    """Whether an exception of a backward pass comes from the user's code and from no Function's backward."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [f"{frame.f_globals.get('__name__')}." for frame in frames]
    first = [frame.f_locals.get(name) for frame in frames for name in frame.f_code.co_varnames[:1]]
    in_function = any(isinstance(value, torch.autograd.graph.Node) for value in first)
    return not in_function and not all(name.startswith(("gradvet.", "torch.")) for name in names)


def _raising_line(error: Exception) -> str:
    """The line of code that raised, such as an assertion without a message; empty if it is not known."""
    lines = traceback.extract_tb(error.__traceback__, limit=-1)
    return (lines[0].line or "") if lines else ""


def _requires_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _outermost_in_torch(frame: FrameType | None) -> FrameType | None:
    """The frame of torch's function that user code called; None if user code made the call itself."""
    found = None
    while frame is not None and frame.f_globals.get("__name__") in (__name__, private.__name__):
        frame = frame.f_back
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith("torch."):
        found, frame = frame, frame.f_back
    return found


MADE_WITHOUT_VALUES = re.compile(r"aten::(new_\w+|\w+_like|empty\w*)")
"""Names of operators whose results have nothing of their argument: a kernel may fill them."""


MAX_FOLLOWED = 100_000
"""Number of coordinates of a function whose operators are followed: each result is copied."""


def is_computed_by_operators(problem: TorchProblem) -> bool:
    """Whether torch's own operators make all outputs from the arguments alone. Calls the function.

    Then no kernel computes in a format that does not show. False where that is not certain. Needed by
    `test_straight_through_gradient_of_steps_of_a_few_roundoffs_does_not_pass`.
    """
    made: dict[int, tuple[Tensor, Tensor]] = {}

    def add(tensor: Tensor) -> None:
        made[tensor.untyped_storage().data_ptr()] = (tensor, tensor.clone())

    def is_known(tensor: Tensor) -> bool:
        found = made.get(tensor.untyped_storage().data_ptr())
        return found is not None and torch.equal(*found)  # with another value, a kernel wrote to it

    def followed(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name, sources = private.schema_of(operator).name, tensors_of((args, kwargs))
        is_own = name.startswith("aten::") and not MADE_WITHOUT_VALUES.fullmatch(name)
        is_own = is_own and bool(sources) and all(map(is_known, sources))
        result = operator(*args, **kwargs)
        for tensor in tensors_of(result):
            if is_own:
                add(tensor)
            else:
                made.pop(tensor.untyped_storage().data_ptr(), None)
        return result

    mode = private.operator_mode(followed)
    if mode is None or problem.domain.size > MAX_FOLLOWED:
        return False
    try:
        for tensor in tensors_of((*problem.inputs, *problem.arguments)):
            add(tensor)
        with torch.no_grad(), mode:
            outputs = problem.call_differentiable(problem.arguments)
        return all(map(is_known, outputs))
    except Exception:  # memory of another layout, or operators that cannot be intercepted
        return False
