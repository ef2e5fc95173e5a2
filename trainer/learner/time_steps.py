"""The time steps of a batch: each episode's trainable tokens and turns, over all of its rows.

Prompt and observation tokens are no steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rollcage.trainer.learner.batch import Batch

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EpisodeTokens:
    """The n trainable tokens of one episode, in order, over all of its rows.

    Attributes:
        rows: its row numbers, in order.
        trainable: bool [rows * T]; where they stand.
        rewards: [n]; a reward on another token stands on the last trainable one before it.
    """

    rows: npt.NDArray[np.int64]
    trainable: npt.NDArray[np.bool_]
    rewards: Floats

    def place(self, values: float | Floats, result: Floats) -> None:
        """Write one value for each of the n tokens to its place in ``result`` [B, T]."""
        placed = np.zeros(self.trainable.shape)
        placed[self.trainable] = values
        result[self.rows] = placed.reshape(len(self.rows), -1)


@dataclass(frozen=True, slots=True)
class Turns:
    """All turns of the batch that have a trainable token; each field has one entry per turn.

    Attributes:
        returns: discounted return from the turn on.
        groups, anchors: the task group, and the number of the observation that the turn answers.
        episodes: each episode with the index of its tokens' turns in these fields, [n].
    """

    returns: Floats
    groups: npt.NDArray[np.int64]
    anchors: npt.NDArray[np.int64]
    episodes: list[tuple[EpisodeTokens, npt.NDArray[np.int64]]]

    def on_tokens(self, batch: Batch, values: Floats) -> npt.NDArray[np.float32]:
        """Give each turn's value to all of its trainable tokens."""
        result = np.zeros(batch.loss_mask.shape)
        for episode, turn_of_token in self.episodes:
            episode.place(values[turn_of_token], result)
        return result.astype(np.float32)


def episode_tokens(batch: Batch) -> Iterator[EpisodeTokens]:
    """Yield the episodes that have a trainable token."""
    for rows in members_of(batch.episode_ids):
        trainable = batch.loss_mask[rows].ravel()
        if trainable.any():
            token = np.maximum(np.cumsum(trainable) - 1, 0)
            rewards: Floats = np.bincount(token, weights=batch.rewards[rows].ravel()).astype(np.float64)
            yield EpisodeTokens(rows, trainable, rewards)


def find_turns(batch: Batch, gamma: float) -> Turns:
    """Return the turns of the batch, with their returns discounted by ``gamma`` per turn."""
    returns, groups, anchors, episodes = [], [], [], []
    num_turns = 0
    for episode in episode_tokens(batch):
        # What was sampled outside of a recorded turn belongs to the turn before it.
        numbers = np.maximum.accumulate(batch.turns[episode.rows].ravel()[episode.trainable])
        _, first, turn_of_token = np.unique(numbers, return_index=True, return_inverse=True)
        rewards: Floats = np.bincount(turn_of_token, weights=episode.rewards).astype(np.float64)
        returns.append(discounted(rewards, gamma))
        groups.append(np.full(len(first), batch.group_ids[episode.rows[0]]))
        anchors.append(batch.anchors[episode.rows].ravel()[episode.trainable][first].astype(np.int64))
        episodes.append((episode, turn_of_token + num_turns))
        num_turns += len(first)
    none = [np.zeros(0, np.int64)]
    return Turns(
        np.concatenate([np.zeros(0), *returns]),
        np.concatenate(none + groups),
        np.concatenate(none + anchors),
        episodes,
    )


def discounted(rewards: Floats, gamma: float) -> Floats:
    """Return ``G_t = r_t + gamma G_{t+1}`` of each step."""
    result, running = np.empty(len(rewards)), 0.0
    for step in range(len(rewards) - 1, -1, -1):
        result[step] = running = rewards[step] + gamma * running
    return result


def members_of(numbers: npt.NDArray[np.integer[Any]]) -> list[npt.NDArray[np.int64]]:
    """Return the positions of each number that occurs, each in order."""
    if len(numbers) == 0:
        return []
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
