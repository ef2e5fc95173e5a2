"""The placement seam: where an environment instance runs, invisible to its author."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollcage.errors import RollcageError


class PlacementError(RollcageError):
    """The place where an environment runs failed; its episode is lost and becomes data, never a zero reward."""

    reason = "env_failed"


class EnvRaised(PlacementError):
    """The environment raised; the message holds its traceback."""

    reason = "env_raised"


class EnvTimeout(PlacementError):
    """The environment did not answer by its deadline."""

    reason = "env_timeout"


class EnvDied(PlacementError):
    """The process or container of the environment is gone."""

    reason = "env_died"


class EnvOutOfMemory(EnvDied):
    """The environment took more memory than its container may have, and was ended for it."""

    reason = "env_oom"


CALLABLE = ("expert", "random_action", "gold", "empty", "snapshot", "restore", "tools", "exploits")
"""What `EnvHandle.call` may ask of an environment."""


@dataclass(frozen=True, slots=True)
class EnvConfig:
    """Which environment to build: everything a worker needs, and JSON-able.

    Attributes:
        env_id: registered id, "module:namespace/Name-v0" included.
        kwargs: arguments for `gymnasium.make`.
    """

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class EnvHandle(Protocol):
    """One live environment instance. Every call ends by its deadline, with a result or a `PlacementError`.

    After a `PlacementError` the handle is broken: give it back with `release`, which replaces the instance.
    """

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, deadline_s: float
    ) -> tuple[str, dict[str, Any]]:
        """As `gymnasium.Env.reset`; ``deadline_s`` is seconds from now."""
        ...

    async def step(self, action: str, *, deadline_s: float) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """As `gymnasium.Env.step`; ``deadline_s`` is seconds from now."""
        ...

    async def call(self, method: str, *args: Any, deadline_s: float) -> Any:
        """Call one of `CALLABLE` on the unwrapped environment; arguments and result are JSON-able.

        ``random_action`` takes a seed here (int), from which its generator is made; snapshots are base64 text.
        """
        ...

    async def release(self) -> None:
        """Give the instance back to its placement; idempotent, never raises."""
        ...


class Placement(Protocol):
    """Makes environment instances of one `EnvConfig` and keeps them for reuse."""

    async def acquire(self, *, deadline_s: float) -> EnvHandle:
        """Return an instance that nobody else uses; raises `PlacementError` where none can be had by the deadline."""
        ...

    async def close(self) -> None:
        """End every instance and worker; idempotent."""
        ...
