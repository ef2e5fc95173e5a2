"""The search: what it recommends is the best of what it tried, and for the reasons that the cluster gives it."""

from dataclasses import replace

import pytest

from rollcage.trainer.engines.simulated import Speed
from rollcage.trainer.simulation.draws import Constant, Lognormal
from rollcage.trainer.simulation.model import Cluster, Workload
from rollcage.trainer.simulation.plan import Recommendation, Resources, Search

SMALL = Resources(num_gpus=8, num_slots=8, speed=Speed(0.01), train_gpu_s=0.5)


def recommend(workload: Workload, resources: Resources | Cluster) -> Recommendation:
    return Search(workload, resources, num_groups=8, group_size=8, num_updates=3).recommend()


def test_the_recommendation_is_close_to_the_best_that_was_tried_and_beats_the_baseline() -> None:
    found = recommend(Workload(Lognormal(100)), SMALL)
    best = max(choice.samples_per_s for choice in found.tried)
    assert found.best.samples_per_s >= 0.95 * best
    assert found.best.samples_per_s > 1.5 * found.baseline.samples_per_s
    assert {choice.config.async_ratio for choice in found.tried} >= {0.0, 0.5, 1.0, 2.0, 4.0}
    assert len({choice.config.extra_groups for choice in found.tried}) >= 2
    assert "times the synchronous trainer's" in found.reasons[0]


@pytest.mark.parametrize(("train_gpu_s", "fewest", "most"), [(0.005, 1, 3), (20.0, 5, 7)])
def test_expensive_training_gets_more_gpus(train_gpu_s: float, fewest: int, most: int) -> None:
    resources = replace(SMALL, train_gpu_s=train_gpu_s)
    best = Search(Workload(Lognormal(100)), resources, num_groups=8, group_size=8, num_updates=3)._best_split(
        async_ratio=2.0, extra_groups=0
    )
    assert best is not None
    assert fewest <= best <= most


def test_where_nothing_varies_and_training_is_free_no_ratio_and_no_redundancy_is_recommended() -> None:
    found = recommend(Workload(Constant(100)), Cluster(num_replicas=8, num_slots=8, speed=Speed(0.01)))
    assert found.best.config.async_ratio == 0
    assert found.best.config.extra_groups == 0
    assert found.best.train_gpus is None
