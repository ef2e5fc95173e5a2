"""Critics and attention model in processes of their own: the same numbers, the same checkpoints, the same end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from tests.trainer.learner.live import LiveLearner

from rollcage.errors import UserError
from rollcage.trainer.learner.base import LearnerDied
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.critic_config import CriticConfig
from rollcage.trainer.learner.rhythm.config import RhythmConfig

CRITIC = CriticConfig(lr=1e-2, epochs=2, num_mini_batches=2, max_grad_norm=0.0, warmup_updates=1)
RHYTHM = RhythmConfig("coupled", window=3, h_lo=1, h_hi=4, device="cpu", heads_every=2)


def numbers(statistics: dict[str, float]) -> dict[str, float]:
    """Return all but times."""
    return {name: value for name, value in statistics.items() if not name.endswith("seconds")}


@pytest.mark.timeout(300)  # four processes with PyTorch and DeepSpeed start: on a crowded machine that takes a while
def test_apart_or_with_the_policy_all_numbers_are_the_same(
    tiny_policy: Path, random_batch: Callable[..., Batch], tmp_path: Path
) -> None:
    batches = [random_batch(seed=seed) for seed in range(4)]
    inside = LearnerConfig(
        str(tiny_policy), advantage="gae", loss="ppo", lr=1e-2, entropy_coef=0.01, critic=CRITIC, rhythm=RHYTHM
    )
    learner = LiveLearner(inside)
    try:
        expected = [numbers(learner.train(batch)) for batch in batches]
        weights = learner.weights()
        assert expected[0]["grad_norm"] == 0, "only the critics learn"
        assert all(statistics["rhythm_gamma_mean"] > 1 for statistics in expected[1:])

        own = replace(
            inside, critic=replace(CRITIC, placement="own"), rhythm=replace(RHYTHM, placement="own"), num_ranks=1
        )
        apart = LiveLearner(own, log_folder=tmp_path / "logs")
        try:
            assert len(apart.learner.pids) == 3
            found = []
            for batch in batches:
                if len(found) == 2:
                    apart.save(tmp_path / "checkpoint")
                statistics = apart.train(batch)
                assert statistics["wait_seconds"] > 0
                found.append(numbers(statistics))
                if len(found) == 3:
                    apart.weights()  # published or not, the attention model has the weights of the update's begin
            assert found == expected
            assert all(torch.equal(weight, weights[name]) for name, weight in apart.weights().items())

            learner.load(tmp_path / "checkpoint")  # it does not matter where the critics were
            assert [numbers(learner.train(batch)) for batch in batches[2:]] == expected[2:]
            apart.load(tmp_path / "checkpoint")
            assert [numbers(apart.train(batch)) for batch in batches[2:]] == expected[2:]

            pids = apart.learner.pids
            os.kill(pids[1], signal.SIGKILL)
            with pytest.raises(LearnerDied, match=r"critic rank 0 \(process \d+\) was killed by SIGKILL"):
                apart.train(batches[0])
            assert not [pid for pid in pids if psutil.pid_exists(pid)], "all end together"
        finally:
            apart.close()
    finally:
        learner.close()
    logs = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert logs == ["attention-model0.log", "critic-rank0.log", "learner-rank0.log"]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UserError) as refused:
        LearnerConfig(
            advantage="gae",
            critic=CriticConfig(num_ranks=2, gpus="a"),
            rhythm=RhythmConfig("entropy", placement="own"),
        )
    assert str(refused.value) == (
        "learner: critic.num_ranks goes with placement own; critic.gpus goes with placement own; critic.gpus must be "
        "numbers as 2,3, not 'a'; rhythm.placement is of no use to credit 'entropy', which looks at no attention."
    )
    own = LearnerConfig(advantage="gae", num_ranks=4, critic=CriticConfig(placement="own"))
    assert own.apart == {"critic rank": 4}
    assert LearnerConfig(advantage="gae", num_ranks=4).apart == {}
