"""Restart policy "restore": an episode that outlives its worker goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rollcage.envs.placements.base import EnvDied, EnvTimeout
from rollcage.envs.placements.pool import Host
from rollcage.envs.placements.worker_host import WorkerHost
from rollcage.errors import UserError, did_you_mean

RESTARTS = ("fail", "restore")
CHECKPOINT_EVERY = 1
"""Turns from one checkpoint to the next; those in between are played again."""
MAX_RESTARTS = 3
"""Of one episode; then its failure counts."""
_PAUSE_S = 0.2


def restarting(policy: str, new_host: Callable[[], WorkerHost]) -> Callable[[], Host]:
    """Return what makes hosts with a restart policy: "fail" or "restore".

    Raises:
        UserError: it is neither.
    """
    if policy not in RESTARTS:
        raise UserError(
            f"unknown restart policy {policy!r} (known: {', '.join(RESTARTS)}).{did_you_mean(policy, RESTARTS)}"
        )
    return new_host if policy == "fail" else lambda: RestoringHost(new_host())


class RestoringHost:
    """A host whose worker may crash, hang or be killed, and its container too, without costing the episode; see `Host`.

    After each turn the worker hands over the environment's state (`TextEnv.snapshot`). Where the worker is lost,
    another one gets the last of these, and what was asked since is asked again. An environment without snapshots is
    brought back by playing the whole episode again, which needs a seed. A turn that costs two workers, and an episode
    that costs more than `MAX_RESTARTS`, fail; so does what the environment itself raises. From a restart on, the
    episode's ``info`` has ``restarted``, the number of them. Files are part of a checkpoint where the environment asks
    for it and runs in a sandbox (see `SandboxPlacement`); else they are as the lost worker left them. No call takes
    longer than its deadline: one that has not answered after half of it hangs.

    Args:
        host: where the worker runs; it is started anew after each loss.
        checkpoint_every: turns from one checkpoint to the next.
    """

    def __init__(self, host: WorkerHost, *, checkpoint_every: int = CHECKPOINT_EVERY) -> None:
        self.broken = False
        self._host, self._checkpoint_every = host, checkpoint_every
        self._checkpoint: str | None = None
        self._since: list[tuple[str, dict[str, Any]]] | None = []
        self._num_turns = self._num_restarts = 0

    async def start(self, deadline_s: float) -> None:
        """See `Host.start`."""
        await self._host.start(deadline_s)

    async def ask(self, operation: str, args: dict[str, Any], deadline_s: float) -> Any:
        """See `Host.ask`."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + deadline_s
        if operation == "reset":
            self._num_turns = self._num_restarts = 0
        changes = operation in ("reset", "step") or args.get("method") == "restore"
        is_due = changes and (operation != "step" or (self._num_turns + 1) % self._checkpoint_every == 0)
        lost_before = False
        while True:
            try:
                if self._host.broken:
                    if lost_before or operation != "reset":  # else it was lost before the episode
                        self._num_restarts += 1
                    if self._num_restarts > MAX_RESTARTS:
                        raise EnvDied(f"the environment's place was lost {self._num_restarts} times in one episode.")
                    await self._recover(end_s)
                left_s = end_s - loop.time()
                limit_s = left_s if lost_before else left_s / 2
                result = await self._host.ask(operation, args, limit_s, checkpoint=is_due)
                break
            except UserError:
                raise
            except (EnvDied, EnvTimeout):
                is_enough = lost_before or self._num_restarts >= MAX_RESTARTS
                if is_enough or self._since is None or loop.time() >= end_s:
                    self.broken = True
                    raise
                lost_before = True
            except BaseException:
                self.broken = True
                raise
        if changes:
            self._remember(operation, args, self._host.checkpoint if is_due else None)
        if self._num_restarts and operation in ("reset", "step"):
            result[-1]["restarted"] = self._num_restarts
        return result

    def _remember(self, operation: str, args: dict[str, Any], checkpoint: str | None) -> None:
        self._num_turns += operation == "step"
        if checkpoint is not None:
            self._checkpoint, self._since = checkpoint, []
        elif operation == "reset" and args["seed"] is not None:
            self._checkpoint, self._since = None, [(operation, args)]
        elif self._since is not None and (self._since or self._checkpoint is not None):
            self._since.append((operation, args))
        else:  # what began without a seed and makes no checkpoint cannot be played again
            self._since = None

    async def _recover(self, end_s: float) -> None:
        """Start another worker, and bring it to where the lost one was.

        A container that is lost as well is replaced meanwhile by its manager, so that the first tries may fail.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._host.start(max(0.0, end_s - loop.time()))
                asked = [("call", {"method": "restore", "args": [self._checkpoint], "kwargs": {}})]
                for operation, args in (asked if self._checkpoint is not None else []) + (self._since or []):
                    await self._host.ask(operation, args, max(0.0, end_s - loop.time()))
                return
            except EnvDied:
                if loop.time() + _PAUSE_S >= end_s:
                    raise
                await asyncio.sleep(_PAUSE_S)

    async def end(self) -> None:
        """See `Host.end`."""
        self.broken = True
        await self._host.end()
