"""Any combination of choices, any faults: nothing vanishes, nothing is too old, every batch is what it should be."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from tests.trainer.scripted_run import ScriptedRun, World

from rollcage.envs.placements.base import EnvDied, EnvRaised
from rollcage.trainer.engines.base import EngineError
from rollcage.trainer.engines.scripted import Line
from rollcage.trainer.rollout.collector import NothingPassesFilter, NothingSucceeds
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.types import Request


def draw_config(draw: random.Random) -> RolloutConfig:
    """Draw any combination that means something."""
    num_groups, group_size = draw.randint(1, 5), draw.randint(1, 4)
    config = RolloutConfig(
        num_groups=num_groups,
        group_size=group_size,
        num_slots=draw.randint(1, 40),
        replicate=draw.random() < 0.6,
        group_filter=draw.choice(["none", "none", "mean", "std"] if group_size > 1 else ["none"]),
        interrupt=draw.choice(["continue", "abort", "wait"]),
        env_deadline_s=draw.uniform(5, 30),
        turn_deadline_s=draw.uniform(10, 60),
        episode_deadline_s=draw.uniform(30, 200),
        step_deadline_s=draw.choice([0.0, 0.0, draw.uniform(1, 60)]),
        greedy_baseline=draw.random() < 0.2,
        hold_back=draw.random() < 0.1,
    )
    if draw.random() < 0.2:
        num_slots = num_groups * config.num_members + draw.randint(0, 4)
        return replace(config, mode="sync", async_ratio=0.0, num_slots=num_slots)
    config = replace(
        config,
        async_ratio=draw.choice([0.0, draw.uniform(0, 4), 1.0, 2.0]),
        extra_groups=draw.choice([0, 0, 1, 4]),
        extra_members=draw.choice([0, 0, 1, 3]),
    )
    return config if config.replicate else replace(config, num_slots=max(config.num_slots, config.num_members))


def draw_world(draw: random.Random) -> World:
    """Draw latencies with a heavy tail, some above the deadline, and environments that raise and die."""
    key, fault_rate = draw.random(), draw.choice([0.0, 0.05, 0.2])
    slow_rate, sigma = draw.choice([0.0, 0.02, 0.2]), draw.uniform(0, 1.5)

    def uniform(*parts: Any) -> float:
        return key_seed(key, *parts) / 2**63  # type: ignore[arg-type]

    def latency_s(task: str, seed: int, turn: int) -> float:
        if uniform("slow", task, seed, turn) < slow_rate:
            return 40.0
        return math.exp(sigma * 3 * (uniform("latency", task, seed, turn) - 0.5))

    def fault(task: str, seed: int, turn: int) -> Exception | None:
        if uniform("fault", task, seed, turn) < fault_rate:
            return EnvRaised("boom") if seed % 2 else EnvDied("gone")
        return None

    return World(turns=lambda task: 1 + int(4 * uniform("turns", task)), latency_s=latency_s, fault=fault)


def draw_script(draw: random.Random) -> Any:
    """Draw messages with a heavy tail; some requests fail, some hang until their deadline."""
    key, error_rate, hang_rate = draw.random(), draw.choice([0.0, 0.05]), draw.choice([0.0, 0.03])

    def script(request: Request, version: int) -> Line:
        chance = key_seed(key, request.id, version, "chance") / 2**63  # type: ignore[arg-type]
        if chance < error_rate:
            return Line([2], error=EngineError("bad luck"))
        if chance > 1 - hang_rate:
            return Line([2, 3], hang=True)
        length = 1 + int(math.exp(3 * (key_seed(key, request.seed) / 2**63)))  # type: ignore[arg-type]
        return Line([2 + request.seed % 7 + index for index in range(length)], 0.2, draw_token_s)

    draw_token_s = draw.choice([0.0, 0.1, 1.0])
    return script


@pytest.mark.parametrize("case", range(12))
def test_t11_nothing_vanishes_in_any_combination_with_any_faults(case: int) -> None:
    num_complete = 0
    for number in range(10):
        draw = random.Random(1000 * case + number)
        config, world, script = draw_config(draw), draw_world(draw), draw_script(draw)
        run = ScriptedRun(
            config,
            world,
            script=script,
            num_engines=draw.randint(1, 4),
            slots_per_engine=draw.randint(1, 12),
            train_s=draw.choice([0.0, 1.0, 20.0]),
        )
        try:
            run(6)  # the harness checks the account at every update, and that nothing is left behind
            check(run)
            num_complete += 1
        except (NothingSucceeds, NothingPassesFilter):  # deadlines too short for so few slots, or too many faults
            run.account.check(0)
        except Exception as error:
            raise AssertionError(f"case {case}, number {number}: {config}") from error
    assert num_complete >= 5


def check(run: ScriptedRun) -> None:
    config, account = run.config, run.account
    account.check(0)
    assert account.started == run.world.num_acquired == run.world.num_released
    assert account.stale == 0  # admission alone keeps it so
    assert len(run.batches) == 6
    trained = [group for groups in run.groups for group in groups]
    assert len(trained) == len(set(trained))  # no group twice
    bound = math.ceil(config.async_ratio)
    for batch, groups, staleness in zip(run.batches, run.groups, run.staleness(), strict=True):
        assert len(groups) == config.num_groups or config.step_deadline_s
        assert 0 <= min(staleness) <= max(staleness) <= bound
        if config.async_ratio % 1:
            assert staleness.count(bound) <= config.async_ratio % 1 * config.num_groups
        for group in groups:
            members = batch.episode_ids[batch.group_ids == group]
            returns = batch.returns[batch.group_ids == group]
            assert min(2, config.group_size) <= len(set(members.tolist())) <= config.group_size
            if config.group_filter == "std":
                assert returns.std() > 0
            if config.group_filter == "mean":
                assert 0 < returns.mean() < 1
    if config.interrupt != "continue":
        for trajectory in run.episodes:
            for turn in trajectory.turns:
                assert len(set(trajectory.segments[turn.segment].policy_versions[turn.start : turn.end])) == 1
