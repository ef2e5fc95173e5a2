"""The real loop over latency models: equal seeds give equal runs, and what is predicted agrees with arithmetic."""

import pytest

from rollcage.trainer.engines.simulated import Speed
from rollcage.trainer.loop import RolloutConfig
from rollcage.trainer.simulation.draws import Constant, Gaussian, Lognormal
from rollcage.trainer.simulation.environment import EnvModel
from rollcage.trainer.simulation.model import Cluster, Workload, simulate

CLUSTER = Cluster(num_replicas=4, num_slots=8, speed=Speed(0.01), sample_s=0.05)
CONFIG = RolloutConfig(
    num_groups=8, group_size=8, num_slots=64, turn_deadline_s=1e5, episode_deadline_s=1e6, env_deadline_s=1e4
)


def test_equal_seeds_give_equal_runs_and_others_do_not():
    def run(seed: int) -> object:
        prediction = simulate(Workload(Lognormal(500)), CLUSTER, CONFIG, num_updates=3, seed=seed)
        return prediction.update_s, prediction.account, prediction.staleness

    assert run(1) == run(1) != run(2)


def test_without_chance_the_update_takes_what_arithmetic_says():
    config = RolloutConfig(num_groups=8, group_size=8, num_slots=64, async_ratio=0)
    workload = Workload(Constant(100), EnvModel(turns=Constant(3), turn_s=Constant(2)))
    cluster = Cluster(num_replicas=4, num_slots=16, speed=Speed(0.01), sample_s=0.05, update_s=1.0, publish_s=0.5)
    prediction = simulate(workload, cluster, config, num_updates=3)
    # three turns of 1 s and 2 s, 64 samples of 0.05 s, 1 s, and the publication
    assert prediction.update_s == pytest.approx(9 + 3.2 + 1 + 0.5, rel=1e-6)
    assert prediction.samples_per_s == pytest.approx(64 / 13.7, rel=1e-6)
    assert prediction.rollout_busy == pytest.approx(3 / 13.7, rel=1e-6)
    assert prediction.learner_busy == pytest.approx(4.7 / 13.7, rel=1e-6)
    assert prediction.staleness == 0


def test_a_slow_learner_or_slow_engines_bound_the_throughput():
    slow_learner = simulate(Workload(Constant(100)), Cluster(4, 16, Speed(0.01), sample_s=1.0), CONFIG)
    assert slow_learner.samples_per_s == pytest.approx(1.0, rel=0.01)
    assert slow_learner.learner_busy > 0.99
    slow_engines = simulate(Workload(Constant(100)), Cluster(4, 16, Speed(1.0), sample_s=0.01), CONFIG)
    assert slow_engines.samples_per_s == pytest.approx(64 / 100, rel=0.02)
    assert slow_engines.rollout_busy > 0.98


def test_failing_environments_cost_their_own_samples_and_are_counted():
    env = EnvModel(
        turns=Constant(4), turn_s=Gaussian(10, 10), fail_slow_rate=0.2, fail_slow_factor=4, fail_stop_rate=0.1
    )
    config = RolloutConfig(num_groups=8, group_size=8, num_slots=64, env_deadline_s=100, episode_deadline_s=150)
    prediction = simulate(Workload(Lognormal(100), env), CLUSTER, config, num_updates=6)
    failed = prediction.account["failed"]
    assert set(failed) == {"infra/env_timeout", "infra/episode_timeout"}
    assert 0.1 < sum(failed.values()) / prediction.account["started"] < 0.3
    assert prediction.wasted > 0.1


def test_lengths_are_alike_within_a_group_as_far_as_they_are_told_to_be():
    from rollcage.trainer.types import Request, Sampling

    def spread(task_share: float) -> float:
        length = Workload(Lognormal(100), task_share=task_share).length(0)
        inside = [length(Request("r", [1], Sampling(9), seed=seed << 40, group="1")) for seed in range(1, 400_000, 997)]
        return max(inside) / min(inside)

    assert spread(1.0) == pytest.approx(1)
    assert spread(0.9) < spread(0.5) < spread(0.0)


def test_slow_replicas_cost_throughput():
    def samples_per_s(slow: float) -> float:
        cluster = Cluster(4, 16, Speed(0.01), slow_replicas=slow, slow_factor=4)
        return simulate(Workload(Lognormal(100)), cluster, CONFIG).samples_per_s

    assert samples_per_s(0.25) < 0.9 * samples_per_s(0.0)
