"""Critics beside the policy: what they learn, what that does to the policy, and that no division changes it."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.learner.live import LiveLearner
from tests.trainer.learner.plain_engine import PlainEngine
from torch import Tensor

from rollcage.errors import UserError
from rollcage.trainer.learner import annotating, critics, row_tensors, update
from rollcage.trainer.learner.advantages import gae
from rollcage.trainer.learner.asyppo import value_loss
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.critic_config import CriticConfig
from rollcage.trainer.learner.critic_engines import make_critics
from rollcage.trainer.learner.critics import CriticEnsemble, Judgement
from rollcage.trainer.learner.statistics import summarize
from rollcage.trainer.learner.token_logprobs import TokenLogprobs
from rollcage.trainer.learner.token_values import TokenValues
from rollcage.trainer.models import load_model

PROBE = Path(__file__).with_name("critic_probe.py")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no process group to sum over."""
    for module in (update, critics, row_tensors, annotating):
        monkeypatch.setattr(module, "sum_over_ranks", lambda tensor: tensor)


@pytest.fixture
def batch(random_batch: Callable[..., Batch]) -> Batch:
    """Eleven rows of ten episodes in three groups, two of odd size; the eighth episode fills two rows."""
    whole = random_batch(seed=4)
    torn = Batch(*(getattr(whole, name)[:-1] for name in Batch.__slots__))
    torn.episode_ids = np.array([0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9])
    torn.group_ids = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    torn.returns[8] = torn.returns[7]
    torn.rewards[7] = 0.0
    torn.rewards[8, np.flatnonzero(torn.loss_mask[8])[-1]] = torn.returns[7]
    return torn


def critics_of(model: Path, num_critics: int = 2) -> list[PlainEngine]:
    return [PlainEngine(TokenValues(load_model(model).base_model), 0.05) for _ in range(num_critics)]


def config_of(model: Path, critic: CriticConfig | None = None, **options: Any) -> LearnerConfig:
    critic = critic or CriticConfig(max_grad_norm=0.0)
    return LearnerConfig(str(model), advantage="gae", lr=0.1, max_grad_norm=0.0, critic=critic, **options)


def read(critic: TokenValues, batch: Batch) -> Tensor:
    """Return a critic's values [B, T], row by row."""
    values = torch.zeros(batch.loss_mask.shape)
    for row in range(len(batch)):
        ids = torch.from_numpy(batch.token_ids[row])
        hidden = critic.body(input_ids=ids[None]).last_hidden_state[0]
        for t in np.flatnonzero(batch.loss_mask[row]):
            values[row, t] = hidden[t - 1] @ critic.head.weight + critic.head.bias[0]
    return values


def reward_to_go(batch: Batch, row: int) -> float:
    """Return what any token of a row still gets: the only reward is the episode's last."""
    return float(batch.returns[row])


SHARES = [0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1]  # episode by episode, group by group; the torn episode's rows stay together


def test_each_critic_learns_the_mean_squared_error_of_its_share(alone: None, tiny_policy: Path, batch: Batch) -> None:
    engines = critics_of(tiny_policy)
    ensemble = CriticEnsemble(engines, config_of(tiny_policy), 0)
    for version in range(3):
        expected = []
        for m, engine in enumerate(engines):
            values, rows = read(engine.module, batch), [row for row in range(11) if SHARES[row] == m]
            loss, number = torch.zeros(()), 0
            for row in rows:
                for t in np.flatnonzero(batch.loss_mask[row]):
                    loss = loss + 0.5 * (values[row, t] - reward_to_go(batch, row)) ** 2
                    number += 1
            loss = loss / number
            expected.append((loss.item(), torch.autograd.grad(loss, list(engine.module.parameters()))))
        judgement = ensemble.judge(batch, version)
        for m, (engine, (loss_value, gradients)) in enumerate(zip(engines, expected, strict=True)):
            assert judgement.statistics[f"critic_{m}_loss"] == pytest.approx(loss_value, rel=1e-4)
            for gradient, wanted in zip(engine.steps[-1], gradients, strict=True):
                torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-5)
    after = [read(engine.module, batch).detach().numpy() for engine in engines]
    mask = batch.loss_mask
    assert judgement.values == pytest.approx((after[0] + after[1]) / 2, abs=1e-5)
    sigma = np.abs(after[0] - after[1]) / 2
    statistics, number = judgement.statistics, mask.sum()
    assert statistics["critic_disagreement_mean"] == pytest.approx(sigma[mask].mean(), rel=1e-3)
    assert statistics["critic_disagreement_max"] == pytest.approx(sigma[mask].max(), rel=1e-3)
    assert sum(v for k, v in statistics.items() if k.startswith("critic_disagreement_from_")) == pytest.approx(1)
    assert statistics["critic_advantage_masked"] == statistics["critic_entropy_masked"] == (number // 5) / number
    masked = mask & ~judgement.advantage_mask
    assert sigma[masked].max() <= sigma[mask & judgement.advantage_mask].min()
    returns = np.where(mask, batch.returns[:, None], 0)[mask]
    residual = returns - judgement.values[mask]
    assert statistics["critic_explained_variance_after"] == pytest.approx(1 - residual.var() / returns.var(), abs=1e-4)


def test_the_reported_quality_is_that_before_the_update(alone: None, tiny_policy: Path, batch: Batch) -> None:
    ensemble = CriticEnsemble(critics_of(tiny_policy), config_of(tiny_policy), 0)
    first = ensemble.judge(batch, 0).statistics
    assert first["critic_mean_explained_variance"] == first["critic_0_explained_variance"] == 0, "heads of zeros"
    assert "critic_return_correlation" not in first, "not defined for a constant"
    second = ensemble.judge(batch, 1).statistics
    assert second["critic_mean_explained_variance"] == pytest.approx(first["critic_explained_variance_after"])
    history = [second, *(ensemble.judge(batch, version).statistics for version in range(2, 25))]
    assert history[-1]["critic_mean_explained_variance"] > 0.2 > history[0]["critic_mean_explained_variance"]
    assert history[-1]["critic_return_correlation"] > 0.5


def test_targets_and_clip_hold_on_to_the_values_before_the_update(
    alone: None, tiny_policy: Path, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With lambda below 1 the targets depend on the values; two epochs of two mini-batches must not move them."""
    critic = CriticConfig(num_critics=1, epochs=2, num_mini_batches=2, value_clip=0.01, max_grad_norm=0.0)
    config = config_of(tiny_policy, critic, advantage_options={"lam": 0.5, "gamma": 0.9})
    engines = critics_of(tiny_policy, 1)
    ensemble = CriticEnsemble(engines, config, 0)
    ensemble.judge(batch, 0)
    before = read(engines[0].module, batch).detach()
    targets = torch.from_numpy(gae(batch, values=before.numpy(), gamma=0.9, lam=0.5)) + before
    seen: list[tuple[Tensor, Tensor]] = []

    def watch(values: Tensor, goals: Tensor, old: Tensor, clip: float) -> Tensor:
        assert clip == 0.01
        seen.append((goals, old))
        return value_loss(values, goals, old, clip)

    monkeypatch.setattr(critics, "value_loss", watch)
    ensemble.judge(batch, 1)
    assert len(seen) == 4
    for epoch in (seen[:2], seen[2:]):
        for held, wanted in zip(zip(*epoch, strict=True), (targets, before), strict=True):
            flat = torch.cat([part[part != 0] for part in held]).sort().values
            torch.testing.assert_close(flat, wanted[wanted != 0].sort().values)


def test_a_truncated_episode_goes_on_with_the_value_after_its_last_token(
    alone: None, tiny_policy: Path, batch: Batch
) -> None:
    batch.truncated[[0, 7, 8]] = True
    config = config_of(tiny_policy, advantage_options={"bootstrap_truncated": True})
    engines = critics_of(tiny_policy)
    ensemble = CriticEnsemble(engines, config, 0)
    ensemble.judge(batch, 0)
    judgement = ensemble.judge(batch, 1)
    for row in range(11):
        length = int(batch.attention_mask[row].sum())
        ids = torch.from_numpy(batch.token_ids[row, :length])[None]
        with torch.no_grad():
            last = [e.module.head(e.module.body(input_ids=ids).last_hidden_state[0, -1:]).item() for e in engines]
        expected = sum(last) / 2 if batch.truncated[row] else 0.0
        assert judgement.final_values[row] == pytest.approx(expected, abs=1e-5)


class FixedCritics(CriticEnsemble):
    """Says what the test wants it to say."""

    def __init__(self, judgement: Judgement) -> None:
        self._judgement = judgement

    def judge(self, batch: Batch, policy_version: int) -> Judgement:
        return self._judgement


@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean"])
def test_masked_tokens_pull_nothing_and_stay_in_the_denominator(
    alone: None, tiny_policy: Path, batch: Batch, aggregation: str
) -> None:
    rng = np.random.default_rng(0)
    values = np.where(batch.loss_mask, rng.normal(size=batch.loss_mask.shape), 0).astype(np.float32)
    advantage_mask, entropy_mask = rng.random(values.shape) > 0.3, rng.random(values.shape) > 0.4
    advantage_mask[2] = False  # a row without any pull but the entropy bonus's
    judgement = Judgement(values, np.zeros(11, np.float32), advantage_mask, entropy_mask, {"critic_seconds": 0.0})
    config = config_of(tiny_policy, loss="ppo", entropy_coef=0.05, aggregation=aggregation, micro_batch_tokens=20)
    engine = PlainEngine(TokenLogprobs(load_model(tiny_policy), 1.0), 0.1)
    policy = update.PolicyUpdate(engine, config, 0, None, FixedCritics(judgement))
    policy.begin(batch, 0)
    policy.train()

    policy, total = load_model(tiny_policy), torch.zeros(())
    tokens_of_episode = np.bincount(batch.episode_ids, weights=batch.loss_mask.sum(1))
    for row in range(11):
        ids = torch.from_numpy(batch.token_ids[row])
        table = torch.log_softmax(policy(input_ids=ids[None]).logits[0], -1)
        for t in np.flatnonzero(batch.loss_mask[row]):
            logprob, entropy = table[t - 1, ids[t]], -(table[t - 1].exp() * table[t - 1]).sum()
            advantage = reward_to_go(batch, row) - float(values[row, t])
            j = advantage_mask[row, t] * advantage * (logprob - logprob.detach()).exp()
            j = j + 0.05 * entropy_mask[row, t] * entropy
            share = tokens_of_episode[batch.episode_ids[row]] * 10 if "seq" in aggregation else batch.loss_mask.sum()
            total = total - j / float(share)
    total.backward()
    for gradient, weight in zip(engine.steps[0], policy.parameters(), strict=True):
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-3, atol=1e-5)


def test_while_critics_warm_up_they_alone_are_trained(alone: None, tiny_policy: Path, batch: Batch) -> None:
    critic = CriticConfig(warmup_updates=2, max_grad_norm=0.0)
    config, engines = config_of(tiny_policy, critic, num_mini_batches=2), critics_of(tiny_policy)
    engine = PlainEngine(TokenLogprobs(load_model(tiny_policy), 1.0), 0.1)
    learner = update.PolicyUpdate(engine, config, 0, None, CriticEnsemble(engines, config, 0))
    for version in range(2):
        learner.begin(batch, version)
        _, statistics = learner.train()
        assert statistics["loss"] == statistics["grad_norm"] == 0
        assert statistics["num_rows_skipped"] == 11
    assert (len(engine.steps), len(engines[0].steps)) == (0, 2)
    learner.begin(batch, 2)
    learner.train()
    assert (len(engine.steps), len(engines[0].steps)) == (2, 3)


def test_a_kl_to_the_reference_in_the_loss_goes_with_critics(alone: None, tiny_policy: Path, batch: Batch) -> None:
    """With several mini-batches old log-probabilities are there before the advantages, which have no KL in them."""
    config, engines = config_of(tiny_policy, kl_coef=0.5, num_mini_batches=2), critics_of(tiny_policy)
    engine = PlainEngine(TokenLogprobs(load_model(tiny_policy), 1.0), 0.1)
    reference = TokenLogprobs(load_model(tiny_policy), 1.0).requires_grad_(False)
    with torch.no_grad():
        for weight in reference.parameters():
            weight.mul_(0.8)
    learner = update.PolicyUpdate(engine, config, 0, reference, CriticEnsemble(engines, config, 0))
    learner.begin(batch, 0)
    totals, statistics = learner.train()
    assert summarize([totals])["ref_kl"] > 0
    assert np.isfinite(statistics["loss"])
    assert len(engine.steps) == 2


def test_one_critic_masks_nothing_and_a_critic_without_a_share_is_left_alone(
    alone: None, tiny_policy: Path, batch: Batch, random_batch: Callable[..., Batch]
) -> None:
    one = CriticEnsemble(critics_of(tiny_policy, 1), config_of(tiny_policy, CriticConfig(num_critics=1)), 0)
    judgement = one.judge(batch, 0)
    assert judgement.advantage_mask.all()
    assert judgement.entropy_mask.all()
    assert not [name for name in judgement.statistics if "disagreement" in name or "masked" in name]
    lone = random_batch(num_groups=1, group_size=1)
    engines = critics_of(tiny_policy, 2)
    statistics = CriticEnsemble(engines, config_of(tiny_policy), 0).judge(lone, 0).statistics
    assert (len(engines[0].steps), len(engines[1].steps)) == (1, 0)
    assert all(np.isfinite(value) for value in statistics.values())
    lone.loss_mask[:] = False
    assert all(
        np.isfinite(v) for v in CriticEnsemble(engines, config_of(tiny_policy), 0).judge(lone, 1).statistics.values()
    )


def test_a_critic_of_another_vocabulary_is_refused(tiny_policy: Path) -> None:
    with pytest.raises(UserError, match=r"learner\.critic\.model .* knows 32 tokens, the policy 384"):
        make_critics(
            config_of(tiny_policy), checkpoint=None, num_tokens=384, attention="sdpa", compute_dtype=torch.float32
        )
    with pytest.raises(ValueError, match="needs_critics is True"):
        update.PolicyUpdate(PlainEngine(TokenLogprobs(load_model(tiny_policy), 1.0), 0.1), config_of(tiny_policy), 0)


class AdamEngine(PlainEngine):
    """PyTorch's AdamW in the place of DeepSpeed."""

    def __init__(self, module: TokenValues, critic: CriticConfig) -> None:
        super().__init__(module, critic.lr)
        self._adam = torch.optim.AdamW(module.parameters(), lr=critic.lr, betas=critic.betas, weight_decay=0.0)

    def step(self) -> None:
        self.steps.append([weight.grad.clone() for weight in self.module.parameters()])
        self._adam.step()
        self._adam.zero_grad()


def probe(batch: Batch, configs: dict[str, LearnerConfig], folder: Path) -> dict[str, Any]:
    """Let two ranks judge the batch twice under each configuration."""
    (folder / "request").write_bytes(pickle.dumps((batch, configs)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(PROBE), str(folder / "request"), str(folder / "reply")]
    common = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = []
    for rank in range(2):
        with (folder / f"log{rank}").open("wb") as log:
            environment = common | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
            ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        for rank, process in enumerate(ranks):
            assert process.wait(100) == 0, (folder / f"log{rank}").read_text()[-3000:]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    results: dict[str, Any] = pickle.loads((folder / "reply").read_bytes())
    return results


def test_ranks_micro_batches_zero_and_offloading_change_neither_values_nor_gradients(
    alone: None, tiny_policy: Path, batch: Batch, tmp_path: Path
) -> None:
    config = config_of(tiny_policy, CriticConfig(lr=0.02, max_grad_norm=0.0))
    two = replace(config, num_ranks=2, micro_batch_tokens=1)  # row by row
    configs = {
        "plain": replace(two, micro_batch_tokens=4096),
        "zero 2": replace(two, zero_stage=2, gradient_checkpointing=True),
        "zero 3": replace(two, zero_stage=3, offload="all"),
    }
    results = probe(batch, configs, tmp_path)
    for micro_batch_tokens in (4096, 40):  # and on one rank, without DeepSpeed
        engines = [AdamEngine(TokenValues(load_model(tiny_policy).base_model), config.critic) for _ in range(2)]
        ensemble = CriticEnsemble(engines, replace(config, micro_batch_tokens=micro_batch_tokens), 0)
        judgements = [ensemble.judge(batch, version) for version in range(2)]
        names = [name for name, _ in engines[0].module.named_parameters()]
        gradients = [dict(zip(names, engine.steps[-1], strict=True)) for engine in engines]
        results[f"one rank, {micro_batch_tokens}"] = judgements, gradients
    expected, expected_gradients = results.pop("one rank, 4096")
    assert expected[1].statistics["critic_disagreement_max"] > 0.01
    body = [gradient for name, gradient in expected_gradients[0].items() if name.startswith("body.")]
    assert max(float(gradient.abs().max()) for gradient in body) > 1e-3
    assert len(results) == 4
    for name, (judgements, gradients) in results.items():
        assert judgements[0].values == pytest.approx(expected[0].values, abs=1e-5), name
        assert np.array_equal(judgements[0].advantage_mask, expected[0].advantage_mask), name
        assert np.array_equal(judgements[0].entropy_mask, expected[0].entropy_mask), name
        statistics = {**expected[0].statistics, "critic_seconds": 0}
        assert {**judgements[0].statistics, "critic_seconds": 0} == pytest.approx(statistics, rel=1e-3, abs=1e-5), name
        for of_critic, wanted_gradients in zip(gradients, expected_gradients, strict=True):
            for weight, wanted in wanted_gradients.items():
                torch.testing.assert_close(of_critic[weight], wanted, rtol=1e-3, atol=1e-5)


def test_critics_are_saved_and_a_run_goes_on_bit_by_bit(tiny_policy: Path, batch: Batch, tmp_path: Path) -> None:
    critic = CriticConfig(model=str(tiny_policy), lr=1e-2, warmup_steps=3, epochs=2, num_mini_batches=2)
    config = config_of(tiny_policy, critic, entropy_coef=0.01)
    learner = LiveLearner(config)
    try:
        learner.train(batch)
        learner.save(tmp_path)
        statistics = learner.train(batch)
        weights = learner.weights()
        assert statistics["critic_lr"] == pytest.approx(1e-2), "warmed up after three of its steps"
        learner.load(tmp_path)
        again = learner.train(batch)
    finally:
        learner.close()
    timeless = {"seconds": 0.0, "critic_seconds": 0.0}
    assert {**again, **timeless} == {**statistics, **timeless}
    nowhere = replace(config, model="not needed", critic=replace(critic, model="not needed either"))
    resumed = LiveLearner(nowhere, checkpoint=tmp_path)
    try:
        assert {**resumed.train(batch), **timeless} == {**statistics, **timeless}
        assert all(torch.equal(weight, weights[name]) for name, weight in resumed.weights().items())
    finally:
        resumed.close()
    with pytest.raises(UserError, match=r"'num_critics': 2.*use the same"):
        LiveLearner(replace(config, critic=replace(critic, num_critics=1)), checkpoint=tmp_path)
