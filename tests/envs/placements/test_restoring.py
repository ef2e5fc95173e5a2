"""Restart policy "restore" with worker processes: what is played again, and when an episode is given up."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))
import placement_zoo  # noqa: F401  (registers zoo/Moody-v0)

from rollcage.envs.placements import EnvConfig, EnvDied, make_placement
from rollcage.envs.placements.process import ProcessHost
from rollcage.envs.placements.restoring import MAX_RESTARTS, RestoringHost
from rollcage.envs.placements.worker_process import make_request
from rollcage.errors import UserError

MOODY = EnvConfig("zoo/Moody-v0")
LONG_S = 60.0


async def kill(host: RestoringHost) -> None:
    """Kill the worker from outside."""
    worker = host._host._worker  # type: ignore[attr-defined]
    os.kill(worker.pid, signal.SIGKILL)


async def play(host: RestoringHost, seed: int | None, num_turns: int, kill_before: tuple[int, ...]) -> list[Any]:
    """Return the transcript of an episode whose worker is killed before some of its turns."""
    log = [await host.ask("reset", {"seed": seed, "options": None}, LONG_S)]
    for turn in range(num_turns):
        if turn in kill_before:
            await kill(host)
        log.append(await host.ask("step", {"action": f"turn {turn}"}, LONG_S))
    for step in log:
        step[-1].pop("restarted", None)
    return log


@pytest.mark.parametrize("checkpoint_every", [1, 3, 100])
def test_turns_since_the_last_checkpoint_are_played_again(checkpoint_every: int) -> None:
    async def main() -> None:
        transcripts = []
        for kill_before in ((), (1, 5)):
            host = RestoringHost(ProcessHost(make_request(MOODY)), checkpoint_every=checkpoint_every)
            await host.start(LONG_S)
            first = await play(host, 3, 6, kill_before)
            second = await play(host, None, 3, (0, 2) if kill_before else ())  # its draws go on where the first ended
            transcripts.append(first + second)
            await host.end()
        assert transcripts[0] == transcripts[1]

    asyncio.run(main())


class Plain(gymnasium.Env[str, str]):
    """Has no snapshots."""

    def __init__(self) -> None:
        from rollcage.envs import UnicodeText

        self.observation_space = self.action_space = UnicodeText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "begin", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return f"{action} {self.np_random.integers(1 << 30)}", 0.0, False, False, {}


def test_an_environment_without_snapshots_is_played_again_if_it_began_with_a_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(__file__).read_text()
    (tmp_path / "plain_module.py").write_text(
        "from typing import Any\nimport gymnasium\n\n\nclass Plain"
        + source.partition("\n\nclass Plain")[2].partition("\n\n\ndef ")[0]
        + "\n\n\ngymnasium.register('user/Plain-v0', 'plain_module:Plain',"
        + " order_enforce=False, disable_env_checker=True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = EnvConfig("plain_module:user/Plain-v0")

    async def main() -> None:
        transcripts = []
        for kill_before in ((), (1, 3)):
            host = RestoringHost(ProcessHost(make_request(config)))
            await host.start(LONG_S)
            transcripts.append(await play(host, 3, 4, kill_before))
            await host.end()
        assert transcripts[0] == transcripts[1]
        host = RestoringHost(ProcessHost(make_request(config)))
        await host.start(LONG_S)
        with pytest.raises(EnvDied, match="SIGKILL"):
            await play(host, None, 2, (1,))
        assert host.broken
        await host.end()

    asyncio.run(main())


def test_an_episode_that_costs_too_many_workers_is_given_up() -> None:
    async def main() -> None:
        host = RestoringHost(ProcessHost(make_request(MOODY)))
        await host.start(LONG_S)
        with pytest.raises(EnvDied):
            await play(host, 3, 20, tuple(range(20)))
        assert host.broken
        await host.end()
        host = RestoringHost(ProcessHost(make_request(MOODY)))
        await host.start(LONG_S)
        for _ in range(2):
            await play(host, 3, 6, tuple(range(MAX_RESTARTS)))  # of one episode, not of all
        await host.end()

    asyncio.run(main())


def test_the_policy_is_chosen_by_name() -> None:
    with pytest.raises(UserError, match="Did you mean 'restore'"):
        make_placement("process", MOODY, restart="restor")
    with pytest.raises(UserError, match="'process' or 'sandbox'"):
        make_placement("inline", MOODY, restart="restore")
    with pytest.raises(UserError, match="Did you mean 'sandbox'"):
        make_placement("sandbx", MOODY)
