"""The attention model: one pass of a language model that leaves curves per head instead of attention maps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rollcage.errors import UserError
from rollcage.trainer.learner.rhythm.heads import sample_layers
from rollcage.trainer.learner.rhythm.maps import MapSums, fai_window

NAME = "rollcage_attention_maps"
QUERY_BLOCK = 128
"""So many rows of a layer's map exist at a time, unless somebody wants to see it whole."""

OnMap = Callable[[int, Tensor], None]
"""Gets a layer's number and its map, [B, H, T, T], which is gone when the call returns unless it is kept."""


@dataclass(frozen=True, slots=True)
class Curves:
    """What one pass leaves, for L layers of H heads and B rows of T tokens.

    Attributes:
        layers: numbers of the L layers.
        spans: float32 [L, H]; sums over the response tokens t of ``sum_s A_ts (t - s)``; divided by ``num_tokens``:
            the head span d. As sums, those of several passes can be added.
        num_tokens: response tokens.
        waad: float32 [L, H, B, T]; see `maps.waad`.
        fai: float32 [L, H, B, T]; see `maps.fai`.
    """

    layers: tuple[int, ...]
    spans: Tensor
    num_tokens: int
    waad: Tensor
    fai: Tensor


def attention_curves(
    model: Any,
    token_ids: Tensor,
    attention_mask: Tensor | None,
    response_mask: Tensor,
    layers: Sequence[int] | None = None,
    window: int = 10,
    h_lo: int = 10,
    h_hi: int = 100,
    position_ids: Tensor | None = None,
    on_map: OnMap | None = None,
    forward: Callable[[], object] | None = None,
) -> Curves:
    """Run ``model`` over prompt and response once and return the curves of every head.

    Works with every transformers decoder that takes its attention from transformers' AttentionInterface. The layers
    looked at use the model's own eager attention, block of queries by block; the others the one that is set. Layers
    after the last one looked at do not run, and neither does the output embedding.

    Args:
        model: a transformers causal language model; its weights and its mode are left as they are.
        token_ids: int64 [B, T], on the model's device.
        attention_mask: bool or int [B, T], 0 on padding, on either side; None: no padding, or only on the right.
        response_mask: bool [B, T]; R, the trainable response tokens.
        layers: numbers of the layers to look at; None: `heads.sample_layers`.
        window: W of WAAD, in tokens.
        h_lo: begin of FAI's window, in tokens.
        h_hi: end of FAI's window, in tokens.
        position_ids: int64 [B, T]; needed for rows that hold several sequences one after the other (packed): each
            counts from 0. Padding at a row's end is a sequence too. ``attention_mask`` is not used then.
        on_map: gets every map whole, layer by layer.
        forward: runs the model in place of this function: on the same tokens, all layers (ZeRO 3 wants that).

    Raises:
        UserError: the model's attention cannot be read.
        ValueError: no such layer.
    """
    num_layers = model.config.get_text_config().num_hidden_layers
    chosen = tuple(sample_layers(num_layers) if layers is None else layers)
    if not chosen or not all(0 <= layer < num_layers for layer in chosen):
        raise ValueError(f"layers {list(chosen)} of a model with {num_layers}")
    sums: dict[int, MapSums] = {}

    def see(layer: int, first: int, block: Tensor) -> None:
        if layer not in sums:
            sums[layer] = MapSums.zeros(block.shape[1], response_mask)
        sums[layer].add(block, first, response_mask, window=window, h_lo=h_lo, h_hi=h_hi)
        if on_map is not None:
            on_map(layer, block)

    spy = _Spy(frozenset(chosen), see, None if on_map else QUERY_BLOCK, stop=forward is None)
    with torch.no_grad(), _watched(model, spy):
        try:
            if forward is not None:
                forward()
            else:
                model.base_model(
                    input_ids=token_ids,
                    attention_mask=None if position_ids is not None else attention_mask,
                    position_ids=position_ids,
                    use_cache=False,
                )
        except _SeenAll:
            pass
    unseen = [layer for layer in chosen if layer not in sums]
    if unseen:
        raise UserError(
            f"{type(model).__name__}: layers {unseen} give no attention map to transformers' AttentionInterface: use a "
            "model with softmax attention in these layers, or name others."
        )
    segments = None if position_ids is None else (position_ids == 0).long().cumsum(1)
    size = fai_window(response_mask, h_lo, h_hi, segments).clamp(min=1)
    return Curves(
        layers=chosen,
        spans=torch.stack([sums[layer].span for layer in chosen]),
        num_tokens=int(response_mask.sum()),
        waad=torch.stack([sums[layer].waad.transpose(0, 1) for layer in chosen]),
        fai=torch.stack([(sums[layer].received / size[:, None]).transpose(0, 1) for layer in chosen]),
    )


def unpack(packed: Tensor, position_ids: Tensor) -> Tensor:
    """Return the sequences in packed rows [B, T, ...] as rows of their own, [N, T', ...], padded with 0 on the right.

    In order of row and place; ``position_ids``, int64 [B, T], begin with 0 at each sequence's start.
    """
    starts = [(row, int(place)) for row, ids in enumerate(position_ids) for place in (ids == 0).nonzero()[:, 0]]
    parts = []
    for (row, start), following in zip(starts, [*starts[1:], (-1, 0)], strict=True):
        parts.append(packed[row, start : following[1] if following[0] == row else None])
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


class _SeenAll(Exception):
    """The last layer to look at has been seen."""


@dataclass(slots=True)
class _Spy:
    """What the registered attention function does in a pass."""

    layers: frozenset[int]
    see: Callable[[int, int, Tensor], None]
    block: int | None
    stop: bool
    others: str = "eager"

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        from transformers import AttentionInterface

        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        if module.layer_idx not in self.layers or eager is None:
            other = eager if self.others == "eager" else AttentionInterface()[self.others]
            if other is None:
                raise UserError(f"{type(module).__name__} has no eager attention: its maps cannot be read.")
            return other(module, query, key, value, attention_mask, **options)[0], None
        length, outputs = query.shape[2], []
        step = self.block or length
        for first in range(0, length, step):
            end = min(first + step, length)
            keys = end if self.block else length  # causal: what comes later is not attended to
            mask = None if attention_mask is None else attention_mask[:, :, first:end, :keys]
            output, weights = eager(
                module, query[:, :, first:end], key[:, :, :keys], value[:, :, :keys], mask, **options
            )
            self.see(module.layer_idx, first, weights)
            outputs.append(output)
            del weights
        if self.stop and module.layer_idx == max(self.layers):
            raise _SeenAll
        return torch.cat(outputs, 1), None


_current = threading.local()


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> Any:
    spy: _Spy = _current.spy
    return spy.attend(module, query, key, value, attention_mask, **options)


@contextmanager
def _watched(model: Any, spy: _Spy) -> Iterator[None]:
    """Let ``spy`` compute the model's attention meanwhile."""
    import transformers
    from transformers.masking_utils import eager_mask

    before = model.config._attn_implementation
    fast = before.startswith("sdpa") or before == "eager"  # flash attention takes no mask as eager attention wants it
    spy.others = before if fast else "sdpa" if model._supports_sdpa else "eager"
    transformers.AttentionInterface.register(NAME, _attend)
    transformers.AttentionMaskInterface.register(NAME, eager_mask)
    model.set_attn_implementation(NAME)
    _current.spy = spy
    try:
        yield
    finally:
        _current.spy = None
        model.set_attn_implementation(before)
