"""Teaches a small policy: plain next-token prediction on its messages in demonstrations."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BATCHES_PER_POOL = 16


@dataclass(frozen=True, slots=True)
class PretrainConfig:
    """How the small policy is taught.

    Attributes:
        steps: optimiser steps.
        batch_size: demonstrations of one step.
        lr: peak learning rate, reached after ``warmup_steps`` and lowered linearly to almost nothing.
        warmup_steps: see lr.
        seed: of the weights, the order of batches and, with the demonstrations' own, of all that is made.
    """

    steps: int
    batch_size: int = 64
    lr: float = 6e-3
    warmup_steps: int = 20
    seed: int = 0


def build_model(tokenizer: PreTrainedTokenizerFast, num_layers: int, width: int) -> LlamaForCausalLM:
    """Return the untaught model: layers of four heads; 0.2 million parameters each at a width of 128."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        initializer_range=0.04,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def pretrain(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    demonstrations: Iterator[tuple[str, ...]],
    config: PretrainConfig,
) -> Iterator[float]:
    """Teach ``model`` in place; yields the loss of each step (nats per token of the messages).

    Muon for the matrices, AdamW for the rest: here Muon needs about half the steps that AdamW alone does.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=config.lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=config.lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    model.train()
    for step, (input_ids, labels) in enumerate(islice(_batches(tokenizer, demonstrations, config), config.steps)):
        rate = config.lr * min(1.0, (step + 1) / config.warmup_steps) * max(0.02, 1 - step / config.steps)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        logits = model(input_ids=input_ids, use_cache=False).logits[:, :-1]  # [B, T - 1, V]
        is_taught = labels[:, 1:] >= 0  # [B, T - 1]
        loss = functional.cross_entropy(logits[is_taught], labels[:, 1:][is_taught])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()


def _batches(
    tokenizer: PreTrainedTokenizerFast, demonstrations: Iterator[tuple[str, ...]], config: PretrainConfig
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield input ids and labels, both [B, T]; a label is -100 where nothing is taught: observations, padding."""
    rng = random.Random(config.seed)
    size = config.batch_size
    while pool := list(islice(demonstrations, size * BATCHES_PER_POOL)):
        rows = sorted((_encode(tokenizer, texts) for texts in pool), key=lambda row: len(row[0]))
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]  # of alike lengths: less padding
        rng.shuffle(batches)
        for batch in batches:
            yield _padded((ids for ids, _ in batch), tokenizer.pad_token_id), _padded((y for _, y in batch), -100)


def _encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the ids of a conversation, observation and action in turn, and its labels."""
    messages: list[dict[str, Any]] = []
    ids: list[int] = []
    labels: list[int] = []
    rendered = ""
    for role, text in zip(cycle(("user", "assistant")), texts, strict=False):
        messages.append({"role": role, "content": text})
        before = rendered
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=role == "user")
        new = tokenizer(rendered.removeprefix(before)).input_ids
        ids += new
        labels += new if role == "assistant" else [-100] * len(new)
    return ids, labels


def _padded(rows: Iterable[list[int]], value: int) -> torch.Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
