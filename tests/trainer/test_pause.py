"""Pausing a run, in virtual time: nothing new is begun, nothing is lost, and the clock of the run stands still."""

import asyncio

import pytest
from tests.trainer.scripted_run import ScriptedRun

from rollcage.trainer.clock import run_virtual
from rollcage.trainer.pause import Pause
from rollcage.trainer.rollout.config import RolloutConfig

CONFIG = RolloutConfig(num_groups=4, group_size=4, num_slots=16)
PAUSED_S = 1000.0


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_while_paused_no_sample_and_no_update_begins_and_then_all_goes_on(mode: str) -> None:
    seen: dict[str, list[int]] = {"started": [], "updates": []}

    async def beside(run: ScriptedRun) -> None:
        await asyncio.sleep(8.0)
        assert run.pause.pause()
        assert not run.pause.pause()
        started = run.account.started
        assert started > 0
        for _ in range(3):
            await asyncio.sleep(PAUSED_S / 3)
            seen["started"].append(run.account.started - started)
            seen["updates"].append(run.progress.policy_version)
        assert run.pause.resume()
        assert not run.pause.resume()

    config = (
        CONFIG
        if mode == "async"
        else RolloutConfig(num_groups=4, group_size=4, num_slots=16, mode="sync", async_ratio=0.0)
    )
    plain = ScriptedRun(config)(10)
    paused = ScriptedRun(config, beside=beside)(10)

    assert seen["started"] == [0, 0, 0]
    assert len(set(seen["updates"])) == 1
    assert seen["updates"][0] < 10
    assert paused.progress.policy_version == 10
    assert paused.pause.num == 1
    # A pause is no training time; what was under way ends in it, and the slots fill again afterwards.
    assert abs(paused.progress.train_s - plain.progress.train_s) < 10.0
    assert all(max(batch) <= 1 for batch in paused.staleness())


def test_a_run_that_is_stopped_while_paused_accounts_for_every_sample() -> None:
    async def beside(run: ScriptedRun) -> None:
        await asyncio.sleep(8.0)
        run.pause.pause()

    run = ScriptedRun(CONFIG, beside=beside)

    async def stopped() -> None:
        task = asyncio.create_task(run._main(10))
        await asyncio.sleep(PAUSED_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(stopped)
    assert run.progress.policy_version < 10
    run.account.check(0)
    assert run.world.num_live == 0


def test_the_seconds_of_all_pauses_are_counted() -> None:
    async def main() -> tuple[float, float]:
        pause = Pause()
        for _ in range(2):
            pause.pause()
            await asyncio.sleep(3.0)
            pause.resume()
            await asyncio.sleep(1.0)
        pause.pause()
        await asyncio.sleep(0.5)
        return pause.total_s, pause.num

    assert run_virtual(main) == (6.5, 3)
