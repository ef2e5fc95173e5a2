"""SWEMini in the training loop: episodes in real sandboxes, one of them killed in the middle (guarantees 1 to 6)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.envs.swe.conftest import base_image, docker, docker_endpoint, manager_id
from tests.sandbox.docker_client import Daemon
from tests.trainer.disturbed_run import check_columns, check_run
from tests.trainer.disturbed_run import train as train_disturbed

from rollcage.envs import TextEnv, make
from rollcage.envs.placements import EnvConfig, make_placement
from rollcage.envs.tools import write_call
from rollcage.monitor.run_folder import read_metrics, read_rows
from rollcage.recorder import NullRecorder
from rollcage.trainer.checkpoints import newest_checkpoint, read_state
from rollcage.trainer.engines.scripted import ScriptedEngine
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.scripted import ScriptedLearner
from rollcage.trainer.loop import Parts, Progress, train
from rollcage.trainer.models import load_tokenizer
from rollcage.trainer.policies import small_policy_path
from rollcage.trainer.presets import PRESETS
from rollcage.trainer.rollout.account import Account
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.conversation import ChatFormat
from rollcage.trainer.rollout.policy_agent import PolicyAgent
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.rollout.tasks import TaskOrder
from rollcage.trainer.types import Request, Sampling, Trajectory

__all__ = ["base_image", "docker", "docker_endpoint", "manager_id"]

NUM_UPDATES, NUM_GROUPS, GROUP_SIZE = 3, 2, 3
ENV = EnvConfig("rollcage/SWEMini-v0", {"split": "train", "max_turns": 4})


@pytest.fixture
def daemon(docker: str, manager_id: str, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    monkeypatch.setenv("DOCKER_HOST", docker)
    return Daemon(docker, manager_id)


@dataclass
class Seen:
    """What came of a run."""

    progress: Progress = field(default_factory=Progress)
    trajectories: list[Trajectory] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)

    def of(self, group: int, member: int) -> list[Trajectory]:
        return [trajectory for trajectory in self.trajectories if trajectory.sample_id == (group, member)]


def run(play: Callable[[str, int, int, int, str], str], restart: str) -> Seen:
    """Train; ``play`` (patch, group, member, turn, what the environment said last) is what the policy answers."""
    env = make(ENV.env_id, **ENV.kwargs).unwrapped
    assert isinstance(env, TextEnv)
    chat = ChatFormat(load_tokenizer(small_policy_path()), tools=env.tools)
    order = TaskOrder(env.tasks, "train", seed=0)
    seen = Seen()
    [user_id] = chat.encode("<|user|>")

    def script(request: Request, policy_version: int) -> list[int]:
        name, _, turn = request.id.partition("/")
        group, member = map(int, name.split("."))
        since = len(request.prompt_ids) - [*reversed(request.prompt_ids)].index(user_id)
        last = chat.decode(request.prompt_ids[since:])
        said = play(env.tasks.by_id(order.task_id(group)).data["patch"], group, member, int(turn), last)
        return [*chat.encode(said), min(chat.stop_ids)]

    async def after_update(metrics: dict[str, float]) -> None:
        seen.metrics.append(metrics)

    async def main() -> None:
        router = Router([ScriptedEngine(script, max_context_tokens=100_000)])
        placement = make_placement("sandbox", ENV, num_workers=6, restart=restart)

        def agent(group: int, member: int, seed: int) -> PolicyAgent:
            return PolicyAgent(router, chat, Sampling(4096), name=f"{group}.{member}", group=str(group), seed=seed)

        learner = ScriptedLearner(train_s=0.1, on_train=seen.batches.append)
        parts = Parts(learner, router, placement, order.task_id, agent, seen.trajectories.append)
        config = RolloutConfig(num_groups=NUM_GROUPS, group_size=GROUP_SIZE, num_slots=6, env_deadline_s=110.0)
        try:
            await router.start()
            await train(
                config, parts, seen.progress, NullRecorder(), num_updates=NUM_UPDATES, after_update=after_update
            )
        finally:
            await placement.close()
            await router.close()

    asyncio.run(main())
    return seen


def killing_policy(daemon: Daemon, victim: tuple[int, int]) -> Callable[[str, int, int, int, str], str]:
    """One member resolves the issue in three turns, one writes no call and then hands in nothing, one does so at once.

    Between its first turn and its second one the victim's sandbox is killed, once.
    """
    killed: list[str] = []

    def play(patch: str, group: int, member: int, turn: int, last: str) -> str:
        if member == 1 and turn == 0:
            return "I think that the issue is resolved."
        if member > 0:
            return write_call("submit")
        if turn == 0:
            return write_call("bash", command=f"git apply <<'END'\n{patch}END\necho mended in $(cat /etc/hostname)")
        if turn == 1:
            if (group, member) == victim and not killed:
                killed.append(last.partition("mended in ")[2].split()[0])
                daemon("kill", *killed)
            return write_call("bash", command="git diff --stat")
        return write_call("submit")

    return play


def check_account(seen: Seen) -> None:
    """Freshness, conservation, token in and token out."""
    assert seen.progress.policy_version == NUM_UPDATES
    seen.progress.account.check(0)
    assert seen.progress.account.trained == NUM_UPDATES * NUM_GROUPS * GROUP_SIZE
    for metrics in seen.metrics:
        columns = ("trained", "filtered", "stale", "failed", "cancelled", "in_flight")
        assert metrics["account/started"] == sum(metrics[f"account/{column}"] for column in columns)
        assert metrics["rollout/staleness_max"] <= 1
        assert metrics["rollout/splits"] == 0, "every conversation went on token by token"
    chat = ChatFormat(load_tokenizer(small_policy_path()))
    for trajectory in seen.trajectories:
        for turn in trajectory.turns:
            segment = trajectory.segments[turn.segment]
            assert chat.decode(segment.token_ids[turn.start : turn.end]) == turn.action
            assert all(segment.loss_mask[turn.start : turn.end])
            assert turn.observation in chat.decode(segment.token_ids[turn.end :]) or turn is trajectory.turns[-1]


def test_tools_get_reward_and_a_killed_sandbox_is_an_infrastructure_failure_of_one_sample(daemon: Daemon) -> None:
    victim = (2, 0)
    seen = run(killing_policy(daemon, victim), restart="fail")
    check_account(seen)
    assert dict(seen.progress.account.failed) == {"infra/SandboxUnavailable": 1}
    failed, again = seen.of(*victim)
    assert failed.failure is not None
    assert failed.failure.reason == "SandboxUnavailable"
    assert "\n" not in failed.failure.reason
    assert (again.failure, again.return_) == (None, 1.0)
    for batch in seen.batches:
        assert batch.returns.tolist() == [1.0, 0.0, 0.0] * NUM_GROUPS
    malformed = [seen.of(0, member)[0].info["num_malformed_calls"] for member in range(GROUP_SIZE)]
    assert malformed == [0, 1, 0]
    daemon.wait_empty()


def test_with_restore_the_killed_sandboxs_episode_goes_on_with_its_work(daemon: Daemon) -> None:
    victim = (1, 0)
    seen = run(killing_policy(daemon, victim), restart="restore")
    check_account(seen)
    assert not seen.progress.account.failed
    [trajectory] = seen.of(*victim)
    assert trajectory.info["restarted"] == 1
    assert trajectory.return_ == 1.0, "what was mended before the kill is handed in"
    assert "changed" in trajectory.turns[1].observation
    assert [t.info["restarted"] for t in seen.trajectories if t.sample_id != victim and not t.failure] == [0] * (
        len(seen.trajectories) - 1
    )
    daemon.wait_empty()


def test_after_kill_9_the_run_goes_on_in_new_sandboxes_and_the_lost_ones_are_counted_and_gone(
    daemon: Daemon, tmp_path: Path
) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    options = "--model small --num-updates 3 --checkpoint-every 1 --sampling.max-new-tokens 4096"
    options += " --rollout.num-groups 1 --rollout.group-size 2 --rollout.num-slots 4"

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(Path(__file__).with_name("scripted_train.py")), "train", *arguments]
        with log.open("ab") as file:
            return subprocess.Popen(command, stdout=file, stderr=file)

    process = start("swemini-smollm2", *options.split(), "--out", str(folder))
    ends_at = time.monotonic() + 60.0
    while newest_checkpoint(folder) is None or not daemon.containers():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < ends_at, log.read_text()
        time.sleep(0.02)
    process.kill()
    process.wait()
    left = set(daemon.containers())
    assert left, "a kill leaves sandboxes to nobody"
    checkpoint = newest_checkpoint(folder)
    assert checkpoint is not None
    state = read_state(checkpoint)
    assert 1 <= state["policy_version"] < 3
    num_lost = Account.from_json(state["account"]).open
    assert num_lost > 0

    process = start("--resume", str(folder))
    assert process.wait(60) == 0, log.read_text()
    assert daemon.containers() == []
    metrics = read_metrics(folder)
    check_columns(metrics, num_updates=3)
    assert metrics[-1]["account/cancelled"] == num_lost
    assert metrics[-1]["account/trained"] == 3 * 2
    assert metrics[-1]["account/failed"] == metrics[-1]["account/filtered"] == metrics[-1]["account/stale"] == 0
    assert {row["rollout/reward"] for row in metrics} == {0.5}, "one of two hands in the patch"

    env = make(ENV.env_id).unwrapped
    assert isinstance(env, TextEnv)
    order = TaskOrder(env.tasks, "train", seed=0)
    [resumed_at] = [row["time"] for row in read_rows(folder, "events") if row.get("resumed_from")]
    again = set()
    for episode in read_rows(folder, "trajectories"):
        group = int(episode["id"].split(".")[0])
        assert episode["task_id"] == order.task_id(group)
        if episode["time"] > resumed_at:
            again.add(group)
    assert again >= set(state["restart"]), "what had begun and was not trained on begins again"
    new = sorted(again - set(state["restart"]))
    assert new == list(range(state["next_group"], state["next_group"] + len(new))), "then the order goes on"


@pytest.mark.timeout(600)
def test_smollm2_trains_while_its_sandboxes_are_killed(daemon: Daemon, smollm2: Path, tmp_path: Path) -> None:
    preset = PRESETS["swemini-smollm2"][1]
    config = replace(
        preset,
        model=str(smollm2),
        env=replace(preset.env, restart="fail", args={**preset.env.args, "max_turns": 2}),
        rollout=replace(preset.rollout, num_groups=1, group_size=4, num_slots=4),
        engine=replace(preset.engine, max_batch_size=4, parked_prefixes=4),
        learner=replace(preset.learner, entropy_coef=0.001),  # a gradient where every reward is the same, too
        num_updates=2,
    )
    killed: set[str] = set()

    async def kill_what_shows(seen: list[Trajectory]) -> None:
        while True:
            await asyncio.sleep(1.0)
            for container in await asyncio.to_thread(daemon.containers):
                if seen and container not in killed:
                    killed.add(container)
                    with suppress(subprocess.CalledProcessError):  # it has just ended
                        await asyncio.to_thread(daemon, "kill", container)

    seen = train_disturbed(tmp_path / "run", config, kill_what_shows)
    check_run(tmp_path / "run", config, seen)
    assert {trajectory.failure.kind for trajectory in seen if trajectory.failure} <= {"infra"}
    daemon.wait_empty()
