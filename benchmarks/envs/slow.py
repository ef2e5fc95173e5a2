"""An environment whose turns take time, as those with a sandbox behind them do."""

from __future__ import annotations

import time

from rollcage.envs import RowTasks, Task, TextEnv, Turn, register

ENV_ID = "rollcage.benchmarks.envs.slow:rollcage-bench/Slow-v0"


class SlowEnv(TextEnv):
    """Every turn sleeps for ``turn_s`` seconds; an episode ends after 1,000 turns."""

    def __init__(self, turn_s: float = 0.005) -> None:
        super().__init__(RowTasks("slow", {"train": [{}]}), max_turns=1000)
        self.turn_s = turn_s

    def begin(self, task: Task) -> str:
        """Nothing to pose."""
        return "Wait."

    def advance(self, action: str) -> Turn:
        """Sleep."""
        time.sleep(self.turn_s)
        return Turn("Waited.")


register("rollcage-bench/Slow-v0", SlowEnv)
