"""TensorBoard: the training statistics as scalars, over policy versions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcage.errors import require
from rollcage.recorder import NullRecorder


class TensorBoardRecorder(NullRecorder):
    """Tells the statistics alone; writes TensorBoard's own event files, at the first update.

    Args:
        folder: where.

    Raises:
        MissingExtra: tensorboard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: Any = require("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._summary: Any = require("tensorboard.compat.proto.summary_pb2", "tensorboard")
        self._event: Any = require("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._writer: Any = None

    def metrics(self, values: Mapping[str, float], *, policy_version: int) -> None:
        """See `Recorder`."""
        if self._writer is None:
            self._writer = self._files.EventFileWriter(str(self._folder))
        scalars = [self._summary.Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        summary = self._summary.Summary(value=scalars)
        self._writer.add_event(self._event.Event(step=policy_version, wall_time=time.time(), summary=summary))

    def close(self) -> None:
        """Write what is held; idempotent."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
