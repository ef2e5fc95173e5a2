"""Weights & Biases: the training statistics, over policy versions, and the run's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcage.errors import require
from rollcage.recorder import NullRecorder


class WandbRecorder(NullRecorder):
    """Tells the statistics alone, through ``wandb.init``, ``log`` and ``finish``; begun at the first update.

    A resumed run goes on under the same id, which is made of its folder's name. What must stay on this machine:
    ``WANDB_MODE=offline``.

    Args:
        folder: the run folder; W&B's files go into its ``wandb``.
        project: of Weights & Biases.
        config: what is shown as the run's configuration; secrets masked.

    Raises:
        MissingExtra: wandb is not installed.
    """

    def __init__(self, folder: Path, project: str, config: Mapping[str, Any]) -> None:
        self._wandb: Any = require("wandb", "wandb")
        self._folder, self._project, self._config = folder, project, config
        self._run: Any = None

    def metrics(self, values: Mapping[str, float], *, policy_version: int) -> None:
        """See `Recorder`."""
        if self._run is None:
            self._run = self._wandb.init(
                project=self._project,
                name=self._folder.name,
                id=self._folder.name,
                resume="allow",
                dir=str(self._folder),
                config=dict(self._config),
            )
        self._run.log({**values, "policy_version": policy_version}, step=policy_version)

    def close(self) -> None:
        """End W&B's run; idempotent."""
        if self._run is not None:
            self._run.finish()
            self._run = None
