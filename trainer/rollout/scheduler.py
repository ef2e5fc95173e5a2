"""The scheduler: keeps the episode slots busy, in the order and at the moments that the configuration says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from rollcage.envs.placements.base import EnvHandle, Placement, PlacementError
from rollcage.recorder import NullRecorder, Recorder
from rollcage.trainer.pause import Pause
from rollcage.trainer.rollout.account import Account
from rollcage.trainer.rollout.buffer import SampleBuffer
from rollcage.trainer.rollout.collector import Collector, Member
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.episode import Agent, Timers, run_episode
from rollcage.trainer.rollout.lockstep import Lockstep, LockstepHandle
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.types import Failure, Group, Trajectory


@dataclass(slots=True, eq=False)
class _Entry:
    """One entry of the queue: members that start together and hold their slots until the last of them ends."""

    members: list[Member]
    num_running: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_running = len(self.members)


class Scheduler:
    """Queue scheduling: a freed slot takes the next entry of the queue at once.

    Every member of a group is an entry of its own, or with ``replicate=False`` the group is one. A group is admitted
    only when slots are free for its first entry, so that its freshness is not spent waiting. In mode ``sync`` entries
    start only once all episodes of the round before have ended. What one event costs does not depend on how many
    episodes are in flight.

    Args:
        config: how samples are made.
        task_id: group id -> task id.
        placement: where environments come from.
        new_agent: (group id, member, seed) -> the agent of one episode; member `GREEDY` is the greedy rollout.
        account: where samples are counted.
        policy_version: the trainer's version at the start.
        seed: keys all environment and sampling seeds.
        first_group: id of the first group to start.
        restart: ids of groups to start before that one: those that a killed run had not finished.
        recorder: hears of failures and of groups that were dropped.
        record: called with every finished episode.
        pause: while it is on, nothing new is started.
    """

    def __init__(
        self,
        config: RolloutConfig,
        *,
        task_id: Callable[[int], str],
        placement: Placement,
        new_agent: Callable[[int, int, int], Agent],
        account: Account,
        policy_version: int = 0,
        seed: int = 0,
        first_group: int = 0,
        restart: Iterable[int] = (),
        recorder: Recorder | None = None,
        record: Callable[[Trajectory], None] = lambda trajectory: None,
        pause: Pause | None = None,
    ) -> None:
        self._config, self._deadlines, self._seed = config, config.deadlines, seed
        self._timers = Timers(self._deadlines)
        self._task_id, self._placement, self._new_agent = task_id, placement, new_agent
        self.account = account
        self.next_group = first_group
        self.num_running = 0
        """Episodes under way."""
        self._wake = asyncio.Event()
        self._pause = pause or Pause()
        self._pause.on_resume(self._wake.set)
        self.buffer = SampleBuffer(
            num_groups=config.num_groups,
            async_ratio=config.async_ratio,
            extra_groups=config.extra_groups,
            policy_version=policy_version,
            hold_back=config.hold_back,
            on_room=self._wake.set,
        )
        self.collector = Collector(
            config, buffer=self.buffer, account=account, recorder=recorder or NullRecorder(), record=record
        )
        self._restart = deque(sorted(restart))
        self._queue: deque[_Entry] = deque()
        self._num_free = config.num_slots
        self._entry_size = 1 if config.replicate else config.num_members

    @property
    def outstanding(self) -> list[int]:
        """Ids of the groups that were begun, in this life or an earlier one, and are neither trained on nor dropped."""
        return sorted([*self._restart, *self.buffer.outstanding])

    @property
    def num_in_flight(self) -> int:
        """Samples that run, wait for their siblings, or wait in the buffer."""
        return self.num_running + self.collector.num_waiting + self.buffer.num_samples

    async def run(self) -> None:
        """Play episodes until cancelled; what is in flight then is counted as cancelled."""
        try:
            async with asyncio.TaskGroup() as episodes:
                while True:
                    self._wake.clear()
                    self._start_what_fits(episodes)
                    await self._wake.wait()
        finally:
            self.collector.end()
            self._queue.clear()

    async def next_batch(self) -> list[Group]:
        """Wait for a batch, until the step's deadline at most where that leaves anything to train on, and take it."""
        for group in self.buffer.evict_stale():
            self.collector.stale([group])
        try:
            async with asyncio.timeout(self._config.step_deadline_s or None):
                groups = await self.buffer.take()
        except TimeoutError:
            self.collector.close_early()
            groups = await self.buffer.take(partial=True)
        self.collector.give_up(self.buffer.pop_late())
        return groups

    def _start_what_fits(self, episodes: asyncio.TaskGroup) -> None:
        if self._pause.is_on:
            return
        lockstep = None
        if self._config.mode == "sync":
            if self._num_free < self._config.num_slots:
                return  # the round is not over
            lockstep = Lockstep()
        while (entry := self._next_entry()) is not None:
            self._num_free -= len(entry.members)
            for member in entry.members:
                if lockstep is not None:
                    lockstep.join()
                member.task = episodes.create_task(self._run_member(member, lockstep))
                member.group.running[member] = None
                # not in the task itself: one that is cancelled before its first step never runs
                member.task.add_done_callback(partial(self._end_member, entry, member, lockstep))

    def _next_entry(self) -> _Entry | None:
        """Take the next entry off the queue, if there are free slots for it."""
        while self._queue and self._queue[0].members[0].group.closed:
            self._queue.popleft()
        if not self._queue:
            if self._num_free < self._entry_size or not self.buffer.may_admit():
                return None
            self._admit()
        return self._queue.popleft() if len(self._queue[0].members) <= self._num_free else None

    def _admit(self) -> None:
        if self._restart:
            group_id = self._restart.popleft()
        else:
            group_id, self.next_group = self.next_group, self.next_group + 1
        self.buffer.admit(group_id)
        members = self.collector.open(group_id, self._task_id(group_id))
        if self._config.replicate:
            self._queue.extend(_Entry([member]) for member in members)
        else:
            self._queue.append(_Entry(members))

    async def _run_member(self, member: Member, lockstep: Lockstep | None) -> None:
        now = asyncio.get_running_loop().time
        self.account.started += 1
        self.num_running += 1
        member.start_s = now()
        try:
            trajectory = await self._play(member, lockstep)
        except asyncio.CancelledError:
            self.collector.cancelled(member, now())
            raise
        finally:
            self.num_running -= 1
            del member.group.running[member]
        again = self.collector.settle(member, trajectory)
        if again is not None:
            self._queue.appendleft(_Entry([again]))

    def _end_member(self, entry: _Entry, member: Member, lockstep: Lockstep | None, task: asyncio.Task[None]) -> None:
        member.group.running.pop(member, None)
        entry.num_running -= 1
        if entry.num_running == 0:
            self._num_free += len(entry.members)
            if self._queue or lockstep is not None or self.buffer.may_admit():
                self._wake.set()
        if lockstep is not None:
            lockstep.leave()

    async def _play(self, member: Member, lockstep: Lockstep | None) -> Trajectory:
        group = member.group
        sample_id = (group.id, member.index)
        seed = key_seed(self._seed, group.task_id, group.id, member.index, member.attempt)
        member.agent = agent = self._new_agent(group.id, member.index, seed)
        try:
            handle = await self._placement.acquire(deadline_s=self._deadlines.env_s)
        except PlacementError as error:
            failure = Failure("infra", error.reason, str(error))
            return Trajectory(sample_id, group.task_id, seed, failure=failure)
        env: EnvHandle = handle if lockstep is None else LockstepHandle(handle, lockstep)
        try:
            trajectory = await run_episode(
                env,
                agent,
                sample_id=sample_id,
                task_id=group.task_id,
                seed=seed,
                deadlines=self._deadlines,
                timers=self._timers,
            )
            member.ending = True  # giving the environment back is not to be torn
            return trajectory
        finally:
            await handle.release()
