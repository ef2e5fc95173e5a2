"""The recorder that keeps current values for Prometheus."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcage.errors import require
from rollcage.monitor.metrics.catalogue import BY_SOURCE, METRICS, NOT_TOLD, statistic
from rollcage.monitor.metrics.metric import OTHER, Metric

_NUMBERS = re.compile(r"[\s:_\-.#/]*\d+.*$")
_PAUSED = {"start": 0.0, "resumed": 0.0, "paused": 1.0}


class PrometheusRecorder:
    """Implements the Recorder protocol on a registry of its own.

    Every metric of the catalogue that has been told is shown; nothing else is.

    Args:
        folder: whose disk is watched; None for none.
        strict: raise KeyError for names and labels that the catalogue lacks, as tests want it; else they are counted.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """

    def __init__(self, folder: Path | None = None, *, strict: bool = False) -> None:
        self._client: Any = require("prometheus_client", "monitor")
        self._registry = self._client.CollectorRegistry()
        self._folder, self._strict = folder, strict
        self._metrics: dict[str, Any] = {}
        self._seen: dict[tuple[str, str], set[str]] = {}
        self._totals: dict[str, float] = {}
        self._lock = threading.Lock()
        self._client.ProcessCollector(registry=self._registry)
        self._client.PlatformCollector(registry=self._registry)

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None:
        """See `Recorder`."""
        self._tell("counter", name, value, labels)

    def gauge(self, name: str, value: float, *, at_s: float | None = None, **labels: str) -> None:
        """See `Recorder`."""
        if name not in NOT_TOLD:
            self._tell("gauge", name, value, labels)

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """See `Recorder`."""
        self._tell("histogram", name, value, labels)

    def metrics(self, values: Mapping[str, float], *, policy_version: int) -> None:
        """See `Recorder`."""
        self._set("rollcage_policy_version", policy_version)
        self._set("rollcage_last_update_timestamp_seconds", time.time())
        for source, value in values.items():
            found = statistic(source)
            if found is None:
                self._unknown(f"training statistic {source!r}")
                continue
            metric, labels = found
            if metric.kind == "counter":  # told as a total, which a resumed run goes on with
                grown = value - self._totals.get(source, 0.0)
                self._totals[source] = max(value, self._totals.get(source, 0.0))
                if grown > 0:
                    self._child(metric, labels).inc(grown)
            else:
                self._child(metric, labels).set(value)

    def event(self, name: str, **fields: Any) -> None:
        """See `Recorder`."""
        self._count("rollcage_events_total", {"event": name})
        if name in _PAUSED:
            self._set("rollcage_paused", _PAUSED[name])
        if name == "sample_failed":
            why = {"kind": str(fields.get("kind")), "reason": str(fields.get("reason"))}
            self._count("rollcage_sample_failures_total", why)

    def span(self, track: str, name: str, start_s: float, end_s: float, **fields: Any) -> None:
        """See `Recorder`."""
        who = _NUMBERS.sub("", track) or OTHER
        busy_s = max(0.0, float(fields.get("busy_s", end_s - start_s)))
        self._count("rollcage_busy_seconds_total", {"track": who, "name": name}, busy_s)

    def annotations(self, record: Mapping[str, Any]) -> None:
        """See `Recorder`: not counted."""

    def trajectory(self, record: Mapping[str, Any]) -> None:
        """See `Recorder`."""
        env, failure, turns = str(record.get("env_id", "")), record.get("failure"), record.get("turns") or ()
        outcome = failure["kind"] if failure else "success" if record.get("success") else "no_success"
        self._count("rollcage_episodes_total", {"env": env, "outcome": outcome})
        for name, value in (
            ("rollcage_episode_seconds", (record.get("end_s") or 0.0) - (record.get("start_s") or 0.0)),
            ("rollcage_episode_turns", len(turns)),
            ("rollcage_trajectory_tokens", sum(turn.get("end", 0) - turn.get("start", 0) for turn in turns)),
        ):
            self._child(METRICS[name], {"env": env}).observe(value)

    def close(self) -> None:
        """Nothing is held; values can still be read."""

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return (what Prometheus reads, its content type), for what the request's Accept header asks."""
        if self._folder is not None:
            try:
                usage = shutil.disk_usage(self._folder)
            except OSError:
                pass
            else:
                self._set("rollcage_disk_free_bytes", usage.free)
                self._set("rollcage_disk_size_bytes", usage.total)
        encode, content_type = self._client.exposition.choose_encoder(accept)
        return encode(self._registry), content_type

    def _tell(self, kind: str, name: str, value: float, labels: Mapping[str, str]) -> None:
        metric = BY_SOURCE.get(name)
        if metric is None or metric.kind != kind or labels.keys() != metric.labels.keys():
            self._unknown(f"{kind} {name!r} with labels {sorted(labels)}")
            return
        child = self._child(metric, labels)
        if kind == "counter":
            child.inc(value)
        elif kind == "gauge":
            child.set(value)
        else:
            child.observe(value)

    def _count(self, name: str, labels: Mapping[str, str], value: float = 1.0) -> None:
        self._child(METRICS[name], labels).inc(value)

    def _set(self, name: str, value: float) -> None:
        self._child(METRICS[name], {}).set(value)

    def _unknown(self, what: str) -> None:
        if self._strict:
            raise KeyError(f"the catalogue of metrics has no {what} (rollcage.monitor.metrics.catalogue)")
        self._count("rollcage_unknown_metrics_total", {})

    def _child(self, metric: Metric, labels: Mapping[str, str]) -> Any:
        with self._lock:
            made = self._metrics.get(metric.name)
            if made is None:
                cls = getattr(self._client, metric.kind.capitalize())
                extra = {"buckets": metric.buckets} if metric.buckets else {}
                made = cls(metric.name, metric.help, tuple(metric.labels), registry=self._registry, **extra)
                self._metrics[metric.name] = made
            if not metric.labels:
                return made
            return made.labels(**{name: self._bounded(metric, name, str(value)) for name, value in labels.items()})

    def _bounded(self, metric: Metric, name: str, value: str) -> str:
        label = metric.labels[name]
        if label.values:
            if value in label.values:
                return value
            if self._strict:
                raise KeyError(f"{metric.name}: label {name} is never {value!r}")
            return OTHER
        seen = self._seen.setdefault((metric.name, name), set())
        if value not in seen:
            if len(seen) >= label.most:
                return OTHER
            seen.add(value)
        return value
