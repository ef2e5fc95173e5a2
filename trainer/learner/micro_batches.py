"""Which rows go through the model together: shares of the ranks, and micro-batches within a token budget."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
"""Row numbers of the batch, [b]."""


def plan_micro_batches(
    rows: Rows, lengths: npt.NDArray[np.int64], num_ranks: int, micro_batch_tokens: int
) -> list[list[Rows]]:
    """Return every rank's micro-batches, the same number for each rank (short ones are filled up with empty ones).

    Rows are sorted by length and dealt out in turn, so that ranks get equal work and micro-batches little padding.

    Args:
        rows: the rows to train on.
        lengths: tokens of *every* row of the batch, indexed by row number.
        num_ranks: number of shares.
        micro_batch_tokens: most tokens of a micro-batch, padding included; a longer row stands alone.
    """
    by_length = rows[np.argsort(-lengths[rows], kind="stable")]
    turn, place = np.divmod(np.arange(len(by_length)), num_ranks)
    # Every second turn is dealt backwards: otherwise rank 0 would always get the longest row of a turn.
    rank_of_row = np.where(turn % 2 == 0, place, num_ranks - 1 - place)
    plan = [_cut(by_length[rank_of_row == rank], lengths, micro_batch_tokens) for rank in range(num_ranks)]
    most = max(1, *(len(micro_batches) for micro_batches in plan))
    empty = np.zeros(0, np.int64)
    return [micro_batches + [empty] * (most - len(micro_batches)) for micro_batches in plan]


def split_episodes(episode_ids: npt.NDArray[np.int64], num_parts: int, rng: np.random.Generator) -> list[Rows]:
    """Divide the rows at random into ``num_parts`` mini-batches of whole episodes, as equal as can be, none empty."""
    episodes = rng.permutation(np.unique(episode_ids))
    parts = np.array_split(episodes, min(num_parts, len(episodes)))
    return [np.flatnonzero(np.isin(episode_ids, part)) for part in parts]


def _cut(rows: Rows, lengths: npt.NDArray[np.int64], budget: int) -> list[Rows]:
    """Cut rows, longest first, into micro-batches of at most ``budget`` padded tokens."""
    micro_batches, start = [], 0
    while start < len(rows):
        size = max(1, int(budget // lengths[rows[start]]))
        micro_batches.append(rows[start : start + size])
        start += size
    return micro_batches
