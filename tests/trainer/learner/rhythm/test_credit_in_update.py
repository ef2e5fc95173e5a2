"""Credit in a whole update: read in passes that are made anyway, and on whatever advantage there is, critics' too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.learner.rhythm.plain_learner import PlainLearner, without_ranks
from tests.trainer.learner.rhythm.row_by_row import SHORT, gamma_row_by_row

from rollcage.errors import UserError
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.critic_config import CriticConfig
from rollcage.trainer.learner.micro_batches import split_episodes
from rollcage.trainer.learner.rhythm.config import RhythmConfig
from rollcage.trainer.models import load_model


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ranks(monkeypatch)


COUPLED = RhythmConfig("coupled", **SHORT)


@pytest.mark.parametrize(("num_mini_batches", "micro_batch_tokens"), [(1, 4096), (1, 40), (2, 4096), (2, 40)])
def test_the_gradient_is_that_of_advantages_times_gamma(
    tiny_policy: Path, random_batch: Callable[..., Batch], num_mini_batches: int, micro_batch_tokens: int
) -> None:
    batch = random_batch()
    policy = load_model(tiny_policy)
    gamma, _ = gamma_row_by_row(policy, batch, list(np.flatnonzero(batch.group_ids > 0)))
    learner = PlainLearner(
        tiny_policy,
        COUPLED,
        loss="reinforce",
        advantage="dr_grpo",
        aggregation="token-mean",
        num_mini_batches=num_mini_batches,
        micro_batch_tokens=micro_batch_tokens,
    )
    learner.train(batch)
    np.testing.assert_allclose(learner.of_tokens("credit")[batch.loss_mask], gamma[batch.loss_mask], rtol=1e-6)
    first = next(iter(split_episodes(batch.episode_ids, num_mini_batches, np.random.default_rng((0, 0, 0)))))
    total = torch.zeros(())
    for row in first:
        ids = torch.from_numpy(batch.token_ids[row])
        table = torch.log_softmax(policy(input_ids=ids[None]).logits[0], -1)
        advantage = batch.returns[row] - batch.returns[batch.group_ids == batch.group_ids[row]].mean()
        for t in np.flatnonzero(batch.loss_mask[row]):
            total = total - float(advantage * gamma[row, t]) * table[t - 1, ids[t]]
    (total / int(batch.loss_mask[first].sum())).backward()
    for gradient, weight in zip(learner.engine.steps[0], policy.parameters(), strict=True):
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-3, atol=1e-5)
    assert len(learner.engine.steps) == num_mini_batches


@pytest.mark.parametrize("num_mini_batches", [1, 2])
def test_no_pass_is_made_for_it_but_to_pick_the_heads(
    tiny_policy: Path, random_batch: Callable[..., Batch], num_mini_batches: int
) -> None:
    plain, credited = (PlainLearner(tiny_policy, own, num_mini_batches=num_mini_batches) for own in (None, COUPLED))
    passes = []
    for version in range(3):
        batch, before = random_batch(seed=version), (plain.num_passes, credited.num_passes)
        plain.train(batch, version)
        assert credited.train(batch, version)["rhythm_share_amplified"] > 0.1
        passes.append((plain.num_passes - before[0], credited.num_passes - before[1]))
    in_update = 1 if num_mini_batches == 1 else 3  # the old log-probabilities, and two mini-batches
    assert passes == [(in_update, in_update + 1), (in_update, in_update), (in_update, in_update)]


@pytest.mark.parametrize("num_mini_batches", [1, 2])
def test_reading_changes_nothing_else(
    tiny_policy: Path, random_batch: Callable[..., Batch], num_mini_batches: int
) -> None:
    """With a gain of 1 the update is the one without credit, entropy bonus included."""
    batch, learners = random_batch(), []
    for own in (RhythmConfig(), replace(COUPLED, gain=1.0), RhythmConfig("entropy", gain=1.0)):
        learner = PlainLearner(tiny_policy, own, num_mini_batches=num_mini_batches, entropy_coef=0.01)
        learner.train(batch)
        learners.append(learner)
    for other in learners[1:]:
        for steps in zip(learners[0].engine.steps, other.engine.steps, strict=True):
            for gradient, same in zip(*steps, strict=True):
                torch.testing.assert_close(gradient, same, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("num_mini_batches", [1, 2])
def test_credit_multiplies_what_asyppo_gives_each_token(
    tiny_policy: Path, random_batch: Callable[..., Batch], num_mini_batches: int
) -> None:
    """Two mini-critics, generalised advantages, and a mask where they agree: credit comes after all of it."""
    options: dict[str, Any] = {
        "advantage": "gae",
        "advantage_options": {"lam": 0.9},
        "critic": CriticConfig(advantage_mask_share=0.3, max_grad_norm=0.0),
        "loss": "ppo",
        "entropy_coef": 0.01,
        "num_mini_batches": num_mini_batches,
    }
    plain, credited = PlainLearner(tiny_policy, **options), PlainLearner(tiny_policy, COUPLED, **options)
    for version in range(2):  # in the second one critics disagree, and the policies differ
        batch = random_batch(seed=version)
        gamma, _ = gamma_row_by_row(credited.engine.module.policy, batch, range(len(batch)), _heads(credited))
        for learner in (plain, credited):
            statistics = learner.train(batch, version)
        assert statistics["critic_advantage_masked"] == pytest.approx(0.3, abs=0.02)
        mask = batch.loss_mask
        advantages, theirs = learner.of_tokens("advantages")[mask], plain.of_tokens("advantages")[mask]
        np.testing.assert_allclose(learner.of_tokens("credit")[mask], gamma[mask], rtol=1e-6)
        np.testing.assert_allclose(advantages, theirs * gamma[mask], rtol=1e-6)
        assert len(np.unique(theirs)) > mask.sum() / 2, "each token has an advantage of its own"
        assert (advantages == 0).mean() == pytest.approx(0.3, abs=0.02), "what is masked stays masked"


def _heads(learner: PlainLearner) -> Any:
    rhythm = learner.update.rhythm
    assert rhythm is not None
    return rhythm.heads


@pytest.mark.parametrize("num_mini_batches", [1, 2])
def test_on_a_device_of_its_own_a_copy_runs_aside_with_the_weights_of_the_update(
    tiny_policy: Path, random_batch: Callable[..., Batch], num_mini_batches: int
) -> None:
    plain = PlainLearner(tiny_policy, num_mini_batches=num_mini_batches)
    learner = PlainLearner(
        tiny_policy, replace(COUPLED, device="cpu", heads_every=1), num_mini_batches=num_mini_batches
    )
    for version in range(2):
        batch, policy = random_batch(seed=version), learner.engine.module.policy
        _, heads = gamma_row_by_row(policy, batch, range(len(batch)))
        gamma, _ = gamma_row_by_row(policy, batch, list(np.flatnonzero(batch.group_ids > 0)), heads)
        passes, plain_passes = learner.num_passes, plain.num_passes
        learner.train(batch, version)
        plain.train(batch, version)
        mask = batch.loss_mask
        np.testing.assert_allclose(learner.of_tokens("credit")[mask], gamma[mask], rtol=1e-6)
        assert learner.num_passes - passes == plain.num_passes - plain_passes
        for thread in threading.enumerate():
            if thread.name.startswith("attention-model"):
                thread.join(10)
                assert not thread.is_alive()


def test_a_device_that_is_not_there_is_refused_in_one_line(tiny_policy: Path) -> None:
    with pytest.raises(UserError, match=r"learner\.rhythm\.device 'cuda:77' cannot be used: \S"):
        PlainLearner(tiny_policy, replace(COUPLED, device="cuda:77"))
    assert list(replace(COUPLED, device="gpu").faults()) == ["device must be empty, cpu, cuda or cuda:N, not 'gpu'"]
    assert list(RhythmConfig("entropy", device="cpu").faults()) == [
        "device is of no use to credit 'entropy', which looks at no attention"
    ]


def test_while_critics_warm_up_there_is_no_credit(tiny_policy: Path, random_batch: Callable[..., Batch]) -> None:
    learner = PlainLearner(tiny_policy, COUPLED, advantage="gae", critic=CriticConfig(warmup_updates=1))
    assert "rhythm_seconds" not in learner.train(random_batch(), 0)
    assert learner.num_passes == 0
    assert learner.train(random_batch(), 1)["rhythm_gamma_mean"] > 1
