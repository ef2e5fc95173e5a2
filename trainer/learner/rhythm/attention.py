"""Curves instead of attention maps: of every head, by a pass for them; of two sets of heads, by passes made anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rollcage.errors import UserError
from rollcage.trainer.learner.rhythm.heads import sample_layers
from rollcage.trainer.learner.rhythm.maps import MapSums, fai_window
from rollcage.trainer.learner.rhythm.spy import SeenAll, Spy, watched

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

    Works with every transformers decoder that takes its attention from transformers' AttentionInterface. Maps come
    from the model's own eager attention, block of queries by block, whatever attention is set. Layers after the last
    one looked at do not run, and neither does the output embedding.

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

    def see(layer: int, rows: slice, first: int, block: Tensor) -> None:
        if layer not in sums:
            sums[layer] = MapSums.zeros(block.shape[1], response_mask)
        sums[layer].add_span(block, first, response_mask[rows])
        sums[layer].add_waad(block, first, window, rows)
        sums[layer].add_fai(block, first, response_mask[rows], h_lo, h_hi, rows)
        if on_map is not None:
            on_map(layer, block)

    spy = Spy(dict.fromkeys(chosen), see, whole=on_map is not None, stop=forward is None)
    with torch.no_grad(), watched(model, spy, keep_masks=False):
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
        except SeenAll:
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


@dataclass(slots=True)
class MeanCurves:
    """What `mean_curves` leaves.

    Attributes:
        waad: float32 [B, T], of the local heads' mean map, on response tokens; None where it was not asked for.
        fai: float32 [B, T], of the global heads' mean map; likewise.
        seconds: what was spent on it beside the pass.
    """

    waad: Tensor | None = None
    fai: Tensor | None = None
    seconds: float = 0.0


@contextmanager
def mean_curves(
    model: Any,
    response_mask: Tensor,
    layers: Sequence[int],
    local: Tensor | None,
    global_: Tensor | None,
    *,
    window: int = 10,
    h_lo: int = 10,
    h_hi: int = 100,
) -> Iterator[MeanCurves]:
    """Read WAAD of the local and FAI of the global heads from the one pass that ``model`` makes meanwhile.

    The pass may be one for training: its results and gradients are what they are without this. Only the given heads'
    maps come to be, and only their rows from the first response token on; what is yielded has them afterwards.

    Args:
        model: as for `attention_curves`.
        response_mask: bool [B, T], of the tokens that the model gets: rows with padding on the right or none, and no
            attention mask.
        layers: numbers of the layers that the sets of heads are of.
        local: bool [L, H]; None: no WAAD.
        global_: bool [L, H]; None: no FAI.
        window: W of WAAD, in tokens.
        h_lo: begin of FAI's window, in tokens.
        h_hi: end of FAI's window, in tokens.
    """
    sums = MapSums.zeros(1, response_mask)
    near, far = (
        {} if heads is None else {layer: chosen.nonzero()[:, 0] for layer, chosen in zip(layers, heads, strict=True)}
        for heads in (local, global_)
    )
    none = torch.zeros(0, dtype=torch.int64)
    numbers = {layer: (near.get(layer, none), far.get(layer, none)) for layer in layers}

    def see(layer: int, rows: slice, first: int, block: Tensor) -> None:
        # Curves are linear in the map: those of the heads' sum are the sum of theirs.
        num_near = len(numbers[layer][0])
        if num_near:
            sums.add_waad(_sum_of_heads(block[:, :num_near]), first, window, rows)
        if num_near < block.shape[1]:
            sums.add_fai(_sum_of_heads(block[:, num_near:]), first, response_mask[rows], h_lo, h_hi, rows)

    device, responds = response_mask.device, response_mask.any(0)
    heads = {layer: torch.cat(parts).to(device) for layer, parts in numbers.items()}
    spy = Spy({layer: chosen for layer, chosen in heads.items() if len(chosen)}, see)
    spy.first = int(responds.int().argmax()) if responds.any() else len(responds)
    curves = MeanCurves()
    with watched(model, spy):
        yield curves
    if local is not None:
        curves.waad = sums.waad[:, 0] / int(local.sum())
    if global_ is not None:
        curves.fai = sums.received[:, 0] / int(global_.sum()) / fai_window(response_mask, h_lo, h_hi).clamp(min=1)
    curves.seconds = spy.seconds


def _sum_of_heads(maps: Tensor) -> Tensor:
    """[b, h, n, m] -> [b, 1, n, m]."""
    return maps if maps.shape[1] == 1 else maps.sum(1, keepdim=True)


def unpack(packed: Tensor, position_ids: Tensor) -> Tensor:
    """Return the sequences in packed rows [B, T, ...] as rows of their own, [N, T', ...], padded with 0 on the right.

    In order of row and place; ``position_ids``, int64 [B, T], begin with 0 at each sequence's start.
    """
    starts = [(row, int(place)) for row, ids in enumerate(position_ids) for place in (ids == 0).nonzero()[:, 0]]
    parts = []
    for (row, start), following in zip(starts, [*starts[1:], (-1, 0)], strict=True):
        parts.append(packed[row, start : following[1] if following[0] == row else None])
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
