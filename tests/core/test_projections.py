"""Probes are drawn once and shared; few inputs or outputs are seen one by one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from gradvet.core.projections import BASIS_SIZE, SCHEMES, Projections

from .wrong_jacobians import context_at, numbers


def test_directions_are_walked_once() -> None:
    projections = context_at(torch.sin, numbers((5,), 0)).projections
    first = projections.probe_directions(2)
    spent = projections.problem.cost.forwards
    again = projections.probe_directions(3)
    assert [one is other for one, other in zip(first, again, strict=False)] == [True, True]
    assert projections.problem.cost.forwards == spent + 2


def test_codirections_are_pulled_once() -> None:
    projections = context_at(torch.sin, numbers((5,), 0)).projections
    projections.probe_cotangents(3)
    spent = projections.problem.cost.vjps
    projections.probe_cotangents(2)
    assert projections.problem.cost.vjps == spent


def test_pushes_follow_the_directions() -> None:
    projections = context_at(torch.sin, numbers((5,), 0)).projections
    x = projections.problem.inputs[0].detach()
    for direction, jvp in zip(projections.probe_directions(2), projections.probe_jvps(2), strict=True):
        assert torch.allclose(jvp, x.cos() * direction.displacement)
    assert projections.problem.cost.jvps == 2


def test_few_inputs_are_the_basis() -> None:
    projections = context_at(torch.sin, numbers((BASIS_SIZE,), 0)).projections
    assert projections.sees_all_columns
    moved = torch.stack([direction.displacement / direction.step for direction in projections.probe_directions(1)])
    assert torch.allclose(moved, torch.eye(BASIS_SIZE, dtype=torch.float64), atol=1e-6)
    assert not context_at(torch.sin, numbers((BASIS_SIZE + 1,), 0)).projections.sees_all_columns


def test_single_output_is_the_basis() -> None:
    projections = context_at(lambda x: x[:1].sin(), numbers((5,), 0)).projections
    assert projections.sees_all_rows
    assert torch.equal(projections.probe_cotangents(3)[0].v, torch.ones(1, dtype=torch.float64))
    assert len(projections.probe_cotangents(3)) == 1
    assert not context_at(lambda x: x[:2].sin(), numbers((5,), 0)).projections.sees_all_rows


def test_where_one_direction_may_do_two_inputs_are_not_looked_at_one_by_one() -> None:
    projections = context_at(torch.sin, numbers((2,), 0), miss=1e-2).projections
    assert (projections.sees_all_columns, projections.sees_all_rows) == (False, False)
    assert (len(projections.probe_directions(1)), len(projections.probe_cotangents(1))) == (1, 1)


def test_row_is_one_row_of_the_jacobian() -> None:
    projections = context_at(lambda x: (x.sin(), x.sum() * x[:2]), numbers((3,), 0)).projections
    x = projections.problem.inputs[0].detach()
    assert torch.allclose(projections.row(1), torch.eye(3, dtype=torch.float64)[1] * x.cos())
    assert torch.allclose(projections.row(4), x[1] + torch.eye(3, dtype=torch.float64)[1] * x.sum())


def test_every_way_to_walk_has_directions_of_its_own_and_the_same_slopes() -> None:
    projections = context_at(torch.sin, numbers((5,), 0)).projections
    x = projections.problem.inputs[0].detach()
    drawn = []
    for scheme in range(len(SCHEMES)):
        projections.use_scheme(scheme)
        (direction,) = projections.probe_directions(1)
        assert torch.allclose(direction.difference, x.cos() * direction.displacement, rtol=1e-6)
        (jvp,) = projections.probe_jvps(1)
        assert torch.allclose(jvp, x.cos() * direction.displacement)
        drawn.append(direction.displacement / direction.step)
    assert not any(torch.allclose(one, other) for one, other in itertools.combinations(drawn, 2))


def test_going_on_in_the_same_way_keeps_the_directions() -> None:
    projections = context_at(torch.sin, numbers((5,), 0)).projections
    (before,) = projections.probe_directions(1)
    projections.use_scheme(0)
    assert projections.probe_directions(1)[0] is before


def test_seed_decides_the_directions() -> None:
    def drawn(seed: int) -> torch.Tensor:
        displacement: torch.Tensor = (
            context_at(torch.sin, numbers((5,), 0), seed=seed).projections.probe_directions(1)[0].displacement
        )
        return displacement

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))


def test_widest_gap_is_that_of_all_pairs_however_it_was_asked_for() -> None:
    def gaps(projections: Projections, rows: int, columns: int) -> float:
        return projections.largest_residual(projections.probe_cotangents(rows), projections.probe_directions(columns))

    asked = [(1, 1), (2, 2), (3, 2), (2, 3), (1, 3), (3, 3), (2, 1)]
    piecemeal = context_at(lambda x: (3.0 * x).sin(), numbers((7,), 0)).projections
    widest = []
    for rows, columns in asked:
        left, right = piecemeal.probe_cotangents(rows), piecemeal.probe_directions(columns)
        exact = max(abs(float(v @ d) - float(p @ u)) for v, p, _ in left for u, d, *_ in right)
        widest.append(exact)
        assert gaps(piecemeal, rows, columns) >= exact
    assert gaps(piecemeal, 3, 3) == max(widest)


def test_gap_that_is_not_a_number_is_never_forgotten() -> None:
    projections = context_at(lambda x: x.sin(), numbers((7,), 0)).projections
    left, right = list(projections.probe_cotangents(2)), list(projections.probe_directions(2))
    left[0] = left[0]._replace(vjp=left[0].vjp * torch.nan)
    assert math.isnan(projections.largest_residual(left, right))
    assert math.isnan(projections.largest_residual(projections.probe_cotangents(3), projections.probe_directions(3)))


@pytest.mark.parametrize(("settings", "least"), [({}, 0.0), ({"nondeterminism": 1e-3}, 0.25), ({"miss": 5e-2}, 0.25)])
def test_directions_keep_away_from_zero_unless_several_are_needed(settings: dict[str, float], least: float) -> None:
    projections = context_at(torch.sin, numbers((4_000,), 0), **settings).projections  # type: ignore[arg-type]
    smallest = float(projections.probe_cotangents(1)[0].v.abs().min())
    assert smallest >= least
    assert (smallest < 0.05) is (least == 0.0)
