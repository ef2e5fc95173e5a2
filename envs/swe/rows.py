"""Rows in SWE-bench's format, from memory or from a publisher's file, as tasks."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
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
"""What a row must have; in SWE-smith's rows ``patch`` makes the bug, and base_commit and test_patch may be missing."""

_ENDINGS = (".jsonl", ".jsonl.xz", ".json", ".parquet")
_SMITH = "swesmith/"
_SMITH_SPEC = {
    "python": "3.11",
    "install": "python -m pip install -e .",
    "pip_packages": ["pytest"],
    "test_cmd": "python -m pytest -rA",
}
_FORMS = {
    "instance_id": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
    "repo": re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+"),
    "base_commit": re.compile(r"[0-9a-f]{7,64}|HEAD"),
}
"""What goes into names of images and into commands has to look like what it is."""


def as_tasks(name: str, splits: Mapping[str, Sequence[Mapping[str, Any]]], *, licence: str = "") -> RowTasks:
    """Return a task set of rows; a task's id is ``split/instance_id``."""
    named = {split: [{"id": row["instance_id"], **row} for row in rows] for split, rows in splits.items()}
    return RowTasks(name, named, licence=licence)


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Read rows from a ``.jsonl``, ``.jsonl.xz``, ``.json`` or ``.parquet`` file, or from all of those in a folder.

    The lists of tests may be lists, or JSON in a string, as some publishers write them. Parquet takes pyarrow.

    Raises:
        UserError: it cannot be read, or is in another format; the message names file and line.
    """
    path = Path(path)
    if not path.is_dir():
        return _read_file(path)
    rows = [row for file in row_files(sorted(path.iterdir())) for row in _read_file(file)]
    if not rows:
        raise UserError(f"{path}: no rows in SWE-bench's format ({', '.join(_ENDINGS)} files); name a file.")
    return rows


def row_files(files: Iterable[Path]) -> list[Path]:
    """Return those files of a folder that hold rows: publishers put tables and notes beside them."""
    return [file for file in files if file.name.endswith(_ENDINGS) and _holds_rows(file)]


def _holds_rows(file: Path) -> bool:
    """Return whether a file's first record has a patch; one that cannot be read is left to who reads it whole."""
    if file.suffix == ".parquet":
        return True
    try:
        with (lzma.open if file.suffix == ".xz" else open)(file, "rt", encoding="utf-8-sig") as text:
            if file.suffix == ".json":
                content = json.load(text)
                first = content[0] if isinstance(content, list) and content else None
            else:
                first = json.loads(next((line for line in text if line.strip()), "null"))
    except (OSError, ValueError, lzma.LZMAError, EOFError):
        return True
    return isinstance(first, dict) and "patch" in first


def _read_file(path: Path) -> list[dict[str, Any]]:
    if path.suffix not in (".json", ".parquet"):
        return read_jsonl(path, convert=_normal)
    found = []
    for position, row in enumerate(_read_parquet(path) if path.suffix == ".parquet" else _read_json(path)):
        try:
            found.append(_normal(row))
        except ValueError as error:
            raise UserError(f"{path}: row {position}: {error}.") from None
    return found


def _read_json(path: Path) -> Sequence[Any]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error}).") from None
    if not isinstance(rows, list):
        raise UserError(f"{path}: expected a JSON list of rows, found {type(rows).__name__}.")
    return rows


def _read_parquet(path: Path) -> Iterator[Any]:
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise UserError(f"{path}: to read .parquet files, run  pip install pyarrow  (or give a .jsonl file).") from None
    try:
        yield from parquet.read_table(str(path)).to_pylist()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())}).") from None


def _normal(given: Any) -> dict[str, Any]:
    """Return a row with every field that tasks need; a ValueError says what is wrong with it."""
    if not isinstance(given, dict):
        raise ValueError(f"a row must be an object, not {type(given).__name__}")
    row: dict[str, Any] = given
    if str(row.get("repo", "")).startswith(_SMITH):
        row = {"base_commit": "HEAD", "test_patch": "", "problem_statement": "", **row, "patch_is_bug": True}
    for key in FIELDS:
        if key not in row:
            raise ValueError(f"the field {key!r} is missing")
    for key in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        tests = json.loads(row[key]) if isinstance(row[key], str) else row[key]
        if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
            raise ValueError(f"{key} must be a list of test names, or such a list as JSON in a string")
        row[key] = tests
    for key in FIELDS[:6]:
        if not isinstance(row[key], str):
            raise ValueError(f"{key} must be text, not {type(row[key]).__name__}")
        if key in _FORMS and not _FORMS[key].fullmatch(row[key]):
            raise ValueError(f"{row[key]!r} is no {key}")
    if row.get("image_assets") not in (None, "", "{}", {}, []):
        raise ValueError(f"{row['instance_id']} shows images (SWE-bench Multimodal): an agent that reads text cannot")
    if "spec" in row and not (isinstance(row["spec"], dict) and isinstance(row["spec"].get("test_cmd"), str)):
        raise ValueError("spec must be an object with at least 'test_cmd', as in the official table")
    if row.get("patch_is_bug"):
        tests = [*row["FAIL_TO_PASS"], *row["PASS_TO_PASS"]]
        files = sorted({test.partition("::")[0] for test in tests if "::" in test})
        spec = dict(row.get("spec") or _SMITH_SPEC)
        row["spec"] = {**spec, "test_files": files, "test_cmd": " ".join([spec["test_cmd"], *files])}
    return row
