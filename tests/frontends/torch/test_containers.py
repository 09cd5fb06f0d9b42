"""Tensors in the inputs and outputs of functions: which containers are opened, and how the tensors are named."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as torch_pytree

import gradvet
from gradvet import Verdict
from gradvet.errors import InvalidProblemError
from gradvet.frontends.torch import private
from gradvet.frontends.torch.arguments import tensors_of
from tests.functions import with_vjp

needs_private_names = pytest.mark.skipif(private.PUBLIC_ONLY, reason="torch's pytree has no public interface")


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


wrong = with_vjp(torch.sin, lambda g, x: 1.1 * g * x.cos())


@dataclass
class ModelOutput(OrderedDict[str, Any]):
    """As Hugging Face's outputs are: a dataclass that is a mapping of those fields that are not None."""

    logits: Any = None
    hidden: Any = None
    cache: Any = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


@dataclass(frozen=True)
class Frozen:
    x: Any
    label: str = "kept"


@dataclass(frozen=True, slots=True)
class Slotted:
    x: Any


class Pair(NamedTuple):
    x: Any
    rest: Any = None


class Batch:
    """Registered with torch's pytree."""

    def __init__(self, x: Any, size: int) -> None:
        self.x, self.size = x, size


torch_pytree.register_pytree_node(
    Batch,
    lambda batch: ([batch.x], batch.size),
    lambda items, size: Batch(*items, size),
    serialized_type_name="tests.Batch",
    flatten_with_keys_fn=lambda batch: ([(torch_pytree.GetAttrKey("x"), batch.x)], batch.size),
)


class Cache:
    """Holds tensors and is no container."""

    def __init__(self, tensor: Tensor) -> None:
        self.layers = [{"keys": tensor}]


CONTAINERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "dict": (lambda x: {"x": x, "n": None}, lambda c: c["x"], '["x"]'),
    "key that is no text": (lambda x: {3: x}, lambda c: c[3], "[3]"),
    "ordered dict": (lambda x: OrderedDict(x=x), lambda c: c["x"], '["x"]'),
    "user dict": (lambda x: UserDict(x=x), lambda c: c["x"], '["x"]'),
    "read-only mapping": (lambda x: MappingProxyType({"x": x}), lambda c: c["x"], '["x"]'),
    "model output": (lambda x: ModelOutput(logits=x), lambda c: c.logits, ".logits"),
    "tuple in a model output": (lambda x: ModelOutput(hidden=(x,)), lambda c: c["hidden"][0], ".hidden[0]"),
    "frozen dataclass": (Frozen, lambda c: c.x, ".x"),
    "dataclass with slots": (Slotted, lambda c: c.x, ".x"),
    "named tuple": (Pair, lambda c: c.x, ".x"),
    "nested": (lambda x: {"a": [None, Frozen(Pair(x))]}, lambda c: c["a"][1].x.x, '["a"][1].x.x'),
    "deque": (lambda x: deque([x, 3]), lambda c: c[0], "[0]"),
    "registered with torch": (lambda x: Batch(x, 4), lambda c: c.x, ".x"),
}

cases = pytest.mark.parametrize(
    ("make", "read", "label"),
    [
        pytest.param(*case, id=name, marks=[needs_private_names] if name == "registered with torch" else [])
        for name, case in CONTAINERS.items()
    ],
)


@cases
def test_tensor_in_an_input_is_checked_and_named_by_its_place(make: Any, read: Any, label: str) -> None:
    def function(batch: Any, derivative: Callable[[Tensor], Tensor]) -> Tensor:
        assert type(batch) is type(make(None))
        return derivative(read(batch))

    right = gradvet.check(lambda batch: function(batch, torch.sin), make(inputs(3)), points=None)
    assert right.verdict is Verdict.PASS
    assert {row.input for row in right.ledger} == {f"input 0{label}"}
    report = gradvet.check(lambda batch: function(batch, wrong), (), kwargs={"batch": make(inputs(3))}, points=None)
    assert report.verdict is Verdict.FAIL
    assert str(report.failures[0].mismatches[0].input).startswith(f"batch{label} [")


@cases
def test_tensor_in_an_output_is_checked_and_named_by_its_place(make: Any, read: Any, label: str) -> None:
    assert gradvet.check(lambda x: make(x.sin()), inputs(3), points=None).verdict is Verdict.PASS
    report = gradvet.check(lambda x: make(wrong(x)), inputs(3), checks=["reverse"])
    assert str(report.failures[0].mismatches[0].output).startswith(f"output{label} [")


def test_attrs_class_is_a_container() -> None:
    attrs = pytest.importorskip("attrs")
    kind = attrs.make_class("Kind", ["x", "label"], frozen=True, slots=True)
    report = gradvet.check(lambda given: kind(wrong(given.x), "b"), kind(inputs(3), "a"), checks=["reverse"])
    assert str(report.failures[0].mismatches[0].output).startswith("output.x [")
    assert str(report.failures[0].mismatches[0].input).startswith("input 0.x [")


def test_outputs_of_a_tuple_have_the_number_of_their_place_and_inner_ones_their_label() -> None:
    report = gradvet.check(lambda x: (None, x.cos(), {"a": (wrong(x),)}), inputs(3), checks=["reverse"])
    assert str(report.failures[0].mismatches[0].output).startswith('output 2["a"][0] [')


def test_tensors_in_an_object_that_is_no_container_are_left_out_of_the_outputs_and_noted() -> None:
    report = gradvet.check(lambda x: ModelOutput(logits=x.sin(), cache=Cache(wrong(x))), inputs(3), points=None)
    assert report.verdict is Verdict.PASS
    assert any(note.startswith("output.cache is a Cache") and "left out" in note for note in report.notes)


def test_object_that_is_no_container_is_constant_among_the_inputs_and_every_call_gets_a_fresh_copy() -> None:
    def function(x: Tensor, cache: Cache) -> Tensor:
        cache.layers.append({"keys": x.detach()})
        return x.sin() * sum(layer["keys"] for layer in cache.layers[:-1])

    cache = Cache(inputs(3))
    report = gradvet.check(function, (inputs(3), cache), points=None)
    assert report.verdict is Verdict.PASS
    assert len(cache.layers) == 1
    assert any(note.startswith("input 1 is a Cache") and "held constant" in note for note in report.notes)


def test_function_that_returns_no_tensor_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="returned no tensor but dict"):
        gradvet.check(lambda x: {"a": float(x.sum()), "b": None}, inputs(3))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_gradcheck_of_an_autograd_function_says_to_pass_its_apply() -> None:
    class Same(torch.autograd.Function):
        pass

    with pytest.raises(InvalidProblemError, match=r"pass Same\.apply"):
        gradvet.gradcheck(Same, (inputs(3).requires_grad_(),))


class Wrapper(Tensor):
    """A tensor around another one, as a DTensor is."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        made: Wrapper = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*[arg.inner if isinstance(arg, Wrapper) else arg for arg in args], **(kwargs or {}))
        return Wrapper(found) if isinstance(found, Tensor) else found


@pytest.mark.parametrize(
    ("function", "given", "name"),
    [
        (torch.sin, lambda: Wrapper(inputs(3)), "input 0"),
        (lambda x: {"y": Wrapper(x.sin())}, lambda: inputs(3), 'output["y"]'),
    ],
)
def test_wrapper_around_other_tensors_is_refused_in_one_sentence(function: Any, given: Any, name: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        gradvet.check(function, given())
    assert str(caught.value).startswith(f"{name} is a Wrapper, a wrapper around other tensors")


class OpaqueWrapper(Tensor):
    """A wrapper that does not say which tensors are inside."""

    inner: Tensor
    __new__ = Wrapper.__new__  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*[arg.inner if isinstance(arg, cls) else arg for arg in args], **(kwargs or {}))
        return cls(found) if isinstance(found, Tensor) else found


@pytest.mark.parametrize("function", [gradvet.check, gradvet.blame])
@pytest.mark.parametrize("wrapper", [Wrapper, OpaqueWrapper])
def test_model_with_wrapped_or_lazy_parameters_is_refused_in_one_sentence(function: Any, wrapper: Any) -> None:
    wrapped = nn.Linear(3, 2)
    wrapped.weight = nn.Parameter(wrapper(wrapped.weight.detach()))
    with pytest.raises(InvalidProblemError, match=r"^weight is a .*, a wrapper around other tensors"):
        function(wrapped, torch.ones(2, 3))
    with pytest.raises(InvalidProblemError, match=r"^weight is not initialised yet"):
        function(nn.LazyLinear(2), torch.ones(2, 3))


def test_module_that_writes_to_its_input_in_place_passes_and_leaves_the_input_alone() -> None:
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2), nn.ReLU(inplace=True)).double()
    x = inputs(4, 3)
    before = x.clone()
    report = gradvet.check(module, x)
    assert report.verdict is Verdict.PASS
    assert torch.equal(x, before)
    assert {row.input for row in report.ledger} == {"input 0", "1.weight", "1.bias"}


@pytest.mark.parametrize("kind", ["GPT2", "Bert", "ViT", "T5", "Llama"])
def test_model_of_transformers_passes(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    model, given = _transformer(transformers, kind)
    report = gradvet.check(model.train(), (), kwargs=given, seed=1, points=None, modes=["reverse"])
    assert report.verdict is Verdict.PASS, report
    assert {row.input for row in report.ledger} >= {name for name, _ in model.named_parameters()}


def _transformer(transformers: Any, kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    tokens = torch.tensor([[1, 5, 7, 2], [3, 3, 6, 4]])
    if kind == "GPT2":
        config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)
        return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}
    if kind == "ViT":
        config = transformers.ViTConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4
        )
        return transformers.ViTForImageClassification(config), {"pixel_values": inputs(1, 3, 8, 8).float()}
    if kind == "T5":
        config = transformers.T5Config(
            vocab_size=11, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
        )
        return transformers.T5ForConditionalGeneration(config), {"input_ids": tokens, "labels": tokens}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        initializer_range=0.3,  # with the usual 0.02 attention hardly depends on queries and keys
    )
    name = "BertModel" if kind == "Bert" else "LlamaForCausalLM"
    return getattr(transformers, name)(config), {"input_ids": tokens}


def test_tensors_of_a_nested_value_are_found_in_order_and_once() -> None:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    assert [len(found) for found in tensors_of(([a, {"b": b}], 1.0, (b, a), "c", [[c]]))] == [1, 2, 3]


def test_tensors_of_a_value_that_contains_itself_are_found() -> None:
    value: list[Any] = [torch.ones(2)]
    value.append(value)
    assert len(tensors_of(value)) == 1
