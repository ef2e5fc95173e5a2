"""Checkpoints: complete or absent, never half-written, the newest few kept.

RUN/checkpoints/step-000040/
    model/         transformers' format, tokenizer included: what `rollcage eval` loads
    ...            what the learner needs to go on: optimiser, schedule, RNG
    trainer.json   policy version, task-start order, account of samples
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rollcage.errors import UserError

_STATE = "trainer.json"


async def write_checkpoint(
    run: Path, policy_version: int, state: dict[str, Any], save: Callable[[Path], Awaitable[None]], *, keep: int
) -> Path:
    """Write ``RUN/checkpoints/step-<policy_version>`` and forget all but the newest ``keep``.

    Everything goes into a folder beside it that gets its name only when it is complete and on disk, so that a kill at
    any moment leaves the earlier checkpoint as the newest.

    Args:
        run: the run folder.
        policy_version: version of the weights.
        state: what ``trainer.json`` shall hold.
        save: writes the learner's part into the folder it is given.
        keep: complete checkpoints to keep, at least 1.
    """
    root = run / "checkpoints"
    partial, final = root / f".partial-{policy_version:06d}", root / f"step-{policy_version:06d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    await save(partial)
    (partial / _STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
    for path in [*partial.rglob("*"), partial]:
        _sync(path)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _sync(root)
    for old in _complete(root)[:-keep]:
        # renamed first: a half-deleted folder must not pass for a complete one
        shutil.rmtree(old.rename(root / f".partial-{old.name}"), ignore_errors=True)
    return final


def newest_checkpoint(run: Path) -> Path | None:
    """Return the newest complete checkpoint of a run folder, or None."""
    complete = _complete(run / "checkpoints")
    return complete[-1] if complete else None


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return what ``trainer.json`` holds.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        state: dict[str, Any] = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{checkpoint}: not a complete checkpoint ({error}); remove the folder to go on from an older one."
        ) from None
    return state


def remove_partial(run: Path) -> None:
    """Remove what a killed run had begun to write."""
    for partial in (run / "checkpoints").glob(".partial-*"):
        shutil.rmtree(partial, ignore_errors=True)


def _complete(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("step-*") if (path / _STATE).is_file())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
