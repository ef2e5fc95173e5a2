"""How samples are made: every choice of scheduling, each of which works together with all the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from rollcage.trainer.rollout.episode import Deadlines


@dataclass(frozen=True)
class RolloutConfig:
    """How samples are made."""

    num_groups: int = 32
    """Groups (tasks) of one batch."""
    group_size: int = 8
    """Rollouts of one task."""
    async_ratio: float = 1.0
    """How many batches rollout may run ahead of training. 0 trains only on samples of the newest weights; 1 makes the
    next batch while this one is trained on. No sample is trained on over ceil(async_ratio) versions after its start."""
    num_slots: int = 128
    """Episodes that run at once."""
    mode: Literal["async", "sync"] = "async"
    """async: an episode goes on as soon as it can, and a free slot takes the next at once. sync: all episodes of a
    batch start together and wait for each other before and after each step of their environments (the baseline to
    measure against; async_ratio 0, no extras)."""
    replicate: bool = True
    """Whether the rollouts of a task are requests of their own, spread over the engine replicas. False makes a task one
    entry: it starts when slots are free for all of its rollouts, which share one replica, and frees them together."""
    extra_groups: int = 0
    """Groups that run beyond those that can be trained on. A batch closes on the fastest; those that come too late are
    cancelled, so slow tasks are trained on less often (see the meter of samples by duration)."""
    extra_members: int = 0
    """Rollouts of a task beyond group_size; once group_size of them are scored, the others are cancelled."""
    greedy_baseline: bool = False
    """One rollout more of each task, at temperature 0, whose return the others are compared with (advantage remax). It
    is not trained on, and counted as filtered; a task whose greedy rollout fails twice is dropped."""
    hold_back: bool = False
    """Train only once all that may be under way is complete: samples are then as old as async_ratio allows. To measure
    what their age costs; rollout and training take turns."""
    group_filter: Literal["none", "mean", "std"] = "none"
    """Which complete groups are dropped, and others started instead, by their returns. mean: keep those whose mean lies
    strictly between filter_low and filter_high; std: those whose standard deviation is above filter_low."""
    filter_low: float = 0.0
    """See group_filter."""
    filter_high: float = 1.0
    """See group_filter."""
    interrupt: Literal["continue", "abort", "wait"] = "continue"
    """What becomes of messages that are being sampled when weights are published. continue: they go on with the new
    ones, each token carries its version; abort: they start again from their prompt; wait: publishing waits for them,
    and new ones wait for it."""
    env_deadline_s: float = 60.0
    """Seconds for one reset or step of an environment; more where it declares more (metadata reset_s, step_s)."""
    turn_deadline_s: float = 300.0
    """Seconds for one message of the policy; waiting for the engine, and what an abort threw away, included."""
    episode_deadline_s: float = 900.0
    """Seconds for one episode; longer by one reset and one step where the environment declares slower ones."""
    step_deadline_s: float = 0.0
    """Seconds that an update waits for its batch; 0 for no limit. Then it takes what there is: complete groups, and
    where those are too few, groups with two scored rollouts or more, the others of which are cancelled. It never trains
    on nothing: without a single such group it waits for the first one."""

    @property
    def deadlines(self) -> Deadlines:
        """The deadlines of one episode."""
        return Deadlines(self.env_deadline_s, self.turn_deadline_s, self.episode_deadline_s)

    @property
    def num_members(self) -> int:
        """Rollouts that start for each task."""
        return self.group_size + self.extra_members + self.greedy_baseline

    def allowing(self, env_s: float) -> RolloutConfig:
        """Return this with the deadlines that an environment needs which declares ``env_s``; see `Deadlines`."""
        deadlines = self.deadlines.allowing(env_s)
        return replace(self, env_deadline_s=deadlines.env_s, episode_deadline_s=deadlines.episode_s)

    def faults(self) -> Iterable[str]:
        """Yield what cannot be meant, one clause each; field names without a prefix."""
        least = {"num_groups": 1, "group_size": 1, "num_slots": 1, "async_ratio": 0, "extra_groups": 0}
        for name, bound in {**least, "extra_members": 0, "step_deadline_s": 0}.items():
            if not bound <= getattr(self, name) < float("inf"):
                yield f"{name} must be at least {bound}, not {getattr(self, name)}"
        for name in ("env_deadline_s", "turn_deadline_s", "episode_deadline_s"):
            if not getattr(self, name) > 0:
                yield f"{name} must be above 0"
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                yield f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}"
        if self.mode == "sync":
            if self.async_ratio or self.extra_groups or self.extra_members:
                yield "mode sync is the plain baseline: async_ratio, extra_groups and extra_members must be 0"
            if self.num_slots < self.num_groups * self.num_members:
                yield f"mode sync runs a batch at once: num_slots must be {self.num_groups * self.num_members} or more"
        if not self.replicate and self.num_slots < self.num_members:
            yield f"replicate False starts a task at once: num_slots must be {self.num_members} or more"
        if self.group_filter == "mean" and not self.filter_low < self.filter_high:
            yield f"filter_low must be below filter_high, not {self.filter_low} and {self.filter_high}"
        if self.group_filter == "std" and self.group_size < 2:
            yield "group_filter std needs a group_size of 2 or more"


_CHOICES = {
    "mode": ("async", "sync"),
    "group_filter": ("none", "mean", "std"),
    "interrupt": ("continue", "abort", "wait"),
}
