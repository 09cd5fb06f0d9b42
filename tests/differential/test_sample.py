"""A sample of the operator database in every test run: gradvet says what torch's slow mode says, in both of its modes.

`python -m tests.differential.run` does the same for the whole database.

Also tests the samples of `frontends/torch/opdb.py`.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch

from gradvet.frontends.torch.opdb import Variant, dtype_name, is_differentiable, operators, variants
from tests.differential.comparison import disagreements
from tests.differential.samples import DTYPES, draw, small
from tests.differential.verdicts import gradvet_checker, torch_checker

SEED = 20
OPERATORS, GROUP = 60, 10
# torch's slow mode calls the function for each input and each output: this keeps a sample below a tenth of a second.
MAX_ENTRIES = 20_000

# Operators warn of their own options and futures; that is not what is tested.
pytestmark = pytest.mark.filterwarnings("ignore")

Case = tuple[Any, torch.dtype, Variant]


@functools.cache
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


# By number, because the operators' names take seconds to load: the process that runs these tests loads them.
@pytest.mark.parametrize("first", range(0, OPERATORS, GROUP))
def test_verdict_is_that_of_torch_slow_mode(first: int) -> None:
    gradvets = [gradvet_checker(fast_mode=False), gradvet_checker(fast_mode=True)]
    unexplained, compared = [], 0
    for operator, dtype, variant in cases()[first : first + GROUP]:
        samples = small(draw(operator, dtype, variant), count=1, max_entries=MAX_ENTRIES, seed=SEED)
        for sample in samples:
            found = disagreements(sample, torch_checker(fast_mode=False), gradvets)
            name = f"{operator.full_name}-{dtype_name(dtype)}-{variant.value}"
            unexplained += [f"{name}: {disagreement}" for disagreement in found if disagreement.reason is None]
            compared += 1
    assert not unexplained, "\n".join(unexplained)
    assert compared >= GROUP // 2
