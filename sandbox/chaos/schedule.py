"""What goes wrong, and when: all of it follows from the seed, so that a cycle that failed can be run again."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from rollcage.sandbox.types import RestartPolicy


class Fault(StrEnum):
    """What becomes of one request to the daemon."""

    DELAY = "delay"
    """It is done; the answer comes late."""
    DROP_BEFORE = "drop before"
    """The connection breaks, and nothing is done."""
    DROP_AFTER = "drop after"
    """It is done, and the connection breaks before the answer."""
    CONFLICT = "409"
    """Nothing is done."""
    ERROR_BEFORE = "500 before"
    """Nothing is done."""
    ERROR_AFTER = "500 after"
    """It is done."""
    HANG_BEFORE = "hang before"
    """No answer ever, and nothing is done."""
    HANG_AFTER = "hang after"
    """It is done, and there is no answer ever."""
    CUT = "cut"
    """The connection works, and breaks some time later."""


class Injury(StrEnum):
    """What happens to a sandbox."""

    NONE = "none"
    KILL = "kill"
    """Its container is killed."""
    PAUSE = "pause"
    """Its container is frozen behind the manager's back."""
    OOM = "oom"
    FORK_BOMB = "fork bomb"
    DISK = "disk"
    """It writes more than its ``disk_bytes``."""
    AGENT = "agent"
    """The agent inside is killed."""
    NO_BIN = "rm -rf /bin"
    RESTORE = "restore"
    """Its user goes back to a snapshot."""
    HOLD = "hold"
    """Its user pauses and resumes it."""
    VANISH = "vanish"
    """A client that waits for a command vanishes."""
    SNAPSHOT_KILL = "kill in snapshot"
    """The manager is killed while it takes a snapshot."""


WEIGHTS = {
    Fault.DELAY: 4,
    Fault.DROP_BEFORE: 2,
    Fault.DROP_AFTER: 3,
    Fault.CONFLICT: 2,
    Fault.ERROR_BEFORE: 2,
    Fault.ERROR_AFTER: 2,
    Fault.HANG_BEFORE: 1,
    Fault.HANG_AFTER: 1,
}
STREAM_WEIGHTS = {**WEIGHTS, Fault.CUT: 8}
MAX_DELAY_S = 6.0
"""Longer than the manager's patience in `rollcage.sandbox.chaos.kept`."""


class Schedule:
    """Says what becomes of each request.

    Args:
        seed: of all that follows.
        share: of requests that something happens to.

    Attributes:
        is_calm: nothing happens any more.
        counts: faults so far, by kind.
    """

    def __init__(self, seed: int, share: float) -> None:
        self.seed, self.share, self.is_calm = seed, share, False
        self.counts: Counter[Fault] = Counter()
        self._num_seen: Counter[tuple[int, str]] = Counter()

    def fault(self, cycle: int, operation: str, is_stream: bool) -> tuple[Fault | None, float]:
        """Return what becomes of a cycle's next request of that kind (-1: it belongs to none), and its delay in s."""
        number = self._num_seen[cycle, operation]
        self._num_seen[cycle, operation] += 1
        rng = random.Random(f"{self.seed}/{cycle}/{operation}/{number}")
        if self.is_calm or rng.random() >= self.share:
            return None, 0.0
        weights = STREAM_WEIGHTS if is_stream else WEIGHTS
        (fault,) = rng.choices(list(weights), list(weights.values()))
        self.counts[fault] += 1
        return fault, MAX_DELAY_S * rng.random() ** 2


@dataclass(frozen=True, slots=True)
class Plan:
    """What one cycle does.

    Attributes:
        number: of the cycle.
        restart: policy of its sandbox.
        num_callers: so many ask for it at once, with the same key.
        uses: what is done with it before the injury: "exec", "session", "files", "deadline", "fork".
        snapshot: whether a checkpoint is taken before the injury.
        injury: what happens to it.
        kill_after_s: the manager is killed so many seconds after the cycle began; None: not by this cycle.
        restart_daemon: the daemon is killed in place of the injury, where the harness owns it.
        abandon: it is left to the end of its lease, in place of being deleted.
    """

    number: int
    restart: RestartPolicy
    num_callers: int
    uses: tuple[str, ...]
    snapshot: bool
    injury: Injury
    kill_after_s: float | None
    restart_daemon: bool
    abandon: bool


def plan(seed: int, number: int) -> Plan:
    """Return what cycle ``number`` does.

    >>> plan(7, 3) == plan(7, 3)
    True
    """
    rng = random.Random(f"{seed}/{number}/plan")
    uses = ("exec", "session", "files", "deadline", "fork")
    injury = list(Injury)[number % len(Injury)]  # each kind in its turn, so that few cycles see all
    return Plan(
        number=number,
        restart=rng.choice(list(RestartPolicy)),
        num_callers=rng.choice((1, 1, 2, 3)),
        uses=tuple(rng.sample(uses, rng.randint(1, 3))),
        snapshot=injury is Injury.RESTORE or rng.random() < 0.6,
        injury=injury,
        kill_after_s=rng.uniform(0.0, 2.5) if rng.random() < 0.3 else None,
        restart_daemon=rng.random() < 0.1,
        abandon=rng.random() < 0.15,
    )
