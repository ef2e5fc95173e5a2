"""One run folder, read: curves, events, the timeline, evaluations and trajectories, while it grows and afterwards."""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rollcage.errors import UserError
from rollcage.monitor.store.downsample import keep_extremes
from rollcage.monitor.store.secrets import masked

Series = tuple[npt.NDArray[Any], npt.NDArray[np.float64]]
Row = dict[str, Any]

STREAMS = ("metrics", "events", "timeline", "trajectories", "evaluations", "annotations")
SORTS = ("time", "return", "num_turns", "num_tokens", "duration_s", "start_version", "end_version", "task_id")


def find_runs(folder: str | Path) -> list[Path]:
    """Return the run folders in ``folder`` and two levels below it, itself included, the newest first.

    Raises:
        UserError: there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f"{folder}: there is no such folder; give the one that holds your runs (`rollcage train --out`)."
        )
    found = {path.parent for depth in ("", "*/", "*/*/") for path in folder.glob(f"{depth}config.json")}
    runs = [path for path in found if _is_run(path)]
    return sorted(runs, key=lambda path: (path / "config.json").stat().st_mtime, reverse=True)


def _is_run(path: Path) -> bool:
    try:
        return isinstance(json.loads((path / "config.json").read_text(encoding="utf-8"))["config"]["rollout"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return False


class RunReader:
    """Reads one run; thread-safe. Every method first takes in what the run has written since the last one.

    Args:
        path: the run folder.

    Raises:
        UserError: it is no run folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / "config.json").is_file():
            raise UserError(
                f"{self.path}: not a run folder (no config.json); give the folder that `rollcage train` printed."
            )
        self._lock = threading.RLock()
        self._offsets = dict.fromkeys(STREAMS, 0)
        self._rows: dict[str, list[Row]] = {name: [] for name in STREAMS}

    def close(self) -> None:
        """Let go of the files; idempotent."""

    def config(self) -> Row:
        """Return ``{"command", "config"}``; what is called like a secret (token, key, password ...) is masked."""
        data = masked(json.loads((self.path / "config.json").read_text(encoding="utf-8")))
        return {"command": data.get("command", ""), "config": data.get("config", {})}

    def status(self) -> Row:
        """Return how the run stands.

        Keys: ``state`` ("running", "paused", "finished", "failed", "dead": it ended without a word, "unknown"),
        ``policy_version``, ``num_updates`` (to make), ``started_at`` and ``updated_at`` (seconds since 1970; None where
        nothing was written yet), ``train_s`` (spent), ``eta_s`` (left, by the last 20 updates; None where unknown),
        ``error`` (of a failed run, else None).
        """
        with self._lock:
            metrics, events = self._take_in("metrics"), self._take_in("events")
            config = self.config()["config"]
            last = metrics[-1] if metrics else {}
            version, train_s = int(last.get("policy_version", 0)), float(last.get("time/elapsed_s", 0.0))
            num_updates = int(config.get("num_updates", 0))
            max_train_s = float(config.get("max_train_s") or float("inf"))
            times = [row["time"] for row in (*events[:1], *events[-1:], *metrics[-1:]) if "time" in row]
            word = next((row for row in reversed(events) if row["event"] in _STATES), {"event": ""})
            complete = bool(metrics) and (version >= num_updates or train_s >= max_train_s)
            state = _state(word["event"], self._is_held(), complete)
            return {
                "state": state,
                "policy_version": version,
                "num_updates": num_updates,
                "started_at": min(times, default=None),
                "updated_at": max(times, default=None),
                "train_s": train_s,
                "eta_s": _eta_s(metrics[-21:], num_updates, max_train_s) if state in ("running", "paused") else None,
                "error": word.get("error") if state == "failed" else None,
            }

    def metric_names(self) -> list[str]:
        """Return the names of the training statistics, sorted; counters are ``counter/NAME{label=value,...}``."""
        with self._lock:
            return sorted({name for row in self._take_in("metrics") for name in _flat(row)})

    def series(self, names: Sequence[str] | None = None, max_points: int = 2000) -> dict[str, Series]:
        """Return ``{name: (policy_versions [N], values [N])}`` of training statistics.

        A version that was trained again after a resume counts once. Of more than ``max_points``, each stretch's least
        and greatest are kept.

        Args:
            names: which; None is all. Unknown ones are empty.
            max_points: of each, at least 4.
        """
        with self._lock:
            rows = {row["policy_version"]: _flat(row) for row in self._take_in("metrics")}
            result = {}
            for name in self.metric_names() if names is None else names:
                points = [(version, rows[version][name]) for version in sorted(rows) if name in rows[version]]
                result[name] = _downsampled(points, max_points, np.int64)
            return result

    def events(
        self, offset: int = 0, limit: int = 100, kinds: Collection[str] | None = None, *, newest_first: bool = True
    ) -> tuple[int, list[Row]]:
        """Return (how many there are, one page of them): ``time``, ``event`` and its own fields.

        Args:
            offset, limit: the page.
            kinds: values of ``event``; None is all.
            newest_first: the order.
        """
        with self._lock:
            rows = [row for row in self._take_in("events") if kinds is None or row["event"] in kinds]
        rows = rows[::-1] if newest_first else rows
        return len(rows), rows[offset : offset + limit]

    def event_kinds(self) -> dict[str, int]:
        """Return how many events there are of each kind."""
        with self._lock:
            kinds: dict[str, int] = {}
            for row in self._take_in("events"):
                kinds[row["event"]] = kinds.get(row["event"], 0) + 1
            return kinds

    def time_range(self) -> tuple[float, float]:
        """Return (first, last) moment of the timeline, in seconds of the run's clock; (0, 0) where there is none."""
        with self._lock:
            rows = self._take_in("timeline")
        starts = [row["start_s"] for row in rows if "span" in row]
        ends = [row["end_s"] for row in rows if "span" in row]
        points = [row["at_s"] for row in rows if row.get("at_s") is not None]
        return min(starts + points, default=0.0), max(ends + points, default=0.0)

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
        with self._lock:
            rows = [
                {
                    "track": row["track"],
                    "name": row["span"],
                    "start_s": row["start_s"],
                    "end_s": row["end_s"],
                    "num": 1,
                    "busy_s": row["end_s"] - row["start_s"],
                }
                for row in self._take_in("timeline")
                if "span" in row
                and (start_s is None or row["end_s"] >= start_s)
                and (end_s is None or row["start_s"] <= end_s)
            ]
        rows.sort(key=lambda row: row["start_s"])
        return len(rows), rows[:max_spans]

    def gauges(self, names: Sequence[str] | None = None, max_points: int = 2000) -> dict[str, Series]:
        """Return ``{NAME{label=value,...}: (at_s [N], values [N])}``, at seconds of the run's clock.

        Args:
            names: names with or without their labels; None is all.
            max_points: of each, at least 4.
        """
        return {
            key: _downsampled(points, max_points, np.float64) for key, points in self._points("gauge", names).items()
        }

    def histograms(self) -> dict[str, Row]:
        """Return ``{NAME{label=value,...}: {"bounds" [B], "counts" [B + 1], "count", "sum", "min", "max"}}``.

        ``counts[i]`` observations were at most ``bounds[i]`` and above the bound before; the last were above all.
        """
        result = {}
        for key, points in self._points("histogram", None).items():
            values = np.array([value for _, value in points])
            bounds = np.geomspace(0.001, 1000, 19)
            counts = np.bincount(np.searchsorted(bounds, values), minlength=len(bounds) + 1)
            result[key] = {
                "bounds": bounds,
                "counts": counts,
                "count": len(values),
                "sum": float(values.sum()),
                "min": float(values.min()),
                "max": float(values.max()),
            }
        return result

    def evaluations(self) -> list[Row]:
        """Return the evaluations, in order, as the run wrote them."""
        with self._lock:
            return list(self._take_in("evaluations"))

    def trajectories(
        self,
        *,
        env_id: str | None = None,
        task_id: str | None = None,
        success: bool | None = None,
        failure: str | None = None,
        min_version: int | None = None,
        max_version: int | None = None,
        text: str = "",
        sort: str = "time",
        descending: bool = True,
        offset: int = 0,
        limit: int = 50,
    ) -> tuple[int, list[Row]]:
        """Return (how many match, one page of their summaries).

        A summary has ``key`` (for `trajectory`), ``id`` ("group.member"; made again after a resume), ``time``,
        ``env_id``, ``task_id``, ``policy``, ``success``, ``return``, ``failure_kind``, ``failure_reason``,
        ``start_version``, ``end_version``, ``start_s``, ``end_s``, ``duration_s``, ``num_turns``, ``num_tokens``
        (sampled), ``cut_by_length``, ``has_tokens``, ``prompt`` (its first 200 characters).

        Args:
            env_id, task_id: exactly these.
            success: only successes, or only those without (failed ones included).
            failure: only failures: of this kind ("task", "model", "infra"), of all kinds ("any"), or none at all
                ("none": the scored ones).
            min_version, max_version: of ``start_version``, both included.
            text: must be in the prompt, a message, a reply, the failure or the task's id, in whatever case.
            sort: one of `SORTS`.
            descending: greatest or newest first.
            offset, limit: the page.

        Raises:
            UserError: unknown ``sort``.
        """
        if sort not in SORTS:
            raise UserError(f"trajectories cannot be sorted by {sort!r}; choose of {', '.join(SORTS)}.")
        with self._lock:
            found = [
                summary
                for record, summary in zip(self._take_in("trajectories"), self._summaries(), strict=True)
                if (env_id is None or summary["env_id"] == env_id)
                and (task_id is None or summary["task_id"] == task_id)
                and (success is None or summary["success"] == success)
                and _has_failure(summary["failure_kind"], failure)
                and (min_version is None or summary["start_version"] >= min_version)
                and (max_version is None or summary["start_version"] <= max_version)
                and (not text or text.lower() in json.dumps(record, ensure_ascii=False).lower())
            ]
        found.sort(key=lambda summary: summary[sort], reverse=descending)
        return len(found), found[offset : offset + limit]

    def trajectory(self, key: str) -> Row:
        """Return the whole record (see `rollcage.trainer.rollout.record`).

        ``segments`` are there where the run wrote tokens, and ``annotations`` (the per-token values that the trainer
        had for it) where it wrote those.

        Raises:
            UserError: there is none with this key.
        """
        with self._lock:
            rows = self._take_in("trajectories")
            try:
                record = dict(rows[int(key.partition("-")[2])])
            except (ValueError, IndexError):
                raise UserError(f"{self.path}: there is no trajectory {key!r}.") from None
            for row in self._take_in("annotations"):
                if row.get("id") == record["id"] and row["time"] >= record["time"]:
                    record["annotations"] = row
                    break
            return record

    def siblings(self, task_id: str, limit: int = 200) -> list[Row]:
        """Return the summaries of all attempts at a task, the oldest first."""
        return self.trajectories(task_id=task_id, descending=False, limit=limit)[1]

    def follow(self, cursor: str | None = None, max_rows: int = 2000) -> tuple[dict[str, list[Row]], str]:
        """Return ({stream: rows written since ``cursor``}, the next cursor); trajectories come as summaries.

        Args:
            cursor: what the last call returned; None is now: no rows.
            max_rows: most of each stream; what is left comes with the next call.
        """
        with self._lock:
            streams = [name for name in STREAMS if name != "annotations"]
            rows = {name: self._take_in(name) for name in streams}
            rows["trajectories"] = self._summaries()
            if cursor is None:
                return {name: [] for name in streams}, json.dumps({name: len(rows[name]) for name in streams})
            seen = json.loads(cursor)
            new = {name: rows[name][seen.get(name, 0) :][:max_rows] for name in streams}
            return new, json.dumps({name: seen.get(name, 0) + len(new[name]) for name in streams})

    def _is_held(self) -> bool | None:
        """Return whether a process has the run open; None where that cannot be said."""
        try:
            with (self.path / "lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
        except BlockingIOError:
            return True
        except OSError:
            return None

    def _take_in(self, stream: str) -> list[Row]:
        rows = self._rows[stream]
        try:
            with (self.path / f"{stream}.jsonl").open("rb") as file:
                file.seek(self._offsets[stream])
                data = file.read()
        except FileNotFoundError:
            return rows
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[stream] += len(whole)
        rows += [json.loads(line) for line in whole.splitlines()]
        return rows

    def _summaries(self) -> list[Row]:
        return [_summary(f"1-{index}", record) for index, record in enumerate(self._take_in("trajectories"))]

    def _points(self, kind: str, names: Sequence[str] | None) -> dict[str, list[tuple[float, float]]]:
        points: dict[str, list[tuple[float, float]]] = {}
        with self._lock:
            for row in self._take_in("timeline"):
                if kind in row:
                    labels = ",".join(
                        f"{k}={v}" for k, v in sorted(row.items()) if k not in ("time", kind, "value", "at_s")
                    )
                    key = row[kind] + (f"{{{labels}}}" if labels else "")
                    if names is None or key in names or row[kind] in names:
                        at_s = row.get("at_s")
                        points.setdefault(key, []).append((row["time"] if at_s is None else at_s, row["value"]))
        return points


_STATES = {"start": "dead", "finished": "finished", "failed": "failed", "paused": "paused", "resumed": "dead"}


def _state(
    word: str, held: bool | None, complete: bool
) -> Literal["running", "paused", "finished", "failed", "dead", "unknown"]:
    if held:
        return "paused" if word == "paused" else "running"
    if word in ("finished", "failed"):
        return "finished" if word == "finished" else "failed"
    if complete:
        return "finished"
    return "unknown" if held is None else "dead"


def _eta_s(rows: list[Row], num_updates: int, max_train_s: float) -> float | None:
    if len(rows) < 2:
        return None
    first, last = rows[0], rows[-1]
    made = last["policy_version"] - first["policy_version"]
    spent_s = last.get("time/elapsed_s", 0.0) - first.get("time/elapsed_s", 0.0)
    if made <= 0 or spent_s <= 0:
        return None
    by_updates = (num_updates - last["policy_version"]) * spent_s / made
    return float(max(0.0, min(by_updates, max_train_s - last["time/elapsed_s"])))


def _flat(row: Row) -> dict[str, float]:
    numbers = {
        name: value for name, value in row.items() if isinstance(value, (int, float)) and name != "policy_version"
    }
    return numbers | {f"counter/{name}": value for name, value in row.get("counters", {}).items()}


def _downsampled(points: list[tuple[float, float]], max_points: int, dtype: type) -> Series:
    at, values = np.array([at for at, _ in points], dtype), np.array([value for _, value in points], np.float64)
    kept = keep_extremes(values, max_points)
    return at[kept], values[kept]


def _has_failure(kind: str | None, wanted: str | None) -> bool:
    if wanted is None:
        return True
    return kind is None if wanted == "none" else kind is not None if wanted == "any" else kind == wanted


def _summary(key: str, record: Row) -> Row:
    turns, failure = record.get("turns", ()), record.get("failure") or {}
    return {
        "key": key,
        "id": record.get("id", ""),
        "time": record.get("time", 0.0),
        "env_id": record.get("env_id", ""),
        "task_id": record.get("task_id", ""),
        "policy": record.get("policy", ""),
        "success": bool(record.get("success")),
        "return": record.get("return", 0.0),
        "failure_kind": failure.get("kind"),
        "failure_reason": failure.get("reason"),
        "start_version": record.get("start_version", 0),
        "end_version": record.get("end_version", 0),
        "start_s": record.get("start_s", 0.0),
        "end_s": record.get("end_s", 0.0),
        "duration_s": record.get("end_s", 0.0) - record.get("start_s", 0.0),
        "num_turns": len(turns),
        "num_tokens": sum(turn.get("end", 0) - turn.get("start", 0) for turn in turns),
        "cut_by_length": any(turn.get("finish_reason") == "length" for turn in turns),
        "has_tokens": bool(record.get("segments")),
        "prompt": record.get("prompt", "")[:200],
    }
