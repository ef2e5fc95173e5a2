"""Rows in SWE-bench's format, from memory or from a publisher's file, as tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcage.envs.tasks import RowTasks, read_jsonl
from rollcage.errors import UserError

FIELDS = (
    "instance_id",
    "repo",
    "base_commit",
    "problem_statement",
    "patch",
    "test_patch",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
)
"""What a row must have."""


def as_tasks(name: str, splits: Mapping[str, Sequence[Mapping[str, Any]]], *, licence: str = "") -> RowTasks:
    """Return a task set of rows; a task's id is ``split/instance_id``."""
    named = {split: [{"id": row["instance_id"], **row} for row in rows] for split, rows in splits.items()}
    return RowTasks(name, named, licence=licence)


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Read rows from a ``.jsonl``, ``.jsonl.xz`` or ``.json`` file, or from all of those in a folder.

    The lists of tests may be lists, or JSON in a string, as some publishers write them.

    Raises:
        UserError: it cannot be read, or is in another format; the message names file and line.
    """
    path = Path(path)
    if not path.is_dir():
        return _read_file(path)
    files = sorted(file for file in path.iterdir() if file.name.endswith((".jsonl", ".jsonl.xz", ".json")))
    rows = [row for file in files for row in _read_file(file)]
    if not rows:
        raise UserError(f"{path}: no rows in SWE-bench's format (.jsonl, .jsonl.xz or .json files); name a file.")
    return rows


def _read_file(path: Path) -> list[dict[str, Any]]:
    if path.suffix != ".json":
        return read_jsonl(path, FIELDS, _normal)
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from None
    if not isinstance(rows, list):
        raise UserError(f"{path}: expected a JSON list of rows, found {type(rows).__name__}.")
    found = []
    for position, row in enumerate(rows):
        missing = [key for key in FIELDS if not isinstance(row, dict) or key not in row]
        if missing:
            raise UserError(f"{path}: row {position}: the field {missing[0]!r} is missing.")
        try:
            found.append(_normal(row))
        except ValueError as error:
            raise UserError(f"{path}: row {position}: {error}.") from None
    return found


def _normal(row: dict[str, Any]) -> dict[str, Any]:
    for key in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        tests = json.loads(row[key]) if isinstance(row[key], str) else row[key]
        if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
            raise ValueError(f"{key} must be a list of test names, or such a list as JSON in a string")
        row[key] = tests
    for key in FIELDS[:6]:
        if not isinstance(row[key], str):
            raise ValueError(f"{key} must be text, not {type(row[key]).__name__}")
    return row
