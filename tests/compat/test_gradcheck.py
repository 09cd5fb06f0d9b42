"""What the drop-in functions do around the checks: settings, errors with their report, warnings.

Also tests `compat/__init__.py`.
"""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError as TorchGradcheckError

from gradvet import GradcheckError, gradcheck, gradgradcheck
from gradvet.compat.gradcheck import as_tuple, chosen_semantics
from gradvet.core.results import Verdict
from tests.core.wrong_jacobians import linear, numbers
from tests.functions import with_rules, with_vjp


def twice(in_reverse: float, in_forward: float) -> Any:
    """x · 2, whose derivative is `in_reverse` in reverse and `in_forward` in forward mode."""
    return with_rules(lambda x: x * 2.0, lambda v, x: v * in_reverse, lambda u, x: u * in_forward)


def x() -> Tensor:
    return numbers((3,), 0).requires_grad_()


def test_one_input_several_and_a_list_mean_the_same() -> None:
    tensor = x()
    assert as_tuple(tensor) == as_tuple((tensor,)) == as_tuple([tensor]) == (tensor,)


@pytest.mark.parametrize(("atol", "rtol", "verdict"), [(1e-5, 1e-3, False), (0.6, 1e-3, True), (1e-5, 0.3, True)])
def test_tolerances_are_the_callers(atol: float, rtol: float, verdict: bool) -> None:
    for fast_mode in (False, True):
        found = gradcheck(twice(2.5, 2.0), x(), atol=atol, rtol=rtol, fast_mode=fast_mode, raise_exception=False)
        assert found is verdict


def test_step_is_the_callers() -> None:
    point = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    # A kink at a distance of 1e-3 is seen by a step that reaches beyond it.
    assert gradcheck(lambda x: (x - 1e-3).abs(), point, eps=1e-6)
    assert not gradcheck(lambda x: (x - 1e-3).abs(), point, eps=1e-2, raise_exception=False)


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_each_mode_is_checked_on_request_only(mode: str) -> None:
    slopes = (2.5, 2.0) if mode == "reverse" else (2.0, 2.5)

    def function(x: Tensor) -> Tensor:
        return twice(*slopes)(x)  # type: ignore[no-any-return]

    both = {"check_forward_ad": True, "raise_exception": False}
    assert gradcheck(function, x(), **both) is False
    assert gradcheck(function, x(), check_backward_ad=mode == "forward", check_forward_ad=mode == "reverse")


def test_error_carries_the_report() -> None:
    A = numbers((3, 4), 0)
    with pytest.raises(GradcheckError) as caught:
        gradcheck(linear(A, A), numbers((4,), 1).requires_grad_())
    error = caught.value
    assert isinstance(error, TorchGradcheckError)
    assert isinstance(error, RuntimeError)
    assert error.report is not None
    assert error.report.verdict is Verdict.FAIL
    assert [finding.check for finding in error.report.failures] == ["reverse"]
    json.dumps(error.report.to_dict())
    assert "The ratio is 2 everywhere" in str(error)


def test_error_without_a_report_can_be_made() -> None:
    assert GradcheckError("text").report is None


def test_detached_output_is_warned_about_where_it_was_called() -> None:
    with pytest.warns(UserWarning, match="output 1 varies with the inputs but does not require grad") as caught:
        assert gradcheck(lambda x: (x * 2.0, x.detach()), x())
    assert caught[0].filename == __file__


def test_detached_output_is_accepted_where_warnings_are_errors() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gradcheck(lambda x: (x * 2.0, x.detach()), x())


def test_right_function_causes_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gradcheck(lambda x: (x * 2.0, torch.arange(3)), x(), check_batched_grad=True)
        assert gradgradcheck(torch.sin, x())


def test_old_name_of_masked_is_understood() -> None:
    assert chosen_semantics(True, None) is True
    assert chosen_semantics(None, None) is None
    with pytest.warns(FutureWarning, match="use masked"):
        assert chosen_semantics(None, True) is True
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match="contradict"):
        chosen_semantics(False, True)


def test_verdict_does_not_depend_on_the_callers_random_state() -> None:
    torch.manual_seed(0)
    first = torch.rand(1)
    torch.manual_seed(0)
    assert gradcheck(torch.sin, x())
    assert torch.equal(torch.rand(1), first)


def test_second_order_of_a_gradient_that_is_wrong_is_found() -> None:
    # Its backward is right, but forgets that it depends on x.
    cube = with_vjp(lambda x: x**3, lambda v, x: v * 3.0 * x.detach() ** 2)

    for fast_mode in (False, True):
        assert gradcheck(cube, x(), fast_mode=fast_mode)
        with pytest.raises(GradcheckError, match="with respect to input 0"):
            gradgradcheck(cube, x(), fast_mode=fast_mode)


def test_error_survives_pickling() -> None:
    with pytest.raises(GradcheckError) as caught:
        gradcheck(twice(2.5, 2.0), x())
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is GradcheckError
    assert str(again) == str(caught.value)
    assert again.report == caught.value.report


def test_seconds_of_a_report_are_those_of_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(perf_counter=iter([100.0, 102.5]).__next__)
    monkeypatch.setattr(sys.modules["gradvet.compat.gradcheck"], "time", clock)
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(GradcheckError) as caught:
        gradcheck(lambda x: x + x.detach(), x)
    assert caught.value.report is not None
    assert caught.value.report.seconds == 2.5
