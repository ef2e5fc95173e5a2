"""Critics and attention model as actors of their own: the numbers of one machine, and one's death ends the learner."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.ray_cluster import RayNodes
from tests.trainer.learner.conftest import make_random_batch, tiny_policy
from tests.trainer.learner.test_apart import CRITIC, RHYTHM, numbers

from rollcage.envs.placements.ray_whereabouts import Whereabouts
from rollcage.trainer.cluster.config import RayConfig
from rollcage.trainer.cluster.learner import RayLearner
from rollcage.trainer.cluster.share import Share
from rollcage.trainer.learner.base import LearnerDied
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_learner import DeepSpeedLearner

__all__ = ["tiny_policy"]


@pytest.mark.timeout(300)  # four processes with PyTorch and DeepSpeed start: on a crowded machine that takes a while
def test_critics_and_attention_model_are_actors_with_a_share_of_their_own(
    ray_nodes: RayNodes, tiny_policy: Path
) -> None:
    import ray

    inside = LearnerConfig(str(tiny_policy), advantage="gae", loss="ppo", lr=1e-2, critic=CRITIC, rhythm=RHYTHM)
    apart = replace(inside, critic=replace(CRITIC, placement="own"), rhythm=replace(RHYTHM, placement="own", device=""))
    batches = [make_random_batch(seed=seed) for seed in range(3)]
    parts = RayConfig(
        engine_cpus=0.1, rank_cpus=0.1, critic_cpus=0.2, attention_cpus=0.1, attention_nodes={"kind": "head"}
    )
    share = Share(ray, parts, 1, 1, apart.apart)
    started: dict[str, Whereabouts] = {}
    local = DeepSpeedLearner(inside)
    learner = RayLearner(ray, apart, options=share.learner, on_start=lambda name, at: started.update({name: at}))

    async def main() -> None:
        await share.reserve()
        try:
            await asyncio.gather(local.start(), learner.start())
            assert list(started) == ["learner rank 0", "critic rank 0", "attention model 0"]
            for batch in batches:
                expected, found = await asyncio.gather(local.train(batch), learner.train(batch))
                assert numbers(found) == pytest.approx(numbers(expected), rel=1e-3, abs=1e-5)
            os.kill(started["critic rank 0"].pid, signal.SIGKILL)
            with pytest.raises(LearnerDied, match="critic rank 0"):
                await learner.train(batches[0])
            assert not learner.pids, "a run begins again from its last checkpoint; nobody goes on alone"
        finally:
            await asyncio.gather(local.close(), learner.close())
            share.free()

    asyncio.run(main())
    told = [str(demand) for demand in share.demands]
    assert told[2:] == ["1 x critic rank (0.2 CPU each)", "1 x attention model (0.1 CPU each on nodes with kind=head)"]
