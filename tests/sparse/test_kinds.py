"""Inputs of every kind, under both semantics: coalesced or not, hybrid, batched, in blocks, complex, empty."""

from __future__ import annotations

import pytest
import torch

import gradvet
from tests.sparse.functions import decision, sine, with_doubled_gradient
from tests.sparse.native import run_pipeline
from tests.sparse.tensors import KINDS, full, specified

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
both_semantics = pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])
both_modes = pytest.mark.parametrize("mode", ["slow", "fast"])
every_kind = pytest.mark.parametrize("kind", KINDS)


# Fast mode sees the same coordinates, so a few kinds show that it uses them.
@pytest.mark.parametrize(
    ("kind", "mode"), [*((kind, "slow") for kind in KINDS), *((kind, "fast") for kind in KINDS if "-" not in kind)]
)
@both_semantics
def test_right_gradient_passes_and_one_per_cent_too_much_fails(kind: str, masked: bool, mode: str) -> None:
    x = KINDS[kind]().requires_grad_()
    options = {"masked": masked, "fast_mode": mode == "fast"}
    counted = int(specified(x.detach()).sum()) if masked else x.numel()
    assert decision(gradvet.gradcheck, sine(masked), x, **options) == "pass"
    assert decision(gradvet.gradcheck, sine(masked, 1.01), x, **options) == ("fail" if counted else "pass")


@every_kind
def test_gradient_of_the_other_semantics_fails_where_there_are_holes(kind: str) -> None:
    x = KINDS[kind]().requires_grad_()
    expected = "pass" if specified(x.detach()).all() else "fail"
    assert decision(gradvet.gradcheck, sine(masked=False), x, masked=True) == expected
    assert decision(gradvet.gradcheck, sine(masked=True), x, masked=False) == expected


@every_kind
@both_semantics
def test_report_counts_the_coordinates_of_the_semantics(kind: str, masked: bool) -> None:
    x = KINDS[kind]()
    inside, total = int(specified(x).sum()), x.numel()
    (remark,) = [
        f for f in run_pipeline(sine(masked), x.requires_grad_(), masked=masked).findings if f.check == "semantics"
    ]
    layout = str(x.layout).removeprefix("torch.")
    if inside == total:
        assert remark.headline == f"input 0 is {layout} with all of its {total} elements specified"
    else:
        meaning = "masked semantics: only those count" if masked else "unmasked semantics: the others count as zeros"
        assert remark.headline == f"input 0 is {layout} with {inside} of {total} elements specified; {meaning}"


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr"])
@both_modes
def test_float32_is_too_coarse_for_the_default_tolerance_and_warned_about(layout: str, mode: str) -> None:
    x = full(layout, torch.float32).requires_grad_()
    for function in (torch.Tensor.to_dense, with_doubled_gradient(torch.Tensor.to_dense)):
        for tolerance, right in ((1e-5, "fail"), (1e-2, "pass")):
            expected = {right} if function is torch.Tensor.to_dense else {"fail"}
            # Fast mode accepts a residual that the measured roundoff of the projection explains: with this step it is
            # larger than the gradient.
            expected |= {"pass"} if mode == "fast" and tolerance < 1e-2 else set()
            options = {"atol": tolerance, "eps": 1e-6 if tolerance < 1e-2 else 1e-3, "fast_mode": mode == "fast"}
            assert decision(gradvet.gradcheck, function, x, **options) in expected
    with pytest.warns(UserWarning, match="is not a double precision"):
        gradvet.gradcheck(torch.sum, x, atol=1e-2, raise_exception=False)
