"""Run as a process that is to be killed: starts a learner, says the ids of its ranks, and waits for ever."""

from __future__ import annotations

import asyncio
import sys

from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_learner import DeepSpeedLearner


async def main() -> None:
    """Start and wait."""
    learner = DeepSpeedLearner(LearnerConfig(sys.argv[1], num_ranks=2))
    await learner.start()
    sys.stdout.write(" ".join(map(str, learner.pids)) + "\n")
    sys.stdout.flush()
    await asyncio.sleep(3600)


asyncio.run(main())
