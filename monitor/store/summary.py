"""What a row says, in short: the summary of a trajectory, the numbers of a metrics row, the key of a labelled value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]

SUMMARY: dict[str, str] = {
    "id": "TEXT",
    "time": "REAL",
    "env_id": "TEXT",
    "task_id": "TEXT",
    "policy": "TEXT",
    "success": "INTEGER",
    "return": "REAL",
    "failure_kind": "TEXT",
    "failure_reason": "TEXT",
    "start_version": "INTEGER",
    "end_version": "INTEGER",
    "start_s": "REAL",
    "end_s": "REAL",
    "duration_s": "REAL",
    "num_turns": "INTEGER",
    "num_tokens": "INTEGER",
    "cut_by_length": "INTEGER",
    "has_tokens": "INTEGER",
    "prompt": "TEXT",
}
"""The fields of a trajectory's summary, with their SQLite types."""

SUMMARY_COLUMNS = ", ".join(f'"{name}"' for name in SUMMARY)

BOOLEANS = ("success", "cut_by_length", "has_tokens")

_TEXT_CHARACTERS = 4000


def parse(line: bytes) -> Row | None:
    """Return the row of a line; None where it is damaged (a disk's fault: a torn last line never comes here)."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def summarize(record: Mapping[str, Any]) -> Row:
    """Return the summary of a trajectory's record; other writers may leave out much."""
    turns, failure = record.get("turns") or (), record.get("failure") or {}
    start_s, end_s = record.get("start_s") or 0.0, record.get("end_s") or 0.0
    return {
        "id": storable(record.get("id", "")),
        "time": record.get("time") or 0.0,
        "env_id": storable(record.get("env_id", "")),
        "task_id": storable(record.get("task_id", "")),
        "policy": storable(record.get("policy", "")),
        "success": bool(record.get("success")),
        "return": float(record.get("return") or 0.0),
        "failure_kind": storable(failure["kind"]) if failure.get("kind") is not None else None,
        "failure_reason": storable(failure["reason"]) if failure.get("reason") is not None else None,
        "start_version": record.get("start_version") or 0,
        "end_version": record.get("end_version") or 0,
        "start_s": start_s,
        "end_s": end_s,
        "duration_s": end_s - start_s,
        "num_turns": len(turns),
        "num_tokens": sum(turn.get("end", 0) - turn.get("start", 0) for turn in turns),
        "cut_by_length": any(turn.get("finish_reason") == "length" for turn in turns),
        "has_tokens": bool(record.get("segments")),
        "prompt": storable(record.get("prompt", ""))[:200],
    }


def storable(text: object) -> str:
    """Return a text as a database takes it: half a surrogate pair, which a model can write, becomes "?"."""
    return str(text).encode("utf-8", "replace").decode("utf-8")


def searchable(record: Mapping[str, Any]) -> str:
    """Return what a search for text looks at, case folded: 4,000 characters from each end of the conversation."""
    parts = [
        str(record.get("task_id", "")),
        str((record.get("failure") or {}).get("message", "")),
        str(record.get("prompt", "")),
    ]
    for turn in record.get("turns") or ():
        parts += [str(turn.get("action", "")), str(turn.get("observation", ""))]
    text = "\n".join(parts)
    if len(text) > 2 * _TEXT_CHARACTERS:
        text = text[:_TEXT_CHARACTERS] + "\n" + text[-_TEXT_CHARACTERS:]
    return storable(text).casefold()


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a metrics row; counters are called ``counter/NAME{label=value,...}``."""
    found = {name: value for name, value in row.items() if isinstance(value, (int, float)) and name != "policy_version"}
    for name, value in (row.get("counters") or {}).items():
        found["counter/" + name] = value
    return found


def labelled(name: str, labels: Mapping[str, Any]) -> str:
    """Return ``NAME{label=value,...}``, labels in order; ``NAME`` where there are none."""
    return name + ("{" + ",".join(f"{k}={v}" for k, v in sorted(labels.items())) + "}" if labels else "")
