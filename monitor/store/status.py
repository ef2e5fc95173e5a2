"""How a run stands: from the words that it said, and from whether a process still holds it."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt

WORDS = ("start", "finished", "failed", "stopped", "paused", "resumed")
"""Events that say how a run stands."""

State = Literal["running", "paused", "finished", "failed", "stopped", "dead", "unknown"]


def is_held(folder: Path) -> bool | None:
    """Return whether a process has the run open; None where that cannot be said."""
    try:
        with (folder / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return None


def state_of(word: str, held: bool | None, complete: bool) -> State:
    """Return the state of a run whose last word was ``word``; ``complete``: it has made all its updates."""
    if held:
        return "paused" if word == "paused" else "running"
    if word in ("finished", "failed"):
        return "finished" if word == "finished" else "failed"
    if complete:
        return "finished"
    if word == "stopped":
        return "stopped"
    return "unknown" if held is None else "dead"


def eta_s(elapsed: npt.NDArray[Any], num_updates: int, max_train_s: float) -> float | None:
    """Return the seconds left, by the last updates; None where that cannot be said.

    Args:
        elapsed: the end of the curve of seconds spent, [N] of `rollcage.monitor.store.columns.POINT`.
        num_updates, max_train_s: where the run ends.
    """
    if len(elapsed) < 2:
        return None
    made, spent_s = elapsed["at"][-1] - elapsed["at"][0], elapsed["value"][-1] - elapsed["value"][0]
    if made <= 0 or spent_s <= 0:
        return None
    by_updates = (num_updates - elapsed["at"][-1]) * spent_s / made
    return float(max(0.0, min(by_updates, max_train_s - elapsed["value"][-1])))
