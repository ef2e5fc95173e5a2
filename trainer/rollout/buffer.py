"""The sample buffer: admission and selection of groups, such that no sample is too old when it is trained on.

Update n turns policy version n into n + 1 and takes B groups (B x G = N samples). With asynchronous ratio alpha:

* Admission: a group may start at version v while taken + outstanding < (v + 1 + alpha) B. Every group then finds room
  in an update no later than v + ceil(alpha), its deadline, and when alpha is not whole at most frac(alpha) of a batch
  is that old. Redundant groups (``extra_groups``) stand outside this.
* Selection: the earliest deadlines among the complete groups, as soon as the groups that stay behind can still all be
  taken by their deadlines, but for as many as there are redundant ones. A straggler is overtaken as long as that harms
  nothing; then it is waited for, or given up if it is redundant.

Section 6 of the asynchrony rules (arXiv 2510.11345); the deadline formulation is ours. Groups of one start version
share their deadline, so a decision looks at these few cohorts and never at single groups: its cost does not grow with
what is in flight.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rollcage.trainer.types import Group


@dataclass(slots=True)
class _Cohort:
    """Outstanding groups that share a deadline, in order of admission."""

    deadline_version: int
    open: dict[int, None] = field(default_factory=dict)
    complete: dict[int, Group] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.open) + len(self.complete)


class SampleBuffer:
    """Groups between their start and the update that takes them.

    Args:
        num_groups: B, groups of one batch.
        async_ratio: alpha, a real number of at least 0.
        extra_groups: redundant groups that may run beside those that can all be taken.
        policy_version: the trainer's version at the start.
        hold_back: hand over a batch only once all groups that may start have started and are complete.
        on_room: called when a group that could not start before may start now.
    """

    def __init__(
        self,
        *,
        num_groups: int,
        async_ratio: float,
        extra_groups: int = 0,
        policy_version: int = 0,
        hold_back: bool = False,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self.num_groups, self.async_ratio, self.extra_groups = num_groups, async_ratio, extra_groups
        self.max_staleness = math.ceil(async_ratio)
        self.policy_version = policy_version
        self._hold_back = hold_back
        self.on_room = on_room
        self.num_complete = 0
        """Groups that are ready to be taken."""
        self.num_samples = 0
        """Samples of the groups that are ready to be taken."""
        whole = async_ratio == self.max_staleness
        self._share = num_groups if whole else math.floor(async_ratio % 1 * num_groups + 1e-9)
        self._next_update = policy_version
        self._cohort_of: dict[int, _Cohort] = {}
        self._cohorts: dict[int, _Cohort] = {}
        self._late: list[tuple[int, Group | None]] = []
        self._changed = asyncio.Event()

    @property
    def outstanding(self) -> list[int]:
        """Ids of the groups that were admitted and neither taken nor dropped, in order of admission."""
        return list(self._cohort_of)

    def may_admit(self) -> bool:
        """Return whether a group that starts now is sure to be taken in time, or may run as a redundant one."""
        surplus = self._surplus()
        if surplus < 0:
            return True
        return surplus < self.extra_groups and self._room(self.policy_version + self.max_staleness) > 0

    def admit(self, group_id: int) -> None:
        """Note that group ``group_id`` starts now."""
        deadline = self.policy_version + self.max_staleness
        cohort = self._cohorts.get(deadline)
        if cohort is None:
            cohort = self._cohorts[deadline] = _Cohort(deadline)
        cohort.open[group_id] = None
        self._cohort_of[group_id] = cohort

    def complete(self, group: Group) -> None:
        """Hand over a group that is as large as it will get."""
        cohort = self._cohort_of[group.id]
        del cohort.open[group.id]
        cohort.complete[group.id] = group
        self.num_complete += 1
        self.num_samples += len(group.trajectories)
        self._changed.set()

    def drop(self, group_id: int) -> Group | None:
        """Give up a group, and return it where it was complete; its place is free for another one."""
        group = self._remove(group_id)
        self._changed.set()
        self.on_room()
        return group

    async def take(self, *, partial: bool = False) -> list[Group]:
        """Wait for the next batch and take it: ``num_groups`` groups, ordered by id; then see `pop_late`.

        Args:
            partial: take what is complete, at least one group, whatever that means for those that stay behind.
        """
        while (counts := self._choose(partial)) is None:
            self._changed.clear()
            await self._changed.wait()
        taken = []
        for cohort, count in counts:
            for group_id in sorted(cohort.complete)[:count]:
                taken.append(cohort.complete[group_id])
                self._remove(group_id)
        self._next_update += 1
        self._give_up_late(partial)
        self._cohorts = {deadline: cohort for deadline, cohort in self._cohorts.items() if cohort}
        self.on_room()
        return sorted(taken, key=lambda group: group.id)

    def pop_late(self) -> list[tuple[int, Group | None]]:
        """Return the groups that the batches taken since the last call came too early for, with what is complete."""
        late, self._late = self._late, []
        return late

    def evict_stale(self) -> list[Group]:
        """Remove and return complete groups that are older than the next update may use.

        Admission alone keeps this empty; it is the backstop of the guarantee, for samples from anywhere else.
        """
        oldest = self.policy_version - self.max_staleness
        complete = [group for cohort in self._cohorts.values() for group in cohort.complete.values()]
        stale = [group for group in complete if group.start_version < oldest]
        for group in stale:
            self.drop(group.id)
        return stale

    def publish(self, policy_version: int) -> None:
        """Note that the trainer's weights now have this version."""
        self.policy_version = self._next_update = policy_version
        self._changed.set()
        self.on_room()

    def _surplus(self) -> int:
        """Return how many groups more than can be taken in time are outstanding; negative where some may start."""
        limit = math.floor((self.policy_version + 1 + self.async_ratio) * self.num_groups + 1e-9)
        return self._next_update * self.num_groups + len(self._cohort_of) - limit

    def _room(self, deadline: int, *, after: int = 0) -> int:
        """Return how many groups the updates up to ``deadline`` can take, the next ``after`` of them left out.

        The update at the deadline itself takes frac(alpha) of a batch at most, where alpha is not whole.
        """
        updates = deadline - self._next_update - after
        return updates * self.num_groups + self._share if updates >= 0 else 0

    def _excess(self, counts: Iterable[tuple[_Cohort, int]], *, after: int = 0) -> int:
        """Return how many of so many groups of each cohort, the earliest deadline first, cannot be taken in time."""
        total = kept = 0
        for cohort, count in counts:
            total += count
            kept = min(kept + count, self._room(cohort.deadline_version, after=after))
        return total - kept

    def _choose(self, partial: bool) -> list[tuple[_Cohort, int]] | None:
        """Return how many groups to take from each cohort, None while it is too early."""
        if self.num_complete < (1 if partial else self.num_groups):
            return None
        if self._hold_back and not partial and (self.may_admit() or self.num_complete < len(self._cohort_of)):
            return None
        counts, missing = [], self.num_groups
        for cohort in self._cohorts.values():
            count = min(len(cohort.complete), missing, self._room(cohort.deadline_version))
            counts.append((cohort, count))
            missing -= count
        if partial:
            return counts if missing < self.num_groups else None
        if missing:
            return None
        excess = self._excess(((cohort, len(cohort) - count) for cohort, count in counts), after=1)
        unavoidable = self._excess((cohort, len(cohort)) for cohort in self._cohorts.values())
        # wait where more would be lost than is redundant, unless waiting cannot help
        return counts if excess <= max(0, self._surplus(), unavoidable) else None

    def _give_up_late(self, partial: bool) -> None:
        """Give up what no update can take any more; after a batch that was cut short, make the rest fit."""
        kept = 0
        for cohort in self._cohorts.values():
            room = self._room(cohort.deadline_version)
            kept += len(cohort)
            num_late = kept - room if partial or room == 0 else 0
            if num_late > 0:
                slowest_first = [*reversed(cohort.open), *reversed(cohort.complete)]
                self._late += [(group_id, self._remove(group_id)) for group_id in slowest_first[:num_late]]
                kept -= num_late

    def _remove(self, group_id: int) -> Group | None:
        cohort = self._cohort_of.pop(group_id)
        group = cohort.complete.pop(group_id, None)
        if group is None:
            del cohort.open[group_id]
        else:
            self.num_complete -= 1
            self.num_samples -= len(group.trajectories)
        return group
