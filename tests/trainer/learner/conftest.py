"""Small batches and a tiny policy for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from rollcage.trainer.learner.batch import Batch


def make_rows(
    loss_mask: Sequence[Sequence[int]],
    *,
    returns: Sequence[float],
    groups: Sequence[int] | None = None,
    episodes: Sequence[int] | None = None,
    rewards: Sequence[Sequence[float]] | None = None,
    truncated: Sequence[bool] | None = None,
    turns: Sequence[Sequence[int]] | None = None,
    anchors: Sequence[Sequence[int]] | None = None,
    greedy_returns: Sequence[float] | None = None,
) -> Batch:
    """Return a batch with the given loss mask [B, T].

    By default it is one group in which every row is an episode, of one turn that answers the same observation.
    """
    mask = np.array(loss_mask, np.bool_)
    size = len(mask)
    return Batch(
        token_ids=np.zeros(mask.shape, np.int64),
        attention_mask=np.ones(mask.shape, np.bool_),
        loss_mask=mask,
        rollout_logprobs=np.zeros(mask.shape, np.float32),
        rewards=np.array(rewards if rewards is not None else np.zeros(mask.shape), np.float32),
        returns=np.array(returns, np.float32),
        group_ids=np.array(groups if groups is not None else [0] * size, np.int64),
        episode_ids=np.array(episodes if episodes is not None else range(size), np.int64),
        truncated=np.array(truncated if truncated is not None else [False] * size, np.bool_),
        cut_by_length=np.zeros(size, np.bool_),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        start_versions=np.zeros(size, np.int32),
        turns=np.array(turns if turns is not None else np.where(mask, 0, -1), np.int32),
        anchors=np.array(anchors if anchors is not None else np.where(mask, 0, -1), np.int32),
        greedy_returns=np.array(greedy_returns if greedy_returns is not None else [np.nan] * size, np.float32),
    )


def make_random_batch(
    *,
    num_groups: int = 3,
    group_size: int = 4,
    prompt: int = 6,
    response: int = 10,
    seed: int = 0,
) -> Batch:
    """Return rows of random tokens below 32: prompt, response with an observation in its middle, padding.

    The returns of group 0 are equal, so its advantages are zero; those of the other groups are mixed. Every episode has
    two turns, parted by the observation, of which the last one is rewarded; half of the second turns answer the same
    observation. The greedy returns are 0.25.
    """
    rng = np.random.default_rng(seed)
    size, width = num_groups * group_size, prompt + response
    lengths = rng.integers(prompt + 4, width + 1, size)
    column = np.arange(width)
    attended = column < lengths[:, None]
    observed = (column >= prompt + 2) & (column < prompt + 4)
    batch = make_rows(attended & (column >= prompt) & ~observed, returns=np.arange(size) % group_size % 2)
    batch.token_ids = np.where(attended, rng.integers(1, 32, (size, width)), 0)
    batch.attention_mask = attended
    batch.rollout_logprobs = np.where(batch.loss_mask, rng.normal(-3.4, 0.3, (size, width)), 0).astype(np.float32)
    batch.group_ids = np.arange(size) // group_size
    batch.returns[batch.group_ids == 0] = 1.0
    last = np.where(batch.loss_mask, column, 0).max(1)
    batch.rewards[np.arange(size), last] = batch.returns
    batch.turns = np.where(batch.loss_mask, (column >= prompt + 4).astype(np.int32), -1).astype(np.int32)
    batch.anchors = np.where(batch.turns == 1, 1 + np.arange(size)[:, None] % 2, batch.turns).astype(np.int32)
    batch.greedy_returns[:] = 0.25
    return batch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A model this small gains nothing from threads where tests run beside one another."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def rows() -> Callable[..., Batch]:
    """Make a batch from a loss mask."""
    return make_rows


@pytest.fixture(scope="session")
def random_batch() -> Callable[..., Batch]:
    """Make a batch of random tokens."""
    return make_random_batch


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer Llama of 32 tokens (weights of the output tied) and a word tokenizer."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny_policy")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=32,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=48,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            initializer_range=0.2,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(32)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w0").save_pretrained(folder)
    return folder
