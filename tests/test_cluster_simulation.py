"""`benchmarks.cluster_simulation` where the answer is known."""

from __future__ import annotations

import pytest

from benchmarks.cluster_simulation import Cluster, Costs, simulate

FREE = Costs(cases=[2.0], start=1.0, schedule=0.0, store=0.0)


def test_work_is_shared_evenly_after_the_start() -> None:
    result = simulate(FREE, Cluster(cases=100, workers=10, batch=5))
    assert result.seconds == pytest.approx(1.0 + 100 * 2.0 / 10)
    assert result.worked == pytest.approx(200.0)


def test_scheduler_that_is_slower_than_the_workers_sets_the_pace() -> None:
    costs = Costs(cases=[0.001], start=0.0, schedule=0.01, store=0.0)
    assert simulate(costs, Cluster(cases=1000, workers=100, batch=1)).seconds == pytest.approx(1000 * 0.01, rel=0.01)
    assert simulate(costs, Cluster(cases=1000, workers=100, batch=10)).seconds == pytest.approx(100 * 0.01, rel=0.05)


def test_writer_that_is_slower_than_the_workers_sets_the_pace() -> None:
    costs = Costs(cases=[0.001], start=0.0, schedule=0.0, store=0.01)
    assert simulate(costs, Cluster(cases=1000, workers=100, batch=10)).seconds == pytest.approx(1000 * 0.01, rel=0.05)


def test_deaths_cost_time_but_no_case() -> None:
    without = simulate(FREE, Cluster(cases=2000, workers=20, batch=4))
    with_deaths = simulate(FREE, Cluster(cases=2000, workers=20, batch=4, deaths_per_hour=60.0))
    assert with_deaths.deaths > 0
    assert with_deaths.seconds > without.seconds
    assert with_deaths.worked == without.worked
    assert with_deaths.given_up == 0


def test_case_that_can_hardly_end_before_its_worker_dies_is_given_up() -> None:
    result = simulate(FREE, Cluster(cases=20, workers=2, batch=4, deaths_per_hour=3600.0 * 20))
    assert result.given_up == 20
    assert result.deaths == 5 * 4 + 20 * 2 * 4
