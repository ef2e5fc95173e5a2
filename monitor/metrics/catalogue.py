"""The catalogue: every metric that there is. What is not declared here is told nowhere but in the run folder.

A recorder hears short names (``sampled_tokens``, ``rollout/reward``); the catalogue says what each is called outside.
"""

from __future__ import annotations

import re

from rollcage.monitor.metrics.instruments import DERIVED, EVENTS, FLEET, SANDBOXES, SECONDS, SOAK
from rollcage.monitor.metrics.metric import Metric
from rollcage.monitor.metrics.statistics import ACCOUNT, CREDIT, LEARNER, ROLLOUT, TIME

__all__ = ["BY_SOURCE", "EVENTS", "GROUPS", "METRICS", "NOT_TOLD", "buckets_of", "statistic"]

GROUPS: dict[str, tuple[Metric, ...]] = {
    "Engines and episodes": FLEET,
    "Samples": ACCOUNT,
    "The batch": ROLLOUT,
    "The update": (*LEARNER, *TIME),
    "Critics and credit": CREDIT,
    "The run": DERIVED,
    "Sandboxes": SANDBOXES,
    "Soak": SOAK,
}

NOT_TOLD = frozenset({"sampled_tokens"})
"""Gauges of the run's timeline that a counter of the same name tells already."""

METRICS: dict[str, Metric] = {metric.name: metric for group in GROUPS.values() for metric in group}
BY_SOURCE: dict[str, Metric] = {metric.source: metric for metric in METRICS.values() if metric.source[0] != "("}

_PATTERNS = tuple(
    (re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d+)", re.escape(source))), metric)
    for source, metric in BY_SOURCE.items()
    if "{" in source
)


def statistic(source: str) -> tuple[Metric, dict[str, str]] | None:
    """Return the metric of a training statistic, and its labels; None where it is not declared."""
    metric = BY_SOURCE.get(source)
    if metric is not None:
        return metric, {}
    for pattern, metric in _PATTERNS:
        match = pattern.fullmatch(source)
        if match:
            return metric, match.groupdict()
    return None


def buckets_of(source: str) -> tuple[float, ...]:
    """Return the buckets of what a recorder is told as a histogram; those of durations where it is not declared."""
    metric = BY_SOURCE.get(source)
    return metric.buckets if metric and metric.buckets else SECONDS
