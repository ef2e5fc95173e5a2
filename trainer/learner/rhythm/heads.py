"""Which layers to look at, and which heads are local and which global (arXiv 2510.13554)."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LAYERS = 5

Heads = tuple[Tensor, Tensor]
"""Local and global heads, bool [L, H] each."""


def sample_layers(num_layers: int) -> list[int]:
    """Return the layers (0-based, rising) to look at: five, evenly spaced in [floor(L/3), floor(2L/3)].

    A shallow model has fewer in that range: then every one of them.

    >>> sample_layers(30), sample_layers(6), sample_layers(1)
    ([10, 12, 15, 18, 20], [2, 3, 4], [0])

    Raises:
        ValueError: no layers.
    """
    if num_layers < 1:
        raise ValueError(f"a model has at least one layer, not {num_layers}")
    first, last = num_layers // 3, min(2 * num_layers // 3, num_layers - 1)
    if last - first < MAX_LAYERS:
        return list(range(first, last + 1))
    return [round(first + index * (last - first) / (MAX_LAYERS - 1)) for index in range(MAX_LAYERS)]


def pick_heads(spans: Tensor, share: float = 0.3) -> Heads:
    """Return the local and the global heads, bool [L, H] each: those of the shortest and of the longest span.

    The heads of all layers are ranked together; ``floor(share L H)`` of them are local and as many global, at least
    one each; of equal spans the earlier head counts as the shorter.

    Args:
        spans: [L, H] head spans d, or their sums over the same tokens.
        share: of all heads, above 0 and at most 0.5.

    Raises:
        ValueError: ``share`` is out of range.
    """
    if not 0 < share <= 0.5:
        raise ValueError(f"the share of local heads, and of global ones, lies in (0, 0.5], not {share}")
    order = spans.flatten().argsort(stable=True)
    size = max(1, int(share * len(order) + 1e-9))
    chosen = torch.zeros(2, len(order), dtype=torch.bool, device=spans.device)
    chosen[0, order[:size]] = True
    chosen[1, order[len(order) - size :]] = True
    return chosen[0].view(spans.shape), chosen[1].view(spans.shape)


def mean_over(curves: Tensor, heads: Tensor) -> Tensor:
    """Return the mean, [B, T], of per-head curves [L, H, B, T] over the chosen ``heads``, bool [L, H].

    WAAD and FAI are linear in the attention map: the mean of the heads' curves is the curve of their mean map.
    """
    return curves[heads.to(curves.device)].mean(0)
