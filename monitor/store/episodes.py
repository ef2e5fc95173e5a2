"""The episodes of a run: searched by what they are and by what they say, read whole, with the other attempts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rollcage.errors import UserError
from rollcage.monitor.store.run_files import RunFiles
from rollcage.monitor.store.segments import Place
from rollcage.monitor.store.summary import BOOLEANS, SUMMARY, SUMMARY_COLUMNS, Row, storable
from rollcage.monitor.store.vocabulary import add_pieces

SORTS = ("time", "return", "num_turns", "num_tokens", "duration_s", "start_version", "end_version", "task_id")

_KEY = re.compile(r"(\d{1,12})-(\d{1,15})")


class Episodes(RunFiles):
    """Reads a run's episodes."""

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


def key_of(place: Place) -> str:
    """Return the key of the episode at a place."""
    return f"{place[0]}-{place[1]}"


def _from_table(row: Sequence[Any]) -> Row:
    summary = dict(zip(SUMMARY, row[2:], strict=True))
    return {"key": key_of((row[0], row[1])), **summary, **{name: bool(summary[name]) for name in BOOLEANS}}
