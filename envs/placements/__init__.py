"""Where environments run: `inline`, `process`, `sandbox` and `ray`, behind one seam (`base`)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rollcage.envs.placements.base import (
    CALLABLE,
    EnvConfig,
    EnvDied,
    EnvHandle,
    EnvOutOfMemory,
    EnvRaised,
    EnvTimeout,
    Placement,
    PlacementError,
)
from rollcage.envs.placements.inline import InlinePlacement
from rollcage.envs.placements.process import ProcessPlacement
from rollcage.envs.placements.ray_actor import RayPlacement
from rollcage.envs.placements.sandbox import SandboxPlacement
from rollcage.envs.registration import class_metadata
from rollcage.errors import UserError, did_you_mean

__all__ = [
    "CALLABLE",
    "PLACEMENTS",
    "EnvConfig",
    "EnvDied",
    "EnvHandle",
    "EnvOutOfMemory",
    "EnvRaised",
    "EnvTimeout",
    "InlinePlacement",
    "Placement",
    "PlacementError",
    "ProcessPlacement",
    "RayPlacement",
    "SandboxPlacement",
    "make_placement",
]

PLACEMENTS: Mapping[str, Callable[..., Placement]] = {
    "inline": InlinePlacement,
    "process": ProcessPlacement,
    "sandbox": SandboxPlacement,
    "ray": RayPlacement,
}


def make_placement(
    kind: str, config: EnvConfig, *, num_workers: int | None = None, restart: str = "fail", **options: Any
) -> Placement:
    """Return a placement for the environment of ``config``.

    Args:
        kind: "inline", "process", "sandbox" or "ray".
        config: which environment.
        num_workers: at most so many instances live at once, and `acquire` waits for one; None for no limit.
        restart: what becomes of an episode whose worker or container is lost: "fail": it ends as data; "restore": it
            goes on (not inline); see `rollcage.envs.placements.restoring.RestoringHost`.
        options: more arguments of the class in `PLACEMENTS`.

    An environment whose ``metadata["own_sandboxes"]`` is set makes a sandbox for each episode itself. A container would
    keep it from the sandbox manager, so "sandbox" runs its class in threads of this process, and its own argument
    ``restart`` says what becomes of an episode whose sandbox is lost.

    Raises:
        UserError: unknown kind, unknown environment, or one that cannot run there.
    """
    if kind not in PLACEMENTS:
        known = ", ".join(PLACEMENTS)
        raise UserError(f"unknown placement {kind!r} (known: {known}).{did_you_mean(kind, PLACEMENTS)}")
    if class_metadata(config.env_id).get("own_sandboxes"):
        if restart != "fail":
            config = replace(config, kwargs={**config.kwargs, "restart": restart})
        if kind == "sandbox":
            return InlinePlacement(config, num_workers=num_workers)
    if kind == "inline":
        if restart != "fail":
            raise UserError(f"placement 'inline' knows no restart {restart!r}: use placement 'process' or 'sandbox'.")
        return InlinePlacement(config, num_workers=num_workers)
    return PLACEMENTS[kind](config, num_workers=num_workers, restart=restart, **options)
