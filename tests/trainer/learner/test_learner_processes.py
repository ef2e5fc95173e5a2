"""Ranks that die, hang, fail or lose their parent: the learner says so at once and leaves no process behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from rollcage.errors import UserError
from rollcage.trainer.learner.base import LearnerDied
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_learner import DeepSpeedLearner

pytestmark = pytest.mark.timeout(300)


def alive(pids: list[int]) -> list[int]:
    """Return those processes that still run."""
    running = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return [process.pid for process in running if process.status() != psutil.STATUS_ZOMBIE]


def wait_gone(pids: list[int], seconds: float) -> None:
    """Wait until none of them runs."""
    deadline = time.monotonic() + seconds
    while alive(pids):
        assert time.monotonic() < deadline, f"still running: {alive(pids)}"
        time.sleep(0.05)


def num_descriptors() -> int:
    """Return how many file descriptors this process holds."""
    gc.collect()
    return psutil.Process().num_fds()


def test_a_rank_killed_in_the_middle_of_an_update_is_reported_at_once(
    tiny_policy: Path, random_batch: Callable[..., Batch], tmp_path: Path
) -> None:
    async def scenario() -> None:
        learner = DeepSpeedLearner(LearnerConfig(str(tiny_policy), num_ranks=2), log_folder=tmp_path)
        await learner.start()
        await learner.start()  # idempotent
        pids = learner.pids
        assert len(pids) == 2
        await learner.train(random_batch())
        os.kill(pids[0], signal.SIGSTOP)  # so that the update cannot end before the kill
        training = asyncio.ensure_future(learner.train(random_batch()))
        await asyncio.sleep(0.2)
        assert not training.done()
        os.kill(pids[1], signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(LearnerDied, match=r"rank 1 \(process \d+\) was killed by SIGKILL"):
            await training
        assert time.monotonic() - start < 5
        assert not alive(pids), "the rank that waited for the dead one is gone too"
        with pytest.raises(LearnerDied, match="not running"):
            await learner.publish()
        await learner.close()
        await learner.close()

    before = num_descriptors()
    asyncio.run(scenario())
    assert num_descriptors() <= before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learner-rank0.log", "learner-rank1.log"]


def test_a_rank_that_hangs_is_killed_at_its_deadline(tiny_policy: Path, random_batch: Callable[..., Batch]) -> None:
    async def scenario() -> None:
        config = LearnerConfig(str(tiny_policy), dtype="bfloat16", zero_stage=1, call_timeout_s=10.0)
        learner = DeepSpeedLearner(config)
        await learner.start()
        before = (await learner.publish())["model.embed_tokens.weight"].clone()
        statistics = await learner.train(random_batch())
        assert statistics["grad_norm"] > 0
        after = (await learner.publish())["model.embed_tokens.weight"]
        assert before.dtype == after.dtype == torch.bfloat16
        (pid,) = learner.pids
        os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(LearnerDied, match="did not answer 'logprobs' within 10 s"):
            await learner.logprobs(random_batch())
        assert time.monotonic() - start < 20
        assert not alive([pid])

    asyncio.run(scenario())


def test_an_error_in_a_rank_comes_with_its_reason_and_ends_the_learner(
    tiny_policy: Path, random_batch: Callable[..., Batch], tmp_path: Path
) -> None:
    async def scenario() -> None:
        learner = DeepSpeedLearner(LearnerConfig(str(tiny_policy)), log_folder=tmp_path)
        await learner.start()
        with pytest.raises(UserError, match="is not a complete checkpoint"):
            await learner.load(tmp_path / "none")
        pids, batch = learner.pids, random_batch()
        batch.token_ids[batch.loss_mask] = 32  # the vocabulary ends at 31
        with pytest.raises(LearnerDied, match="rank 0: train failed: IndexError"):
            await learner.train(batch)
        assert not alive(pids)

    asyncio.run(scenario())
    assert "Traceback" in (tmp_path / "learner-rank0.log").read_text()


def test_the_ranks_end_with_a_parent_that_is_killed(tiny_policy: Path) -> None:
    shared_memory = Path("/dev/shm")
    before = set(shared_memory.iterdir()) if shared_memory.is_dir() else set()
    command = [sys.executable, str(Path(__file__).with_name("orphan_parent.py")), str(tiny_policy)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(alive(pids)) == 2
        parent.kill()
    wait_gone(pids, 5)
    assert (set(shared_memory.iterdir()) if shared_memory.is_dir() else set()) <= before


def test_an_unreadable_model_is_a_user_error_and_leaves_no_process(tiny_policy: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_policy / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not one")
    for model, message in ((tmp_path / "none", "no model at"), (tmp_path, "cannot load the model at")):
        learner = DeepSpeedLearner(LearnerConfig(str(model)))
        with pytest.raises(UserError, match=message):
            asyncio.run(learner.start())
        assert learner.pids == []
    children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    assert not [child for child in children if "rollcage.trainer.learner.worker" in child.cmdline()]


def test_closing_while_the_ranks_still_load_ends_them(tiny_policy: Path) -> None:
    async def scenario() -> list[int]:
        learner = DeepSpeedLearner(LearnerConfig(str(tiny_policy)))
        starting = asyncio.ensure_future(learner.start())
        await asyncio.sleep(0.3)
        pids = learner.pids
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return pids

    pids = asyncio.run(scenario())
    assert len(pids) == 1
    assert not alive(pids)
