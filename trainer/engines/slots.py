"""The local engine's key-value cache: fixed slots, so that a sequence can join or leave the batch at any step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

ATTENTION = "rollcage_slots"
"""Name under which `register_attention` makes the attention function known to transformers."""


_FIRST_COLUMNS = 64


class SlotCache(Cache):
    """Keys and values of ``num_slots`` sequences; column c of a slot holds the token at position c.

    A forward pass works on the neighbouring slots that `aim` chose: it writes the new tokens' columns and attends to
    a view of the first ``length`` columns, so nothing grows or is copied. Columns beyond a sequence's end hold what
    an earlier sequence left there; the caller's attention mask hides them, and they must stay finite (`clear`).
    One column behind the last takes what padding tokens write. The number of columns doubles when a sequence needs
    more, so memory follows the longest sequence, and short ones lie close together.
    """

    def __init__(self, num_slots: int, max_tokens: int) -> None:
        """Room for ``num_slots`` sequences of at most ``max_tokens`` tokens; taken at the first forward pass."""
        self.num_slots = num_slots
        self.num_columns = min(_FIRST_COLUMNS, max_tokens) + 1
        self._max_columns = max_tokens + 1
        self.rows = slice(0, 0)
        self.length = 0
        self._columns = torch.empty(0)
        self._writes: torch.Tensor | None = None
        super().__init__(layer_class_to_replicate=partial(_SlotLayer, self))

    def aim(self, first: int, columns: torch.Tensor, length: int) -> None:
        """Choose where the next forward pass reads and writes.

        Args:
            first: its sequences are slots ``first``, ``first + 1``, ...
            columns: [B, Q] column of each new token; ``max_tokens`` for padding.
            length: attend to columns 0 to ``length - 1``.
        """
        self.rows = slice(first, first + len(columns))
        self.length = length
        if length >= self.num_columns:
            self.num_columns = min(max(2 * self.num_columns, length + 1), self._max_columns)
            for layer in self.layers:
                layer.resize(self.num_columns)
        self._columns = columns.clamp(max=self.num_columns - 1)
        self._writes = None

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` columns of each source slot to the target slot beside it; all read first."""
        for layer in self.layers:
            for states in (layer.keys, layer.values):
                if len(sources) == 1:  # plain slices: no gather
                    states[targets[0], :length] = states[sources[0], :length]
                else:
                    states[list(targets), :length] = states[list(sources), :length]

    def clear(self, slot: int) -> None:
        """Zero a slot that may hold NaN or inf, which no mask would hide from the next sequence there."""
        for layer in self.layers:
            layer.keys[slot] = 0
            layer.values[slot] = 0

    def writes(self) -> torch.Tensor:
        """Return [B * Q] where the new tokens go in a layer seen as [slots * columns, H * D]."""
        if self._writes is None:
            rows = torch.arange(self.rows.start, self.rows.stop, device=self._columns.device)
            self._writes = (rows[:, None] * self.num_columns + self._columns).view(-1)
        return self._writes


class _SlotLayer(CacheLayerMixin):
    """One layer: keys and values [slots, columns, H, D], so that a token of a sequence is one write."""

    is_sliding = False

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self.cache = cache
        self.keys: Any = None
        self.values: Any = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        def room(states: torch.Tensor) -> torch.Tensor:
            shape = (self.cache.num_slots, self.cache.num_columns, states.shape[1], states.shape[-1])
            return torch.zeros(shape, dtype=states.dtype, device=states.device)

        self.keys, self.values = room(key_states), room(value_states)
        self.is_initialized = True

    def resize(self, num_columns: int) -> None:
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(old.shape[0], num_columns, *old.shape[2:])
            new[:, : old.shape[1] - 1] = old[:, :-1]
            setattr(self, name, new)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new states [B, H, Q, D]; return views [B, H, length, D] of all that may be attended to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        writes = self.cache.writes()
        for states, new in ((self.keys, key_states), (self.values, value_states)):
            tokens = states.flatten(0, 1).flatten(1)
            tokens.index_copy_(0, writes, new.transpose(1, 2).reshape(-1, tokens.shape[1]))
        rows, length = self.cache.rows, self.cache.length
        return self.keys[rows, :length].transpose(1, 2), self.values[rows, :length].transpose(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.cache.num_columns - 1


def register_attention() -> str:
    """Make `slot_attention` known to transformers under the name `ATTENTION`, which is returned; idempotent."""
    AttentionInterface.register(ATTENTION, slot_attention)
    return ATTENTION


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention in which the query heads that share a key head become further query tokens.

    So grouped-query attention reads each key and value once, where repeating them copies the cache at every step
    (three times slower on a CPU).

    Args:
        query: [B, H, Q, D].
        key, value: [B, K, length, D], H a multiple of K.
        attention_mask: [B or 1, 1, Q, length], added to the scores.

    Returns:
        [B, Q, H, D] and None, as transformers wants it.

    Raises:
        NotImplementedError: the model's attention has more to it (sinks, soft caps, position biases).
    """
    extras = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if extras or attention_mask is None:
        raise NotImplementedError(f"attention with {', '.join(extras) or 'no mask'}")
    batch, num_heads, num_queries, _ = query.shape
    groups = num_heads // key.shape[1]
    if groups > 1:
        query = query.reshape(batch, key.shape[1], groups * num_queries, query.shape[-1])
        if num_queries > 1:
            attention_mask = attention_mask.repeat(1, 1, groups, 1)
    mixed = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    return mixed.reshape(batch, num_heads, num_queries, value.shape[-1]).transpose(1, 2), None
