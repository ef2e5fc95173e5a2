"""ALFWorld in the training loop: the expert's play, SmolLM2, and worker processes killed in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.trainer.disturbed_run import check_run, train

from rollcage.envs import make
from rollcage.envs.alfworld.env import ALFWorldEnv
from rollcage.envs.placements import EnvConfig, make_placement
from rollcage.recorder import NullRecorder
from rollcage.trainer import loop
from rollcage.trainer.engines.scripted import Script, ScriptedEngine
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.scripted import ScriptedLearner
from rollcage.trainer.models import load_tokenizer
from rollcage.trainer.policies import small_policy_path
from rollcage.trainer.presets import PRESETS
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.conversation import ChatFormat
from rollcage.trainer.rollout.policy_agent import PolicyAgent
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.rollout.tasks import TaskOrder
from rollcage.trainer.types import Generation, Request, Sampling, Trajectory


def workers() -> list[psutil.Process]:
    """The worker processes in which environments of this process run."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "rollcage.envs.worker" in process.cmdline():
                found.append(process)
    return found


def kill_workers() -> None:
    for worker in workers():
        os.kill(worker.pid, signal.SIGKILL)


class KillingEngine(ScriptedEngine):
    """Lets the second turns of some episodes wait for each other, and kills all workers before it lets them go on."""

    def __init__(self, script: Script, names: set[str]) -> None:
        super().__init__(script, max_context_tokens=50_000)
        self.num_killed = 0
        self._awaited, self._all_here = set(names), asyncio.Event()

    async def generate(self, request: Request) -> Generation:
        """See `Engine`."""
        name, _, turn = request.id.partition("/")
        if turn == "1" and name in self._awaited:
            self._awaited.discard(name)
            if not self._awaited:
                self.num_killed = len(workers())
                kill_workers()
                self._all_here.set()
            await self._all_here.wait()
        return await super().generate(request)


def test_killed_workers_episodes_go_on_and_prompts_beyond_the_context_end_as_data(shared_data: Path | None) -> None:
    """All workers are killed before the second turns of groups 0 and 1; group 2's prompts outgrow the context (T2)."""
    config = EnvConfig("rollcage/ALFWorld-v0", {"dataset": "official" if shared_data else "sample", "max_turns": 20})
    env = make(config.env_id, **config.kwargs).unwrapped
    assert isinstance(env, ALFWorldEnv)
    tokenizer, order = load_tokenizer(small_policy_path()), TaskOrder(env.tasks, "train", seed=1)
    chat, long_chat = ChatFormat(tokenizer), ChatFormat(tokenizer, system="very " * 100_000)
    plans: dict[str, list[str]] = {}
    for group in range(8):
        env.reset(options={"task": order.task_id(group)})
        plans[order.task_id(group)] = env.expert_plan()
    seen: list[Trajectory] = []
    batches: list[Batch] = []
    progress = loop.Progress()

    def script(request: Request, policy_version: int) -> list[int]:
        name, _, turn = request.id.partition("/")
        group = int(name.partition(".")[0])
        return [*chat.encode(f"<answer>{plans[order.task_id(group)][int(turn)]}</answer>"), tokenizer.eos_token_id]

    async def after_update(metrics: dict[str, float]) -> None:
        assert metrics["rollout/staleness_max"] <= 1

    async def main() -> None:
        engine = KillingEngine(script, {"0.0", "0.1", "1.0", "1.1"})
        router = Router([engine])
        placement = make_placement("process", config, num_workers=4, restart="restore")

        def agent(group: int, member: int, seed: int) -> PolicyAgent:
            format_ = long_chat if group == 2 else chat
            return PolicyAgent(router, format_, Sampling(256), name=f"{group}.{member}", group=str(group), seed=seed)

        learner = ScriptedLearner(train_s=0.1, on_train=batches.append)
        parts = loop.Parts(learner, router, placement, order.task_id, agent, seen.append)
        rollout = RolloutConfig(num_groups=2, group_size=2, num_slots=4)
        try:
            await router.start()
            await loop.train(rollout, parts, progress, NullRecorder(), num_updates=2, after_update=after_update)
        finally:
            await placement.close()
            await router.close()
        assert engine.num_killed == 4

    asyncio.run(main())
    progress.account.check(0)
    assert dict(progress.account.failed) == {"model/context_full": 4}, "two members, each tried twice"
    assert [batch.returns.tolist() for batch in batches] == [[1.0] * 4] * 2, "solved, the killed ones too"
    assert [trajectory.info["restarted"] for trajectory in seen if trajectory.sample_id[0] < 2] == [1] * 4
    assert workers() == []


@pytest.mark.timeout(600)
def test_smollm2_trains_while_its_workers_are_killed(smollm2: Path, tmp_path: Path) -> None:
    preset = PRESETS["alfworld-smollm2"][1]
    config = replace(
        preset,
        model=str(smollm2),
        env=replace(preset.env, restart="fail"),
        rollout=replace(preset.rollout, num_groups=1, group_size=2, num_slots=2),
        sampling=replace(preset.sampling, max_new_tokens=12),
        engine=replace(preset.engine, max_batch_size=2, parked_prefixes=2, max_context_tokens=500),
        learner=replace(preset.learner, entropy_coef=0.001),  # a gradient where every reward is the same, too
        num_updates=2,
    )

    async def kill_until_it_shows(seen: list[Trajectory]) -> None:
        while not any(trajectory.failure for trajectory in seen):
            await asyncio.sleep(1.0)
            if seen:
                kill_workers()
                await asyncio.sleep(5.0)

    seen = train(tmp_path / "run", config, kill_until_it_shows)
    check_run(tmp_path / "run", config, seen)
    assert {trajectory.failure.reason for trajectory in seen if trajectory.failure} == {"env_died"}
    assert any(trajectory.info.get("truncated_by") == "context_full" for trajectory in seen), "and they count"
    assert workers() == [], "no worker outlives its run"
