"""Rows on their way into the index: sorted into curves, spans, distributions, and rows of its tables."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import numpy as np

from rollcage.monitor.metrics.catalogue import buckets_of
from rollcage.monitor.store.segments import Place
from rollcage.monitor.store.summary import SUMMARY, SUMMARY_COLUMNS, Row, labelled, numbers, searchable, summarize


class Batch:
    """Holds rows until they are written, in one transaction.

    Args:
        database: the index's tables.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._spans: list[tuple[Any, ...]] = []
        self._points: dict[tuple[str, str], list[tuple[float, float]]] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._observed: dict[str, list[float]] = {}
        self._text_ids: dict[str, int] = {}
        self._events: list[tuple[Any, ...]] = []
        self._trajectories: list[tuple[Any, ...]] = []
        self._texts: list[tuple[str]] = []
        self._annotations: list[tuple[Any, ...]] = []

    def add(self, stream: str, place: Place, row: Row) -> None:
        """Take in one row; raises KeyError, TypeError or ValueError for one that is none of ours."""
        if stream == "metrics":
            version = row.get("policy_version", 0)
            found = self._points
            for name, value in numbers(row).items():
                points = found.get(("metric", name))
                if points is None:
                    points = found["metric", name] = []
                    self._names["metric", name] = name
                points.append((version, float(value)))
        elif stream == "timeline":
            self._add_timeline(row)
        elif stream == "events":
            self._events.append((*place, row.get("event", ""), row.get("time", 0.0)))
        elif stream == "trajectories":
            summary = summarize(row)
            self._trajectories.append((*place, *(summary[name] for name in SUMMARY)))
            self._texts.append((searchable(row),))
        else:
            self._annotations.append((str(row.get("id", "")), row.get("time", 0.0), *place))

    def _add_timeline(self, row: Row) -> None:
        if "span" in row:
            start_s, end_s = float(row["start_s"]), float(row["end_s"])
            busy_s, num = float(row.get("busy_s", end_s - start_s)), int(row.get("num", 1))
            who, what = self._text(str(row["track"])), self._text(str(row["span"]))
            self._spans.append((start_s, end_s, busy_s, num, who, what))
            return
        kind = "gauge" if "gauge" in row else "histogram"
        if kind not in row:
            return
        name, value = str(row[kind]), float(row["value"])
        key = labelled(name, {label: it for label, it in row.items() if label not in ("time", kind, "value", "at_s")})
        if kind == "histogram":
            self._observed.setdefault(key, []).append(value)
            return
        at_s = row.get("at_s")
        self._names[kind, key] = name
        self._points.setdefault((kind, key), []).append((row.get("time", 0.0) if at_s is None else float(at_s), value))

    def _text(self, text: str) -> int:
        number = self._text_ids.get(text)
        if number is None:
            self._database.execute("INSERT OR IGNORE INTO texts(text) VALUES (?)", (text,))
            number = self._text_ids[text] = int(
                self._database.execute("SELECT id FROM texts WHERE text = ?", (text,)).fetchone()[0]
            )
        return number

    def records(self) -> Iterator[tuple[str, str, str, list[tuple[Any, ...]]]]:
        """Yield (kind, key, name, new records) of every curve, and of the spans."""
        for (kind, key), points in self._points.items():
            yield kind, key, self._names[kind, key], points
        if self._spans:
            yield "span", "", "", self._spans

    def write(self) -> None:
        """Put everything else into its table."""
        run = self._database.executemany
        run("INSERT INTO events(segment, offset, kind, time) VALUES (?, ?, ?, ?)", self._events)
        marks = ", ".join("?" * (2 + len(SUMMARY)))
        run(f"INSERT INTO trajectories(segment, offset, {SUMMARY_COLUMNS}) VALUES ({marks})", self._trajectories)
        run("INSERT INTO conversations(text) VALUES (?)", self._texts)
        run("INSERT INTO annotations VALUES (?, ?, ?, ?)", self._annotations)
        for key, observed in self._observed.items():
            self._write_histogram(key, np.array(observed))

    def _write_histogram(self, key: str, values: Any) -> None:
        """Add observations to a distribution; its buckets stay those that it began with."""
        bounds = list(buckets_of(key.partition("{")[0]))
        counts, total = [0] * (len(bounds) + 1), 0.0
        least, greatest = float("inf"), float("-inf")
        row = self._database.execute("SELECT * FROM histograms WHERE key = ?", (key,)).fetchone()
        if row is not None:
            bounds, counts = json.loads(row[1]), json.loads(row[2])
            total, least, greatest = row[3:]
        found = np.bincount(np.searchsorted(bounds, values), minlength=len(bounds) + 1) + counts
        told = json.dumps(bounds), json.dumps(found.tolist()), total + float(values.sum())
        row = (key, *told, min(least, float(values.min())), max(greatest, float(values.max())))
        self._database.execute("INSERT OR REPLACE INTO histograms VALUES (?, ?, ?, ?, ?, ?)", row)
