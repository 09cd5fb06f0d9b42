"""`assert_gradients`, and the arguments that it shares with `check`."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import gradvet
from gradvet import GradientError, InconclusiveWarning, InvalidProblemError, Verdict

POINT = torch.linspace(0.1, 1.2, 6, dtype=torch.float64)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        return 2 * grad_output


def partly_defined(x: Tensor, y: Tensor) -> Tensor:
    return x * y.log()


OUTSIDE = torch.tensor([1.0, -1.0, 2.0, 0.5, -2.0, 1.0], dtype=torch.float64)


def test_pass_returns_the_report() -> None:
    report = gradvet.assert_gradients(torch.sin, POINT, seed=0)
    assert report.passed
    assert report.seed == 0


@pytest.mark.parametrize("inconclusive", ["raise", "warn", "ignore"])
def test_failure_raises_whatever_is_done_with_inconclusive(inconclusive: Any) -> None:
    with pytest.raises(GradientError, match="FAIL Doubled") as caught:
        gradvet.assert_gradients(Doubled, POINT, inconclusive=inconclusive)
    assert caught.value.report.verdict is Verdict.FAIL


def test_inconclusive_raises_and_says_what_was_not_compared_and_what_to_do() -> None:
    with pytest.raises(GradientError) as caught:
        gradvet.assert_gradients(torch.floor, 0 * POINT)
    assert caught.value.report.verdict is Verdict.INCONCLUSIVE
    text = str(caught.value)
    assert text.startswith("INCONCLUSIVE floor")
    assert "not compared: input 0 in reverse and forward mode: the function jumps at the point" in text
    assert "(6 of 6 elements)" in text
    assert "Check at a point where the function and its derivative are finite and smooth" in text
    assert text.endswith('pass inconclusive="warn" or inconclusive="ignore".')


def test_elements_without_a_derivative_raise() -> None:
    not_compared = r"in reverse and forward mode: NaN in 2 of 6 outputs; the derivative is not finite"
    with pytest.raises(GradientError, match=not_compared):
        gradvet.assert_gradients(partly_defined, (POINT, OUTSIDE))


def test_infinite_inputs_are_named_as_not_compared() -> None:
    mask = torch.zeros(6, dtype=torch.float64).masked_fill(OUTSIDE < 0, -torch.inf)
    report = gradvet.assert_gradients(lambda x, mask: torch.softmax(x + mask, -1), (POINT, mask))
    (note,) = report.notes
    assert note.startswith("input 1 contains NaN or infinity")


def test_inconclusive_can_warn() -> None:
    with pytest.warns(InconclusiveWarning, match="^floor: the function jumps at the point") as caught:
        report = gradvet.assert_gradients(torch.floor, 0 * POINT, inconclusive="warn")
    assert report.verdict is Verdict.INCONCLUSIVE
    (warning,) = [one for one in caught if one.category is InconclusiveWarning]
    assert warning.filename == __file__


def test_inconclusive_can_be_ignored() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", InconclusiveWarning)
        report = gradvet.assert_gradients(torch.floor, 0 * POINT, inconclusive="ignore")
    assert report.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("value", ["error", None, True, "Raise"])
def test_other_value_gets_one_sentence(value: Any) -> None:
    with pytest.raises(InvalidProblemError, match=rf"^inconclusive is 'raise', 'warn' or 'ignore', found {value!r}$"):
        gradvet.assert_gradients(torch.sin, POINT, inconclusive=value)


# The signature.


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def test_arguments_are_those_of_check() -> None:
    own = parameters(gradvet.assert_gradients)
    assert own.pop("inconclusive").default == "raise"
    assert own.pop("msg").default == ""
    assert own == parameters(gradvet.check)
    assert all(one.kind is not one.VAR_KEYWORD for one in own.values())


def test_arguments_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    import gradvet.api

    given: dict[str, Any] = {}
    report = gradvet.check(torch.sin, POINT)

    def stub(func: Any, inputs: Any, **settings: Any) -> gradvet.Report:
        given.update(settings)
        return report

    markers = {name: object() for name, one in parameters(gradvet.check).items() if one.kind is one.KEYWORD_ONLY}
    monkeypatch.setattr(gradvet.api, "check", stub)
    gradvet.assert_gradients(torch.sin, POINT, **markers)  # type: ignore[arg-type]
    assert given == markers


def test_every_argument_is_described() -> None:
    text = inspect.getdoc(gradvet.check)
    assert text is not None
    missing = [name for name in parameters(gradvet.check) if f"\n    {name}: " not in text]
    assert missing == []
    assert "\n    inconclusive: " in str(inspect.getdoc(gradvet.assert_gradients))


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5, True, "fine", float("nan")])
def test_resolution_that_is_none_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^resolution is a relative error between 0 and 1 such as 0\.01, found"):
        gradvet.check(torch.sin, POINT, resolution=value)


def test_thorough_takes_the_resolution_that_is_given() -> None:
    settings: dict[str, Any] = {"thorough": True, "points": None, "order": 1, "checks": ["reverse"]}
    usual, given = (gradvet.check(torch.sin, POINT, **settings, **more) for more in ({}, {"resolution": 0.2}))
    assert ({row.asked for row in usual.ledger}, {row.asked for row in given.ledger}) == ({1e-4}, {0.2})


def test_text_stands_in_front_of_the_message() -> None:
    with pytest.raises(gradvet.GradientError) as failure:
        gradvet.assert_gradients(lambda x: x * x.detach(), torch.ones(3, dtype=torch.float64), msg="layer 3", seed=0)
    assert str(failure.value).startswith("layer 3\nFAIL")
    assert failure.value.report.verdict is gradvet.Verdict.FAIL


@pytest.mark.parametrize(
    "function", [gradvet.check, gradvet.assert_gradients, gradvet.blame, gradvet.numerical_jacobian]
)
def test_arguments_that_do_not_exist_get_one_sentence(function: Any) -> None:
    x, name = torch.ones(3, dtype=torch.float64), f"gradvet.{function.__name__}"
    with pytest.raises(TypeError, match=rf"pass several as a tuple, {name}\(func, \(a, b\)\)$"):
        function(torch.mul, x, x)
    with pytest.raises(TypeError, match=f"^{name} has no argument atol: .*; gradvet.gradcheck has torch's tolerances$"):
        function(torch.sin, x, atol=1e-3)
    with pytest.raises(TypeError, match=f"^{name} has no argument kwarg; did you mean kwargs\\?$"):
        function(torch.sin, x, kwarg={})
    with pytest.raises(TypeError, match=f"^{name} has no argument xyz; it has .*, inputs, "):
        function(torch.sin, x, xyz=1)
    with pytest.raises(TypeError, match=rf"^{name} has no argument scale; .* passed as kwargs={{'scale': ...}}$"):
        function(scaled, x, scale=2.0)


def scaled(x: Tensor, *, scale: float) -> Tensor:
    return scale * x


class Normalised(torch.nn.Module):
    """Its argument has the name of a tolerance of torch's checker."""

    def forward(self, x: Tensor, eps: float = 1e-5) -> Tensor:
        return x / (x.norm() + eps)


def test_argument_of_another_function_is_told_from_one_of_the_function_under_test() -> None:
    x = torch.ones(3, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"^gradvet.check has no argument msg; gradvet.assert_gradients has it$"):
        gradvet.check(torch.sin, x, msg="layer 3")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"argument budgte; did you mean budget\?$"):
        gradvet.check(torch.sin, x, budgte=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"argument eps; .* passed as kwargs={'eps': ...}$"):
        gradvet.check(Normalised(), x, eps=1e-3)  # type: ignore[call-arg]


HOW_TO_PASS = r"pass one input for each argument, several as a tuple, and keyword arguments as kwargs={...}"


def test_arguments_that_the_function_does_not_take_get_one_sentence() -> None:
    x, linear = torch.ones(3, dtype=torch.float64), torch.nn.Linear(3, 2)
    calls: list[tuple[Any, Any, Any]] = [
        (gradvet.check, torch.mul, [x, x]),
        (gradvet.check, lambda a, b: a * b, x),
        (gradvet.check, scaled, x),
        (gradvet.check, linear, (x, x)),
        (gradvet.blame, linear, (x, x)),
        (gradvet.check, linear, [x]),
        (gradvet.blame, linear, [x]),
        (gradvet.check, lambda a: a.sin(), [x]),
    ]
    for call, function, inputs in calls:
        with pytest.raises(TypeError) as raised:
            call(function, inputs)
        text = str(raised.value)
        assert text.endswith(HOW_TO_PASS), text
        assert ("the list is one argument" in text) == isinstance(inputs, list)


def test_forward_without_ctx_is_told_to_take_it() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Any:  # type: ignore[override]
            return 2 * x

    with pytest.raises(TypeError, match=r"forward takes ctx first, unless the class has a setup_context$"):
        gradvet.check(Twice, torch.ones(3, dtype=torch.float64))


def test_error_about_another_list_keeps_its_type() -> None:
    with pytest.raises(AttributeError, match=r"attribute 'sin'$"):
        gradvet.check(lambda x: [x].sin(), torch.ones(3, dtype=torch.float64))


def test_error_inside_the_function_is_not_explained() -> None:
    def inner(a: Tensor, b: Tensor) -> Tensor:
        return a * b

    with pytest.raises(TypeError, match=r"'b'$"):
        gradvet.check(lambda x: inner(x), torch.ones(3, dtype=torch.float64))


def test_argument_of_the_function_belongs_in_kwargs() -> None:
    with pytest.raises(TypeError, match=r"passed as kwargs={'scale': \.\.\.}$"):
        gradvet.check(scaled, torch.ones(3, dtype=torch.float64), scale=2.0)  # type: ignore[call-arg]


def test_class_of_a_module_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match=r"^pass an instance of the module, such as Linear\(\.\.\.\), not"):
        gradvet.check(torch.nn.Linear, torch.ones(3, dtype=torch.float64))


def test_inputs_of_another_dtype_than_the_parameters_are_explained() -> None:
    with pytest.raises(InvalidProblemError, match=r"the parameters are float32, the inputs float64; give both one"):
        gradvet.check(torch.nn.Linear(3, 2), POINT)


def test_instance_of_a_function_is_refused() -> None:
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        function = Doubled()
    with pytest.raises(InvalidProblemError, match=r"^pass the class Doubled, not an instance of it$"):
        gradvet.check(function, POINT)


def test_numerical_jacobian_says_how_inputs_are_passed() -> None:
    with pytest.raises(TypeError, match=r"pass one input for each argument"):
        gradvet.numerical_jacobian(torch.sin, (POINT, POINT))
