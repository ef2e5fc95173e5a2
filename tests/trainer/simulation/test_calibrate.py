"""Calibration: from what a run recorded come back the speeds that it was made with, and its throughput."""

from pathlib import Path

import pytest
from tests.trainer.simulation.recorded_run import record

from rollcage.errors import UserError
from rollcage.trainer.engines.simulated import Speed
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.simulation.calibrate import calibrate
from rollcage.trainer.simulation.draws import Constant, Gaussian, Lognormal
from rollcage.trainer.simulation.environment import EnvModel
from rollcage.trainer.simulation.model import Cluster, Workload


def token_s(speed: Speed, load: int, context: int) -> float:
    return speed.token_s + (load - 1) * speed.load_token_s + load * context * speed.context_token_s


# The last one's slots are always full: what is load and what are prompts cannot be told apart there.
@pytest.mark.parametrize(
    ("async_ratio", "num_replicas", "num_slots", "load"), [(1.0, 2, 24, 8), (0.0, 1, 64, 8), (1.0, 1, 32, 0)]
)
def test_a_recorded_run_is_predicted_and_its_speeds_are_found(
    tmp_path: Path, async_ratio: float, num_replicas: int, num_slots: int, load: int
) -> None:
    workload = Workload(
        Lognormal(40),
        EnvModel(turns=Constant(2), turn_s=Gaussian(1, 0.5), success=0.4),
        max_new_tokens=160,
        observation_tokens=20,
    )
    speed = Speed(0.02, load_token_s=0.001, contention=1.5, prompt_token_s=0.0005, context_token_s=1e-5)
    cluster = Cluster(num_replicas, num_slots=16, speed=speed, sample_s=0.1, publish_s=0.2)
    config = RolloutConfig(num_groups=8, group_size=8, num_slots=num_slots, async_ratio=async_ratio)
    measured = record(tmp_path / "run", workload, cluster, config)

    found = calibrate(tmp_path / "run")
    assert found.recorded.samples_per_s == pytest.approx(measured.samples_per_s, rel=0.25)  # other updates warm it up
    assert found.workload.lengths.mean == pytest.approx(workload.lengths.mean, rel=0.15)
    assert found.workload.env.turns == Constant(2)
    assert found.workload.env.turn_s.mean == pytest.approx(1.0, rel=0.1)
    assert found.workload.task_share < 0.2
    assert found.cluster.sample_s == pytest.approx(0.1, rel=0.01)
    assert found.cluster.publish_s == pytest.approx(0.2, rel=0.01)
    fitted = found.cluster.speed
    if load:
        assert token_s(fitted, load, context=90) == pytest.approx(token_s(speed, load, context=90), rel=0.15)
        assert fitted.prompt_token_s == pytest.approx(0.0005, rel=0.5)
    assert found.speed_r2 > 0.85
    if async_ratio:
        assert found.cluster.speed.contention == pytest.approx(1.5, abs=0.2)
    assert found.predict(found.recorded) == pytest.approx(found.recorded.samples_per_s, rel=0.15)


def test_a_run_with_short_contexts_predicts_one_whose_slots_always_hold_a_long_one(tmp_path: Path) -> None:
    """A padded batch costs by its longest context: a queue that refills always has one, a batch that ends has few."""
    workload = Workload(Lognormal(40), max_new_tokens=160, observation_tokens=20)
    cluster = Cluster(num_slots=64, speed=Speed(0.01, load_token_s=0.0001, context_token_s=2e-6), sample_s=0.01)
    found = {}
    for ratio in (0.0, 2.0):
        config = RolloutConfig(num_groups=16, group_size=8, num_slots=64, async_ratio=ratio)
        record(tmp_path / str(ratio), workload, cluster, config, 3)
        found[ratio] = calibrate(tmp_path / str(ratio))
    # the other way round, load and contexts never changed in what is fitted to: they share alike
    for fitted, other, within in ((0.0, 2.0, 0.15), (2.0, 0.0, 0.4)):
        recorded = found[other].recorded
        assert found[fitted].predict(recorded) == pytest.approx(recorded.samples_per_s, rel=within)
    assert found[0.0].cluster.speed.context_token_s == pytest.approx(2e-6, rel=0.2)


def test_lockstep_is_taken_out_of_what_environments_took(tmp_path: Path) -> None:
    env = EnvModel(turns=Constant(3), turn_s=Gaussian(1, 0.5), reset_s=Gaussian(2, 1))
    config = RolloutConfig(num_groups=8, group_size=8, num_slots=64, async_ratio=0, mode="sync")
    record(tmp_path / "run", Workload(Lognormal(40), env), Cluster(speed=Speed(0.02), sample_s=0.1), config)
    found = calibrate(tmp_path / "run").workload.env
    assert found.turn_s.mean == pytest.approx(1.0, rel=0.1)
    assert found.turn_s.quantile(0.95) == pytest.approx(1 + 1.645 * 0.5, rel=0.1)
    assert found.reset_s.mean == pytest.approx(2.0, rel=0.15)  # from nothing but the longest of each round


def test_lengths_that_belong_to_their_tasks_are_told_from_those_of_chance(tmp_path: Path) -> None:
    config = RolloutConfig(num_groups=64, group_size=8, num_slots=512, async_ratio=0)
    for share in (0.0, 0.7):
        record(tmp_path / str(share), Workload(Lognormal(40), task_share=share), Cluster(), config, 2)
        assert calibrate(tmp_path / str(share)).workload.task_share == pytest.approx(share, abs=0.12)


def test_what_cannot_be_calibrated_from_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        calibrate(tmp_path)
    record(tmp_path / "short", Workload(Lognormal(40)), Cluster(), RolloutConfig(num_groups=2, async_ratio=0), 1)
    with pytest.raises(UserError, match="1 updates are too few"):
        calibrate(tmp_path / "short")
    record(tmp_path / "old", Workload(Lognormal(40)), Cluster(), RolloutConfig(num_groups=2, async_ratio=0), 2)
    path = tmp_path / "old" / "trajectories.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace('"act_s"', '"unknown"'), encoding="utf-8")
    with pytest.raises(UserError, match="do not say how long"):
        calibrate(tmp_path / "old")
