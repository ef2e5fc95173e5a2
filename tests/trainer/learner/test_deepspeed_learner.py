"""The real learner on a tiny policy: training, publishing, checkpoints."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.learner.live import LiveLearner

from rollcage.errors import UserError
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.token_logprobs import TokenLogprobs
from rollcage.trainer.models import load_model, load_tokenizer

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def one_rank(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveLearner, Path]]:
    """A learner of one rank, and a checkpoint of its start."""
    folder = tmp_path_factory.mktemp("one_rank")
    learner = LiveLearner(
        LearnerConfig(str(tiny_policy), lr=1e-3, warmup_steps=4, decay_steps=10), log_folder=folder / "logs"
    )
    learner.save(folder / "start")
    yield learner, folder / "start"
    learner.close()


@pytest.fixture
def learner(one_rank: tuple[LiveLearner, Path]) -> LiveLearner:
    """The learner of one rank, as it was at its start."""
    live, start = one_rank
    live.load(start)
    return live


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether weights are equal bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_training_moves_the_policy_towards_rewarded_responses_and_reports(
    learner: LiveLearner, random_batch: Callable[..., Batch]
) -> None:
    batch = random_batch()
    batch.start_versions[batch.group_ids == 2] = -2
    before = learner.logprobs(batch)
    statistics = learner.train(batch)
    trained = batch.loss_mask & (batch.group_ids > 0)[:, None]  # group 0 has equal returns
    gap = np.abs(before - batch.rollout_logprobs)[trained]
    assert statistics["logprob_gap_mean"] == pytest.approx(gap.mean(), rel=1e-4)
    assert statistics["logprob_gap_max"] == pytest.approx(gap.max(), rel=1e-4)
    ratio = np.exp((before - batch.rollout_logprobs)[trained].astype(np.float64))
    assert statistics["ess"] == pytest.approx(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()), rel=1e-4)
    assert statistics["num_rows_skipped"] == 4
    assert statistics["num_tokens"] == batch.loss_mask.sum()
    assert statistics["lr"] == pytest.approx(1e-3 / 4)
    assert (statistics["staleness_mean"], statistics["staleness_max"]) == (pytest.approx(2 / 3), 2)
    assert statistics["importance_ratio_mean"] == statistics["importance_ratio_max"] == 1
    assert statistics["approx_kl_k3"] == statistics["clip_frac_low"] == statistics["clip_frac_high"] == 0
    assert statistics["loss"] == pytest.approx(0, abs=1e-6), "on policy, group advantages sum to zero"
    assert 0 < statistics["entropy"] <= np.log(32)
    assert statistics["grad_norm"] > 0
    assert statistics["seconds"] > 0
    rates = [learner.train(batch)["lr"] for _ in range(5)]
    assert rates == pytest.approx([5e-4, 7.5e-4, 1e-3, 1e-3, 9e-4]), "four steps up, ten down"
    change = ((learner.logprobs(batch) - before) * batch.loss_mask).sum(1)[batch.group_ids > 0]
    rewarded = batch.returns[batch.group_ids > 0] > 0
    assert change[rewarded].mean() > 0 > change[~rewarded].mean()


def test_logprobs_are_the_models_own(
    learner: LiveLearner, tiny_policy: Path, random_batch: Callable[..., Batch]
) -> None:
    batch = random_batch()
    with torch.no_grad():
        expected, _ = TokenLogprobs(load_model(tiny_policy), 1.0)(
            torch.from_numpy(batch.token_ids), torch.from_numpy(batch.loss_mask)
        )
    logprobs = learner.logprobs(batch)
    assert logprobs.dtype == np.float32
    assert logprobs[batch.loss_mask] == pytest.approx(expected.numpy(), abs=1e-5)
    assert not logprobs[~batch.loss_mask].any()


def test_published_weights_are_the_policy_until_the_next_publish(
    learner: LiveLearner, tiny_policy: Path, random_batch: Callable[..., Batch]
) -> None:
    policy, batch = load_model(tiny_policy), random_batch()
    published = learner.runner.run(learner.learner.publish())
    assert set(published) == {name for name, _ in policy.named_parameters()}, "tied weights once, no wrapper's prefix"
    assert same(dict(published), dict(policy.named_parameters()))
    learner.train(batch)
    assert same(dict(published), dict(policy.named_parameters())), "training does not touch what is published"
    assert learner.runner.run(learner.learner.publish()) is published
    assert not same(dict(published), dict(policy.named_parameters()))
    policy.load_state_dict(published, strict=False)
    with torch.no_grad():
        logprobs, _ = TokenLogprobs(policy, 1.0)(torch.from_numpy(batch.token_ids), torch.from_numpy(batch.loss_mask))
    assert learner.logprobs(batch)[batch.loss_mask] == pytest.approx(logprobs.numpy(), abs=1e-5)


def test_publishing_takes_milliseconds_and_leaves_no_file(learner: LiveLearner) -> None:
    shared_memory = Path("/dev/shm")
    before = set(shared_memory.iterdir()) if shared_memory.is_dir() else set()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        learner.runner.run(learner.learner.publish())
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.05
    assert (set(shared_memory.iterdir()) if shared_memory.is_dir() else set()) == before


def test_T8_an_all_masked_batch_trains_to_nothing(learner: LiveLearner, random_batch: Callable[..., Batch]) -> None:
    batch = random_batch()
    batch.loss_mask[:] = False
    batch.rollout_logprobs[:] = np.nan
    before = learner.weights()
    statistics = learner.train(batch)
    assert statistics["loss"] == statistics["grad_norm"] == 0
    assert statistics["num_rows_skipped"] == len(batch)
    assert same(learner.weights(), before)


def test_T8_nan_under_mask_0_changes_nothing(learner: LiveLearner, random_batch: Callable[..., Batch]) -> None:
    dirty = random_batch()
    dirty.rollout_logprobs[~dirty.loss_mask] = np.nan
    statistics = learner.train(dirty)
    weights = learner.weights()
    assert all(np.isfinite(value) for value in statistics.values())
    assert all(torch.isfinite(weight).all() for weight in weights.values())


def test_a_loaded_checkpoint_continues_bit_by_bit_here_and_in_a_new_process(
    learner: LiveLearner, random_batch: Callable[..., Batch], tmp_path: Path
) -> None:
    first, second = random_batch(seed=1), random_batch(seed=2)
    learner.train(first)
    learner.save(tmp_path)
    saved = learner.weights()
    statistics = learner.train(second)
    continued = learner.weights()
    assert not same(saved, continued)

    model = load_model(tmp_path)
    assert same(dict(model.named_parameters()), saved)
    assert load_tokenizer(tmp_path)("w3 w1")["input_ids"] == [3, 1]

    learner.load(tmp_path)
    assert same(learner.weights(), saved)
    again = learner.train(second)
    assert {**again, "seconds": 0} == {**statistics, "seconds": 0}
    assert same(learner.weights(), continued)

    config = LearnerConfig("the base model is not needed", lr=1e-3, warmup_steps=4, decay_steps=10)
    resumed = LiveLearner(config, checkpoint=tmp_path)
    try:
        shutil.rmtree(tmp_path)  # as checkpoints do once newer ones are there
        resumed.train(second)
        assert same(resumed.weights(), continued)
        resumed.save(tmp_path)
        assert load_tokenizer(tmp_path)("w3 w1")["input_ids"] == [3, 1]
    finally:
        resumed.close()


def test_the_event_loop_goes_on_while_the_learner_trains(
    learner: LiveLearner, random_batch: Callable[..., Batch]
) -> None:
    async def train_and_count() -> int:
        training = asyncio.ensure_future(learner.learner.train(random_batch(num_groups=20)))
        ticks = 0
        while not training.done():
            await asyncio.sleep(0.001)
            ticks += 1
        await training
        return ticks

    assert learner.runner.run(train_and_count()) > 3


def test_a_cancelled_call_leaves_the_learner_usable(learner: LiveLearner, random_batch: Callable[..., Batch]) -> None:
    batch = random_batch()
    expected = learner.logprobs(batch)

    async def cancel_then_call() -> np.ndarray:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.002):
                await learner.learner.logprobs(random_batch(num_groups=50, seed=5))
        return await learner.learner.logprobs(batch)

    assert np.array_equal(learner.runner.run(cancel_then_call()), expected)


def test_two_ranks_and_several_mini_batches_a_batch(
    tiny_policy: Path, random_batch: Callable[..., Batch], tmp_path: Path
) -> None:
    config = LearnerConfig(
        str(tiny_policy),
        lr=3e-3,
        epochs=2,
        num_mini_batches=2,
        num_ranks=2,
        zero_stage=3,
        checkpoint_dtype="bfloat16",
        weight_decay=0.1,
    )
    learner, batch = LiveLearner(config), random_batch()
    try:
        assert same(learner.weights(), dict(load_model(tiny_policy).named_parameters()))
        before = learner.logprobs(batch)
        statistics = learner.train(batch)
        trained = batch.loss_mask & (batch.group_ids > 0)[:, None]
        gap = np.abs(before - batch.rollout_logprobs)[trained]
        assert statistics["logprob_gap_mean"] == pytest.approx(gap.mean(), rel=1e-4), "old = before the first step"
        assert statistics["importance_ratio_max"] > 1, "the later steps are off policy"
        assert statistics["num_rows_skipped"] == 4
        learner.save(tmp_path)
        saved = load_model(tmp_path, "bfloat16")
        assert same(dict(saved.named_parameters()), {k: v.bfloat16() for k, v in learner.weights().items()})
        assert saved.config.dtype == torch.bfloat16
        continued = learner.train(batch)
        learner.load(tmp_path)
        assert {**learner.train(batch), "seconds": 0} == {**continued, "seconds": 0}
    finally:
        learner.close()
    with pytest.raises(UserError, match=r"was written with .*'num_ranks': 2.* use the same"):
        LiveLearner(LearnerConfig(), checkpoint=tmp_path)


def test_a_reference_model_holds_the_policy_back(
    tiny_policy: Path, random_batch: Callable[..., Batch], tmp_path: Path
) -> None:
    batch = random_batch()
    options: dict[str, Any] = {"loss": "topr", "lr": 3e-3, "kl_coef": 0.5, "kl_penalty": "k2"}
    learner = LiveLearner(LearnerConfig(str(tiny_policy), **options))
    try:
        before = learner.logprobs(batch)
        assert learner.train(batch)["ref_kl"] == 0, "the first policy is its own reference"
        learner.save(tmp_path)
        distance = (learner.logprobs(batch) - before)[batch.loss_mask]
        expected = np.square(distance).mean() / 2
        assert expected > 0
        assert learner.train(batch)["ref_kl"] == pytest.approx(expected, rel=1e-3)
    finally:
        learner.close()
    resumed = LiveLearner(LearnerConfig(str(tiny_policy), **options), checkpoint=tmp_path)
    try:
        assert resumed.train(batch)["ref_kl"] == pytest.approx(expected, rel=1e-3), "not the checkpoint's"
    finally:
        resumed.close()
