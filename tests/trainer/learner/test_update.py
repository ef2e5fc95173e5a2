"""One update through model, loss and optimiser, in this process: every loss, every estimator, episodes of many rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.learner.plain_engine import PlainEngine

from rollcage.trainer.learner import annotating, row_tensors, update
from rollcage.trainer.learner.advantages import ADVANTAGES, NEED_VALUES
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.losses import LOSSES
from rollcage.trainer.learner.statistics import summarize
from rollcage.trainer.learner.token_logprobs import TokenLogprobs
from rollcage.trainer.models import load_model


class Learner:
    """An update of the tiny policy, with what it did."""

    def __init__(self, model: Path, reference: TokenLogprobs | None = None, **options: Any) -> None:
        config = LearnerConfig(str(model), lr=0.1, max_grad_norm=0.0, **options)
        self.engine = PlainEngine(TokenLogprobs(load_model(model), 1.0), config.lr)
        self._update = update.PolicyUpdate(self.engine, config, 0, reference)

    def train(self, batch: Batch, policy_version: int = 0) -> dict[str, float]:
        self._update.begin(batch, policy_version)
        totals, statistics = self._update.train()
        return {**statistics, **summarize([totals])}

    def logprobs(self, batch: Batch) -> np.ndarray:
        return self._update.logprobs(batch)


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no process group to sum over."""
    for module in (update, row_tensors, annotating):
        monkeypatch.setattr(module, "sum_over_ranks", lambda tensor: tensor)


@pytest.fixture
def torn(random_batch: Callable[..., Batch]) -> Batch:
    """Twelve rows of nine episodes: three episodes fill two rows each."""
    batch = random_batch(num_groups=3)
    batch.episode_ids = np.array([0, 0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 8])
    first = np.unique(batch.episode_ids, return_index=True)[1]
    batch.returns = np.arange(12, dtype=np.float32)[first][batch.episode_ids] % 3
    batch.turns[[1, 5, 11]] += np.where(batch.loss_mask[[1, 5, 11]], 2, 0)
    return batch


def trains(learner: Learner, batch: Batch) -> dict[str, float]:
    """Train once, check that good episodes gained on bad ones, and return the statistics."""
    before = learner.logprobs(batch)
    statistics = learner.train(batch, policy_version=2)
    change = ((learner.logprobs(batch) - before) * batch.loss_mask).sum(1)[batch.group_ids > 0]
    good = batch.returns[batch.group_ids > 0] > 0
    assert change[good].mean() > change[~good].mean()
    assert all(np.isfinite(value) for value in statistics.values())
    return statistics


EVERY_LOSS_REPORTS = {
    "importance_ratio_mean",
    "importance_ratio_max",
    "clip_frac_low",
    "clip_frac_high",
    "approx_kl_k3",
    "ess",
    "entropy",
    "staleness_mean",
    "staleness_max",
    "logprob_gap_mean",
    "logprob_gap_max",
}


@pytest.mark.parametrize("num_mini_batches", [1, 2])
@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_every_loss_trains_and_reports(
    tiny_policy: Path, random_batch: Callable[..., Batch], loss: str, num_mini_batches: int
) -> None:
    batch = random_batch()
    batch.start_versions[batch.group_ids == 2] = -1
    learner = Learner(tiny_policy, loss=loss, num_mini_batches=num_mini_batches)
    statistics = trains(learner, batch)
    assert statistics.keys() >= EVERY_LOSS_REPORTS
    assert (statistics["staleness_mean"], statistics["staleness_max"]) == (pytest.approx(2 + 1 / 3), 3)
    if num_mini_batches == 1:
        assert statistics["importance_ratio_max"] == 1
        assert statistics["approx_kl_k3"] == 0
    else:
        assert statistics["approx_kl_k3"] > 0
    assert 0 < statistics["ess"] < 1
    assert len(learner.engine.steps) == num_mini_batches


@pytest.mark.parametrize("advantage", sorted(set(ADVANTAGES) - NEED_VALUES))
def test_every_estimator_trains(tiny_policy: Path, random_batch: Callable[..., Batch], advantage: str) -> None:
    statistics = trains(Learner(tiny_policy, loss="tis", advantage=advantage), random_batch())
    # group 0, in which all did equally well, tells nothing to those that compare within the group
    within_group = advantage in ("grpo", "dr_grpo", "rloo", "gigpo")
    assert statistics["num_rows_skipped"] == (4 if within_group else 0)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_micro_batches_that_tear_episodes_apart_change_nothing(tiny_policy: Path, torn: Batch, loss: str) -> None:
    results = []
    for micro_batch_tokens in (10_000, 40, 1):
        learner = Learner(tiny_policy, loss=loss, num_mini_batches=2, micro_batch_tokens=micro_batch_tokens)
        statistics = learner.train(torn)
        results.append((learner.engine.steps, {**statistics, "seconds": 0.0}))
    (expected_steps, expected), *others = results
    assert len(expected_steps) == 2
    for steps, statistics in others:
        assert statistics == pytest.approx(expected, rel=1e-3, abs=1e-5)
        for gradients, expected_gradients in zip(steps, expected_steps, strict=True):
            for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
                torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-5)


def test_topr_tapers_a_torn_episode_by_the_ratio_of_all_of_its_rows(tiny_policy: Path, torn: Batch) -> None:
    torn.returns = np.where(torn.episode_ids == 3, 0, 1).astype(np.float32)  # it alone did badly
    learner = Learner(tiny_policy, loss="topr", micro_batch_tokens=1)
    rows = [4, 5]
    log_ratio = (learner.logprobs(torn) - torn.rollout_logprobs)[rows][torn.loss_mask[rows]].sum(dtype=np.float64)
    assert log_ratio < 0
    trained = torn.loss_mask[torn.group_ids == 1].sum()
    bad = torn.loss_mask[rows].sum()
    weight = learner.train(torn)["weight"]
    assert weight == pytest.approx((bad * np.exp(log_ratio) + trained - bad) / trained, rel=1e-4)


@pytest.mark.parametrize("penalty", ["k1", "k2", "k3"])
def test_the_kl_to_the_reference_is_in_the_loss(
    tiny_policy: Path, random_batch: Callable[..., Batch], penalty: str
) -> None:
    batch = random_batch()
    batch.returns[:] = 1.0  # no advantage at all: the penalty is the whole loss
    reference = TokenLogprobs(load_model(tiny_policy), 1.0).requires_grad_(False)
    with torch.no_grad():
        for weight in reference.parameters():
            weight.mul_(0.8)
    learner = Learner(tiny_policy, reference, kl_coef=0.5, kl_penalty=penalty, aggregation="token-mean")
    statistics = learner.train(batch)

    ids, mask = torch.from_numpy(batch.token_ids), torch.from_numpy(batch.loss_mask)
    policy = TokenLogprobs(load_model(tiny_policy), 1.0)
    d = policy(ids, mask)[0] - reference(ids, mask)[0]
    kl = {"k1": d, "k2": d.square() / 2, "k3": (-d).exp() - 1 + d}[penalty].mean()
    (0.5 * kl).backward()
    assert statistics["ref_kl"] == pytest.approx(kl.item(), rel=1e-4)
    assert statistics["loss"] == pytest.approx(0.5 * kl.item(), rel=1e-4)
    for gradient, weight in zip(learner.engine.steps[0], policy.parameters(), strict=True):
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-3, atol=1e-5)
    if penalty != "k1":  # whose gradient says nothing of the distance
        assert learner.train(batch)["ref_kl"] < statistics["ref_kl"]


def test_the_kl_to_the_reference_is_in_the_reward(tiny_policy: Path, random_batch: Callable[..., Batch]) -> None:
    batch = random_batch()
    batch.returns[:] = 1.0  # only the KL tells tokens apart
    reference = TokenLogprobs(load_model(tiny_policy), 1.0).requires_grad_(False)
    with torch.no_grad():
        for weight in reference.parameters():
            weight.mul_(0.8)
    ids, mask = torch.from_numpy(batch.token_ids), torch.from_numpy(batch.loss_mask)
    options = {"advantage": "reinforce_pp", "advantage_options": {"kl_coef": 0.3}, "loss": "reinforce"}
    learner = Learner(tiny_policy, reference, **options)
    learner.train(batch)

    policy = TokenLogprobs(load_model(tiny_policy), 1.0)
    logprobs, ref_logprobs = policy(ids, mask)[0], reference(ids, mask)[0]
    kl = torch.zeros(mask.shape).masked_scatter(mask, (logprobs - ref_logprobs).detach())
    reward_to_go = 1 - 0.3 * kl.flip(1).cumsum(1).flip(1)
    chosen = reward_to_go[mask]
    advantages = (chosen - chosen.mean()) / chosen.std()
    per_token = torch.zeros(mask.shape).masked_scatter(mask, -advantages * logprobs)
    (per_token.sum(1) / mask.sum(1)).mean().backward()
    for gradient, weight in zip(learner.engine.steps[0], policy.parameters(), strict=True):
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-3, atol=1e-5)


def test_a_reference_model_must_be_there_where_a_kl_is_asked_for_and_nowhere_else(tiny_policy: Path) -> None:
    with pytest.raises(ValueError, match="needs_reference is True, reference is None"):
        Learner(tiny_policy, kl_coef=0.1)
    with pytest.raises(ValueError, match="needs_reference is False"):
        Learner(tiny_policy, TokenLogprobs(load_model(tiny_policy), 1.0))
