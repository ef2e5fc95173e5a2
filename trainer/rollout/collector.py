"""The collector: puts scored episodes together into groups, and sees to it that every sample is accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rollcage.errors import RollcageError
from rollcage.recorder import NullRecorder, Recorder
from rollcage.trainer.rollout.account import Account
from rollcage.trainer.rollout.buffer import SampleBuffer
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.episode import Agent
from rollcage.trainer.rollout.filters import FILTERS
from rollcage.trainer.rollout.shares import SampleShares
from rollcage.trainer.types import Failure, Group, Trajectory

GREEDY = -1
"""Number of the greedy rollout among the members of a group."""


class NothingSucceeds(RollcageError):
    """Group after group was dropped: the environment, engine or limits are broken, and no batch will ever be full."""


class NothingPassesFilter(RollcageError):
    """Group after group was filtered: the tasks are all solved or all hopeless, and no batch will ever be full."""


@dataclass(slots=True, eq=False)
class OpenGroup:
    """A group under way.

    Attributes:
        id, task_id: as in `Group`.
        num_open: members that have not ended, those in the queue included.
        scored: members that have a score.
        failed: (seconds, sampled tokens) of the attempts that gave none.
        running: members that run.
        closed: it takes no more members; those that still run are cancelled.
        greedy_return: return of the greedy rollout; None before.
        difficulty: share of the scored members without success, once closed; None where there is none.
    """

    id: int
    task_id: str
    num_open: int
    scored: list[Trajectory] = field(default_factory=list)
    failed: list[tuple[float, int]] = field(default_factory=list)
    running: dict[Member, None] = field(default_factory=dict)
    closed: bool = False
    greedy_return: float | None = None
    difficulty: float | None = None


@dataclass(slots=True, eq=False)
class Member:
    """One rollout of a group, in its first or second attempt.

    Attributes:
        group, index, attempt: which one.
        task: what plays it; None before its start.
        agent: who plays; None before.
        start_s: loop time of its start.
        ending: its trajectory is there, and its place is being given back: not to be cancelled any more.
    """

    group: OpenGroup
    index: int
    attempt: int = 0
    task: asyncio.Task[None] | None = None
    agent: Agent | None = None
    start_s: float = 0.0
    ending: bool = False


class Collector:
    """What becomes of samples: waits for a group's members, filters, completes, gives up, and counts.

    A group is complete once ``group_size`` members are scored or all have ended; members that are late then are
    cancelled. A member that gives no score is played once more where the group would fall short; if that fails too it
    is left out. A group with too few survivors, or that the filter refuses, is dropped, and another takes its place.
    With ``greedy_baseline`` a group also waits for its greedy rollout, which is not trained on: it counts as filtered.

    Args:
        config: how samples are made.
        buffer: where complete groups go.
        account: where samples are counted.
        recorder: hears of failures and dropped groups.
        record: called with every finished episode.
    """

    def __init__(
        self,
        config: RolloutConfig,
        *,
        buffer: SampleBuffer,
        account: Account,
        recorder: Recorder | None = None,
        record: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> None:
        self._config, self._buffer, self._account = config, buffer, account
        self._recorder, self._record = recorder or NullRecorder(), record
        self._fewest = min(2, config.group_size)  # one survivor has nothing to be compared with
        self._open: dict[int, OpenGroup] = {}
        self._num_failed_in_a_row = self._num_filtered_in_a_row = 0
        self._last_failure = Failure("infra", "none")
        self.shares = SampleShares()
        self.num_waiting = 0
        """Scored samples that wait for their siblings."""

    def open(self, group_id: int, task_id: str) -> list[Member]:
        """Begin a group and return its members."""
        num_members = self._config.group_size + self._config.extra_members
        group = self._open[group_id] = OpenGroup(group_id, task_id, num_members)
        greedy = [GREEDY] if self._config.greedy_baseline else []
        return [Member(group, index) for index in (*greedy, *range(num_members))]

    def settle(self, member: Member, trajectory: Trajectory) -> Member | None:
        """Take in a finished episode; returns the member that is to be played once more, if any."""
        self._record(trajectory)
        if trajectory.failure is not None:
            return self._settle_failure(member, trajectory, trajectory.failure)
        group = member.group
        if group.closed:  # it ended while it was being cancelled
            self._count_late(group, trajectory.end_s - trajectory.start_s, trajectory.num_sampled_tokens)
            return None
        if member.index == GREEDY:
            group.greedy_return = trajectory.return_
            self._account.filtered += 1
        elif len(group.scored) == self._config.group_size:  # an extra member; only the greedy rollout is missing
            self._count_late(group, trajectory.end_s - trajectory.start_s, trajectory.num_sampled_tokens)
            group.num_open -= 1
        else:
            group.scored.append(trajectory)
            self.num_waiting += 1
            group.num_open -= 1
        self._close_if_complete(group)
        return None

    def cancelled(self, member: Member, now_s: float) -> None:
        """Note that a member was cancelled: it came too late, or the run ends."""
        if member.group.closed:
            segments = member.agent.segments if member.agent else []
            self._count_late(member.group, now_s - member.start_s, sum(sum(s.loss_mask) for s in segments))
        else:
            self._account.cancelled += 1

    def close_early(self) -> None:
        """Close groups that have enough scored members, the oldest first, until a batch is complete."""
        for group in list(self._open.values()):
            if self._buffer.num_complete >= self._config.num_groups:
                break
            if len(group.scored) >= self._fewest and not self._lacks_baseline(group):
                self._close(group)

    def give_up(self, late: Iterable[tuple[int, Group | None]]) -> None:
        """Count the samples of groups that came too late as cancelled, and cancel those that still run."""
        for group_id, complete in late:
            group = self._open.pop(group_id, None)
            if group is not None:
                self._shut(group)
                self.num_waiting -= len(group.scored)
                self._recorder.event("group_late", group=group.id, task_id=group.task_id, scored=len(group.scored))
            trajectories = complete.trajectories if complete else group.scored if group else []
            self._account.cancelled += len(trajectories)
            self._count("late", trajectories)

    def trained(self, groups: Sequence[Group]) -> None:
        """Count the samples of a batch that was trained on."""
        for group in groups:
            self._account.trained += len(group.trajectories)
            self._count("trained", group.trajectories)

    def stale(self, groups: Sequence[Group]) -> None:
        """Count the samples of groups that were evicted as too old."""
        for group in groups:
            self._account.stale += len(group.trajectories)
            self._count("stale", group.trajectories)

    def end(self) -> None:
        """The run ends: what waits for its siblings is cancelled."""
        self._account.cancelled += self.num_waiting
        self.num_waiting = 0
        self._open.clear()

    def _settle_failure(self, member: Member, trajectory: Trajectory, failure: Failure) -> Member | None:
        group = member.group
        self._last_failure = failure
        self._account.failed[f"{failure.kind}/{failure.reason}"] += 1
        self._recorder.event(
            "sample_failed",
            task_id=trajectory.task_id,
            sample_id=list(trajectory.sample_id),
            kind=failure.kind,
            reason=failure.reason,
            message=failure.message,
            attempt=member.attempt,
        )
        spent = trajectory.end_s - trajectory.start_s, trajectory.num_sampled_tokens
        if group.closed:
            self.shares.count("failed", *spent, group.difficulty)
            return None
        group.failed.append(spent)
        greedy = member.index == GREEDY
        falls_short = greedy or len(group.scored) + group.num_open - 1 < self._config.group_size
        if member.attempt == 0 and falls_short:
            return Member(group, member.index, attempt=1)
        if greedy:
            self._close(group)
        else:
            group.num_open -= 1
            self._close_if_complete(group)
        return None

    def _lacks_baseline(self, group: OpenGroup) -> bool:
        return self._config.greedy_baseline and group.greedy_return is None

    def _close_if_complete(self, group: OpenGroup) -> None:
        hopeless = group.num_open == 0 and len(group.scored) < self._fewest
        complete = len(group.scored) >= self._config.group_size or group.num_open == 0
        if hopeless or (complete and not self._lacks_baseline(group)):
            self._close(group)

    def _close(self, group: OpenGroup) -> None:
        """Complete or drop a group with what it has."""
        del self._open[group.id]
        self._shut(group)
        self.num_waiting -= len(group.scored)
        members = sorted(group.scored, key=lambda trajectory: trajectory.sample_id)
        if len(members) < self._fewest or self._lacks_baseline(group):
            self._drop(group, "group_dropped")
            self._num_failed_in_a_row += 1
            self._check_hope()
            return
        self._num_failed_in_a_row = 0
        config = self._config
        returns = [trajectory.return_ for trajectory in members]
        if not FILTERS[config.group_filter](returns, config.filter_low, config.filter_high):
            self._drop(group, "group_filtered")
            self._num_filtered_in_a_row += 1
            self._check_hope()
            return
        self._num_filtered_in_a_row = 0
        start_version = min(trajectory.start_version for trajectory in members)
        self._buffer.complete(Group(group.id, group.task_id, members, start_version, group.greedy_return))

    def _shut(self, group: OpenGroup) -> None:
        """Take no more members: cancel those that run, forget those in the queue."""
        group.closed = True
        if group.scored:
            group.difficulty = 1 - sum(trajectory.success for trajectory in group.scored) / len(group.scored)
        for spent in group.failed:
            self.shares.count("failed", *spent, group.difficulty)
        for member in group.running:
            if member.task is not None and not member.ending:
                member.task.cancel()

    def _drop(self, group: OpenGroup, event: str) -> None:
        self._account.filtered += len(group.scored)
        self._count("filtered", group.scored)
        self._recorder.event(event, group=group.id, task_id=group.task_id, survivors=len(group.scored))
        self._buffer.drop(group.id)

    def _check_hope(self) -> None:
        num_groups, failure = self._config.num_groups, self._last_failure
        if self._num_failed_in_a_row >= max(16, 2 * num_groups):
            raise NothingSucceeds(
                f"{self._num_failed_in_a_row} groups in a row had too few scored episodes; the last failure was "
                f"{failure.kind}/{failure.reason}: {failure.message}"
            )
        if self._num_filtered_in_a_row >= max(256, 32 * num_groups):
            raise NothingPassesFilter(
                f"rollout.group_filter {self._config.group_filter} refused {self._num_filtered_in_a_row} groups in a "
                "row: the tasks are too easy or too hard for the policy, or filter_low and filter_high too narrow"
            )

    def _count_late(self, group: OpenGroup, seconds: float, tokens: int) -> None:
        self._account.cancelled += 1
        self.shares.count("late", seconds, tokens, group.difficulty)

    def _count(self, outcome: str, trajectories: Sequence[Trajectory]) -> None:
        """Count scored samples of one group."""
        if trajectories:
            difficulty = 1 - sum(trajectory.success for trajectory in trajectories) / len(trajectories)
            for trajectory in trajectories:
                seconds = trajectory.end_s - trajectory.start_s
                self.shares.count(outcome, seconds, trajectory.num_sampled_tokens, difficulty)
