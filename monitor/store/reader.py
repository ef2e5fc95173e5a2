"""One run folder, read: curves, events, the timeline, evaluations and trajectories, while it grows and afterwards."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rollcage.errors import UserError
from rollcage.monitor.metrics.catalogue import buckets_of
from rollcage.monitor.store.columns import POINT
from rollcage.monitor.store.downsample import keep_extremes, merged
from rollcage.monitor.store.index import Index
from rollcage.monitor.store.secrets import masked
from rollcage.monitor.store.segments import START, Place
from rollcage.monitor.store.summary import BOOLEANS, SUMMARY, SUMMARY_COLUMNS, Row, parse, storable, summarize
from rollcage.monitor.store.vocabulary import add_pieces

Series = tuple[npt.NDArray[Any], npt.NDArray[np.float64]]

FOLLOWED = ("metrics", "events", "timeline", "trajectories", "evaluations")
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
        self._index = Index(self.path)

    def close(self) -> None:
        """Let go of the files; idempotent, and the next call opens them again."""
        self._index.close()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

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
        config = self.config()["config"]
        num_updates, max_train_s = int(config.get("num_updates", 0)), float(config.get("max_train_s") or "inf")
        with self._index.reading() as tables:
            elapsed, written = self._curve("metric", "time/elapsed_s"), self._curve("metric", "time")
            first, last = tables.execute("SELECT min(time), max(time) FROM events").fetchone()
            marks = ", ".join("?" * len(_WORDS))
            word = tables.execute(
                f"SELECT kind, segment, offset FROM events WHERE kind IN ({marks}) ORDER BY id DESC LIMIT 1", _WORDS
            ).fetchone()
        version, train_s = (int(elapsed["at"][-1]), float(elapsed["value"][-1])) if len(elapsed) else (0, 0.0)
        times = [time for time in (first, last) if time is not None] + [float(time) for time in written["value"][-1:]]
        complete = version > 0 and (version >= num_updates or train_s >= max_train_s)
        state = _state(word[0] if word else "", self._is_held(), complete)
        failure = self._row("events", word[1:]) if word and state == "failed" else None
        return {
            "state": state,
            "policy_version": version,
            "num_updates": num_updates,
            "started_at": min(times, default=None),
            "updated_at": max(times, default=None),
            "train_s": train_s,
            "eta_s": _eta_s(elapsed[-21:], num_updates, max_train_s) if state in ("running", "paused") else None,
            "error": failure.get("error") if failure else None,
        }

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

    def events(
        self, offset: int = 0, limit: int = 100, kinds: Collection[str] | None = None, *, newest_first: bool = True
    ) -> tuple[int, list[Row]]:
        """Return (how many there are, one page of them): ``time``, ``event`` and its own fields.

        Args:
            offset, limit: the page.
            kinds: values of ``event``; None is all.
            newest_first: the order.
        """
        where, values = "", []
        if kinds is not None:
            where, values = f"WHERE kind IN ({', '.join('?' * len(kinds))})", list(kinds)
        order = "DESC" if newest_first else "ASC"
        with self._index.reading() as tables:
            (total,) = tables.execute(f"SELECT count(*) FROM events {where}", values).fetchone()
            places = tables.execute(
                f"SELECT segment, offset FROM events {where} ORDER BY id {order} LIMIT ? OFFSET ?",
                (*values, limit, offset),
            ).fetchall()
        rows = [self._row("events", place) for place in places]
        return total, [row for row in rows if row is not None]

    def event_kinds(self) -> dict[str, int]:
        """Return how many events there are of each kind."""
        with self._index.reading() as tables:
            return dict(tables.execute("SELECT kind, count(*) FROM events GROUP BY kind ORDER BY kind"))

    def time_range(self) -> tuple[float, float]:
        """Return (first, last) moment of the timeline, in seconds of the run's clock; (0, 0) where there is none."""
        with self._index.reading():
            spans = self._index.spans()
            moments = [spans["start_s"].min(), spans["end_s"].max()] if len(spans) else []
            for at_s, _ in self.gauges(max_points=4).values():
                moments += [at_s[0], at_s[-1]]
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
        return len(spans), [
            {**span, "track": texts[span["track"]], "name": texts[span["name"]]} for span in merged(spans, max_spans)
        ]

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
        with self._index.reading():
            for key, points in self._curves("histogram", None):
                values, bounds = points["value"], np.array(buckets_of(key.partition("{")[0]))
                result[key] = {
                    "bounds": bounds,
                    "counts": np.bincount(np.searchsorted(bounds, values), minlength=len(bounds) + 1),
                    "count": len(values),
                    "sum": float(values.sum()),
                    "min": float(values.min()),
                    "max": float(values.max()),
                }
        return result

    def evaluations(self) -> list[Row]:
        """Return the evaluations, in order, as the run wrote them."""
        lines = self._index.streams.lines("evaluations", START)
        return [row for row in (parse(line) for _, line in lines) if row is not None]

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
        conditions: list[tuple[str, Any]] = []
        for condition, value in (
            ("env_id = ?", None if env_id is None else storable(env_id)),
            ("task_id = ?", None if task_id is None else storable(task_id)),
            ("success = ?", success),
            ("start_version >= ?", min_version),
            ("start_version <= ?", max_version),
        ):
            if value is not None:
                conditions.append((condition, value))
        if failure in ("any", "none"):
            conditions.append(("(failure_kind IS NULL) = ?", failure == "none"))
        elif failure is not None:
            conditions.append(("failure_kind = ?", failure))
        if text:
            inside = "row IN (SELECT row FROM conversations WHERE instr(text, ?) > 0)"
            conditions.append((inside, storable(text).casefold()))
        where = "WHERE " + " AND ".join(condition for condition, _ in conditions) if conditions else ""
        values = [value for _, value in conditions]
        order = "DESC" if descending else "ASC"
        by = "row" if sort == "time" else f'"{sort}" {order}, row'
        with self._index.reading() as tables:
            (total,) = tables.execute(f"SELECT count(*) FROM trajectories {where}", values).fetchone()
            rows = tables.execute(
                f"SELECT segment, offset, {SUMMARY_COLUMNS} FROM trajectories {where} "
                f"ORDER BY {by} {order} LIMIT ? OFFSET ?",
                (*values, limit, offset),
            ).fetchall()
        return total, [_from_table(row) for row in rows]

    def trajectory(self, key: str) -> Row:
        """Return the whole record (see `rollcage.trainer.rollout.record`).

        ``segments`` are there where the run wrote tokens, each with their texts as ``pieces``, and ``annotations`` (the
        per-token values that the trainer had for it) where it wrote those.

        Raises:
            UserError: there is none with this key.
        """
        place = _KEY.fullmatch(key)
        record = self._row("trajectories", (int(place[1]), int(place[2]))) if place else None
        if record is None:
            raise UserError(f"{self.path}: there is no trajectory {key!r} (any more).")
        with self._index.reading() as tables:
            annotations = tables.execute(
                "SELECT segment, offset FROM annotations WHERE id = ? AND time >= ? ORDER BY rowid LIMIT 1",
                (str(record.get("id", "")), record.get("time", 0.0)),
            ).fetchone()
        if annotations:
            record["annotations"] = self._row("annotations", annotations)
        add_pieces(self.path, record)
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
        streams = self._index.streams
        if cursor is None:
            return {name: [] for name in FOLLOWED}, json.dumps({name: streams.end(name) for name in FOLLOWED})
        places = _places(cursor)
        found: dict[str, list[Row]] = {}
        for stream in FOLLOWED:
            rows = found[stream] = []
            for place, line in islice(streams.lines(stream, places[stream]), max_rows):
                row = parse(line)
                if row is not None:
                    rows.append({"key": _key(place), **summarize(row)} if stream == "trajectories" else row)
                places[stream] = place[0], place[1] + len(line)
        return found, json.dumps(places)

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

    def _row(self, stream: str, place: Place) -> Row | None:
        line = self._index.streams.line(stream, place)
        return None if line is None else parse(line)

    def _curve(self, kind: str, key: str) -> npt.NDArray[Any]:
        """Return a curve's points; of those with the same policy version the newest, in order."""
        with self._index.reading() as tables:
            found = tables.execute("SELECT id, length FROM series WHERE kind = ? AND key = ?", (kind, key)).fetchone()
            if found is None:
                return np.empty(0, POINT)
            points = self._index.column(*found)
            if kind == "metric" and np.any(np.diff(points["at"]) <= 0):
                _, newest = np.unique(points["at"][::-1], return_index=True)
                points = points[len(points) - 1 - newest]
            return points

    def _curves(self, kind: str, names: Sequence[str] | None) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        with self._index.reading() as tables:
            found = tables.execute("SELECT key, name FROM series WHERE kind = ? ORDER BY key", (kind,)).fetchall()
            for key, name in found:
                if names is None or key in names or name in names:
                    yield key, self._curve(kind, key)


_WORDS = ("start", "finished", "failed", "stopped", "paused", "resumed")
"""Events that say how a run stands."""

_KEY = re.compile(r"(\d{1,12})-(\d{1,15})")


def _key(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _from_table(row: Sequence[Any]) -> Row:
    summary = dict(zip(SUMMARY, row[2:], strict=True))
    return {"key": _key((row[0], row[1])), **summary, **{name: bool(summary[name]) for name in BOOLEANS}}


def _places(cursor: str) -> dict[str, Place]:
    try:
        places = json.loads(cursor)
        found = {name: (int(places[name][0]), int(places[name][1])) for name in FOLLOWED}
    except (ValueError, KeyError, TypeError, IndexError):
        raise UserError(f"{cursor[:80]!r} is no cursor of `follow`.") from None
    if any(segment < 1 or offset < 0 for segment, offset in found.values()):
        raise UserError(f"{cursor[:80]!r} is no cursor of `follow`.")
    return found


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


def _eta_s(elapsed: npt.NDArray[Any], num_updates: int, max_train_s: float) -> float | None:
    if len(elapsed) < 2:
        return None
    made, spent_s = elapsed["at"][-1] - elapsed["at"][0], elapsed["value"][-1] - elapsed["value"][0]
    if made <= 0 or spent_s <= 0:
        return None
    by_updates = (num_updates - elapsed["at"][-1]) * spent_s / made
    return float(max(0.0, min(by_updates, max_train_s - elapsed["value"][-1])))
