"""Attention rhythm in the learner: the same credit however the batch is divided, on whatever advantage there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.learner.live import LiveLearner

from rollcage.errors import UserError
from rollcage.trainer.learner import row_tensors
from rollcage.trainer.learner.annotations import SampleAnnotations
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.rhythm import batch_credit
from rollcage.trainer.learner.rhythm.attention import attention_curves
from rollcage.trainer.learner.rhythm.batch_credit import Credited, RhythmCredit
from rollcage.trainer.learner.rhythm.config import RhythmConfig
from rollcage.trainer.learner.rhythm.credit import CREDITS, Signals, credit
from rollcage.trainer.learner.rhythm.heads import mean_over, pick_heads
from rollcage.trainer.learner.token_logprobs import TokenLogprobs
from rollcage.trainer.models import load_model

SHORT: dict[str, Any] = {"window": 3, "h_lo": 2, "h_hi": 6}
"""Windows for responses of ten tokens."""


class Engine:
    """Has of a DeepSpeed engine what credit needs, on one rank."""

    device = torch.device("cpu")

    def __init__(self, model: Path) -> None:
        self.module = TokenLogprobs(load_model(model), 1.0)

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)


@pytest.fixture
def rhythm(tiny_policy: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RhythmCredit]:
    """Make the credit of a learner without ranks."""
    for module in (batch_credit, row_tensors):
        monkeypatch.setattr(module, "sum_over_ranks", lambda tensor: tensor)

    def make(kind: str = "coupled", micro_batch_tokens: int = 4096, seed: int = 0, **options: Any) -> RhythmCredit:
        own = RhythmConfig(kind, **{**SHORT, **options})
        config = LearnerConfig(str(tiny_policy), micro_batch_tokens=micro_batch_tokens, seed=seed, rhythm=own)
        return RhythmCredit(Engine(tiny_policy), config, 0)

    return make


def some_advantages(batch: Batch, seed: int = 0) -> np.ndarray:
    """Return an advantage of its own for each token; none in group 0."""
    values = np.random.default_rng(seed).normal(size=batch.loss_mask.shape)
    return np.where(batch.loss_mask & (batch.group_ids > 0)[:, None], values, 0).astype(np.float32)


@pytest.mark.parametrize("kind", CREDITS)
def test_every_credit_multiplies_the_advantages_it_is_given(
    rhythm: Callable[..., RhythmCredit], random_batch: Callable[..., Batch], kind: str
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
    rhythm: Callable[..., RhythmCredit], random_batch: Callable[..., Batch], tiny_policy: Path
) -> None:
    """Whatever the micro-batches; the head sets are those of all rows together."""
    batch = random_batch()
    advantages, policy = some_advantages(batch), load_model(tiny_policy)
    rows = np.flatnonzero(batch.group_ids > 0)

    def alone(row: int) -> Any:
        length = int(batch.attention_mask[row].sum())
        token_ids, mask = torch.tensor(batch.token_ids[[row], :length]), torch.tensor(batch.loss_mask[[row], :length])
        return mask, attention_curves(policy, token_ids, None, mask, **SHORT)

    every = [alone(int(row)) for row in rows]
    local, global_ = pick_heads(sum(curves.spans for _, curves in every), 0.3)
    for tokens in (1, 64, 4096):
        credited = rhythm(micro_batch_tokens=tokens).apply(batch, advantages, 0)
        for row, (mask, curves) in zip(rows, every, strict=True):
            signals = Signals(mask, mean_over(curves.waad, local), mean_over(curves.fai, global_))
            gamma = credit("coupled", signals, h_lo=SHORT["h_lo"], h_hi=SHORT["h_hi"])
            np.testing.assert_allclose(credited.gamma[row, : mask.shape[1]], gamma[0], rtol=1e-6)


def test_head_sets_are_those_of_the_batch_or_of_the_first_one(
    rhythm: Callable[..., RhythmCredit], random_batch: Callable[..., Batch]
) -> None:
    first, second = random_batch(), random_batch(seed=1)
    fixed, anew = rhythm(head_sets="fixed"), rhythm()
    for batch in (first, second):
        kept, new = (each.apply(batch, some_advantages(batch), 0) for each in (fixed, anew))
        assert np.array_equal(kept.gamma, new.gamma) == (batch is first)
    assert anew.heads is None
    assert fixed.heads is not None
    resumed = rhythm(head_sets="fixed")
    resumed.heads = fixed.heads  # what a checkpoint brings back
    np.testing.assert_array_equal(resumed.apply(second, some_advantages(second), 0).gamma, kept.gamma)


def test_random_credit_depends_on_seed_and_version_alone(
    rhythm: Callable[..., RhythmCredit], random_batch: Callable[..., Batch]
) -> None:
    batch = random_batch()

    def draw(version: int, seed: int = 0, advantage_seed: int = 0) -> np.ndarray:
        credited: Credited = rhythm("random", seed=seed).apply(batch, some_advantages(batch, advantage_seed), version)
        return credited.gamma

    np.testing.assert_array_equal(draw(3), draw(3, advantage_seed=1))
    assert not np.array_equal(draw(3), draw(4))
    assert not np.array_equal(draw(3), draw(3, seed=1))


def test_a_batch_without_any_advantage_needs_no_pass(
    rhythm: Callable[..., RhythmCredit], random_batch: Callable[..., Batch]
) -> None:
    batch = random_batch()
    credited = rhythm().apply(batch, np.zeros(batch.loss_mask.shape, np.float32), 0)
    assert (credited.gamma == 1).all()
    assert credited.statistics["rhythm_share_amplified"] == 0


@contextmanager
def learner(policy: Path, logs: Path, **options: Any) -> Iterator[LiveLearner]:
    live = LiveLearner(
        LearnerConfig(str(policy), lr=1e-2, annotated_samples=99, rhythm=RhythmConfig("coupled", **SHORT), **options),
        log_folder=logs,
    )
    try:
        yield live
    finally:
        live.close()


def collected(annotations: list[SampleAnnotations], name: str) -> np.ndarray:
    return np.stack([row for sample in annotations for row in sample.values[name]])


@pytest.mark.timeout(300)
def test_one_rank_and_two_that_share_even_the_weights_give_the_same(
    tiny_policy: Path, random_batch: Callable[..., Batch], tmp_path: Path
) -> None:
    batch = random_batch()
    results = []
    for options in ({}, {"num_ranks": 2, "zero_stage": 3, "micro_batch_tokens": 40}):
        with learner(tiny_policy, tmp_path, **options) as live:
            before = live.logprobs(batch)
            first = live.train(batch)
            annotations = live.runner.run(live.learner.annotations())
            results.append((first, annotations, live.train(batch), before))
    (first, annotations, second, before), (first_2, annotations_2, second_2, _) = results
    for one, two in ((first, first_2), (second, second_2)):
        for name in ("loss", "grad_norm", "rhythm_gamma_mean", "rhythm_waad_mean", "rhythm_fai_mean"):
            assert one[name] == pytest.approx(two[name], rel=1e-3, abs=1e-6)
    for name in ("credit", "waad", "fai", "advantages", "old_logprobs"):
        np.testing.assert_allclose(collected(annotations, name), collected(annotations_2, name), rtol=1e-3, atol=1e-5)
    logprobs, gamma = collected(annotations, "old_logprobs"), collected(annotations, "credit")
    trained = batch.loss_mask & (batch.group_ids > 0)[:, None]  # group 0 did not go through the model
    np.testing.assert_array_equal(np.isnan(logprobs), ~trained)
    np.testing.assert_allclose(logprobs[trained], before[trained], rtol=1e-4)
    advantages = collected(annotations, "advantages")
    _, grouped = np.unique(np.abs(advantages[trained] / gamma[trained]).round(4), return_counts=True)
    assert len(grouped) == 1  # two of four rewarded in each: all advantages alike before credit


def test_what_the_configuration_refuses() -> None:
    with pytest.raises(UserError, match=r"rhythm\.credit 'coupld' is unknown .*coupled.*Did you mean 'coupled'"):
        LearnerConfig(rhythm=RhythmConfig("coupld"))
    faults = RhythmConfig(q=1.5, gain=-1, window=0, h_lo=20, h_hi=10, head_share=0.6, backshift=2, k=0).faults()
    assert [fault.split()[0] for fault in faults] == ["q", "backshift", "gain", "window", "k", "h_hi", "head_share"]
