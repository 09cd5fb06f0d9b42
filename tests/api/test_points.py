"""Generated points and shapes: wrong derivatives are found there, right functions at special points are not failed.

Also tests `frontends/torch/inputs.py` and `frontends/torch/points.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import gradvet
from gradvet.core.results import Finding, Report, Verdict
from gradvet.errors import InvalidProblemError
from tests.functions import Gradients, Inputs, with_derivative, with_gradients_changed, with_vjp

DOUBLE = torch.float64
Function = Callable[..., Any]
HERE = ["reverse", "points", "shapes"]


def inputs(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


same = with_vjp(torch.clone, lambda v, x: v)
"""The identity, with a derivative written by hand."""


def handwritten(function: Function, change: Callable[..., Tensor] = lambda gradient, x: gradient) -> Function:
    """The function, whose true gradient is changed and cannot be differentiated again."""

    def changed(gradients: Gradients, inputs: Inputs) -> Gradients:
        return [change(gradients[0].detach(), inputs[0].detach())]

    return with_gradients_changed(function, changed)


def wrong_where(function: Function, there: Callable[[Tensor], Tensor], factor: float = 0.0) -> Function:
    return handwritten(function, lambda gradient, x: torch.where(there(x), factor * gradient, gradient))


def failed_at(report: Report) -> dict[str, str]:
    return {finding.check: finding.facts["point"] for finding in report.failures}


def exercised(report: Report, check: str) -> list[str]:
    return [
        name for finding in report.findings if finding.check == check for name in finding.facts.get("exercised", ())
    ]


def skipped(report: Report, check: str) -> str:
    return " ".join(f.headline for f in report.findings if f.check == check and f.verdict is Verdict.SKIPPED)


@pytest.mark.parametrize(
    ("there", "point"),
    [
        (lambda x: x == 0, "zeros"),
        (lambda x: x == 1, "ones and ties"),
        (lambda x: x == -1, "ones and ties"),
        (lambda x: x.abs() > 5, "eight times larger"),
        (lambda x: (x == 0).all(), "the origin"),
    ],
)
def test_gradient_that_is_wrong_at_a_special_value_is_found_there(
    there: Callable[[Tensor], Tensor], point: str
) -> None:
    report = gradvet.check(wrong_where(lambda x: torch.tanh(0.1 * x), there), inputs(6), seed=1)
    assert failed_at(report) == {"points": point}
    (finding,) = report.failures
    assert finding.headline.startswith(f"at {point}: reverse mode disagrees")
    assert finding.mismatches
    assert report.to_dict()["findings"][-1]["facts"]


def test_nan_of_a_plain_composition_is_found_at_zeros() -> None:
    report = gradvet.check(lambda x: torch.sqrt((x**2).sum(-1)) ** 2, inputs(4, 3), seed=1)
    assert failed_at(report) == {"points": "zeros"}
    assert "not finite" in report.failures[0].headline


@pytest.mark.parametrize("wrong", [2.0, -1.0, 1.5])
def test_value_outside_the_slopes_of_an_unseen_kink_is_found(wrong: float) -> None:
    function = wrong_where(lambda x: torch.where(x >= 0, x, 0 * x), lambda x: x == 0, wrong)
    assert failed_at(gradvet.check(function, inputs(5), seed=2)) == {"points": "zeros"}


def test_tied_maxima_that_all_get_the_whole_gradient_are_found() -> None:
    def all_of_them(gradient: Tensor, x: Tensor) -> Tensor:
        return gradient.sum() * (x == x.amax()).to(x)

    assert "points" in failed_at(gradvet.check(handwritten(torch.amax, all_of_them), inputs(2), seed=0))


@pytest.mark.parametrize(
    ("change", "wrong_shape"),
    [
        (lambda g, x: g * (len(x) % 2 == 0), "length 5 instead of 6"),
        (lambda g, x: g / max(len(x), 1) * (6 if len(x) > 1 else 2), "length 5 instead of 6"),
        (lambda g, x: g if len(x) > 1 else 2 * g, "length 1 instead of 6"),
    ],
)
def test_gradient_that_is_wrong_for_another_length_is_found(change: Any, wrong_shape: str) -> None:
    assert failed_at(gradvet.check(handwritten(torch.sin, change), inputs(6), seed=1)) == {"shapes": wrong_shape}


def test_backward_of_ones_own_that_raises_for_another_length_is_found() -> None:
    def for_pairs(gradient: Tensor, x: Tensor) -> Tensor:
        return gradient.reshape(-1, 2).reshape(-1)

    report = gradvet.check(handwritten(torch.sin, for_pairs), inputs(6), seed=1)
    assert failed_at(report) == {"shapes": "length 5 instead of 6"}
    assert "backward pass raises" in report.failures[0].headline


SPECIAL: dict[str, Function] = {
    "relu": torch.relu,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "round": lambda x: torch.round(2 * x) / 2,
    "fraction": torch.frac,
    "remainder": lambda x: torch.remainder(x, 0.5),
    "step": lambda x: torch.where(x > 0, x + 1, x),
    "root": lambda x: torch.sqrt(x.abs()),
    "cube root": lambda x: x.sign() * x.abs().pow(1 / 3),
    "logarithm": lambda x: torch.log(x.abs()),
    "guarded logarithm": lambda x: torch.where(x > 0, torch.log(x.clamp(min=1e-12)), torch.zeros_like(x)),
    "reciprocal": torch.reciprocal,
    "norm": lambda x: torch.linalg.vector_norm(x),
    "unit vector": lambda x: x / (x.norm() + 1e-12),
    "median": torch.median,
    "third smallest": lambda x: torch.kthvalue(x, 3).values,
    "sorted": lambda x: torch.sort(x).values * torch.arange(1.0, len(x) + 1, dtype=x.dtype),
    "largest two": lambda x: torch.topk(x, min(2, len(x))).values,
    "largest": torch.amax,
    "running maximum": lambda x: torch.cummax(x, 0).values,
    "largest magnitude": lambda x: x.abs().max(),
    "clipped": lambda x: x.clamp(-1, 1),
    "hinge": lambda x: (1 - x).clamp(min=0),
    "product": lambda x: torch.prod(x),
    "running product": lambda x: torch.cumprod(x, 0),
    "power": lambda x: x.abs() ** 1.5,
    "arc sine": torch.asin,
    "angle": lambda x: torch.atan2(x, x.roll(1)),
    "hypotenuse": lambda x: torch.hypot(x, x.roll(1)),
    "high frequency": lambda x: torch.sin(torch.exp(x)),
    "deviation": lambda x: x.std(),
    "softmax": lambda x: torch.softmax(x, 0),
    "stairs": lambda x: torch.round(x, decimals=3),
    "counts": lambda x: x * (x != 0).sum(),
    "histogram": lambda x: torch.histc(x.detach(), 4) + 0 * x.sum(),
    "switch on size": lambda x: x.sin() if x.abs().max() < 3 else x.cos(),
    "float32 inside": lambda x: torch.sigmoid(x.float()).double(),
}


@pytest.mark.parametrize("written", [False, True], ids=["torch's own", "by hand"])
@pytest.mark.parametrize("name", SPECIAL)
def test_what_is_only_special_is_not_failed(name: str, written: bool) -> None:
    function = handwritten(SPECIAL[name]) if written else SPECIAL[name]
    report = gradvet.check(function, inputs(5), seed=0, checks=HERE, points="thorough")
    assert [finding for finding in report.failures if finding.check != "reverse"] == []


def test_network_of_relus_without_biases_is_not_failed_at_the_origin() -> None:
    module = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)).double()
    for function in (module, handwritten(module)):
        assert gradvet.check(function, inputs(3, 4), checks=HERE, points="thorough", seed=1).failures == ()


def test_what_is_undecided_elsewhere_does_not_spoil_the_verdict() -> None:
    report = gradvet.check(lambda x: x.abs().sqrt(), inputs(5), seed=0, checks=HERE)
    assert report.verdict is Verdict.PASS
    assert "zeros (not finite)" in skipped(report, "points")


def test_points_at_which_the_function_raises_or_is_not_finite_are_counted() -> None:
    def picky(x: Tensor) -> Tensor:
        if bool((x == 0).any()) or len(x) < 4:
            raise ValueError("not here")
        return same(1.0 / (x - x.round()))

    report = gradvet.check(picky, inputs(4), seed=0, checks=HERE)
    assert report.verdict is Verdict.PASS
    assert "zeros (refused: ValueError)" in skipped(report, "points")
    assert "length 3 instead of 4 (refused: ValueError)" in skipped(report, "shapes")
    assert any(
        line.startswith("points: eight times larger") and "; skipped: zeros (refused" in line
        for line in report.coverage
    )


def test_points_at_which_values_explode_are_compared() -> None:
    right = with_derivative(lambda x: x**5, lambda x: 5.0 * x**4)
    report = gradvet.check(right, inputs(4), seed=0, checks=HERE)
    assert "a thousand times larger" in exercised(report, "points")
    assert report.verdict is Verdict.PASS


def test_milder_form_is_taken_where_the_first_is_refused() -> None:
    report = gradvet.check(lambda x, y: x / y, (inputs(4), inputs(4, seed=1)), seed=0, checks=HERE)
    assert "zeros" in exercised(report, "points")
    assert report.verdict is Verdict.PASS


def test_form_of_the_search_is_chosen() -> None:
    def names(points: Any) -> list[str]:
        return exercised(gradvet.check(torch.sin, inputs(4), points=points, seed=0, checks=HERE), "points")

    assert names(None) == []
    assert len(names("small")) == 5
    assert set(names("small")) < set(names("thorough"))
    with pytest.raises(InvalidProblemError, match="points="):
        gradvet.check(torch.sin, inputs(4), points="everything")


def test_points_and_shapes_are_switched_off_by_name() -> None:
    report = gradvet.check(torch.sin, inputs(4), checks={"points": False, "shapes": False})
    assert not {"points", "shapes"} & {finding.check for finding in report.findings}


@pytest.mark.parametrize(
    "points", [[torch.full((6,), 7.0, dtype=DOUBLE)], {"sevens": (torch.full((6,), 7.0, dtype=DOUBLE),)}]
)
def test_users_own_points_are_tried_instead(points: Any) -> None:
    report = gradvet.check(wrong_where(torch.sin, lambda x: x == 7), inputs(6), points=points, seed=0)
    assert failed_at(report) == {"points": "sevens" if isinstance(points, dict) else "point 0"}


def test_users_own_point_that_cannot_be_decided_is_inconclusive() -> None:
    jump = torch.zeros(3, dtype=DOUBLE)
    report = gradvet.check(lambda x: x + x.detach().sign(), inputs(3), points={"a jump": jump}, seed=0)
    assert report.verdict is Verdict.INCONCLUSIVE


def test_examples_of_a_strategy_are_points() -> None:
    sevens = st.just(torch.full((6,), 7.0, dtype=DOUBLE))
    report = gradvet.check(wrong_where(torch.sin, lambda x: x == 7), inputs(6), points=sevens, seed=0)
    assert failed_at(report) == {"points": "point 0"}


# Domains.

wrong_below_zero = wrong_where(torch.sin, lambda x: x <= 0)


@pytest.mark.parametrize(
    "domain",
    [
        (0.25, 2.0),
        {"input 0": (0.25, None)},
        [lambda x: x > 0],
        lambda x: bool((x > 0).all()),
        lambda x: torch.rand_like(x) + 0.5,
        st.floats(0.25, 2.0),
    ],
    ids=["interval", "by name", "mask", "predicate", "sampler", "strategy"],
)
def test_points_stay_in_the_domain(domain: Any) -> None:
    x = inputs(5).abs() + 0.25
    assert "points" in failed_at(gradvet.check(wrong_below_zero, x, seed=0))
    report = gradvet.check(wrong_below_zero, x, domain=domain, seed=0, checks=HERE)
    assert report.verdict is Verdict.PASS
    assert exercised(report, "points")


def test_edges_of_an_interval_are_points() -> None:
    report = gradvet.check(wrong_where(torch.sin, lambda x: x == 0.3), inputs(5).abs(), domain=(0.3, 9.0), seed=0)
    assert failed_at(report) == {"points": "the edge 0.3 of the domain"}


def test_strategy_of_numbers_gives_points() -> None:
    function = wrong_where(torch.sin, lambda x: x > 10)
    report = gradvet.check(function, 0.1 * inputs(5), domain=st.floats(11, 12), seed=0)
    assert failed_at(report) == {"points": "example 1"}


@pytest.mark.parametrize("domain", [{"input 7": (0, 1)}, 3, [(0, 1), (0, 1)]])
def test_domain_that_makes_no_sense_is_refused(domain: Any) -> None:
    with pytest.raises(InvalidProblemError, match="domain"):
        gradvet.check(torch.sin, inputs(3), domain=domain)


class GeometricSeries(torch.autograd.Function):
    """1 / (1 - x), with a gradient from eight terms of its series: accurate for small inputs alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 1 / (1 - x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_output * sum((n + 1) * x**n for n in range(8))


def test_accuracy_is_that_at_the_given_point_and_inside_the_domain() -> None:
    x = torch.linspace(-0.2, 0.2, 6, dtype=torch.float64)
    assert gradvet.check(GeometricSeries, x, accuracy=1e-3).passed
    assert gradvet.check(GeometricSeries, x, accuracy=1e-3, domain=(-0.3, 0.3)).passed
    for elsewhere in ({"domain": (-0.8, 0.8)}, {"points": [2 * x, 3.0 + x]}, {"points": "thorough"}):
        assert "points" in [
            found.check for found in gradvet.check(GeometricSeries, x, accuracy=1e-3, **elsewhere).failures
        ]
    assert gradvet.check(GeometricSeries, x + 0.5, accuracy=1e-3).verdict is Verdict.FAIL


# Shapes that are left alone.


def test_lengths_that_integers_may_refer_to_are_left_alone() -> None:
    offsets = torch.tensor([0, 2, 5])
    report = gradvet.check(lambda x: torch.stack([part.sum() for part in torch.tensor_split(x, offsets)]), inputs(5))
    assert exercised(report, "shapes") == []


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.LongTensor])
def test_lengths_that_integers_inside_the_function_may_refer_to_are_left_alone(make: Any) -> None:
    """Native code such as `ctc_loss` does not compare its targets with the number of classes."""
    lengths = set()

    def chosen(x: Tensor) -> Tensor:
        lengths.add(x.shape)
        return x.log_softmax(-1)[0, make([2, 0])].sum()

    assert gradvet.check(chosen, inputs(3, 4)).passed
    assert lengths == {(3, 4)}


def test_lengths_are_changed_where_integers_follow_them() -> None:
    def ramp(x: Tensor) -> Tensor:
        return x * torch.arange(1, len(x) + 1) + x[x.argmax()]

    assert exercised(gradvet.check(ramp, inputs(4)), "shapes")


def test_weights_of_native_code_keep_lengths_that_belong_together() -> None:
    module = nn.LSTM(2, 2).double()
    names = [name for name, _ in module.named_parameters()]

    def function(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x,))[0]

    weights = [weight.detach().clone() for weight in module.parameters()]
    for length in (3, 8):
        report = gradvet.check(function, (inputs(length, 1, 2), *weights), checks=HERE, seed=0)
        assert report.verdict is Verdict.PASS


def test_kernels_of_torch_are_not_handed_empty_inputs_unless_asked() -> None:
    lengths = set()

    def sine(x: Tensor) -> Tensor:
        lengths.add(len(x))
        return x.sin()

    report = gradvet.check(sine, inputs(5), seed=0)
    assert lengths == {5, 4, 1}
    assert "points='thorough' tries them" in skipped(report, "shapes")
    gradvet.check(sine, inputs(5), seed=0, points="thorough")
    assert 0 in lengths


def test_gradient_of_torch_that_is_not_finite_at_length_one_fails() -> None:
    def standardised(x: Tensor) -> Tensor:
        spread = x - x.mean()
        return spread / torch.where(len(x) > 1 * torch.ones(()), spread.square().mean().sqrt(), torch.ones(()))

    report = gradvet.check(standardised, inputs(4), seed=0)
    assert report.verdict is Verdict.FAIL
    assert [finding.check for finding in report.failures] == ["shapes"]
    assert "length 1 instead of 4" in report.failures[0].headline


def test_parameters_of_a_module_keep_their_values_and_shapes() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return same(super().forward(x))

    module = Own(4, 3).double()
    seen = set()
    module.register_forward_hook(lambda m, x, y: seen.add((tuple(m.weight.shape), len(x[0]))))
    assert gradvet.check(module, inputs(5, 4), checks=HERE, seed=0).verdict is Verdict.PASS
    assert {shape for shape, _ in seen} == {(3, 4)}
    assert {length for _, length in seen} >= {0, 1, 4, 5}


def test_warnings_at_generated_points_are_not_passed_on(recwarn: pytest.WarningsRecorder) -> None:
    def function(x: Tensor) -> Tensor:
        if len(x) < 5 or bool((x == 0).any()):
            warnings.warn("not here", stacklevel=1)
        return x.sin()

    gradvet.check(function, inputs(5))
    assert [str(warning.message) for warning in recwarn if "not here" in str(warning.message)] == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"points": None}, "inputs, points=None, seed=4"),
        ({"points": "thorough"}, "inputs, points='thorough', seed=4"),
        ({"domain": (0, 1)}, "inputs, domain=domain, seed=4"),
    ],
)
def test_replay_line_tries_the_same_points(settings: dict[str, Any], words: str) -> None:
    assert words in gradvet.check(torch.sin, inputs(3).abs(), seed=4, **settings).replay


def test_users_tensors_are_left_as_they_were() -> None:
    x = inputs(5).requires_grad_()
    before = x.detach().clone()
    gradvet.check(torch.sin, x, points="thorough")
    assert torch.equal(x, before)
    assert x.grad is None


def test_same_seed_gives_the_same_points() -> None:
    def reports() -> list[Finding]:
        return [f for f in gradvet.check(wrong_below_zero, inputs(6), seed=3).findings if f.check == "points"]

    assert reports() == reports()


def test_function_that_reads_captured_tensors_is_not_handed_others() -> None:
    x = inputs(4).requires_grad_()
    report = gradvet.check(lambda _: x.sin(), x)
    assert "captured" in skipped(report, "points")


def nonzero(x: Tensor) -> Tensor:
    return torch.where(x == 0, 1.0, x)


BRANCHES = {
    "a constant at zero": (lambda x: torch.where(x == 0, 1.0, torch.expm1(nonzero(x)) / nonzero(x)), "at zeros"),
    "a detached branch": (lambda x: torch.where(x == 0, x.detach(), x.tanh()), "at zeros"),
    "an even function": (lambda x: torch.where(x == 0, 1.0, torch.sin(nonzero(x)) / nonzero(x)), ""),
    "a series": (lambda x: torch.where(x.abs() < 1e-3, 1 + x / 2 + x**2 / 6, torch.expm1(nonzero(x)) / nonzero(x)), ""),
    "a kink": (lambda x: torch.where(x > 0, x, 0.1 * x), ""),
    "a jump": (lambda x: torch.where(x >= 0, x + 1.0, x), ""),
    "a kink of torch's": (lambda x: torch.relu(x) - torch.relu(-x) + torch.where(x > 0, x, -x), ""),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branch_that_has_the_value_and_not_the_slope_fails_at_its_point(name: str) -> None:
    """A branch between smooth formulas is user code; the gradient at a kink of a torch operator is a convention."""
    function, where = BRANCHES[name]
    report = gradvet.check(function, torch.linspace(-2.0, 2.3, 10, dtype=torch.float64), seed=0)
    assert [finding.check for finding in report.failures] == (["points"] if where else [])
    assert all(where in finding.headline for finding in report.failures)


def test_derivative_is_held_to_the_surrogate_at_special_points_too() -> None:
    def surrogate(x: Tensor) -> Tensor:
        return torch.where(x.abs() < 0.1, 2.0 * x, x)

    x = torch.linspace(0.3, 2.3, 10, dtype=torch.float64)
    report = gradvet.check(same, x, surrogate=surrogate, seed=0)
    assert [finding.check for finding in report.failures] == ["points"]


def test_failure_at_a_generated_point_names_the_domain() -> None:
    small = with_vjp(torch.square, lambda v, x: torch.where(x < 5, 2 * v * x, v))
    report = gradvet.check(small, torch.linspace(1.0, 2.0, 5, dtype=torch.float64), seed=1)
    (finding,) = report.failures
    assert finding.check == "points"
    assert finding.advice.endswith("pass domain=.")
