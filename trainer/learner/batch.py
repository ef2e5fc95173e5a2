"""The training batch: padded arrays, each with its shape and meaning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from rollcage.trainer.types import Group, Trajectory


@dataclass(slots=True)
class Batch:
    """B rows (segments of trajectories) of at most T tokens, padded on the right; ordered by sample id.

    Attributes:
        token_ids: int64 [B, T]; 0 on padding.
        attention_mask: bool [B, T]; False on padding.
        loss_mask: bool [B, T]; True on tokens the policy sampled. Column 0 is never True: it has no prediction.
        rollout_logprobs: float32 [B, T]; the sampler's log-probability of token t given those before it; 0 elsewhere.
        rewards: float32 [B, T]; a turn's reward on that turn's last trainable token, 0 elsewhere.
        returns: float32 [B]; the whole episode's return, the same on every row of an episode.
        group_ids: int64 [B]; rows of one task share it.
        episode_ids: int64 [B]; rows of one episode share it (0-based, dense).
        truncated: bool [B]; the episode ended at a limit.
        cut_by_length: bool [B]; a message of the episode was cut by the token limit.
        policy_versions: int32 [B, T]; version that sampled the token, -1 elsewhere.
        start_versions: int32 [B]; version that started the episode.
        turns: int32 [B, T]; 0-based turn of the episode in which the policy sampled the token, -1 elsewhere.
        anchors: int32 [B, T]; number of the observation that the token's turn answers, -1 elsewhere: equal numbers,
            equal texts. (The batch holds the texts' numbers rather than hashes: those could collide.)
        greedy_returns: float32 [B]; return of the group's greedy rollout, NaN where there was none.
    """

    token_ids: npt.NDArray[np.int64]
    attention_mask: npt.NDArray[np.bool_]
    loss_mask: npt.NDArray[np.bool_]
    rollout_logprobs: npt.NDArray[np.float32]
    rewards: npt.NDArray[np.float32]
    returns: npt.NDArray[np.float32]
    group_ids: npt.NDArray[np.int64]
    episode_ids: npt.NDArray[np.int64]
    truncated: npt.NDArray[np.bool_]
    cut_by_length: npt.NDArray[np.bool_]
    policy_versions: npt.NDArray[np.int32]
    start_versions: npt.NDArray[np.int32]
    turns: npt.NDArray[np.int32]
    anchors: npt.NDArray[np.int32]
    greedy_returns: npt.NDArray[np.float32]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.token_ids)


def make_batch(groups: Sequence[Group]) -> Batch:
    """Pad the trajectories of ``groups`` into one `Batch`, ordered by sample id.

    Raises:
        ValueError: a segment's lists differ in length, or a trajectory has no segment.
    """
    trajectories = sorted((t for group in groups for t in group.trajectories), key=lambda t: t.sample_id)
    greedy = {g.id: np.nan if g.greedy_return is None else g.greedy_return for g in groups}
    rows = []
    for episode_id, trajectory in enumerate(trajectories):
        if not trajectory.segments:
            raise ValueError(f"trajectory {trajectory.sample_id} has no tokens to train on")
        for index, segment in enumerate(trajectory.segments):
            lengths = {
                len(segment.token_ids),
                len(segment.loss_mask),
                len(segment.rollout_logprobs),
                len(segment.policy_versions),
            }
            if len(lengths) != 1:
                raise ValueError(f"trajectory {trajectory.sample_id}: lists of unequal lengths {sorted(lengths)}")
            rows.append((episode_id, trajectory, index, segment))
    num_rows, num_tokens = len(rows), max((len(row[3].token_ids) for row in rows), default=0)
    shape = (num_rows, num_tokens)
    batch = Batch(
        token_ids=np.zeros(shape, np.int64),
        attention_mask=np.zeros(shape, np.bool_),
        loss_mask=np.zeros(shape, np.bool_),
        rollout_logprobs=np.zeros(shape, np.float32),
        rewards=np.zeros(shape, np.float32),
        returns=np.array([t.return_ for _, t, _, _ in rows], np.float32),
        group_ids=np.array([t.sample_id[0] for _, t, _, _ in rows], np.int64),
        episode_ids=np.array([episode_id for episode_id, _, _, _ in rows], np.int64),
        truncated=np.array([t.truncated for _, t, _, _ in rows], np.bool_),
        cut_by_length=np.array([t.cut_by_length for _, t, _, _ in rows], np.bool_),
        policy_versions=np.full(shape, -1, np.int32),
        start_versions=np.array([t.start_version for _, t, _, _ in rows], np.int32),
        turns=np.full(shape, -1, np.int32),
        anchors=np.full(shape, -1, np.int32),
        greedy_returns=np.array([greedy[t.sample_id[0]] for _, t, _, _ in rows], np.float32),
    )
    segments = [row[3] for row in rows]
    batch.attention_mask[:] = np.arange(num_tokens) < np.array([len(s.token_ids) for s in segments])[:, None]
    _fill(batch.token_ids, batch.attention_mask, (s.token_ids for s in segments))
    _fill(batch.loss_mask, batch.attention_mask, (s.loss_mask for s in segments))
    _fill(batch.rollout_logprobs, batch.attention_mask, (s.rollout_logprobs for s in segments))
    _fill(batch.policy_versions, batch.attention_mask, (s.policy_versions for s in segments))
    _place_turns(batch, trajectories)
    return batch


def _fill(array: npt.NDArray[Any], attention_mask: npt.NDArray[np.bool_], values: Iterable[Sequence[Any]]) -> None:
    """Write the values of all rows at once: one by one, the many short rows of a large batch take most of its time."""
    array[attention_mask] = np.fromiter(chain.from_iterable(values), array.dtype)


def _place_turns(batch: Batch, trajectories: Sequence[Trajectory]) -> None:
    """Write rewards, turns and anchors of all episodes, whose segments fill the rows in order.

    The reward of a turn without tokens goes to the last token before it, or where there is none, after it.
    """
    width = batch.turns.shape[1]
    numbers_of: dict[str, int] = {}
    first_row = 0
    starts, ends, numbers, anchors = list[int](), list[int](), list[int](), list[int]()  # positions in the flat array
    rewards: dict[int, float] = {}
    for trajectory in trajectories:
        observation, carried, last = trajectory.prompt, 0.0, -1
        for number, turn in enumerate(trajectory.turns):
            if turn.end > turn.start:
                begin = (first_row + turn.segment) * width
                starts.append(begin + turn.start)
                ends.append(begin + turn.end)
                numbers.append(number)
                anchors.append(numbers_of.setdefault(observation, len(numbers_of)))
                last = begin + turn.end - 1
            carried += turn.reward
            if last >= 0:
                rewards[last] = rewards.get(last, 0.0) + carried
                carried = 0.0
            observation = turn.observation
        first_row += len(trajectory.segments)
    begins, lengths = np.array(starts, np.int64), np.array(ends, np.int64) - np.array(starts, np.int64)
    # the positions of the tokens of all turns, turn after turn
    positions = np.arange(lengths.sum()) + np.repeat(begins - np.cumsum(lengths) + lengths, lengths)
    batch.turns.reshape(-1)[positions] = np.repeat(np.array(numbers, np.int32), lengths)
    batch.anchors.reshape(-1)[positions] = np.repeat(np.array(anchors, np.int32), lengths)
    batch.rewards.reshape(-1)[np.array(list(rewards), np.int64)] = list(rewards.values())
