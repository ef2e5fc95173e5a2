"""The sample buffer: admission and selection of groups, such that no sample is too old when it is trained on.

Update n turns policy version n into n + 1 and takes B groups (B x G = N samples). With asynchronous ratio alpha:

* Admission: a group may start at version v while taken + outstanding < (v + 1 + alpha) B. Every group then finds room
  in an update no later than v + ceil(alpha), its deadline, and when alpha is not whole at most frac(alpha) of a batch
  is that old.
* Selection: the earliest deadlines among the complete groups, as soon as the groups that stay behind can still all be
  taken by their deadlines. A straggler is overtaken as long as that harms nothing, and waited for when it must be.

Section 6 of the asynchrony rules (arXiv 2510.11345); the deadline formulation is ours.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from rollcage.trainer.types import Group


@dataclass(slots=True)
class _Entry:
    deadline_version: int
    group: Group | None = None


class SampleBuffer:
    """Groups between their start and the update that takes them.

    Args:
        num_groups: B, groups of one batch.
        async_ratio: alpha, a real number of at least 0.
        policy_version: the trainer's version at the start.
    """

    def __init__(self, *, num_groups: int, async_ratio: float, policy_version: int = 0) -> None:
        self.num_groups, self.async_ratio = num_groups, async_ratio
        self.max_staleness = math.ceil(async_ratio)
        self.policy_version = policy_version
        self._num_taken = policy_version * num_groups
        self._entries: dict[int, _Entry] = {}
        self._changed = asyncio.Event()

    @property
    def outstanding(self) -> list[int]:
        """Ids of the groups that were admitted and neither taken nor dropped, in order of admission."""
        return list(self._entries)

    @property
    def num_complete(self) -> int:
        """Groups that are ready to be taken."""
        return sum(entry.group is not None for entry in self._entries.values())

    @property
    def num_samples(self) -> int:
        """Samples of the groups that are ready to be taken."""
        return sum(len(entry.group.trajectories) for entry in self._entries.values() if entry.group)

    def may_admit(self) -> bool:
        """Return whether a group that starts now is sure to be taken in time."""
        limit = math.floor((self.policy_version + 1 + self.async_ratio) * self.num_groups + 1e-9)
        return self._num_taken + len(self._entries) < limit

    def admit(self, group_id: int) -> None:
        """Note that group ``group_id`` starts now."""
        self._entries[group_id] = _Entry(self.policy_version + self.max_staleness)

    def complete(self, group: Group) -> None:
        """Hand over a group whose members have all ended."""
        self._entries[group.id].group = group
        self._notify()

    def drop(self, group_id: int) -> None:
        """Give up a group; its place is free for another one."""
        del self._entries[group_id]
        self._notify()

    async def changed(self) -> None:
        """Wait until something was completed, dropped, taken or published."""
        await self._changed.wait()

    async def take(self) -> list[Group]:
        """Wait for the next batch and take it: ``num_groups`` groups, ordered by id."""
        while (ids := self._select()) is None:
            await self._changed.wait()
        taken = [self._entries.pop(group_id).group for group_id in ids]
        self._num_taken += len(taken)
        self._notify()
        return sorted((group for group in taken if group), key=lambda group: group.id)

    def evict_stale(self) -> list[Group]:
        """Remove and return complete groups that are older than the next update may use.

        Admission alone keeps this empty; it is the backstop of the guarantee, for samples from anywhere else.
        """
        oldest = self.policy_version - self.max_staleness
        stale = [e.group for e in self._entries.values() if e.group and e.group.start_version < oldest]
        for group in stale:
            self.drop(group.id)
        return stale

    def publish(self, policy_version: int) -> None:
        """Note that the trainer's weights now have this version."""
        self.policy_version = policy_version
        self._notify()

    def _select(self) -> list[int] | None:
        by_deadline = sorted(self._entries.items(), key=lambda item: (item[1].deadline_version, item[0]))
        ready = [group_id for group_id, entry in by_deadline if entry.group is not None][: self.num_groups]
        if len(ready) < self.num_groups:
            return None
        chosen = set(ready)
        behind = [entry.deadline_version for group_id, entry in by_deadline if group_id not in chosen]
        for position, deadline in enumerate(behind):
            if self.policy_version + 1 + position // self.num_groups > deadline:
                return None
        return ready

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
