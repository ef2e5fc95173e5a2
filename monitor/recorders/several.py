"""Several recorders as one: the first must work, the others may fail without harm."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rollcage.recorder import Recorder


class OpenRecorder(Recorder, Protocol):
    """A recorder that holds something until it is closed."""

    def close(self) -> None:
        """Write out what is held; idempotent."""


class Several:
    """Tells all of them.

    Args:
        first: keeps the run; what it raises is raised.
        others: one that raises is left out from then on, and the first is told so, as event ``recorder_failed``.
    """

    def __init__(self, first: OpenRecorder, others: Sequence[OpenRecorder]) -> None:
        self._first, self._others = first, list(others)

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None:
        """See `Recorder`."""
        self._tell("counter", name, value, **labels)

    def gauge(self, name: str, value: float, *, at_s: float | None = None, **labels: str) -> None:
        """See `Recorder`."""
        self._tell("gauge", name, value, at_s=at_s, **labels)

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """See `Recorder`."""
        self._tell("histogram", name, value, **labels)

    def metrics(self, values: Mapping[str, float], *, policy_version: int) -> None:
        """See `Recorder`."""
        self._tell("metrics", values, policy_version=policy_version)

    def event(self, name: str, **fields: Any) -> None:
        """See `Recorder`."""
        self._tell("event", name, **fields)

    def span(self, track: str, name: str, start_s: float, end_s: float, **fields: Any) -> None:
        """See `Recorder`."""
        self._tell("span", track, name, start_s, end_s, **fields)

    def trajectory(self, record: Mapping[str, Any]) -> None:
        """See `Recorder`."""
        self._tell("trajectory", record)

    def annotations(self, record: Mapping[str, Any]) -> None:
        """See `Recorder`."""
        self._tell("annotations", record)

    def close(self) -> None:
        """Close all of them, the first last."""
        for other in self._others:
            with contextlib.suppress(Exception):  # the run's own folder has it all
                other.close()
        self._first.close()

    def _tell(self, what: str, /, *arguments: Any, **fields: Any) -> None:
        getattr(self._first, what)(*arguments, **fields)
        for other in list(self._others):
            try:
                getattr(other, what)(*arguments, **fields)
            except Exception as error:  # noqa: BLE001  (a boundary: somebody else's service must not end a run)
                self._others.remove(other)
                told = f"{type(error).__name__}: {error}"
                self._first.event("recorder_failed", recorder=type(other).__name__, message=told)
