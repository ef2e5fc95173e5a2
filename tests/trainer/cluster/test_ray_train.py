"""`rollcage train --cluster ray` for real: engines and DeepSpeed ranks as actors, one of which is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.ray_cluster import RayNodes
from tests.trainer.disturbed_run import check_metrics

from rollcage.monitor.run_folder import read_metrics, read_rows
from rollcage.trainer.checkpoints import newest_checkpoint
from rollcage.trainer.cluster.config import RayConfig
from rollcage.trainer.presets import PRESETS
from rollcage.trainer.run import Run


@pytest.mark.timeout(300)  # six processes with PyTorch and DeepSpeed start: on a crowded machine that takes a while
def test_a_run_whose_learner_loses_a_rank_goes_on_from_its_last_checkpoint(ray_nodes: RayNodes, tmp_path: Path) -> None:
    preset = PRESETS["countdown-small"][1]
    config = replace(
        preset,
        cluster="ray",
        address=ray_nodes.address,
        ray=RayConfig(engine_cpus=0.1, rank_cpus=0.1),
        env=replace(preset.env, placement="process"),
        rollout=replace(preset.rollout, num_groups=2, group_size=2, num_slots=3),
        # with the bonus, samples are trained on even where all of a small group get the same reward
        learner=replace(preset.learner, num_ranks=2, entropy_coef=0.001),
        eval=replace(preset.eval, num_tasks=0),
        num_engines=1,
        num_updates=3,
        checkpoint_every=1,
    )
    folder = tmp_path / "run"

    async def kill_a_rank() -> None:
        while newest_checkpoint(folder) is None:
            await asyncio.sleep(0.1)
        os.kill(ray_nodes.actors("RankActor")[1], signal.SIGKILL)

    async def main() -> None:
        killing = asyncio.create_task(kill_a_rank())
        try:
            await Run.create(folder, config, "rollcage train")()
            await killing
        finally:
            killing.cancel()

    asyncio.run(main())
    metrics = read_metrics(folder)
    check_metrics(metrics, config.num_updates)
    assert metrics[-1]["account/cancelled"] > 0, "what was in flight when the learner went"
    [restarted] = [row for row in read_rows(folder, "events") if row["event"] == "learner_restarted"]
    assert restarted["policy_version"] >= 1
    started = [row for row in read_rows(folder, "events") if row["event"] == "actor_started"]
    lasting = sorted(row["actor"] for row in started if not row["actor"].startswith("environment "))
    assert lasting == sorted(["engine 0", "learner rank 0", "learner rank 1"] * 2)
    assert len(started) > len(lasting), "environments are told of as well"
    logs = {row["file"]: (folder / "logs" / row["file"]).read_text() for row in started}
    assert all(logs[row["file"]].count(f"process {row['pid']}, ") == 1 for row in started)
    assert logs["learner-rank1.log"].count("--- learner rank 1 on ") == 2
    counters = metrics[-1]["counters"]
    assert 100 < counters["trajectory_bytes{engine=0}"] / metrics[-1]["account/started"] < 10_000, "compact arrays"
    assert counters["weight_bytes"] > 100_000
    deadline = time.monotonic() + 30  # Ray ends an actor's process some time after it was told to
    while ray_nodes.actors("RankActor") + ray_nodes.actors("EngineActor"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
