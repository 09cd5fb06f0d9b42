"""Right and wrong functions with misleading finite differences: oscillations, edges, steps, low precision inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet import Verdict
from tests.functions import with_gradients_changed, with_vjp

HARD: dict[str, tuple[Callable[[Tensor], Tensor], list[float], torch.dtype]] = {
    "waves": (lambda x: torch.sin(1e7 * x), [0.3, -1.1, 1.7], torch.float64),
    "edges": (torch.acos, [1.0 - 1e-9, 0.5, -1.0 + 1e-7, 0.0], torch.float64),
    "stairs": (lambda x: torch.round(x, decimals=3), [-0.0022095, 4.0564647, -5.9914678, 6.9187564], torch.float64),
    "single precision inside": (lambda x: x.float().sin().double(), [0.3, -1.1, 1.7], torch.float64),
    "half precision inside": (lambda x: x.half().sin().double(), [0.3, -1.1, 1.7], torch.float64),
    "other random numbers in double precision": (
        lambda x: torch.nn.functional.rrelu(x, training=True),
        [-0.3, -1.1, 1.7, -2.0],
        torch.float32,
    ),
    "large phases": (
        lambda x: torch.logsumexp(torch.complex(x, 1.5 * x), 0).real,
        [1.7e6, 1.2e6, 1.9e6],
        torch.float64,
    ),
    "a value that is one less nearly one": (lambda x: 0.5 * (1.0 + torch.erf(x)), [-6.2, -0.4, -5.1], torch.float64),
}


@pytest.mark.parametrize("name", HARD)
def test_right_function_is_not_failed(name: str) -> None:
    function, values, dtype = HARD[name]
    assert not gradvet.check(function, torch.tensor(values, dtype=dtype), seed=0).failures


scaled = with_vjp(lambda x, part: x.clone(), lambda v, x, part: v * (1.0 + part))
"""The identity, with a gradient that is too large by a part."""


@pytest.mark.parametrize(
    ("name", "part"), [("waves", 0.5), ("edges", 0.01), ("single precision inside", 0.1), ("large phases", 0.1)]
)
def test_wrong_twin_is_not_passed(name: str, part: float) -> None:
    function, values, dtype = HARD[name]
    report = gradvet.check(lambda x: function(scaled(x, part)), torch.tensor(values, dtype=dtype), seed=0)
    assert report.verdict is not Verdict.PASS


def test_small_factor_is_diagnosed() -> None:
    x = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)
    report = gradvet.check(lambda x: scaled(x, 1e-3).exp(), x, seed=1)
    assert "ratio is 1.001 everywhere" in report.failures[0].advice


@pytest.mark.parametrize("seed", range(3))
def test_roundoff_of_a_large_phase_inside_the_derivative_is_not_called_wrong(seed: int) -> None:
    # The phase of a sum has an absolute error of eps * 1e6, and so has the gradient.
    parts = 1e6 * (1.0 + torch.rand(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    z = torch.complex(parts[0], parts[1])
    report = gradvet.check(lambda z: torch.logsumexp(z, 0), (z,), seed=seed, points=None, checks=["reverse"])
    assert report.verdict is not Verdict.FAIL


@pytest.mark.parametrize("offset", [1e14, 1e16, 1e20])
def test_lost_gradient_behind_a_large_offset_does_not_pass(offset: float) -> None:
    lost = with_vjp(lambda x: offset + x, lambda x, g: 0.0 * g)
    report = gradvet.check(lost, torch.tensor([0.3, -1.1, 1.7], dtype=torch.float64), seed=0)
    assert report.verdict is not Verdict.PASS


FAINT = [(torch.float64, size) for size in (1e-11, 1e-12, 1e-13, 1e-14, 1e-16)]
FAINT += [(torch.float32, size) for size in (1e-5, 3e-6, 1e-6, 1e-7)]


def faint_verdicts(
    faint: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
    seeds: Sequence[int] = range(3),
) -> set[Verdict]:
    """Verdicts about x + faint(y), which can be computed in one dtype alone, with this derivative of the faint term."""

    def add(x: Tensor, y: Tensor) -> Tensor:
        if x.dtype != dtype:
            raise TypeError(f"{dtype} only")
        return x + faint(y)

    function = with_vjp(add, lambda g, x, y: (g, g * slope(y)))
    verdicts = set()
    for seed in seeds:
        inputs = torch.randn(2, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)
        verdicts.add(gradvet.check(function, (inputs[0], inputs[1]), seed=seed, points=None).verdict)
    return verdicts


@pytest.mark.parametrize(("dtype", "size"), FAINT)
def test_lost_gradient_of_a_faint_input_does_not_pass(dtype: torch.dtype, size: float) -> None:
    for seed, term in enumerate((lambda y: size * y.sin(), lambda y: size * y.square(), lambda y: size * y)):
        assert Verdict.PASS not in faint_verdicts(term, torch.zeros_like, dtype, [seed])


@pytest.mark.parametrize(("dtype", "size"), FAINT)
def test_right_gradient_of_a_faint_input_does_not_fail(dtype: torch.dtype, size: float) -> None:
    assert Verdict.FAIL not in faint_verdicts(lambda y: size * y.sin(), lambda y: size * y.cos(), dtype)


@pytest.mark.parametrize("size", [1e-15, 1e-18])
def test_lost_gradient_of_an_output_of_tiny_size_does_not_pass(size: float) -> None:
    lost = with_vjp(lambda x: x.clone(), lambda g, x: torch.zeros_like(g))

    def squared_and_small(y: Tensor, x: Tensor) -> Tensor:
        return torch.cat([y * y, size * torch.tanh(lost(x))])

    inputs = torch.tensor([0.5, 1.4, -0.6], dtype=torch.float64), torch.tensor([0.3, -0.8, 1.1], dtype=torch.float64)
    assert gradvet.check(squared_and_small, inputs, seed=0, points=None, checks=["reverse"]).verdict is not Verdict.PASS


def test_common_shift_before_a_softmax_passes() -> None:
    def shifted(y: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(y * torch.arange(3.0, dtype=y.dtype) + x.sum(), 0)

    inputs = torch.tensor([0.5, 1.4, -0.6], dtype=torch.float64), torch.tensor([0.3, -0.8, 1.1], dtype=torch.float64)
    assert gradvet.check(shifted, inputs, seed=0, points=None).verdict is Verdict.PASS


@pytest.mark.parametrize(("wave", "frequency"), [(torch.tanh, 1e-6), (torch.sin, 3e-5)])
def test_steps_that_rounding_takes_away_show_nothing(wave: Callable[[Tensor], Tensor], frequency: float) -> None:
    x = torch.tensor([1e12, 1.3e12, -0.7e12], dtype=torch.float64)

    def far(x: Tensor) -> Tensor:
        return wave(frequency * (x - 1e12))

    scaled = with_gradients_changed(far, lambda found, _: (1.2 * found[0],))
    assert gradvet.check(far, x, seed=1, points=None, checks=["reverse"]).verdict is Verdict.PASS
    assert gradvet.check(scaled, x, seed=1, points=None, checks=["reverse"]).verdict is Verdict.FAIL


@pytest.mark.parametrize("seed", range(1, 6))
def test_wave_at_1e16_passes(seed: int) -> None:
    x = torch.tensor([1e16, 1.3e16, -0.7e16], dtype=torch.float64)
    report = gradvet.check(lambda x: torch.sin(1e-10 * (x - 1e16)), x, seed=seed, points=None, checks=["reverse"])
    assert report.verdict is Verdict.PASS


@pytest.mark.parametrize("size", [1e-14, 1e-15, 1e-16])
def test_negated_gradient_of_a_faint_input_does_not_pass(size: float) -> None:
    verdicts = faint_verdicts(lambda y: size * y.sin(), lambda y: -size * y.cos(), torch.float64)
    assert Verdict.PASS not in verdicts


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "term", [torch.zeros_like, lambda y: (1e3 * y.abs() + 1e3).tanh(), lambda y: (y - 40.0).exp().log1p()]
)
def test_gradient_of_an_input_without_influence_passes(dtype: torch.dtype, term: Callable[[Tensor], Tensor]) -> None:
    assert faint_verdicts(term, torch.zeros_like, dtype) == {Verdict.PASS}


@pytest.mark.parametrize("seed", range(3))
def test_saturated_norm_passes(seed: int) -> None:
    x = 2.0 + torch.rand(3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x *= 18.0 / x.sum()
    assert gradvet.check(lambda x: x.abs().sum().tanh().exp(), x, seed=seed, points=None).verdict is Verdict.PASS


class Normalised(torch.nn.Module):
    """The bias before the batch norm has no effect: its gradient is zero, and only roundoff can be seen of it."""

    def __init__(self, last: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.bias = torch.nn.Conv1d(3, 8, 3, bias=False), torch.nn.Parameter(torch.randn(8, 1))
        self.rest = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Conv1d(8, 4, 3))
        self.add = with_vjp(lambda y, b: y + b, lambda g, y, b: (g, g[..., :last].sum((0, 2)).reshape(b.shape)))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.add(self.convolution(x), self.bias))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_bias_before_a_normalisation_passes(dtype: torch.dtype) -> None:
    x = torch.randn(5, 3, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert gradvet.check(Normalised(None).to(dtype), x, seed=0).verdict is Verdict.PASS


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_wrong_gradient_of_a_bias_before_a_normalisation_fails(dtype: torch.dtype) -> None:
    x = torch.randn(5, 3, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    report = gradvet.check(Normalised(-1).to(dtype), x, seed=0, blame=False)
    assert report.verdict is Verdict.FAIL
    assert any("bias" in str(m.input) for finding in report.failures for m in finding.mismatches)


@pytest.mark.parametrize("size", [1e-308, 1e-310])
def test_subnormal_inputs_are_compared_as_zeros_are(size: float) -> None:
    x = torch.full((3,), size, dtype=torch.float64)
    assert gradvet.check(lambda x: 2.0 * x, x, seed=1).verdict is Verdict.PASS
    assert gradvet.check(lambda x: 2.0 * x + x.detach(), x, seed=1).verdict is Verdict.FAIL


@pytest.mark.parametrize(("dtype", "seed"), [(torch.float64, 0), (torch.float16, 2)])
def test_sort_of_many_ties_passes(dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(1, 60, (150,), generator=generator).to(dtype).requires_grad_()
    weights = torch.arange(1, 151, dtype=dtype) / 150
    report = gradvet.check(lambda x: x.sort().values * weights, x, points=None, seed=seed)
    assert report.verdict is Verdict.PASS, report
    wrong = gradvet.check(lambda x: (x + x.detach()).sort().values * weights, x, points=None, seed=seed)
    assert wrong.verdict is Verdict.FAIL, wrong


def test_custom_rule_that_is_wrong_at_many_ties_fails() -> None:
    x = torch.randint(1, 9, (50,), generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    weights = torch.arange(1.0, 51.0, dtype=torch.float64)
    half = with_vjp(lambda x: x.sort().values * weights, lambda v, x: 0.5 * (v * weights)[x.argsort().argsort()])
    assert gradvet.check(half, x, points=None).verdict is Verdict.FAIL


def one_minus_cosine(x: Tensor) -> Tensor:
    return 1 - torch.cos(x)


def exponential_minus_one(x: Tensor) -> Tensor:
    return torch.exp(x) - 1


TINY = [(one_minus_cosine, 3e-8), (one_minus_cosine, 1e-9), (exponential_minus_one, 1e-17)]


@pytest.mark.parametrize(("function", "size"), TINY)
def test_right_function_passes_whose_steps_are_below_the_roundoff_inside(
    function: Callable[[Tensor], Tensor], size: float
) -> None:
    x = size * torch.tensor([1.0, 1.01, 1.02], dtype=torch.float64)
    assert gradvet.check(function, x, seed=0, points=None).verdict is Verdict.PASS
    doubled = with_gradients_changed(function, lambda gradients, _: [2 * gradients[0]])
    assert gradvet.check(doubled, x, seed=0, points=None).verdict is not Verdict.PASS


@pytest.mark.parametrize("seed", range(3))
def test_lost_gradient_of_values_that_vary_by_roundoff_inside_fails(seed: int) -> None:
    x = 1e-7 * torch.tensor([1.01, 1.02, 1.03], dtype=torch.float64)
    lost = with_gradients_changed(one_minus_cosine, lambda gradients, _: [0.0 * gradients[0]])
    assert gradvet.check(one_minus_cosine, x, seed=seed, points=None).verdict is Verdict.PASS
    assert gradvet.check(lost, x, seed=seed, points=None).verdict is Verdict.FAIL


@pytest.mark.parametrize("seed", range(3))
def test_halved_gradient_of_values_of_a_few_roundoffs_does_not_pass(seed: int) -> None:
    x = torch.tensor([-5.3], dtype=torch.float64) * (
        1 + 0.02 * torch.rand(3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    )
    halved = with_gradients_changed(lambda x: 1 + torch.erf(x), lambda gradients, _: [0.5 * gradients[0]])
    report = gradvet.check(halved, x, seed=seed, points=None, modes=("reverse",), checks=["reverse"])
    assert report.verdict is not Verdict.PASS


def one_minus_sigmoid(x: Tensor) -> Tensor:
    return 1 - torch.sigmoid(x)


@pytest.mark.parametrize("factor", [3.0, 0.0, -1.0, 0.5])
@pytest.mark.parametrize("place", [30.0, 34.0])
def test_wrong_gradient_of_a_saturated_output_that_steps_show_does_not_pass(factor: float, place: float) -> None:
    x = torch.full((3,), place, dtype=torch.float64)
    wrong = with_gradients_changed(one_minus_sigmoid, lambda gradients, _: [factor * gradients[0]])
    for seed in range(3):
        assert gradvet.check(wrong, x, seed=seed).verdict is not Verdict.PASS
        assert not gradvet.check(one_minus_sigmoid, x, seed=seed).failures


def test_slope_of_a_saturated_output_that_no_step_shows_counts_as_zero() -> None:
    x = torch.full((3,), 36.0, dtype=torch.float64)
    report = gradvet.check(one_minus_sigmoid, x, seed=1)
    assert report.verdict is Verdict.PASS
    assert any("slopes as small as these count as zero" in note for note in report.notes)


@pytest.mark.parametrize("seed", range(3))
def test_saturated_operators_of_the_framework_do_not_fail(seed: int) -> None:
    logits = torch.tensor([40.0, 50.0, 36.0], dtype=torch.float64)
    certain = lambda x: torch.nn.functional.binary_cross_entropy_with_logits(x, torch.ones_like(x))  # noqa: E731
    assert not gradvet.check(certain, logits, seed=seed).failures
    # Other layouts take other kernels, whose erf differs in the last digit of one.
    assert not gradvet.check(torch.nn.functional.gelu, torch.full((3,), -5.3), seed=seed).failures
