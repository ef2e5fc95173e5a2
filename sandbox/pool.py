"""Warm pool: sandboxes that wait, ready, for somebody who asks for just such a one."""

from __future__ import annotations

import random
from typing import Protocol

from rollcage.sandbox.types import SandboxSpec


class Keeper(Protocol):
    """What the pool needs of the manager."""

    async def start(self, spec: SandboxSpec) -> str:
        """Start a sandbox that belongs to nobody and return its id once it is ready.

        Raises:
            SandboxError: it did not become ready. Then, and when the call is cancelled, nothing of it is left.
        """
        ...

    async def check(self, sandbox_id: str) -> bool:
        """Return whether it is alive and answers; by a deadline."""
        ...

    async def drop(self, sandbox_id: str) -> None:
        """Remove it, or see to it that it goes later; idempotent."""
        ...


class Pool:
    """Idle sandboxes by `SandboxSpec.pool_hash`.

    Members that are idle, being started, checked or dropped are together never more than the target. A start that
    fails is tried again after a jittered pause that doubles, with one start at a time until one succeeds.

    Args:
        keeper: the manager.
        max_starts: parallel starts per specification.
        retry_s: pause after the first failed start.
        max_retry_s: longest pause.
        check_timeout_s: a member that has not answered by then is not handed out.
        rng: for the jitter.
    """

    def __init__(
        self,
        keeper: Keeper,
        *,
        max_starts: int = 4,
        retry_s: float = 1.0,
        max_retry_s: float = 60.0,
        check_timeout_s: float = 2.0,
        rng: random.Random | None = None,
    ) -> None:
        raise NotImplementedError

    def set_target(self, spec: SandboxSpec, target: int) -> None:
        """Keep ``target`` sandboxes like ``spec`` ready from now on; too many are dropped. Returns at once."""
        raise NotImplementedError

    def adopt(self, spec: SandboxSpec, sandbox_id: str) -> None:
        """Take in an idle member of an earlier manager; it is dropped where the target is met."""
        raise NotImplementedError

    async def claim(self, spec: SandboxSpec) -> str | None:
        """Take a member that has just been checked and return its id; None where there is none: create one then.

        Each member is handed out once. A claim that is cancelled leaves the member in the pool.
        """
        raise NotImplementedError

    def forget(self, sandbox_id: str) -> None:
        """A member has died or is gone, as the manager saw: drop it and start another. Nothing for other ids."""
        raise NotImplementedError

    def idle(self, spec: SandboxSpec) -> list[str]:
        """Return the members that are ready, oldest first."""
        raise NotImplementedError

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return, by pool hash, how many members are ready, and the target."""
        raise NotImplementedError

    async def close(self, *, drain: bool = True, timeout_s: float = 30.0) -> None:
        """Stop refilling; with ``drain`` drop all members, else leave the ready ones alive. Idempotent."""
        raise NotImplementedError
