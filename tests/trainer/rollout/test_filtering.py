"""Dynamic filtering: groups without a signal are dropped and replaced, and counted as filtered."""

from dataclasses import replace

import pytest
from tests.trainer.scripted_run import ScriptedRun, World

from rollcage.trainer.rollout.collector import NothingPassesFilter
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.filters import FILTERS
from rollcage.trainer.rollout.seeding import key_seed

CONFIG = RolloutConfig(
    num_groups=4, group_size=4, num_slots=48, env_deadline_s=50, turn_deadline_s=90, episode_deadline_s=180
)


def reward(task: str, seed: int, action: str) -> float:
    """A third of the tasks is hopeless, a third solved, a third mixed."""
    kind = key_seed(task, "kind") % 3
    return float(kind) if kind < 2 else seed % 1000 / 1000


def kind(group: int) -> int:
    return key_seed(f"task {group}", "kind") % 3


@pytest.mark.parametrize("async_ratio", [0.0, 1.0, 1.5])
@pytest.mark.parametrize("group_filter", ["mean", "std"])
def test_groups_without_a_signal_are_replaced_and_every_batch_is_full(group_filter: str, async_ratio: float) -> None:
    config = replace(CONFIG, group_filter=group_filter, async_ratio=async_ratio)  # type: ignore[arg-type]
    run = ScriptedRun(config, World(reward=reward))(8)
    assert all(len(groups) == 4 for groups in run.groups)
    trained = {group for groups in run.groups for group in groups}
    assert all(kind(group) == 2 for group in trained)
    filtered = {fields["group"] for name, fields in run.recorder.events if name == "group_filtered"}
    assert filtered
    assert all(kind(group) < 2 for group in filtered)
    assert run.account.filtered == 4 * len(filtered)
    assert run.recorder.counts["samples_by_difficulty"] >= run.account.trained + run.metrics[-1]["account/filtered"]


def test_thresholds_are_the_user_s() -> None:
    config = replace(CONFIG, group_filter="mean", filter_low=0.4, filter_high=0.6, async_ratio=0.0)
    run = ScriptedRun(config, World(reward=reward))(4)
    for batch in run.batches:
        for group in set(batch.group_ids.tolist()):
            assert 0.4 < batch.returns[batch.group_ids == group].mean() < 0.6


def test_which_groups_are_trained_on_at_ratio_0_does_not_depend_on_the_number_of_slots() -> None:
    config = replace(CONFIG, group_filter="std", async_ratio=0.0)
    world = World(reward=reward, latency_s=lambda task, seed, turn: key_seed(task, seed) % 40)
    assert ScriptedRun(config, world)(5).groups == ScriptedRun(replace(config, num_slots=3), world)(5).groups


def test_a_filter_that_lets_nothing_pass_ends_the_run_with_the_reason() -> None:
    run = ScriptedRun(replace(CONFIG, group_filter="std"), World(reward=lambda task, seed, action: 1.0))
    with pytest.raises(NothingPassesFilter, match="too easy or too hard"):
        run(1)
    run.account.check(0)


@pytest.mark.parametrize(
    ("name", "returns", "low", "kept"),
    [
        ("none", [0.0, 0.0], 0.0, True),
        ("mean", [0.0, 1.0], 0.0, True),
        ("mean", [0.0, 0.0], 0.0, False),
        ("mean", [1.0, 1.0], 0.0, False),
        ("std", [0.1, 0.1, 0.1], 0.0, False),  # whose mean, rounded, is not 0.1
        ("std", [5.0, 5.0, 5.1], 0.0, True),
        ("std", [5.0, 5.0, 5.1], 0.1, False),
        ("std", [5.0], 0.0, False),  # the only survivor
    ],
)
def test_the_rules(name: str, returns: list[float], low: float, kept: bool) -> None:
    assert FILTERS[name](returns, low, 1.0) is kept
