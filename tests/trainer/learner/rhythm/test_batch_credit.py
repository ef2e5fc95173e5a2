"""Attention rhythm in the learner: the same credit however the batch is divided, on whatever advantage there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.learner.live import LiveLearner
from tests.trainer.learner.rhythm.plain_learner import PlainLearner, without_ranks
from tests.trainer.learner.rhythm.row_by_row import SHORT, gamma_row_by_row

from rollcage.errors import UserError
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.micro_batches import plan_micro_batches
from rollcage.trainer.learner.rhythm import batch_credit
from rollcage.trainer.learner.rhythm.batch_credit import Credited, RhythmCredit
from rollcage.trainer.learner.rhythm.config import RhythmConfig
from rollcage.trainer.learner.rhythm.credit import CREDITS
from rollcage.trainer.learner.row_tensors import gather, lengths
from rollcage.trainer.learner.token_logprobs import TokenLogprobs
from rollcage.trainer.models import load_model
from rollcage.trainer.train_arguments import parse_train


class Engine:
    """Has of a DeepSpeed engine what credit needs, on one rank."""

    device = torch.device("cpu")

    def __init__(self, model: Path) -> None:
        self.module = TokenLogprobs(load_model(model), 1.0)

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)


class Learner:
    """Runs a batch's rows through the engine as an update does."""

    def __init__(self, config: LearnerConfig) -> None:
        self._config = config
        self.credit = RhythmCredit(Engine(Path(config.model)), config, 0)

    def apply(self, batch: Batch, advantages: np.ndarray, policy_version: int) -> Credited:
        running = self.credit.start(batch, advantages, policy_version)
        rows = np.flatnonzero((advantages != 0).any(1))
        for part in plan_micro_batches(rows, lengths(batch.loss_mask), 1, self._config.micro_batch_tokens)[0]:
            running.run(part, *gather(batch.token_ids, batch.loss_mask, part, Engine.device))
        return running.finish()


@pytest.fixture
def rhythm(tiny_policy: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Learner]:
    """Make the credit of a learner without ranks."""
    monkeypatch.setattr(batch_credit, "sum_over_ranks", lambda tensor: tensor)

    def make(kind: str = "coupled", micro_batch_tokens: int = 4096, seed: int = 0, **options: Any) -> Learner:
        own = RhythmConfig(kind, **{**SHORT, **options})
        config = LearnerConfig(str(tiny_policy), micro_batch_tokens=micro_batch_tokens, seed=seed, rhythm=own)
        return Learner(config)

    return make


def some_advantages(batch: Batch, seed: int = 0) -> np.ndarray:
    """Return an advantage of its own for each token; none in group 0."""
    values = np.random.default_rng(seed).normal(size=batch.loss_mask.shape)
    return np.where(batch.loss_mask & (batch.group_ids > 0)[:, None], values, 0).astype(np.float32)


@pytest.mark.parametrize("kind", CREDITS)
def test_every_credit_multiplies_the_advantages_it_is_given(
    rhythm: Callable[..., Learner], random_batch: Callable[..., Batch], kind: str
) -> None:
    batch = random_batch()
    advantages = some_advantages(batch)
    credited = rhythm(kind).apply(batch, advantages, 0)
    np.testing.assert_array_equal(credited.advantages, advantages * credited.gamma)
    looked_at = batch.loss_mask & (batch.group_ids > 0)[:, None]
    assert (credited.gamma[~looked_at] == 1).all()
    share = (credited.gamma[looked_at] > 1).mean()
    assert credited.statistics["rhythm_share_amplified"] == pytest.approx(share)
    assert 0.1 < share < 0.7
    assert credited.statistics["rhythm_gamma_mean"] == pytest.approx(credited.gamma[looked_at].mean())
    assert credited.statistics["rhythm_seconds"] > 0
    positive = rhythm(kind, sign="positive").apply(batch, advantages, 0).advantages
    np.testing.assert_array_equal(positive, np.where(advantages > 0, credited.advantages, advantages))


def test_coupled_credit_is_that_of_one_pass_over_each_row_alone(
    rhythm: Callable[..., Learner], random_batch: Callable[..., Batch], tiny_policy: Path
) -> None:
    """Whatever the micro-batches; the heads are those of all rows together."""
    batch = random_batch()
    expected, _ = gamma_row_by_row(load_model(tiny_policy), batch, list(np.flatnonzero(batch.group_ids > 0)))
    for tokens in (1, 64, 4096):
        credited = rhythm(micro_batch_tokens=tokens).apply(batch, some_advantages(batch), 0)
        np.testing.assert_allclose(credited.gamma, expected, rtol=1e-6)


@pytest.mark.parametrize("every", [0, 1, 2])
def test_heads_are_picked_anew_every_so_many_updates(
    rhythm: Callable[..., Learner], random_batch: Callable[..., Batch], tiny_policy: Path, every: int
) -> None:
    batches, policy, learner = (
        [random_batch(seed=seed) for seed in range(4)],
        load_model(tiny_policy),
        rhythm(heads_every=every),
    )
    heads = None
    for version, batch in enumerate(batches, start=1):  # the first update may have had no advantages
        due = version == 1 or (every > 0 and version % every == 0)
        rows = list(np.flatnonzero(batch.group_ids > 0))
        expected, heads = gamma_row_by_row(policy, batch, rows, None if due else heads)
        gamma = learner.apply(batch, some_advantages(batch), version).gamma
        np.testing.assert_allclose(gamma, expected, rtol=1e-6)
    assert learner.credit.heads is not None
    resumed = rhythm(heads_every=0)
    resumed.credit.heads = learner.credit.heads  # what a checkpoint brings back
    np.testing.assert_array_equal(resumed.apply(batch, some_advantages(batch), 9).gamma, gamma)


def test_random_credit_depends_on_seed_and_version_alone(
    rhythm: Callable[..., Learner], random_batch: Callable[..., Batch]
) -> None:
    batch = random_batch()

    def draw(version: int, seed: int = 0, advantage_seed: int = 0) -> np.ndarray:
        credited: Credited = rhythm("random", seed=seed).apply(batch, some_advantages(batch, advantage_seed), version)
        return credited.gamma

    np.testing.assert_array_equal(draw(3), draw(3, advantage_seed=1))
    assert not np.array_equal(draw(3), draw(4))
    assert not np.array_equal(draw(3), draw(3, seed=1))


def test_a_batch_without_any_advantage_needs_no_pass(
    rhythm: Callable[..., Learner], random_batch: Callable[..., Batch]
) -> None:
    batch, learner = random_batch(), rhythm()
    credited = learner.apply(batch, np.zeros(batch.loss_mask.shape, np.float32), 0)
    assert (credited.gamma == 1).all()
    assert learner.credit.heads is None
    assert credited.statistics["rhythm_share_amplified"] == 0


@pytest.mark.timeout(300)
def test_two_ranks_that_share_even_the_weights_give_what_one_gives(
    tiny_policy: Path, random_batch: Callable[..., Batch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_ranks(monkeypatch)
    batch, own = random_batch(), RhythmConfig("coupled", **SHORT)
    alone = PlainLearner(tiny_policy, own)
    before = alone.update.logprobs(batch)
    expected = alone.train(batch)
    config = LearnerConfig(
        str(tiny_policy), annotated_samples=99, rhythm=own, num_ranks=2, zero_stage=3, micro_batch_tokens=40
    )
    live = LiveLearner(config, log_folder=tmp_path)
    try:
        found = live.train(batch)
        annotations = live.runner.run(live.learner.annotations())
        assert live.train(batch)["rhythm_gamma_mean"] > 1.1  # with the heads of the first
    finally:
        live.close()
    for name in ("loss", "grad_norm", "rhythm_gamma_mean", "rhythm_waad_mean", "rhythm_fai_mean"):
        assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-6)
    of_tokens = {
        name: np.stack([row for sample in annotations for row in sample.values[name]])
        for name in ("credit", "waad", "fai", "advantages", "old_logprobs")
    }
    for name, values in of_tokens.items():
        np.testing.assert_allclose(values, alone.of_tokens(name), rtol=1e-3, atol=1e-5)
    logprobs, gamma, advantages = (of_tokens[name] for name in ("old_logprobs", "credit", "advantages"))
    trained = batch.loss_mask & (batch.group_ids > 0)[:, None]  # group 0 did not go through the model
    np.testing.assert_array_equal(np.isnan(logprobs), ~trained)
    np.testing.assert_allclose(logprobs[trained], before[trained], rtol=1e-4)
    _, grouped = np.unique(np.abs(advantages[trained] / gamma[trained]).round(4), return_counts=True)
    assert len(grouped) == 1  # two of four rewarded in each: all advantages alike before credit


def test_windows_are_set_and_checked_on_the_command_line() -> None:
    """FAI's window begins ten tokens later, which is long for responses of about forty."""
    assert RhythmConfig().h_lo == 10
    command = ["countdown-small", "--learner.rhythm.credit", "coupled", "--learner.rhythm.h-lo"]
    config = parse_train([*command, "4"]).config
    assert config is not None
    assert config.learner.rhythm.h_lo == 4
    with pytest.raises(UserError, match=r"learner: rhythm\.h_lo must be at least 1, not 0"):
        parse_train([*command, "0"])


def test_what_the_configuration_refuses() -> None:
    with pytest.raises(UserError, match=r"rhythm\.credit 'coupld' is unknown .*coupled.*Did you mean 'coupled'"):
        LearnerConfig(rhythm=RhythmConfig("coupld"))
    wrong: dict[str, Any] = {
        "q": 1.5,
        "backshift": 2,
        "gain": -1,
        "window": 0,
        "h_lo": 0,
        "k": 0,
        "h_hi": -1,
        "heads_every": -1,
    }
    faults = list(RhythmConfig(**wrong, head_share=0.6).faults())
    assert [fault.split()[0] for fault in faults] == [*wrong, "head_share"]
    assert list(RhythmConfig(h_lo=20, h_hi=10).faults()) == ["h_hi must be at least h_lo, not 10"]
