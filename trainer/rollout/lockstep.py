"""Turn lockstep: the episodes of a batch wait for each other, as in a rollout of vectorised environments."""

from __future__ import annotations

import asyncio
from typing import Any

from rollcage.envs.placements.base import EnvHandle


class Lockstep:
    """A barrier for episodes, some of which end earlier than others."""

    def __init__(self) -> None:
        self._num_episodes = self._num_waiting = 0
        self._gate = asyncio.Event()

    def join(self) -> None:
        """Count one more episode; all join before the first one waits."""
        self._num_episodes += 1

    def leave(self) -> None:
        """Count one episode less: nobody waits for it any more."""
        self._num_episodes -= 1
        self._open_if_all_are_here()

    async def wait(self) -> None:
        """Wait until every episode that has not left is here."""
        gate = self._gate
        self._num_waiting += 1
        self._open_if_all_are_here()
        try:
            await gate.wait()
        except asyncio.CancelledError:
            if gate is self._gate:
                self._num_waiting -= 1
            raise

    def _open_if_all_are_here(self) -> None:
        if self._num_waiting and self._num_waiting == self._num_episodes:
            self._num_waiting = 0
            self._gate.set()
            self._gate = asyncio.Event()


class LockstepHandle:
    """An `EnvHandle` whose episode waits for the others after its reset, before each step and after it."""

    def __init__(self, handle: EnvHandle, lockstep: Lockstep) -> None:
        self._handle, self._lockstep = handle, lockstep

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, deadline_s: float
    ) -> tuple[str, dict[str, Any]]:
        """See `EnvHandle.reset`; the deadline is the environment's alone."""
        result = await self._handle.reset(seed=seed, options=options, deadline_s=deadline_s)
        await self._lockstep.wait()
        return result

    async def step(self, action: str, *, deadline_s: float) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See `EnvHandle.step`; the deadline is the environment's alone."""
        await self._lockstep.wait()
        result = await self._handle.step(action, deadline_s=deadline_s)
        if not (result[2] or result[3]):
            await self._lockstep.wait()
        return result

    async def call(self, method: str, *args: Any, deadline_s: float) -> Any:
        """See `EnvHandle.call`."""
        return await self._handle.call(method, *args, deadline_s=deadline_s)

    async def release(self) -> None:
        """See `EnvHandle.release`."""
        await self._handle.release()
