"""Low-rank adapters: only they are trained, and what leaves the learner is a plain model with them added."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.trainer.learner.live import LiveLearner

from rollcage.errors import UserError
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.lora import add_adapters, base_name, find_adapters
from rollcage.trainer.models import load_model

pytestmark = pytest.mark.timeout(300)


def config(model: Path, **changes: object) -> LearnerConfig:
    return LearnerConfig(str(model), lr=1e-2, lora_rank=2, lora_alpha=4.0, **changes)  # type: ignore[arg-type]


def test_adapters_change_nothing_at_first_and_keep_every_name(tiny_policy: Path) -> None:
    plain, adapted = load_model(tiny_policy), load_model(tiny_policy)
    add_adapters(adapted, config(tiny_policy))
    ids = torch.arange(8)[None]
    torch.testing.assert_close(adapted(input_ids=ids).logits, plain(input_ids=ids).logits)
    names = {own for name, _ in adapted.named_parameters() if (own := base_name(name))}
    assert names == {name for name, _ in plain.named_parameters()}
    trained = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    assert all(".lora_" in name for name in trained)
    assert len(trained) == 2 * 2 * 7, "two matrices on each of 7 linear layers, twice"
    assert find_adapters(adapted).keys() < names
    assert find_adapters(plain) == {}


@pytest.fixture(scope="module", params=[(1, 0), (2, 3)], ids=["one rank", "two ranks, zero 3"])
def learner(request: pytest.FixtureRequest, tiny_policy: Path) -> Iterator[LiveLearner]:
    num_ranks, zero_stage = request.param
    live = LiveLearner(config(tiny_policy, num_ranks=num_ranks, zero_stage=zero_stage))
    yield live
    live.close()


def test_what_is_published_and_saved_is_a_plain_model_that_computes_the_same(
    learner: LiveLearner, tiny_policy: Path, random_batch: Callable[..., Batch], tmp_path: Path
) -> None:
    batch, before = random_batch(), learner.weights()
    assert before.keys() == dict(load_model(tiny_policy).named_parameters()).keys()
    for _ in range(3):
        learner.train(batch)
    after = learner.weights()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.endswith("_proj.weight") for name in changed), "embeddings and norms stay"
    for name in changed:
        assert torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-3) == 2
    learner.save(tmp_path)
    saved = load_model(tmp_path)
    for name, weight in saved.named_parameters():
        torch.testing.assert_close(weight, after[name])
    ids, mask = torch.from_numpy(batch.token_ids), torch.from_numpy(batch.loss_mask)
    with torch.no_grad():
        table = torch.log_softmax(saved(input_ids=ids).logits[:, :-1], -1)
    expected = table.gather(-1, ids[:, 1:, None])[..., 0][mask[:, 1:]]
    torch.testing.assert_close(torch.from_numpy(learner.logprobs(batch))[mask], expected, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_is_gone_on_with_as_if_nothing_had_happened(
    tiny_policy: Path, random_batch: Callable[..., Batch], tmp_path: Path
) -> None:
    batch, first = random_batch(), LiveLearner(config(tiny_policy))
    first.train(batch)
    first.save(tmp_path)
    expected = [first.train(batch)["grad_norm"] for _ in range(2)]
    weights = first.weights()
    first.close()
    again = LiveLearner(config(tiny_policy), checkpoint=tmp_path)
    assert [again.train(batch)["grad_norm"] for _ in range(2)] == expected
    assert all(torch.equal(weight, weights[name]) for name, weight in again.weights().items())
    again.close()
    with pytest.raises(UserError, match="lora_rank"):
        LiveLearner(LearnerConfig(str(tiny_policy)), checkpoint=tmp_path)
