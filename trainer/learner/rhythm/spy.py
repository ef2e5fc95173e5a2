"""Reads the attention maps of a model while it runs: layer by layer, only of the heads that are asked for."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rollcage.errors import UserError

NAME = "rollcage_attention_maps"
MAP_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}
"""So many elements of a layer's maps exist at a time, by device: what a cache holds, and what a GPU is busy with."""
MIN_QUERIES, MAX_QUERIES = 16, 128
"""... but at least so many rows of one text's map, and at most: a block has the keys up to its last query."""


class SeenAll(Exception):
    """The last layer to look at has been seen."""


@dataclass(slots=True)
class Spy:
    """What is read in a pass.

    The pass goes on with the attention that the model has set, or raises `SeenAll`; maps come from the model's own
    eager attention beside it, from the same queries and keys, without values and without gradient.

    Attributes:
        heads: numbers, int64 [h], of the heads to look at in each layer to look at; None: all.
        see: gets a layer's number, some of the pass's rows, the first query's number and those heads' maps from there
            on: [b, h, n, m], float32 on a CPU; n queries against keys 0..m - 1.
        whole: let it see a layer's maps in one piece; else in pieces of `MAP_ELEMENTS`.
        first: the first query to look at.
        stop: end the pass after the last layer that is looked at.
        seconds: what has been spent on maps.
    """

    heads: Mapping[int, Tensor | None]
    see: Callable[[int, slice, int, Tensor], None]
    whole: bool = False
    first: int = 0
    stop: bool = False
    seconds: float = 0.0
    others: str = "eager"
    masks: Callable[..., Any] | None = None

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        """Be the attention of ``module``: see transformers' AttentionInterface."""
        from transformers import AttentionInterface

        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        if module.layer_idx in self.heads and eager is not None:
            start_s = time.perf_counter()
            with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
                self._read(eager, module, query.detach(), key.detach(), attention_mask, options)
            self.seconds += time.perf_counter() - start_s
            if self.stop and module.layer_idx == max(self.heads):
                raise SeenAll
        other = eager if self.others == "eager" else AttentionInterface()[self.others]
        if other is None:
            raise UserError(f"{type(module).__name__} has no eager attention: its maps cannot be read.")
        return other(module, query, key, value, attention_mask, **options)[0], None

    def _read(
        self,
        eager: Any,
        module: Any,
        query: Tensor,
        key: Tensor,
        attention_mask: Tensor | None,
        options: dict[str, Any],
    ) -> None:
        (size, num_heads, length), heads = query.shape[:3], self.heads[module.layer_idx]
        alone = copy.copy(module)  # of the module, not of its weights
        alone.training = False  # no dropout in maps
        # An attention with weights of its own (sinks) has one for each head, and must see all of them.
        early = heads is not None and next(module.parameters(recurse=False), None) is None
        if heads is not None and early:
            key = key[:, heads // (num_heads // key.shape[1])]  # each head with a key of its own
            query, alone.num_key_value_groups = query[:, heads], 1
            num_heads = len(heads)
        if query.device.type == "cpu":
            query, key = query.float(), key.float()  # bfloat16 is no faster there
        most = size * num_heads * length**2 if self.whole else MAP_ELEMENTS[query.device.type]
        step = length if self.whole else min(MAX_QUERIES, max(MIN_QUERIES, most // (num_heads * length)))
        for first in range(self.first, length, step):
            end = min(first + step, length)  # causal: what comes later is not attended to
            mask = _additive(attention_mask, first, end, query, options.get("sliding_window"))
            num_rows = max(1, most // (num_heads * (end - first) * end))
            for row in range(0, size, num_rows):
                rows = slice(row, row + num_rows)
                keys, own_mask = key[rows, :, :end], mask if len(mask) == 1 else mask[rows]
                maps = eager(alone, query[rows, :, first:end], keys, keys[..., :0], own_mask, **options)[1]
                self.see(module.layer_idx, rows, first, maps if heads is None or early else maps[:, heads])
                del maps


def _additive(mask: Tensor | None, first: int, end: int, query: Tensor, sliding_window: int | None) -> Tensor:
    """Return what is added to the scores of queries first..end - 1 against keys 0..end - 1, [1 or B, 1, n, m].

    0 where they attend, the least number elsewhere. ``mask`` is what the attention that is set gets: None (causal),
    bool [B, 1, T, T] (True: attends) or additive already.
    """
    least = torch.finfo(query.dtype).min
    if mask is None:
        blocked = torch.full((1, 1, end - first, end), least, dtype=query.dtype, device=query.device)
        later = blocked.triu(first + 1)
        return later if sliding_window is None else later + blocked.tril(first - sliding_window)
    part = mask[:, :, first:end, :end]
    if part.dtype != torch.bool:
        return part
    return torch.zeros(part.shape, dtype=query.dtype, device=query.device).masked_fill(~part, least)


_current = threading.local()


def _attend(*args: Any, **options: Any) -> Any:
    spy: Spy = _current.spy
    return spy.attend(*args, **options)


def _mask(*args: Any, **options: Any) -> Any:
    spy: Spy = _current.spy
    assert spy.masks is not None  # `watched` sets it
    return spy.masks(*args, **options)


@contextmanager
def watched(model: Any, spy: Spy, *, keep_masks: bool = True) -> Iterator[None]:
    """Let ``spy`` see the passes that ``model``, a transformers model, makes meanwhile on this thread.

    Args:
        model: its weights, mode and results are left as they are.
        spy: used once.
        keep_masks: the model's own attention gets the masks that it wants, as ever: exact, and as fast as ever, for
            passes without padding mask and without packed rows where it is flash attention. Else all masks are whole
            ones, and flash attention, which cannot take them, is replaced.
    """
    import transformers
    from transformers.masking_utils import eager_mask

    before = model.config._attn_implementation
    registry = transformers.AttentionMaskInterface()
    if keep_masks:
        spy.others, spy.masks = before, registry[before]
    else:
        whole = before.startswith("sdpa") or before == "eager"
        spy.others, spy.masks = before if whole else "sdpa" if model._supports_sdpa else "eager", eager_mask
    transformers.AttentionInterface.register(NAME, _attend)
    transformers.AttentionMaskInterface.register(NAME, _mask)
    model.set_attn_implementation(NAME)
    _current.spy = spy
    try:
        yield
    finally:
        _current.spy = None
        model.set_attn_implementation(before)
