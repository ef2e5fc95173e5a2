"""Where environments run: `inline` and `process`, behind one seam (`base`)."""

from collections.abc import Callable, Mapping

from rollcage.envs.placements.base import (
    CALLABLE,
    EnvConfig,
    EnvDied,
    EnvHandle,
    EnvRaised,
    EnvTimeout,
    Placement,
    PlacementError,
)
from rollcage.envs.placements.inline import InlinePlacement
from rollcage.envs.placements.process import ProcessPlacement
from rollcage.errors import UserError, did_you_mean

__all__ = [
    "CALLABLE",
    "PLACEMENTS",
    "EnvConfig",
    "EnvDied",
    "EnvHandle",
    "EnvRaised",
    "EnvTimeout",
    "InlinePlacement",
    "Placement",
    "PlacementError",
    "ProcessPlacement",
    "make_placement",
]

PLACEMENTS: Mapping[str, Callable[..., Placement]] = {"inline": InlinePlacement, "process": ProcessPlacement}


def make_placement(kind: str, config: EnvConfig, *, num_workers: int | None = None) -> Placement:
    """Return a placement for the environment of ``config``.

    Args:
        kind: "inline" or "process".
        config: which environment.
        num_workers: at most so many instances live at once, and `acquire` waits for one; None for no limit.

    Raises:
        UserError: unknown kind, unknown environment, or one that cannot run there.
    """
    if kind not in PLACEMENTS:
        known = ", ".join(PLACEMENTS)
        raise UserError(f"unknown placement {kind!r} (known: {known}).{did_you_mean(kind, PLACEMENTS)}")
    return PLACEMENTS[kind](config, num_workers=num_workers)
