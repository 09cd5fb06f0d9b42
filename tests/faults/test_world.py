"""Whatever a function does, a check leaves gradients, modules, settings and random states as they were."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradvet
from gradvet.frontends.torch import private, process_state
from tests.faults.world import differences, world


def numbers(*shape: int) -> Tensor:
    return torch.linspace(-0.7, 1.3, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def test_gradients_of_captured_parameters_stay() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = numbers(5, 3)
    model(x).sum().backward()
    before = world([x], [model])
    assert gradvet.check(lambda x: model(x).sum(), x).passed
    assert differences(before, world([x], [model])) == []


def test_gradients_that_the_function_itself_deletes_stay() -> None:
    """A training step may begin with `zero_grad`, and with gradients of tensors that are no parameters."""
    model, scale = nn.Linear(3, 2).double(), numbers(2).requires_grad_()
    x = numbers(5, 3)
    (model(x) * scale).sum().backward()
    before = world([x, scale], [model])

    def step(x: Tensor) -> Tensor:
        model.zero_grad()
        scale.grad = None
        return model(x) * scale  # type: ignore[no-any-return]

    gradvet.check(step, x, points=None)
    assert differences(before, world([x, scale], [model])) == []


def test_gradients_behind_captured_results_stay() -> None:
    weight = numbers(3).requires_grad_()
    weight.sum().backward()
    hidden = weight.sin()
    hidden.retain_grad()
    x = numbers(3)
    before = world([x, weight, hidden])
    assert gradvet.check(lambda x: x * hidden, x).passed
    assert differences(before, world([x, weight, hidden])) == []


@pytest.mark.parametrize("with_gradient", [True, False])
def test_retained_gradient_of_an_input_stays(with_gradient: bool) -> None:
    leaf = numbers(3).requires_grad_()
    x = leaf * 2.0
    x.retain_grad()
    if with_gradient:
        x.sum().backward()
    before = world([leaf, x])
    assert gradvet.check(torch.sin, x).passed
    assert gradvet.gradcheck(torch.sin, x, check_batched_grad=True)
    assert differences(before, world([leaf, x])) == []


def test_running_statistics_of_modules_in_inputs_keywords_and_surrogate_stay() -> None:
    norms = [nn.BatchNorm1d(3).double() for _ in range(3)]
    x = numbers(5, 3)
    before = world([x], norms)

    def function(x: Tensor, norm: nn.Module, *, other: nn.Module) -> Tensor:
        return norm(x) + other(x)  # type: ignore[no-any-return]

    def surrogate(x: Tensor, norm: nn.Module, *, other: nn.Module) -> Tensor:
        return norms[2](x) + other(x)  # type: ignore[no-any-return]

    gradvet.check(function, (x, norms[0]), kwargs={"other": norms[1]}, surrogate=surrogate)
    gradvet.numerical_jacobian(function, (x, norms[0]), kwargs={"other": norms[1]})
    assert differences(before, world([x], norms)) == []


def test_training_mode_and_requires_grad_stay() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).double()
    x = numbers(4, 3)

    def function(x: Tensor) -> Tensor:
        module.eval()
        module[0].weight.requires_grad_(False)
        return module(x)  # type: ignore[no-any-return]

    before = world([x], [module])
    gradvet.check(function, x)
    assert differences(before, world([x], [module])) == []


@pytest.mark.parametrize("end", ["returns", "raises"])
def test_values_that_the_function_writes_to_its_arguments_do_not_stay(end: str) -> None:
    x, constant = numbers(3).requires_grad_(), numbers(3)

    def function(x: Tensor, constant: Tensor) -> Tensor:
        x.data.add_(1.0)
        constant.mul_(2.0)
        if end == "raises":
            raise StopError
        return x.sin() * constant

    for check in (gradvet.check, gradvet.numerical_jacobian, gradvet.gradcheck):
        before = x.tolist(), constant.tolist()
        with suppress(StopError, RuntimeError, ValueError):
            check(function, (x, constant))
        assert (x.tolist(), constant.tolist()) == before


@pytest.mark.parametrize("check", [gradvet.check, gradvet.numerical_jacobian, gradvet.blame])
def test_attributes_and_hooks_of_modules_stay(check: Callable[..., Any]) -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.calls, self.seen, self.tables = 0, [0], {"rows": [1, 2]}
            self.sums, self.kept = torch.zeros(3), [torch.zeros(3)]

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.seen.append(self.calls)
            self.tables["rows"].append(self.calls)
            self.tables["more"] = []
            self.sums.add_(1.0)
            self.kept[0].add_(1.0)
            self.cache = x.detach()
            self.register_forward_hook(lambda module, args, result: None)
            return super().forward(x)

    module, x = Counting().double(), numbers(4, 3)
    seen, tables, rows = module.seen, module.tables, module.tables["rows"]
    sums, kept = module.sums, module.kept[0]
    before = world([x], [module])
    check(module, x)
    assert differences(before, world([x], [module])) == []
    assert (module.calls, module.seen, module.tables) == (0, [0], {"rows": [1, 2]})
    assert (module.seen is seen, module.tables is tables, module.tables["rows"] is rows) == (True, True, True)
    assert (module.sums is sums, module.kept[0] is kept, sums.any(), kept.any()) == (True, True, False, False)


def test_weights_that_a_recurrent_module_keeps_beside_its_parameters_stay() -> None:
    module, x = nn.LSTM(3, 2).double(), numbers(4, 3)

    def function(x: Tensor) -> Tensor:
        module.weight_ih_l0 = nn.Parameter(torch.zeros(8, 3, dtype=torch.float64))
        raise StopError

    weights = list(module._flat_weights)
    with pytest.raises(StopError):
        gradvet.check(function, x)
    assert all(one is other for one, other in zip(module._flat_weights, weights, strict=True))


class StopError(BaseException):
    """No `Exception`, as KeyboardInterrupt is none."""


SETTINGS: dict[str, Callable[[], object]] = {
    "grad mode": lambda: torch.set_grad_enabled(False),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "autocast cache": lambda: torch.set_autocast_cache_enabled(False),
    "deterministic algorithms": lambda: torch.set_deterministic_debug_mode("warn"),
    "warnings filters": lambda: warnings.filterwarnings("error", "some message"),
    "profiling function": lambda: sys.setprofile(lambda *event: None),
    "random numbers": lambda: torch.rand(3),
    "default device": lambda: torch.set_default_device("meta"),
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "precision of products": lambda: torch.set_float32_matmul_precision("medium"),
    "flags of cudnn": lambda: setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark),
    "recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    "apply of Functions": lambda: setattr(process_state._FUNCTION_BASE, "apply", None),
    "a level of dual numbers": lambda: torch.autograd.forward_ad.enter_dual_level(),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("end", ["returns", "raises"])
@pytest.mark.filterwarnings("ignore")
def test_setting_that_the_function_changes_is_restored(setting: str, end: str) -> None:
    if private.PUBLIC_ONLY and "dual" in setting:
        pytest.skip("the level of dual numbers is a private name")

    def function(x: Tensor) -> Tensor:
        SETTINGS[setting]()
        if end == "raises":
            raise StopError
        return x.sin()

    x = numbers(3)
    for check in (gradvet.check, gradvet.numerical_jacobian, _drop_in):
        before = world([x])
        with suppress(StopError, RuntimeError, TypeError, ValueError, AssertionError):
            check(function, x)
        assert differences(before, world([x])) == []


def _drop_in(function: Callable[..., Any], x: Tensor) -> bool:
    return gradvet.gradcheck(function, x.clone().requires_grad_(), raise_exception=False)


def test_open_modes_are_closed() -> None:
    if private.PUBLIC_ONLY:
        pytest.skip("open modes cannot be closed without private names")
    from torch.overrides import TorchFunctionMode

    class Doubling(TorchFunctionMode):
        pass

    def function(x: Tensor) -> Tensor:
        Doubling().__enter__()
        raise StopError

    before = world()
    with pytest.raises(StopError):
        gradvet.check(function, numbers(3))
    assert differences(before, world()) == []


def test_parameters_that_are_left_replaced_are_put_back() -> None:
    module = nn.Linear(3, 2).double()
    x = numbers(4, 3)

    def function(x: Tensor) -> Tensor:
        del module.weight
        module.weight = torch.zeros(2, 3, dtype=torch.float64)
        raise StopError

    if private.PUBLIC_ONLY:
        return
    before = world([x], [module])
    with pytest.raises(StopError):
        gradvet.check(function, x)
    assert differences(before, world([x], [module])) == []
    assert isinstance(module.weight, nn.Parameter)
    assert [name for name, _ in module.named_parameters()] == ["weight", "bias"]


def test_input_that_was_computed_from_another_one_counts_as_an_input_of_its_own() -> None:
    x = numbers(4).requires_grad_()
    assert gradvet.check(lambda a, b: a * a - b, (x, 2.0 * x), seed=0).verdict is gradvet.Verdict.PASS
