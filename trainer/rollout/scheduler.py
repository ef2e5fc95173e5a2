"""The scheduler: keeps the episode slots busy, puts groups together, and accounts for every sample."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rollcage.envs.placements.base import Placement, PlacementError
from rollcage.errors import RollcageError
from rollcage.recorder import NullRecorder, Recorder
from rollcage.trainer.rollout.account import Account
from rollcage.trainer.rollout.buffer import SampleBuffer
from rollcage.trainer.rollout.episode import Agent, Deadlines, run_episode
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.types import Failure, Group, Trajectory


class NothingSucceeds(RollcageError):
    """Group after group was dropped: the environment, engine or limits are broken, and no batch will ever be full."""


@dataclass(slots=True)
class _OpenGroup:
    id: int
    task_id: str
    num_open: int
    scored: list[Trajectory] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Member:
    group: _OpenGroup
    member: int
    attempt: int = 0


class Scheduler:
    """Queue scheduling: every member of a group is a queue entry of its own, and a freed slot takes the next at once.

    A member that gives no score is started once more; if that fails too it is left out of its group. A group with too
    few survivors is dropped, and the next one takes its place.

    Args:
        task_id: group id -> task id.
        placement: where environments come from.
        new_agent: (group id, member, seed) -> the agent of one episode.
        buffer: admission, and where complete groups go.
        account: where samples are counted.
        group_size: members of a group.
        num_slots: episodes that run at once.
        deadlines: of every episode.
        seed: keys all environment and sampling seeds.
        first_group: id of the first group to start.
        restart: ids of groups to start before that one: those that a killed run had not finished.
        recorder: hears of every trajectory and failure.
    """

    def __init__(
        self,
        *,
        task_id: Callable[[int], str],
        placement: Placement,
        new_agent: Callable[[int, int, int], Agent],
        buffer: SampleBuffer,
        account: Account,
        group_size: int,
        num_slots: int,
        deadlines: Deadlines,
        seed: int = 0,
        first_group: int = 0,
        restart: Iterable[int] = (),
        recorder: Recorder | None = None,
        record: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> None:
        self._task_id, self._placement, self._new_agent = task_id, placement, new_agent
        self._buffer, self.account = buffer, account
        self._group_size, self._num_slots, self._deadlines, self._seed = group_size, num_slots, deadlines, seed
        self.next_group = first_group
        self._restart = deque(sorted(restart))
        self._recorder = recorder or NullRecorder()
        self._record = record
        self._queue: deque[_Member] = deque()
        self._open: dict[int, _OpenGroup] = {}
        self._drops_in_a_row = 0
        self._last_failure = Failure("infra", "none")
        self.num_running = 0

    @property
    def to_restart(self) -> list[int]:
        """Ids of the groups of an earlier life that have not been started again yet."""
        return list(self._restart)

    @property
    def num_in_flight(self) -> int:
        """Samples that run, wait for their siblings, or wait in the buffer."""
        waiting = sum(len(group.scored) for group in self._open.values())
        return self.num_running + waiting + self._buffer.num_samples

    async def run(self) -> None:
        """Play episodes until cancelled; what is in flight then is counted as cancelled."""
        try:
            async with asyncio.TaskGroup() as slots:
                for number in range(self._num_slots):
                    slots.create_task(self._slot(), name=f"episode slot {number}")
        finally:
            self.account.cancelled += sum(len(group.scored) for group in self._open.values())
            self._open.clear()
            self._queue.clear()

    async def _slot(self) -> None:
        while True:
            member = await self._next()
            self.account.started += 1
            self.num_running += 1
            try:
                trajectory = await self._play(member)
            except asyncio.CancelledError:
                self.account.cancelled += 1
                raise
            finally:
                self.num_running -= 1
            self._settle(member, trajectory)

    async def _next(self) -> _Member:
        while not self._queue:
            if self._buffer.may_admit():
                self._admit()
            else:
                await self._buffer.changed()
        return self._queue.popleft()

    def _admit(self) -> None:
        if self._restart:
            group_id = self._restart.popleft()
        else:
            group_id, self.next_group = self.next_group, self.next_group + 1
        self._buffer.admit(group_id)
        group = self._open[group_id] = _OpenGroup(group_id, self._task_id(group_id), self._group_size)
        self._queue.extend(_Member(group, member) for member in range(self._group_size))

    async def _play(self, member: _Member) -> Trajectory:
        group = member.group
        sample_id = (group.id, member.member)
        seed = key_seed(self._seed, group.task_id, group.id, member.member, member.attempt)
        agent = self._new_agent(group.id, member.member, seed)
        try:
            handle = await self._placement.acquire(deadline_s=self._deadlines.env_s)
        except PlacementError as error:
            failure = Failure("infra", error.reason, str(error))
            return Trajectory(sample_id, group.task_id, seed, failure=failure)
        try:
            return await run_episode(
                handle, agent, sample_id=sample_id, task_id=group.task_id, seed=seed, deadlines=self._deadlines
            )
        finally:
            await handle.release()

    def _settle(self, member: _Member, trajectory: Trajectory) -> None:
        group, failure = member.group, trajectory.failure
        self._record(trajectory)
        if failure is None:
            group.scored.append(trajectory)
        else:
            self._last_failure = failure
            self.account.failed[f"{failure.kind}/{failure.reason}"] += 1
            self._recorder.event(
                "sample_failed",
                task_id=trajectory.task_id,
                sample_id=list(trajectory.sample_id),
                kind=failure.kind,
                reason=failure.reason,
                message=failure.message,
                attempt=member.attempt,
            )
            if member.attempt == 0:
                self._queue.appendleft(_Member(group, member.member, attempt=1))
                return
        group.num_open -= 1
        if group.num_open == 0:
            self._close(group)

    def _close(self, group: _OpenGroup) -> None:
        del self._open[group.id]
        if len(group.scored) < min(2, self._group_size):  # one survivor has nothing to be compared with
            self.account.filtered += len(group.scored)
            self._recorder.event("group_dropped", group=group.id, task_id=group.task_id, survivors=len(group.scored))
            self._buffer.drop(group.id)
            self._drops_in_a_row += 1
            if self._drops_in_a_row >= max(16, 2 * self._buffer.num_groups):
                raise NothingSucceeds(
                    f"{self._drops_in_a_row} groups in a row had too few scored episodes; the last failure was "
                    f"{self._last_failure.kind}/{self._last_failure.reason}: {self._last_failure.message}"
                )
            return
        self._drops_in_a_row = 0
        members = sorted(group.scored, key=lambda trajectory: trajectory.sample_id)
        start_version = min(trajectory.start_version for trajectory in members)
        self._buffer.complete(Group(group.id, group.task_id, members, start_version))
