"""Log-probabilities of the trainable tokens against those taken from the model's whole logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rollcage.trainer.learner import token_logprobs
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.token_logprobs import TokenLogprobs
from rollcage.trainer.models import load_model


def expected(policy: torch.nn.Module, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies of the trainable tokens, row by row and without any padding."""
    logprobs, entropies = [], []
    for row in range(len(batch)):
        length = int(batch.attention_mask[row].sum())
        ids, mask = torch.from_numpy(batch.token_ids[row, :length]), torch.from_numpy(batch.loss_mask[row, 1:length])
        table = torch.log_softmax(policy(input_ids=ids[None]).logits[0, :-1].float() / temperature, -1)
        logprobs.append(table.gather(-1, ids[1:, None])[:, 0][mask])
        entropies.append(torch.distributions.Categorical(logits=table).entropy()[mask])
    return torch.cat(logprobs), torch.cat(entropies)


@pytest.mark.parametrize("chunk_elements", [1 << 24, 32 * 7])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_padding_chunks_and_position_choice_change_nothing(
    tiny_policy: Path,
    random_batch: Callable[..., Batch],
    temperature: float,
    chunk_elements: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(token_logprobs, "CHUNK_ELEMENTS", chunk_elements)
    policy, batch = load_model(tiny_policy), random_batch()
    want, want_entropy = expected(policy, batch, temperature)
    (want.sum() + 0.5 * want_entropy.sum()).backward()
    gradients = [weight.grad.clone() for weight in policy.parameters()]
    policy.zero_grad()
    module = TokenLogprobs(policy, temperature)
    got, got_entropy = module(torch.from_numpy(batch.token_ids), torch.from_numpy(batch.loss_mask), True)
    (got.sum() + 0.5 * got_entropy.sum()).backward()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got_entropy, want_entropy, rtol=1e-5, atol=1e-5)
    for weight, gradient in zip(policy.parameters(), gradients, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-4, atol=1e-4)


def test_temperature_zero_counts_as_one_as_the_sampler_records_it(
    tiny_policy: Path, random_batch: Callable[..., Batch]
) -> None:
    batch = random_batch()
    inputs = torch.from_numpy(batch.token_ids), torch.from_numpy(batch.loss_mask)
    greedy, _ = TokenLogprobs(load_model(tiny_policy), 0.0)(*inputs)
    one, _ = TokenLogprobs(load_model(tiny_policy), 1.0)(*inputs)
    assert torch.equal(greedy, one)


def test_the_model_itself_still_gives_all_its_logits(tiny_policy: Path) -> None:
    policy = load_model(tiny_policy)
    ids = torch.arange(5)[None]
    before = policy(input_ids=ids).logits
    TokenLogprobs(policy, 1.0)
    assert torch.equal(policy(input_ids=ids).logits, before)


def test_entropies_keep_a_graph_only_on_request(tiny_policy: Path, random_batch: Callable[..., Batch]) -> None:
    batch, module = random_batch(), TokenLogprobs(load_model(tiny_policy), 1.0)
    logprobs, entropy = module(torch.from_numpy(batch.token_ids), torch.from_numpy(batch.loss_mask))
    assert logprobs.requires_grad
    assert not entropy.requires_grad


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_bfloat16_products_stay_near_float32(
    tiny_policy: Path, random_batch: Callable[..., Batch], weights: str
) -> None:
    batch = random_batch()
    inputs = torch.from_numpy(batch.token_ids), torch.from_numpy(batch.loss_mask)
    exact, _ = TokenLogprobs(load_model(tiny_policy), 1.0)(*inputs)
    module = TokenLogprobs(load_model(tiny_policy, weights), 1.0, torch.bfloat16)
    near, entropy = module(*inputs)
    assert near.dtype == entropy.dtype == torch.float32
    assert 0 < (near - exact).abs().max() < 0.1
    near.sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in module.parameters())
