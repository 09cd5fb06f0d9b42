"""A check restores inputs, buffers, modes and random states, also if the function raises."""

from __future__ import annotations

import functools
import gc
import random
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradvet
from gradvet import GradcheckError, gradcheck, gradgradcheck
from gradvet.frontends.torch.preservation import MAX_OBJECTS, PreservedState, reachable_objects
from tests.core.wrong_jacobians import numbers
from tests.frontends.torch import needs_private_names
from tests.functions import with_vjp

EVERYTHING = {
    "check_forward_ad": True,
    "check_batched_grad": True,
    "check_batched_forward_grad": True,
    "raise_exception": False,
}
MODES: dict[str, dict[str, Any]] = {
    "slow": {"raise_exception": False},
    "fast": {"raise_exception": False, "fast_mode": True},
    "all": EVERYTHING,
}


class InterruptionError(Exception):
    """What the function raises in the middle of a check."""


class Interrupted:
    """The function, raising at its k-th call."""

    def __init__(self, function: Callable[..., Any], k: int) -> None:
        self.function, self.left = function, k

    def __call__(self, *arguments: Any) -> Any:
        self.left -= 1
        if not self.left:
            raise InterruptionError
        return self.function(*arguments)


def bits(tensor: Tensor) -> Tensor:
    """The numbers as they are stored, so that -0.0 and the payload of a NaN count."""
    tensor = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    return tensor.resolve_neg().contiguous().view(torch.int64 if tensor.dtype == torch.float64 else torch.int32).clone()


def right(x: Tensor) -> Tensor:
    return (x.sin() @ x.cos().T).sum(0)


def wrong(x: Tensor) -> Tensor:
    return right(x) * x.detach().sum()


# Random state


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [0, 1, 2, 4])
def test_random_state_is_restored(mode: str, k: int) -> None:
    def function(x: Tensor) -> Tensor:
        torch.rand(3)
        random.random()
        return x * (2.0 + 0.0 * random.random())

    cpu, python = torch.get_rng_state(), random.getstate()
    with suppress(InterruptionError):
        gradcheck(Interrupted(function, k), numbers((3,), 0).requires_grad_(), **MODES[mode])
    assert torch.equal(torch.get_rng_state(), cpu)
    assert random.getstate() == python


@pytest.mark.parametrize("noncontiguous", [True, False])
def test_random_state_is_restored_after_cotangents_were_drawn(noncontiguous: bool) -> None:
    state = torch.get_rng_state()
    assert gradgradcheck(torch.sin, numbers((3,), 0).requires_grad_(), gen_non_contig_grad_outputs=noncontiguous)
    assert torch.equal(torch.get_rng_state(), state)


# Buffers of modules

NORM = nn.BatchNorm1d(3).double()


def through_a_global_function(x: Tensor) -> Tensor:
    return through_a_global(x)


def through_a_global(x: Tensor) -> Tensor:
    return NORM(x)  # type: ignore[no-any-return]


class Owner:
    """Not a module itself."""

    def __init__(self, module: nn.Module) -> None:
        self.parts = {"norm": module}

    def apply(self, x: Tensor) -> Tensor:
        return self.parts["norm"](x)  # type: ignore[no-any-return]

    __call__ = apply


def closing_over(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: module(x)


def decorated(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    @functools.wraps(function)
    def wrapper(x: Tensor) -> Tensor:
        return function(x)

    return wrapper


HOLDERS: dict[str, Callable[[nn.Module], Callable[[Tensor], Tensor]]] = {
    "the module itself": lambda module: module,
    "inside another module": lambda module: nn.Sequential(module, nn.Tanh()),
    "a bound method": lambda module: module.forward,
    "a closure": closing_over,
    "a partial": lambda module: functools.partial(lambda m, x: m(x), module),
    "a partial's keyword": lambda module: functools.partial(lambda x, m: m(x), m=module),
    "a default": lambda module: lambda x, m=module: m(x),
    "a list in a closure": lambda module: (lambda modules: lambda x: modules[0](x))([module]),
    "an owner's method": lambda module: Owner(module).apply,
    "an owner that is callable": Owner,
    "decorators": lambda module: decorated(decorated(decorated(decorated(module)))),
    "a global": lambda module: through_a_global,
    "a global function": lambda module: through_a_global_function,
}


def buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("k", [0, 1, 3])
def test_running_statistics_are_restored_wherever_the_module_is(holder: str, k: int) -> None:
    before, kept = buffers(NORM), dict(NORM.named_buffers())
    with suppress(InterruptionError):
        gradcheck(Interrupted(HOLDERS[holder](NORM), k), numbers((5, 3), 0).requires_grad_())
    for name, buffer in NORM.named_buffers():
        assert buffer is kept[name]
        assert torch.equal(buffer, before[name]), name


def test_running_statistics_of_a_module_given_as_an_argument_are_restored() -> None:
    before = buffers(NORM)
    assert gradcheck(lambda x, module: module(x), (numbers((5, 3), 0).requires_grad_(), NORM))
    assert all(torch.equal(buffer, before[name]) for name, buffer in NORM.named_buffers())


def test_running_statistics_are_restored_by_gradgradcheck() -> None:
    before = buffers(NORM)
    assert gradgradcheck(NORM, numbers((5, 3), 0).requires_grad_())
    assert all(torch.equal(buffer, before[name]) for name, buffer in NORM.named_buffers())


@needs_private_names
def test_buffers_that_are_replaced_come_back_as_the_same_objects() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("last", None)

        def forward(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1
            self.last = x.detach()
            return x * 2.0

    counter = Counter()
    calls = counter.calls
    assert gradcheck(counter, numbers((3,), 0).requires_grad_())
    assert counter.calls is calls
    assert float(counter.calls) == 0.0
    assert counter.last is None


def test_search_for_modules_ends_in_large_or_cyclic_surroundings() -> None:
    cycle: list[Any] = list(range(10 * MAX_OBJECTS))
    cycle.append(cycle)
    module = nn.Tanh()
    assert not any(isinstance(thing, nn.Module) for thing in reachable_objects(functools.partial(torch.sin, cycle)))
    found = reachable_objects(functools.partial(module, cycle, cycle), [cycle, module])
    assert {thing for thing in found if isinstance(thing, nn.Module)} == {module}


# Gradients that the caller has accumulated


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("existing", [True, False])
def test_gradients_of_the_inputs_are_left_alone(mode: str, k: int, existing: bool) -> None:
    def function(x: Tensor) -> Tensor:
        if x.requires_grad:
            x.pow(2).sum().backward()
        return x.sin()

    x = numbers((3,), 0).requires_grad_()
    gradient = numbers((3,), 1) if existing else None
    x.grad = gradient
    with suppress(InterruptionError):
        gradcheck(Interrupted(function, k), x, **MODES[mode])
    assert x.grad is gradient
    if gradient is not None:
        assert torch.equal(gradient, numbers((3,), 1))


def test_gradients_of_captured_parameters_are_left_alone() -> None:
    layer = nn.Linear(3, 2).double()
    assert gradcheck(layer, numbers((4, 3), 0).requires_grad_())
    assert all(parameter.grad is None for parameter in layer.parameters())


# Arguments


@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_arguments_that_the_function_writes_to_are_restored(k: int) -> None:
    def function(x: Tensor, count: Tensor, table: Tensor) -> Tensor:
        count.add_(1)
        table.data.zero_()
        return x.sin()

    count, table = torch.zeros(2, dtype=torch.int64), numbers((3,), 1)
    with suppress(InterruptionError):
        gradcheck(Interrupted(function, k), (numbers((3,), 0).requires_grad_(), count, table))
    assert count.tolist() == [0, 0]
    assert torch.equal(table, numbers((3,), 1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", [right, wrong])
@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 6, 9, 20])
def test_inputs_keep_their_bits_and_their_version(mode: str, function: Callable[[Tensor], Tensor], k: int) -> None:
    x = numbers((5, 3), 0)
    x[0, 0], x[1, 1] = -0.0, 5e-324
    x.requires_grad_()
    before, version = bits(x), x._version
    with suppress(InterruptionError):
        gradcheck(Interrupted(function, k), x, **MODES[mode])
    assert torch.equal(bits(x), before)
    assert x._version == version
    assert x.grad is None
    assert x.requires_grad
    assert x.is_leaf


@pytest.mark.parametrize("mode", MODES)
def test_payload_of_an_input_that_is_not_a_number_is_kept(mode: str) -> None:
    stored = numbers((4,), 0).view(torch.int64)
    stored[1] = 0x7FF8_0000_0000_0123
    x = stored.view(torch.float64).clone().requires_grad_()
    before = bits(x)
    assert gradcheck(torch.sin, x, **MODES[mode]) is False
    assert torch.equal(bits(x), before)


def test_input_is_restored_where_a_derivative_raises() -> None:
    def vjp(v: Tensor, x: Tensor) -> Tensor:
        raise InterruptionError

    broken = with_vjp(lambda x: x * 2.0, vjp)
    x = numbers((3,), 0).requires_grad_()
    with pytest.raises(InterruptionError):
        gradcheck(broken, x)
    assert torch.equal(x.detach(), numbers((3,), 0))


@pytest.mark.parametrize("mode", MODES)
def test_several_inputs_of_different_kinds_are_restored(mode: str) -> None:
    complex_, single = numbers((3,), 1, torch.complex128), numbers((3,), 2).float()
    inputs = [numbers((3,), 0), complex_.conj(), single, complex_.clone().imag.neg()]
    for tensor in inputs:
        tensor.requires_grad_()
    before = [bits(tensor) for tensor in inputs]
    with pytest.warns(UserWarning, match="double precision"):
        gradcheck(lambda a, b, c, d: (a * b * c * d).abs(), inputs, **MODES[mode])
    assert all(torch.equal(bits(tensor), stored) for tensor, stored in zip(inputs, before, strict=True))


# Memory


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("function", [right, wrong])
def test_nothing_of_a_check_outlives_it(
    mode: str, check: Callable[..., bool], function: Callable[[Tensor], Tensor]
) -> None:
    seen: list[weakref.ref[Tensor]] = []

    def watched(x: Tensor) -> Tensor:
        intermediate = x * 2.0
        y = function(intermediate)
        seen.extend(weakref.ref(tensor) for tensor in (intermediate, y))
        return y

    options = dict(MODES[mode])
    if check is gradgradcheck:
        options = {key: value for key, value in options.items() if "forward" not in key}
    x = numbers((4, 3), 0).requires_grad_()
    check(watched, x, **options)  # torch loads parts of itself when forward mode is first used, and keeps frames then
    seen.clear()
    gc.collect()
    gc.disable()
    try:
        check(watched, x, **options)
        alive = [reference for reference in seen if reference() is not None]
    finally:
        gc.enable()
    assert len(seen) > 4
    assert alive == []


def test_error_that_was_caught_keeps_no_graph_alive() -> None:
    seen: list[weakref.ref[Tensor]] = []

    def watched(x: Tensor) -> Tensor:
        y = wrong(x)
        seen.append(weakref.ref(y))
        return y

    gc.collect()
    gc.disable()
    try:
        try:
            gradcheck(watched, numbers((4, 3), 0).requires_grad_())
        except GradcheckError as error:
            report = error.report
        alive = [reference for reference in seen if reference() is not None]
    finally:
        gc.enable()
    assert report is not None
    assert alive == []


def test_undisturbed_passes_exceptions_on() -> None:
    count = torch.zeros(1)

    def interrupted() -> None:
        with PreservedState(torch.sin, [count]):
            count.add_(1)
            raise InterruptionError

    with pytest.raises(InterruptionError):
        interrupted()
    assert float(count) == 0.0


def test_torchs_products_run_in_full_float32_and_the_setting_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 has ten bits, by which no gradient is told from a slightly wrong one."""
    # torch's own test helpers, which other tests import, freeze such settings.
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    seen = set()

    def noting(x: Tensor) -> Tensor:
        seen.add((torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()))
        return x * x

    try:
        torch.backends.cudnn.allow_tf32 = True
        torch.set_float32_matmul_precision("medium")
        assert gradvet.check(noting, torch.ones(3)).passed
        assert (torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()) == (True, "medium")
    finally:
        torch.backends.cudnn.allow_tf32 = before[0]
        torch.set_float32_matmul_precision(before[1])
    assert seen == {(False, "highest")}


def test_recurrent_module_does_not_move_perturbed_parameters() -> None:
    """On a GPU it moves them to one block whenever it is called with others, as by turns in two precisions."""
    moved: list[nn.Module] = []

    class Noting(nn.LSTM):
        def flatten_parameters(self) -> None:
            moved.append(self)

    model = Noting(3, 4)
    refs, weights = model._flat_weight_refs, model._flat_weights
    moved.clear()
    assert gradvet.check(model, torch.randn(5, 2, 3), seed=0, points=None).verdict is gradvet.Verdict.PASS
    assert not moved
    assert model._flat_weight_refs is refs
    assert model._flat_weights is weights
    model.flatten_parameters()
    assert moved == [model]


def test_grad_mode_around_a_check_does_not_matter_and_comes_back() -> None:
    with torch.no_grad():
        assert gradvet.check(torch.sin, torch.ones(3, dtype=torch.float64)).passed
        assert not torch.is_grad_enabled()


class Writes(nn.Module):
    """Keeps its result in a buffer, or in a tensor that is an attribute."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, dtype=torch.float64)
        if kind == "buffer":
            self.register_buffer("last", torch.zeros(4, 2, dtype=torch.float64))
        else:
            self.last = torch.zeros(4, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        self.last.detach_()
        self.last[:] = self.linear(x)
        return self.last.tanh()


@pytest.mark.parametrize("kind", ["buffer", "attribute"])
@pytest.mark.parametrize("call", [gradvet.check, gradvet.blame])
def test_tensor_of_a_module_into_which_it_writes_its_result_is_a_leaf_again(
    call: Callable[..., object], kind: str
) -> None:
    module = Writes(kind)
    call(module, torch.randn(4, 3, dtype=torch.float64))
    assert not module.last.requires_grad
    assert module.last.is_leaf


def test_view_into_which_a_result_is_written_does_not_end_the_check() -> None:
    view = torch.zeros(2, 3, dtype=torch.float64)[0]

    def function(x: Tensor) -> Tensor:
        return view.copy_(x.sin()).clone()

    x = torch.linspace(0.1, 1.0, 3, dtype=torch.float64, requires_grad=True)
    assert gradvet.gradcheck(function, (x,))


@needs_private_names
def test_hooks_of_parameters_that_an_interruption_left_out_come_back() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    weight.register_hook(lambda gradient: gradient)
    hooks = dict(weight._backward_hooks or {})

    def function(x: Tensor) -> Tensor:
        (weight._backward_hooks or {}).clear()  # as `blame` does while it tries lines
        raise KeyboardInterrupt(weight)

    with pytest.raises(KeyboardInterrupt):
        gradvet.check(function, torch.ones(3, dtype=torch.float64))
    assert dict(weight._backward_hooks or {}) == hooks
