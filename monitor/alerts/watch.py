"""The rules inside a run: a recorder that listens, looks every few seconds, and tells what begins and ends to fire."""

from __future__ import annotations

import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollcage.monitor.alerts.hysteresis import Hysteresis
from rollcage.monitor.alerts.notify import Notifier, OnAlert
from rollcage.monitor.alerts.window import MAX_ROWS, NAMES_ADDED, NUM_FIRST, Row, Window
from rollcage.recorder import Recorder

LOOK_S = 10.0
"""Between two looks, where no update comes: a gauge of the loop is the clock."""
RESTARTS = ("sandbox_restarts", "env_restarts")
"""Counters of restarts."""


class AlertWatch:
    """Implements the Recorder protocol, beside the recorder that keeps the run.

    Args:
        folder: the run's, whose disk is watched.
        on_alert: whom to tell.
        clock: seconds since the epoch.
    """

    def __init__(
        self, folder: Path, on_alert: OnAlert | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._clock = folder, clock
        self._to: Recorder | None = None
        self._notifier = Notifier(on_alert or OnAlert(), self._not_told)
        self._states = Hysteresis()
        self._first: list[Row] = []
        self._rows: deque[Row] = deque(maxlen=MAX_ROWS)
        self._tally: Counter[str] = Counter()
        self._training_since: float | None = None
        self._is_paused = False
        self._looked_at = clock()

    def listen_for(self, recorder: Recorder) -> None:
        """Tell alerts to ``recorder``, as events ``alert``."""
        self._to = recorder

    def metrics(self, values: Mapping[str, float], *, policy_version: int) -> None:
        """See `Recorder`: a look."""
        row = {**values, **{name: float(self._tally[name]) for name in NAMES_ADDED}, "time": self._clock()}
        if len(self._first) < NUM_FIRST:
            self._first.append(row)
        self._rows.append(row)
        self._training_since = row["time"]
        self.look()

    def gauge(self, name: str, value: float, *, at_s: float | None = None, **labels: str) -> None:
        """See `Recorder`: now and then a look, for what is seen by nothing coming."""
        if self._clock() - self._looked_at >= LOOK_S:
            self.look()

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None:
        """See `Recorder`."""
        if name in RESTARTS:
            self._tally["restarts"] += int(value)

    def event(self, name: str, **fields: Any) -> None:
        """See `Recorder`."""
        if name == "sample_failed":
            self._tally[f"failed/{fields.get('kind')}"] += 1
        elif name == "engine_died":
            self._tally["engine_deaths"] += 1
            self.look()
        elif name == "training":
            self._training_since = self._clock()
        elif name in ("start", "evaluating", "finished", "failed", "stopped"):
            self._training_since = None
        elif name in ("paused", "resumed"):
            self._is_paused = name == "paused"
            if self._training_since is not None:
                self._training_since = self._clock()

    def trajectory(self, record: Mapping[str, Any]) -> None:
        """See `Recorder`."""
        restarted = (record.get("info") or {}).get("restarted")
        self._tally["restarts"] += restarted if isinstance(restarted, int) else 0

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """See `Recorder`: no rule looks at it."""

    def span(self, track: str, name: str, start_s: float, end_s: float, **fields: Any) -> None:
        """See `Recorder`: no rule looks at it."""

    def annotations(self, row: Mapping[str, Any]) -> None:
        """See `Recorder`: no rule looks at it."""

    def look(self) -> None:
        """Look at every rule now."""
        now = self._looked_at = self._clock()
        waited_s = None if self._training_since is None or self._is_paused else now - self._training_since
        rows = tuple(self._rows)
        if rows:  # what has happened since the last update counts at once
            rows = (*rows[:-1], {**rows[-1], "engine_deaths": float(self._tally["engine_deaths"])})
        elif self._tally["engine_deaths"]:
            rows = ({"engine_deaths": float(self._tally["engine_deaths"])},)
        for change in self._states.look(Window(rows, self._first, waited_s, self._free_disk())):
            told = change.to_json()
            if self._to is not None:
                self._to.event("alert", **told)
            self._notifier.tell({**told, "run": self._folder.name, "time": now})

    def close(self) -> None:
        """Tell what still waits to be told; idempotent."""
        self._notifier.close()

    def _free_disk(self) -> float | None:
        try:
            usage = shutil.disk_usage(self._folder)
        except OSError:
            return None
        return usage.free / usage.total

    def _not_told(self, reason: str) -> None:
        if self._to is not None:
            self._to.event("alert_not_told", reason=reason)
