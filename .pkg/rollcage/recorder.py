"""The Recorder protocol: how every part reports what happens, without knowing who listens. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Recorder(Protocol):
    """Where metrics, events and trajectories go. Calls return at once and never raise into the caller."""

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Add ``value`` to a counter that only grows."""

    def gauge(self, name: str, value: float, *, at_s: float | None = None, **labels: str) -> None:
        """Set the current value of a quantity; ``at_s`` is the loop time, where the run's timeline shall show it."""

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """Add one observation to a distribution."""

    def metrics(self, values: Mapping[str, float], *, policy_version: int) -> None:
        """Record one row of training statistics, taken at ``policy_version``."""

    def event(self, name: str, **fields: Any) -> None:
        """Record that something happened (JSON-able fields)."""

    def span(self, track: str, name: str, start_s: float, end_s: float, **fields: Any) -> None:
        """Record that ``track`` (an engine, the learner, ...) was busy from ``start_s`` to ``end_s`` (loop time).

        Fields ``num`` and ``busy_s``: it stands for so many pieces of work, with so many seconds together.
        """

    def trajectory(self, record: Mapping[str, Any]) -> None:
        """Record one finished episode (JSON-able)."""

    def annotations(self, record: Mapping[str, Any]) -> None:
        """Record what the trainer had for each token of one sample (`rollcage.trainer.learner.annotations`)."""


class NullRecorder:
    """Listens to nothing: the default wherever a recorder is optional."""

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None: ...
    def gauge(self, name: str, value: float, *, at_s: float | None = None, **labels: str) -> None: ...
    def histogram(self, name: str, value: float, **labels: str) -> None: ...
    def metrics(self, values: Mapping[str, float], *, policy_version: int) -> None: ...
    def event(self, name: str, **fields: Any) -> None: ...
    def span(self, track: str, name: str, start_s: float, end_s: float, **fields: Any) -> None: ...
    def trajectory(self, record: Mapping[str, Any]) -> None: ...
    def annotations(self, record: Mapping[str, Any]) -> None: ...


LISTENING: list[Recorder] = []
"""Who is told what is measured out of sight in this process: the last one (`rollcage.sandbox.opening.measured_by`)."""

Measuring = Callable[[int], AbstractContextManager[tuple[Recorder, str]]]
"""(port of ``/metrics``; 0 is any free one) -> for a ``with`` block, a recorder and the address of its values."""
