"""Probes are drawn once and shared; few inputs or outputs are seen one by one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from gradvet.core.context import FEW, SCHEMES, Context

from .planted import context, numbers


def test_directions_are_walked_once() -> None:
    context = context(torch.sin, numbers((5,), 0))
    first = context.probe_directions(2)
    spent = context.problem.cost.forwards
    again = context.probe_directions(3)
    assert [one is other for one, other in zip(first, again, strict=False)] == [True, True]
    assert context.problem.cost.forwards == spent + 2


def test_codirections_are_pulled_once() -> None:
    context = context(torch.sin, numbers((5,), 0))
    context.probe_cotangents(3)
    spent = context.problem.cost.pulls
    context.probe_cotangents(2)
    assert context.problem.cost.pulls == spent


def test_pushes_follow_the_directions() -> None:
    context = context(torch.sin, numbers((5,), 0))
    x = context.problem.inputs[0].detach()
    for direction, jvp in zip(context.probe_directions(2), context.probe_jvps(2), strict=True):
        assert torch.allclose(jvp, x.cos() * direction.displacement)
    assert context.problem.cost.pushes == 2


def test_few_inputs_are_the_basis() -> None:
    context = context(torch.sin, numbers((FEW,), 0))
    assert context.sees_all_columns
    moved = torch.stack([direction.displacement / direction.step for direction in context.probe_directions(1)])
    assert torch.allclose(moved, torch.eye(FEW, dtype=torch.float64), atol=1e-6)
    assert not context(torch.sin, numbers((FEW + 1,), 0)).sees_all_columns


def test_single_output_is_the_basis() -> None:
    context = context(lambda x: x[:1].sin(), numbers((5,), 0))
    assert context.sees_all_rows
    assert torch.equal(context.probe_cotangents(3)[0].v, torch.ones(1, dtype=torch.float64))
    assert len(context.probe_cotangents(3)) == 1
    assert not context(lambda x: x[:2].sin(), numbers((5,), 0)).sees_all_rows


def test_where_one_direction_may_do_two_inputs_are_not_looked_at_one_by_one() -> None:
    context = context(torch.sin, numbers((2,), 0), miss=1e-2)
    assert (context.sees_all_columns, context.sees_all_rows) == (False, False)
    assert (len(context.probe_directions(1)), len(context.probe_cotangents(1))) == (1, 1)


def test_row_is_one_row_of_the_jacobian() -> None:
    context = context(lambda x: (x.sin(), x.sum() * x[:2]), numbers((3,), 0))
    x = context.problem.inputs[0].detach()
    assert torch.allclose(context.row(1), torch.eye(3, dtype=torch.float64)[1] * x.cos())
    assert torch.allclose(context.row(4), x[1] + torch.eye(3, dtype=torch.float64)[1] * x.sum())


def test_every_way_to_walk_has_directions_of_its_own_and_the_same_slopes() -> None:
    context = context(torch.sin, numbers((5,), 0))
    x = context.problem.inputs[0].detach()
    drawn = []
    for scheme in range(len(SCHEMES)):
        context.use_scheme(scheme)
        (direction,) = context.probe_directions(1)
        assert torch.allclose(direction.difference, x.cos() * direction.displacement, rtol=1e-6)
        (jvp,) = context.probe_jvps(1)
        assert torch.allclose(jvp, x.cos() * direction.displacement)
        drawn.append(direction.displacement / direction.step)
    assert not any(torch.allclose(one, other) for one, other in itertools.combinations(drawn, 2))


def test_going_on_in_the_same_way_keeps_the_directions() -> None:
    context = context(torch.sin, numbers((5,), 0))
    (before,) = context.probe_directions(1)
    context.use_scheme(0)
    assert context.probe_directions(1)[0] is before


def test_seed_decides_the_directions() -> None:
    def drawn(seed: int) -> torch.Tensor:
        displacement: torch.Tensor = context(torch.sin, numbers((5,), 0), seed=seed).directions(1)[0].displacement
        return displacement

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))


def test_widest_gap_is_that_of_all_pairs_however_it_was_asked_for() -> None:
    def gaps(context: Context, rows: int, columns: int) -> float:
        return context.largest_residual(context.probe_cotangents(rows), context.probe_directions(columns))

    asked = [(1, 1), (2, 2), (3, 2), (2, 3), (1, 3), (3, 3), (2, 1)]
    piecemeal = context(lambda x: (3.0 * x).sin(), numbers((7,), 0))
    widest = []
    for rows, columns in asked:
        left, right = piecemeal.probe_cotangents(rows), piecemeal.directions(columns)
        exact = max(abs(float(v @ d) - float(p @ u)) for v, p in left for u, d, _, _ in right)
        widest.append(exact)
        assert gaps(piecemeal, rows, columns) >= exact
    assert gaps(piecemeal, 3, 3) == max(widest)


def test_gap_that_is_not_a_number_is_never_forgotten() -> None:
    context = context(lambda x: x.sin(), numbers((7,), 0))
    left, right = list(context.probe_cotangents(2)), list(context.probe_directions(2))
    left[0] = left[0]._replace(vjp=left[0].vjp * torch.nan)
    assert math.isnan(context.largest_residual(left, right))
    assert math.isnan(context.largest_residual(context.probe_cotangents(3), context.probe_directions(3)))


@pytest.mark.parametrize(("settings", "least"), [({}, 0.0), ({"nondeterminism": 1e-3}, 0.25), ({"miss": 5e-2}, 0.25)])
def test_directions_keep_away_from_zero_unless_several_are_needed(settings: dict[str, float], least: float) -> None:
    context = context(torch.sin, numbers((4_000,), 0), **settings)  # type: ignore[arg-type]
    smallest = float(context.probe_cotangents(1)[0].v.abs().min())
    assert smallest >= least
    assert (smallest < 0.05) is (least == 0.0)
