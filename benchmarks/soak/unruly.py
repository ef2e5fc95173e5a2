"""Countdown whose episodes hang, raise, or take their process with them, some of them."""

from __future__ import annotations

import os
import time
from typing import Any

from rollcage.envs import Task, Turn, register
from rollcage.envs.countdown.env import CountdownEnv

ENV_ID = "rollcage.benchmarks.soak.unruly:rollcage-bench/Unruly-v0"
LONG_S = 3600.0


class UnrulyEnv(CountdownEnv):
    """Countdown. By its seed, an episode may do one of three things at its first answer, instead of a verdict.

    Args:
        hang: share of the episodes that never answer.
        fail: share of those that raise.
        die: share of those that end their process without a word; 0 where that is the trainer's own (`inline`).
        **kwargs: Countdown's.
    """

    def __init__(self, *, hang: float = 0.01, fail: float = 0.01, die: float = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._hang, self._fail, self._die = hang, hang + fail, hang + fail + die
        self._fate = 1.0  # no part of the state: an episode that is restored elsewhere goes on well

    def begin(self, task: Task) -> str:
        """Pose the task, and draw what this episode will do."""
        self._fate = float(self.np_random.random())
        return super().begin(task)

    def advance(self, action: str) -> Turn:
        """Judge the answer, or misbehave."""
        if self._fate < self._hang:
            time.sleep(LONG_S)
        if self._fate < self._fail:
            raise RuntimeError("an unruly episode")
        if self._fate < self._die:
            os._exit(7)
        return super().advance(action)


register("rollcage-bench/Unruly-v0", UnrulyEnv)
