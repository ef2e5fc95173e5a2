"""What is kept of an attention map: how far each token looks back, and how much it is looked at later. Pure functions.

A map A is [B, H, T, T]: ``A[b, h, t, s]`` is how much token t attends to token s. All results are float32, per head,
and need O(T) each, so that no map has to outlive its layer. (Section 3 of arXiv 2510.13554.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class MapSums:
    """What has been added up of maps, query block by query block: of one layer's, or of the mean of several heads'.

    Attributes:
        span: [H]; sum over response tokens t and s <= t of ``A_ts (t - s)``.
        waad: [B, H, T]; see `waad`.
        received: [B, H, T]; the sum that `fai` divides by the window's size.
    """

    span: Tensor
    waad: Tensor
    received: Tensor

    @classmethod
    def zeros(cls, num_heads: int, response_mask: Tensor) -> MapSums:
        """Return empty sums for rows with ``response_mask``, bool [B, T]."""
        shape, device = (len(response_mask), num_heads, response_mask.shape[1]), response_mask.device
        return cls(
            torch.zeros(num_heads, device=device), torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        )

    def add_span(self, block: Tensor, first: int, response_mask: Tensor) -> None:
        """Add the rows of a map from query ``first`` on to the spans.

        Args:
            block: [b, H, n, m]; queries first..first + n - 1 against keys 0..m - 1, with m >= first + n.
            first: number of the first query.
            response_mask: bool [b, T].
        """
        end = first + block.shape[2]
        reach = torch.einsum("bhts,ts->bht", block[..., :end].float(), _distance(block, first, 0, end))
        self.span += (reach * response_mask[:, None, first:end]).sum((0, 2))

    def add_waad(self, block: Tensor, first: int, window: int = 10, rows: slice = slice(None)) -> None:
        """Add them to WAAD.

        Args:
            block: see `add_span`.
            first: see `add_span`.
            window: W of `waad`.
            rows: which of the B rows the block is of.
        """
        end = first + block.shape[2]
        distance = _distance(block, first, 0, end).clamp(max=window)
        self.waad[rows, :, first:end] += torch.einsum("bhts,ts->bht", block[..., :end].float(), distance)

    def add_fai(
        self,
        block: Tensor,
        first: int,
        response_mask: Tensor,
        h_lo: int = 10,
        h_hi: int = 100,
        rows: slice = slice(None),
    ) -> None:
        """Add them to what FAI is the mean of.

        Args:
            block: see `add_span`.
            first: see `add_span`.
            response_mask: bool [b, T].
            h_lo: see `fai`.
            h_hi: see `fai`.
            rows: see `add_waad`.
        """
        end = first + block.shape[2]
        low, high = max(0, first - h_hi), end - h_lo
        if low < high:
            distance = _distance(block, first, low, high)
            inside = block[..., low:high].float() * ((distance >= h_lo) & (distance <= h_hi))
            response = response_mask[:, None, None, first:end].to(inside.dtype)
            self.received[rows, :, low:high] += (response @ inside)[:, :, 0]


def _distance(block: Tensor, first: int, low: int, high: int) -> Tensor:
    """Return t - s of the block's queries t and the keys s in low..high - 1, float32 [n, high - low]."""
    queries = torch.arange(first, first + block.shape[2], device=block.device, dtype=torch.float32)
    return queries[:, None] - torch.arange(low, high, device=block.device)


def waad(attention: Tensor, window: int = 10) -> Tensor:
    """Return the windowed average attention distance, ``sum_{s <= t} A_ts min(t - s, W)``, [B, H, T].

    High where a token looks back beyond its chunk, low inside of one. In tokens, from 0 to ``window``.

    Args:
        attention: [B, H, T, T].
        window: W.
    """
    mask = torch.zeros(attention.shape[0], attention.shape[2], dtype=torch.bool, device=attention.device)
    sums = MapSums.zeros(attention.shape[1], mask)
    sums.add_waad(attention, 0, window)
    return sums.waad


def fai(
    attention: Tensor, response_mask: Tensor, h_lo: int = 10, h_hi: int = 100, segments: Tensor | None = None
) -> Tensor:
    """Return the future attention influence, mean over response tokens t of the window of ``A_ts``, [B, H, T].

    The window of s holds the t in R with ``s + h_lo <= t <= min(N, s + h_hi)``; 0 where it is empty.

    Args:
        attention: [B, H, T, T].
        response_mask: bool [B, T]; R.
        h_lo: how many tokens later the window begins; v1 and the later version of the paper: 10.
        h_hi: how many tokens later it ends; v1: 50, later version: 100.
        segments: see `fai_window`.
    """
    sums = MapSums.zeros(attention.shape[1], response_mask)
    sums.add_fai(attention, 0, response_mask, h_lo, h_hi)
    return sums.received / fai_window(response_mask, h_lo, h_hi, segments).clamp(min=1)[:, None]


def head_span(attention: Tensor, response_mask: Tensor) -> Tensor:
    """Return each head's span d, [H]: the mean over response tokens t of ``sum_{s <= t} A_ts (t - s)``, in tokens.

    Args:
        attention: [B, H, T, T].
        response_mask: bool [B, T].
    """
    sums = MapSums.zeros(attention.shape[1], response_mask)
    sums.add_span(attention, 0, response_mask)
    return sums.span / response_mask.sum().clamp(min=1)


def fai_window(response_mask: Tensor, h_lo: int = 10, h_hi: int = 100, segments: Tensor | None = None) -> Tensor:
    """Return how many tokens the FAI window of each token holds, int64 [B, T].

    Args:
        response_mask: bool [B, T].
        h_lo: see `fai`.
        h_hi: see `fai`.
        segments: int64 [B, T]; which of the sequences packed into the row a token belongs to, rising; None: one.
    """
    _, length = response_mask.shape
    before = torch.nn.functional.pad(response_mask.long().cumsum(1), (1, 0))  # response tokens before t
    places = torch.arange(length, device=response_mask.device).expand_as(response_mask)
    if segments is None:
        ends = torch.full_like(places, length)
    else:
        ends = torch.searchsorted(segments.contiguous(), segments.contiguous(), right=True)
    start, stop = torch.minimum(places + h_lo, ends), torch.minimum(places + h_hi + 1, ends)
    return (before.gather(1, stop) - before.gather(1, start)).clamp(min=0)
