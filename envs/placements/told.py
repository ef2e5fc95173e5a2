"""What environments in workers measure out of sight, their sandboxes above all: it comes along with replies."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from rollcage.recorder import LISTENING, NullRecorder

Key = tuple[str, tuple[tuple[str, str], ...]]

MAX_OBSERVATIONS = 1000
"""Of distributions, between two replies; further ones are left out."""

_TOTALS: dict[Key, float] = defaultdict(float)
"""Gauges, over all workers of this process."""


class Notes(NullRecorder):
    """In the worker: keeps what is told until the next reply takes it along; thread-safe, and bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[Key, float] = defaultdict(float)
        self._gauges: dict[Key, float] = {}
        self._observations: list[tuple[Key, float]] = []

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None:
        """See `Recorder`."""
        with self._lock:
            self._counters[_key(name, labels)] += value

    def gauge(self, name: str, value: float, *, at_s: float | None = None, **labels: str) -> None:
        """See `Recorder`; only the last value is told."""
        with self._lock:
            self._gauges[_key(name, labels)] = value

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """See `Recorder`."""
        with self._lock:
            if len(self._observations) < MAX_OBSERVATIONS:
                self._observations.append((_key(name, labels), value))

    def take(self) -> list[list[Any]]:
        """Return what was told since the last time: [kind, name, labels, value] each."""
        with self._lock:
            kinds = (
                ("counter", self._counters.items()),
                ("gauge", self._gauges.items()),
                ("histogram", self._observations),
            )
            rows = [[kind, key[0], dict(key[1]), value] for kind, pairs in kinds for key, value in pairs]
            self._counters.clear()
            self._gauges.clear()
            self._observations.clear()
        return rows


class Relay:
    """Beside one worker's client: tells who listens in this process. A gauge is the sum over all workers."""

    def __init__(self) -> None:
        self._mine: dict[Key, float] = {}

    def hear(self, rows: list[list[Any]]) -> None:
        """Pass on what a reply brought, at the moment of the reply."""
        for kind, name, labels, value in rows:
            if kind == "gauge":
                self._show(_key(name, labels), value)
            elif LISTENING:
                getattr(LISTENING[-1], kind)(name, value, **labels)

    def gone(self) -> None:
        """The worker has ended: nothing is in it any more."""
        for key in list(self._mine):
            self._show(key, 0.0)
        self._mine.clear()

    def _show(self, key: Key, value: float) -> None:
        change = value - self._mine.get(key, 0.0)
        self._mine[key] = value
        _TOTALS[key] += change
        if LISTENING and change:
            LISTENING[-1].gauge(key[0], _TOTALS[key], at_s=asyncio.get_running_loop().time(), **dict(key[1]))


def _key(name: str, labels: Mapping[str, str]) -> Key:
    return name, tuple(sorted((label, str(value)) for label, value in labels.items()))
