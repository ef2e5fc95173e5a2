"""A placement whose environments' work stands in the run's timeline."""

from __future__ import annotations

from typing import Any

from rollcage.envs.placements.base import EnvHandle, Placement
from rollcage.trainer.rollout.activity import Activity

TRACK = "environments"


class TimedPlacement:
    """A `Placement` that counts the wait for an instance, resets and steps of another one.

    Args:
        inner: where the environments are.
        activity: counts.
    """

    def __init__(self, inner: Placement, activity: Activity) -> None:
        self._inner, self._activity = inner, activity

    async def acquire(self, *, deadline_s: float) -> EnvHandle:
        """See `Placement.acquire`."""
        with self._activity.during(TRACK, "acquire"):
            return _TimedHandle(await self._inner.acquire(deadline_s=deadline_s), self._activity)

    async def close(self) -> None:
        """See `Placement.close`."""
        await self._inner.close()


class _TimedHandle:
    def __init__(self, inner: EnvHandle, activity: Activity) -> None:
        self._inner, self._activity = inner, activity

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, deadline_s: float
    ) -> tuple[str, dict[str, Any]]:
        with self._activity.during(TRACK, "reset"):
            return await self._inner.reset(seed=seed, options=options, deadline_s=deadline_s)

    async def step(self, action: str, *, deadline_s: float) -> tuple[str, float, bool, bool, dict[str, Any]]:
        with self._activity.during(TRACK, "step"):
            return await self._inner.step(action, deadline_s=deadline_s)

    async def call(self, method: str, *args: Any, deadline_s: float) -> Any:
        return await self._inner.call(method, *args, deadline_s=deadline_s)

    async def release(self) -> None:
        await self._inner.release()
