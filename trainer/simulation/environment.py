"""The simulated environment: turns that take time, some instances slow, some stuck for good, and a reward by chance."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from rollcage.envs.placements.base import EnvTimeout
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.simulation.draws import Constant, Draws, draw, uniform


@dataclass(frozen=True)
class EnvModel:
    """What an environment does to time.

    Attributes:
        turns: turns of an episode; rounded, at least 1.
        reset_s, turn_s: seconds of a reset and of each turn; a verifier is an environment of one turn.
        fail_slow_rate: share of the episodes whose environment takes ``fail_slow_factor`` times as long, throughout.
        fail_slow_factor: see there.
        fail_stop_rate: share of the episodes whose environment stops answering at some turn (all equally likely).
        success: None: a task has a probability of success of its own, uniform on [0, 1]. Or the same for all tasks.
    """

    turns: Draws = field(default_factory=lambda: Constant(1))
    reset_s: Draws = field(default_factory=lambda: Constant(0))
    turn_s: Draws = field(default_factory=lambda: Constant(0))
    fail_slow_rate: float = 0.0
    fail_slow_factor: float = 5.0
    fail_stop_rate: float = 0.0
    success: float | None = None


class SimulatedPlacement:
    """A `Placement` of simulated environments: any number of them, at once.

    Args:
        model: their behaviour.
    """

    def __init__(self, model: EnvModel) -> None:
        self._model = model
        self.num_live = 0

    async def acquire(self, *, deadline_s: float) -> SimulatedHandle:
        """See `Placement`."""
        self.num_live += 1
        return SimulatedHandle(self._model, self)

    async def close(self) -> None:
        """See `Placement`."""


class SimulatedHandle:
    """An `EnvHandle`. All that happens to an episode follows from the seed of its reset, and its task."""

    def __init__(self, model: EnvModel, placement: SimulatedPlacement) -> None:
        self._model, self._placement = model, placement
        self._released = False
        self._task, self._seed, self._turn, self._num_turns, self._stuck_at = "", 0, 0, 1, -1
        self._factor = 1.0

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, deadline_s: float
    ) -> tuple[str, dict[str, Any]]:
        """See `EnvHandle`."""
        model, self._seed, self._turn = self._model, seed or 0, 0
        self._task = str((options or {}).get("task", ""))
        self._num_turns = max(1, round(self._draw(model.turns, "turns")))
        self._factor, self._stuck_at = 1.0, -1
        if model.fail_slow_rate and uniform(key_seed(self._seed, "slow")) < model.fail_slow_rate:
            self._factor = model.fail_slow_factor
        if model.fail_stop_rate and uniform(key_seed(self._seed, "stop")) < model.fail_stop_rate:
            self._stuck_at = int(uniform(key_seed(self._seed, "when")) * self._num_turns)
        await self._take(model.reset_s, "reset", deadline_s)
        return "", {"task_id": self._task, "success": False, "failure": None}

    async def step(self, action: str, *, deadline_s: float) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See `EnvHandle`."""
        if self._turn == self._stuck_at:
            await asyncio.sleep(deadline_s)
            raise EnvTimeout(f"the simulated environment stopped: no answer within {deadline_s:g} s")
        await self._take(self._model.turn_s, self._turn, deadline_s)
        self._turn += 1
        done = self._turn >= self._num_turns
        chance = self._model.success
        if done and chance is None:
            chance = uniform(key_seed("chance of success", self._task))
        success = bool(done and uniform(key_seed(self._seed, "success")) < (chance or 0.0))
        return "", float(success), done, False, {"task_id": self._task, "success": success, "failure": None}

    async def call(self, method: str, *args: Any, deadline_s: float) -> Any:
        """Raise NotImplementedError: there is nothing behind it."""
        raise NotImplementedError(f"a simulated environment has no {method}")

    async def release(self) -> None:
        """See `EnvHandle`."""
        if not self._released:
            self._released = True
            self._placement.num_live -= 1

    async def _take(self, draws: Draws, what: str | int, deadline_s: float) -> None:
        latency_s = self._draw(draws, "latency", what) * self._factor
        if latency_s > 0:
            await asyncio.sleep(min(latency_s, deadline_s))
        if latency_s > deadline_s:
            raise EnvTimeout(f"the simulated environment took longer than {deadline_s:g} s")

    def _draw(self, draws: Draws, *what: str | int) -> float:
        return draws.value if isinstance(draws, Constant) else draw(draws, key_seed(self._seed, *what))
