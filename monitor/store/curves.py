"""The numbers of a run: statistics over updates; gauges, spans and distributions over its own clock."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rollcage.monitor.store.columns import POINT
from rollcage.monitor.store.downsample import keep_extremes, latest, merged
from rollcage.monitor.store.run_files import RunFiles
from rollcage.monitor.store.summary import Row

Series = tuple[npt.NDArray[Any], npt.NDArray[np.float64]]


class Curves(RunFiles):
    """Reads a run's numbers."""

    def metric_names(self) -> list[str]:
        """Return the names of the training statistics, sorted; counters are ``counter/NAME{label=value,...}``."""
        with self._index.reading() as tables:
            return [key for (key,) in tables.execute("SELECT key FROM series WHERE kind = 'metric' ORDER BY key")]

    def series(self, names: Sequence[str] | None = None, max_points: int = 2000) -> dict[str, Series]:
        """Return ``{name: (policy_versions [N], values [N])}`` of training statistics.

        A version that was trained again after a resume counts once. Of more than ``max_points``, each stretch's least
        and greatest are kept.

        Args:
            names: which; None is all. Unknown ones are empty.
            max_points: of each, at least 4.
        """
        with self._index.reading():
            result = {}
            for name in self.metric_names() if names is None else names:
                points = self._curve("metric", name)
                kept = keep_extremes(points["value"], max_points)
                result[name] = points["at"][kept].astype(np.int64), np.array(points["value"][kept])
            return result

    def time_range(self) -> tuple[float, float]:
        """Return (first, last) moment of the timeline, in seconds of the run's clock; (0, 0) where there is none."""
        with self._index.reading():
            spans = self._index.spans()
            moments = [spans["start_s"].min(), spans["end_s"].max()] if len(spans) else []
            for _, points in self._curves("gauge", None):
                moments += [points["at"][0], points["at"][-1]]
        return float(min(moments, default=0.0)), float(max(moments, default=0.0))

    def spans(
        self, start_s: float | None = None, end_s: float | None = None, max_spans: int = 5000
    ) -> tuple[int, list[Row]]:
        """Return (how many touch the window, those): who was busy when, in the order of their starts.

        Each has ``track``, ``name``, ``start_s``, ``end_s``, ``num`` and ``busy_s``. Where there are more than
        ``max_spans``, neighbours of one track and name become one, of ``num`` spans with ``busy_s`` seconds together.

        Args:
            start_s, end_s: the window in seconds of the run's clock; None is open.
            max_spans: most of them.
        """
        with self._index.reading() as tables:
            spans = self._index.spans()
            texts = dict(tables.execute("SELECT id, text FROM texts"))
        if start_s is not None or end_s is not None:
            low, high = -np.inf if start_s is None else start_s, np.inf if end_s is None else end_s
            spans = spans[(spans["end_s"] >= low) & (spans["start_s"] <= high)]
        shown = merged(spans, max_spans)
        columns = zip(
            *(shown[field].tolist() for field in ("track", "name", "start_s", "end_s", "busy_s", "num")), strict=True
        )
        return len(spans), [
            {
                "track": texts[track],
                "name": texts[name],
                "start_s": begin_s,
                "end_s": until_s,
                "num": num,
                "busy_s": busy_s,
            }
            for track, name, begin_s, until_s, busy_s, num in columns
        ]

    def busy(self, track: str) -> dict[str, npt.NDArray[Any]]:
        """Return ``{name: spans [N]}`` of a track, in order: ``start_s``, ``end_s``, ``busy_s`` and more.

        As the index holds them: of a run with very many spans, old neighbours are one span, no second of them lost.
        """
        with self._index.reading() as tables:
            spans = self._index.spans()
            texts = {text: number for number, text in tables.execute("SELECT id, text FROM texts")}
        spans = spans[spans["track"] == texts.get(track, -1)]
        spans = spans[np.argsort(spans["start_s"], kind="stable")]
        found = {name: spans[spans["name"] == number] for name, number in texts.items()}
        return {name: mine for name, mine in found.items() if len(mine)}

    def gauges(self, names: Sequence[str] | None = None, max_points: int = 2000) -> dict[str, Series]:
        """Return ``{NAME{label=value,...}: (at_s [N], values [N])}``, at seconds of the run's clock.

        Args:
            names: names with or without their labels; None is all.
            max_points: of each, at least 4.
        """
        with self._index.reading():
            result = {}
            for key, points in self._curves("gauge", names):
                kept = keep_extremes(points["value"], max_points)
                result[key] = np.array(points["at"][kept]), np.array(points["value"][kept])
            return result

    def histograms(self) -> dict[str, Row]:
        """Return ``{NAME{label=value,...}: {"bounds" [B], "counts" [B + 1], "count", "sum", "min", "max"}}``.

        ``counts[i]`` observations were at most ``bounds[i]`` and above the bound before; the last were above all.
        """
        result = {}
        with self._index.reading() as tables:
            for key, bounds, counts, total, least, greatest in tables.execute("SELECT * FROM histograms ORDER BY key"):
                numbers = np.array(json.loads(counts))
                result[key] = {
                    "bounds": np.array(json.loads(bounds)),
                    "counts": numbers,
                    "count": int(numbers.sum()),
                    "sum": total,
                    "min": least,
                    "max": greatest,
                }
        return result

    def _curve(self, kind: str, key: str) -> npt.NDArray[Any]:
        """Return a curve's points; of those with the same policy version the newest, in order."""
        with self._index.reading():
            points = self._index.column(kind, key)
            if points is None:
                return np.empty(0, POINT)
            return latest(points) if kind == "metric" else points

    def _curves(self, kind: str, names: Sequence[str] | None) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        with self._index.reading() as tables:
            found = tables.execute("SELECT key, name FROM series WHERE kind = ? ORDER BY key", (kind,)).fetchall()
            for key, name in found:
                if names is None or key in names or name in names:
                    yield key, self._curve(kind, key)
