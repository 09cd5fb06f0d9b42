"""The harness itself: samples are repeatable, verdicts tell right from wrong, the table explains only what it names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.autograd.gradcheck import GradcheckError

from gradvet.frontends.torch.opdb import Variant, operators
from tests.differential import table
from tests.differential.comparison import disagreements
from tests.differential.samples import Derivative, Sample, draw, small
from tests.differential.verdicts import Checker, Kind, Verdict, answer, refusal, torch_checker, verdict_of


def drawn(name: str, dtype: torch.dtype = torch.float64, variant: Variant = Variant.FUNCTION) -> list[Sample]:
    (operator,) = operators(name)
    return draw(operator, dtype, variant)


@pytest.fixture
def sample() -> Sample:
    return small(drawn("addmm"), count=1, max_entries=1000)[0]


def test_sample_has_the_same_values_when_drawn_again() -> None:
    first = [tensor for sample in drawn("addmm") for tensor in sample.inputs]
    torch.rand(3)
    second = [tensor for sample in drawn("addmm") for tensor in sample.inputs]
    assert len(first) > 1
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_drawing_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    drawn("sin")
    assert torch.equal(before, torch.get_rng_state())


def test_tensors_of_a_list_argument_are_inputs() -> None:
    assert max(len(sample.inputs) for sample in drawn("cat")) > 1


def test_tensors_of_keywords_are_inputs_in_the_order_of_the_call() -> None:
    assert any(len(sample.inputs) == 3 for sample in drawn("nn.functional.group_norm"))


def test_function_depends_on_the_tensors_it_is_given(sample: Sample) -> None:
    value = sample.function(*sample.inputs)
    moved = sample.function(*(tensor + 1 for tensor in sample.inputs))
    assert not torch.allclose(value, moved)


def test_inplace_variant_leaves_its_input_alone() -> None:
    sample = drawn("sin", variant=Variant.INPLACE)[0]
    before = sample.inputs[0].detach().clone()
    assert torch.equal(sample.function(*sample.inputs), before.sin())
    assert torch.equal(sample.inputs[0], before)


def test_operator_without_complex_gradient_has_no_complex_sample() -> None:
    assert drawn("nn.functional.relu", torch.complex128) == []


def test_options_are_those_of_the_operator() -> None:
    (operator,) = operators("addmm")
    assert drawn("addmm")[0].options["nondet_tol"] == operator.gradcheck_nondet_tol > 0


def test_right_gradient_passes(sample: Sample) -> None:
    assert verdict_of(torch_checker(fast_mode=False), sample).kind is Kind.PASS


def test_wrong_gradient_is_a_mismatch(sample: Sample) -> None:
    def doubled(*tensors: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = sample.function(*tensors)
        return 2 * value - value.detach()

    assert verdict_of(torch_checker(fast_mode=False), replace(sample, function=doubled)).kind is Kind.MISMATCH


def test_exception_of_the_function_is_told_by_its_class(sample: Sample) -> None:
    def broken(*tensors: torch.Tensor) -> torch.Tensor:
        raise KeyError("no")

    verdict = verdict_of(torch_checker(fast_mode=False), replace(sample, function=broken))
    assert verdict.means(Verdict(Kind.RAISED, ("KeyError",)))
    assert verdict.means(Verdict(Kind.RAISED, ("LookupError",)))  # its base class
    assert not verdict.means(Verdict(Kind.RAISED, ("ValueError",)))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Jacobian mismatch for output 0 with respect to input 0,", Kind.MISMATCH),
        ("Jacobian computed with forward mode mismatch for output 0", Kind.FORWARD_MISMATCH),
        ("Numerical gradient for function expected to be zero", Kind.ZERO_EXPECTED),
        ("Backward is not reentrant", Kind.NOT_REENTRANT),
        ("backward not multiplied by grad_output", Kind.NOT_MULTIPLIED),
        ("grad is incorrect layout (torch.sparse_coo is not torch.strided)", Kind.WRONG_ATTRIBUTE),
        ("Expected backward function to handle undefined output grads", Kind.UNDEFINED),
        ("failed while testing batched gradient computation", Kind.BATCHED),
        ("something new", Kind.UNTOLD),
    ],
)
def test_refusal_is_told_by_its_phrase(message: str, kind: Kind) -> None:
    assert refusal(GradcheckError(message)).kind is kind


def test_a_checker_that_does_not_answer_true_has_not_passed() -> None:
    assert answer(lambda: False).kind is Kind.UNTOLD


def test_changed_inputs_are_reported_and_put_back(sample: Sample) -> None:
    def careless(function: object, inputs: tuple[torch.Tensor, ...], **options: object) -> bool:
        inputs[0].data.add_(1)
        return True

    before = sample.inputs[0].detach().clone()
    checker = Checker("careless", careless, careless, fast_mode=False)
    (found,) = disagreements(sample, torch_checker(fast_mode=False), [checker])
    assert found.found.disturbed
    assert torch.equal(before, sample.inputs[0])


def test_table_explains_the_named_difference_and_no_other(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = table.Reason("pass", "mismatch", "for the sake of this test")
    monkeypatch.setitem(table.REASONS, (sample.operator, table.ANY_DTYPE), (reason,))
    assert table.reason_for(sample, Verdict(Kind.PASS), Verdict(Kind.MISMATCH)) is reason
    assert table.reason_for(sample, Verdict(Kind.MISMATCH), Verdict(Kind.PASS)) is None


def test_every_table_entry_names_an_operator_of_the_database() -> None:
    names = {operator.full_name for operator in operators()}
    assert {operator for operator, _ in table.REASONS} <= names


def test_second_order_sample_runs_gradgradcheck(sample: Sample) -> None:
    def refuse(*arguments: object, **options: object) -> bool:
        raise AssertionError("gradcheck was called")

    torch_slow = torch_checker(fast_mode=False)
    (operator,) = operators("sin")
    second = small(draw(operator, torch.float64, check=Derivative.REVERSE_OVER_REVERSE), count=1, max_entries=1000)[0]
    assert verdict_of(replace(torch_slow, gradcheck=refuse), second).kind is Kind.PASS
