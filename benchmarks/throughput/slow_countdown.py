"""Countdown whose every reset and answer takes time, as a real environment's does."""

from __future__ import annotations

import time
from typing import Any

from rollcage.envs import Task, Turn, register
from rollcage.envs.countdown.env import CountdownEnv

ENV_ID = "rollcage.benchmarks.throughput.slow_countdown:rollcage-bench/SlowCountdown-v0"


class SlowCountdownEnv(CountdownEnv):
    """Countdown; each verdict takes a normally distributed time, none below 0.

    Args:
        mean_s: mean of that distribution before what is below 0 becomes 0, in seconds.
        std_s: its standard deviation, in seconds.
        **kwargs: Countdown's.
    """

    def __init__(self, *, mean_s: float = 1.0, std_s: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._mean_s, self._std_s = mean_s, std_s

    def begin(self, task: Task) -> str:
        """Pose the task, after a while."""
        self._wait()
        return super().begin(task)

    def advance(self, action: str) -> Turn:
        """Judge the answer, after a while."""
        self._wait()
        return super().advance(action)

    def _wait(self) -> None:
        time.sleep(max(0.0, float(self.np_random.normal(self._mean_s, self._std_s))))


register("rollcage-bench/SlowCountdown-v0", SlowCountdownEnv)
