"""The order in which tasks start: seeded, endless, and known for every position without replaying the ones before."""

from __future__ import annotations

import random
from functools import lru_cache

from rollcage.envs import TaskSet
from rollcage.envs.tasks import check_split
from rollcage.trainer.rollout.seeding import key_seed

_LARGEST_SHUFFLE = 1_000_000


class TaskOrder:
    """Task of group k: passes over the split, each in its own seeded order.

    A split of more than a million tasks is drawn from with replacement: a pass over it would never end anyway.

    Args:
        tasks: the task set.
        split: its split.
        seed: of the order.
    """

    def __init__(self, tasks: TaskSet, split: str, seed: int) -> None:
        self._tasks, self._split, self._seed = tasks, split, seed
        self._size = check_split(tasks, split)
        self._shuffled = lru_cache(maxsize=2)(self._shuffle)

    def _shuffle(self, epoch: int) -> list[int]:
        order = list(range(self._size))
        random.Random(key_seed(self._seed, "epoch", epoch)).shuffle(order)
        return order

    def task_id(self, group_id: int) -> str:
        """Return the id of the task that group ``group_id`` plays."""
        if self._size > _LARGEST_SHUFFLE:
            index = key_seed(self._seed, "task", group_id) % self._size
        else:
            epoch, position = divmod(group_id, self._size)
            index = self._shuffled(epoch)[position]
        return self._tasks.task(self._split, index).id
