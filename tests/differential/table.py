"""The reviewed table: where gradvet's verdict differs from torch's slow mode, and why that is right.

An entry is added only after the difference has been understood: it names both verdicts, so another difference on the
same operator is not covered by it. `run.py` lists the entries that a whole run did not need; those can be removed.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradvet.frontends.torch.opdb import dtype_name
from tests.differential.samples import Sample
from tests.differential.verdicts import Verdict

ANY_DTYPE = "*"


@dataclass(frozen=True)
class Reason:
    """Both verdicts as `str(Verdict)` prints them, and why gradvet's is the one that a user wants."""

    torch: str
    gradvet: str
    why: str


# (operator, dtype name or ANY_DTYPE) -> the differences that are meant.
REASONS: dict[tuple[str, str], tuple[Reason, ...]] = {
    ("linalg.lstsq", ANY_DTYPE): (
        Reason(
            "raised RuntimeError",
            "pass",
            "torch's slow mode does not count the integer output `rank` where it makes room for Jacobians, but does "
            "where it fills them, so that the output behind it gets columns of another length; "
            "without `rank` torch passes too",
        ),
    ),
}


TESTS: dict[str, str] = {
    "TestAutograd::test_gradcheck_forward_ad_respects_requires_grad": (
        "counts the calls of `jvp`, which torch makes once per input and gradvet once for both inputs"
    ),
    "TestGradCheckOverride::test_gradcheck": (
        "lists the attributes of a tensor-like that torch's checker uses; the gradient of `add` is right, and torch "
        "says False because it moves a copy of the data"
    ),
    "test_fn_fwgrad_bwgrad_cholesky_inverse_cpu_float64": (
        "torch's forward mode over reverse mode is wrong here by 4e-5 in entries of 6e-4, where reverse over reverse "
        "agrees with differences to 1e-10; torch's slow mode refuses it too"
    ),
    "test_forward_mode_AD_chalf_cpu_float64": (
        "both refuse it: torch raises because it has no division of complex half precision, gradvet divides in double "
        "precision and finds that a step of 1e-6 is lost in half precision"
    ),
    **dict.fromkeys(
        ("test_fn_grad_chalf_cpu_complex128", "test_fn_grad_half_cpu_complex128"),
        "both refuse it: torch's fast mode raises because it has no sum of complex half precision, gradvet finds that "
        "a step of 1e-6 is lost in half precision, as torch's slow mode does",
    ),
}
"""Ends of the names of PyTorch's tests (`torch_tests.py`) that end differently with gradvet -> why that is right."""


def reason_for(sample: Sample, torch_verdict: Verdict, gradvet_verdict: Verdict) -> Reason | None:
    """The table's reason for this difference of verdicts on this sample, if it has one."""
    for dtype in (dtype_name(sample.dtype), ANY_DTYPE):
        for reason in REASONS.get((sample.operator, dtype), ()):
            if (reason.torch, reason.gradvet) == (str(torch_verdict), str(gradvet_verdict)):
                return reason
    return None
