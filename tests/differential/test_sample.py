"""A sample of the operator database in every test run: gradvet says what torch's slow mode says, in both of its modes.

`python -m tests.differential.run` does the same for the whole database.

Also tests `frontends/torch/opdb/samples.py`.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from gradvet.frontends.torch.opdb.operators import DTYPES, Variant, dtype_name, is_differentiable, operators, variants
from gradvet.frontends.torch.opdb.samples import draw, small
from tests.differential.comparison import disagreements
from tests.differential.verdicts import gradvet_contestant, torch_contestant

SEED = 20
OPERATORS = 100
# torch's slow mode calls the function for each input and each output: this keeps a sample below a second.
MAX_ENTRIES = 300_000

# Operators warn of their own options and futures; that is not what is tested.
pytestmark = pytest.mark.filterwarnings("ignore")

Case = tuple[Any, torch.dtype, Variant]


def cases() -> list[Case]:
    """As many different operators, each in one of its dtypes and variants."""
    choice = random.Random(SEED)
    every = [
        [
            (operator, dtype, variant)
            for dtype in DTYPES
            if is_differentiable(operator, dtype)
            for variant in variants(operator)
        ]
        for operator in operators()
    ]
    return [choice.choice(some) for some in choice.sample([some for some in every if some], OPERATORS)]


def name(case: Case) -> str:
    operator, dtype, variant = case
    return f"{operator.full_name}-{dtype_name(dtype)}-{variant.value}"


@pytest.mark.parametrize("case", cases(), ids=name)
def test_verdict_is_that_of_torch_slow_mode(case: Case) -> None:
    operator, dtype, variant = case
    samples = small(draw(operator, dtype, variant), count=1, max_entries=MAX_ENTRIES, seed=SEED)
    if not samples:
        pytest.skip(f"every sample has more than {MAX_ENTRIES} Jacobian entries")
    gradvets = [gradvet_contestant(fast_mode=False), gradvet_contestant(fast_mode=True)]
    found = disagreements(samples[0], torch_contestant(fast_mode=False), gradvets)
    unexplained = [str(disagreement) for disagreement in found if disagreement.reason is None]
    assert not unexplained, "\n".join(unexplained)
