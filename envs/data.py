"""Where published data sets lie on this machine, and how their files are read.

Rollcage ships no data of others: a named data set is read from the files that its publisher offers. They are looked for
under ``data_dir`` where that is given, and else under ``$ROLLCAGE_DATA``, ``./data`` and ``../shared/data``, in this order;
in each of them first in a folder of the kind ("math", "qa", ...), then in the root itself. The first place that holds any
file of the set wins. Within a place, these names are taken, with the endings of `ENDINGS`:

- ``NAME_train``, ``NAME_test`` and so on (`SPLITS`): these splits;
- ``NAME`` alone, or ``NAME_1140`` (a count of rows): one file, which is the split "test";
- a folder ``NAME``: all its files, each in the split at the end of its name, or "test".
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcage.envs.tasks import read_jsonl
from rollcage.errors import UserError

ENDINGS = (".jsonl", ".jsonl.xz", ".json", ".csv")
SPLITS = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "dev",
    "test": "test",
}

Row = dict[str, Any]
Convert = Callable[[Row], Row]


def data_roots(data_dir: str | Path | None = None) -> list[Path]:
    """Return the folders in which data sets are looked for, in order; see the module."""
    if data_dir is not None:
        return [Path(data_dir)]
    named = os.environ.get("ROLLCAGE_DATA")
    return [*([Path(named)] if named else []), Path("data"), Path("..", "shared", "data")]


def find_dataset(name: str, kind: str, source: str, data_dir: str | Path | None = None) -> dict[str, list[Path]]:
    """Return the files of a published data set by split, for the set ``name`` of the sort ``kind`` ("math", ...).

    Args:
        name: the set's name, as its files carry it.
        kind: the sub-folder in which it is looked for first.
        source: who publishes it, for the error message.
        data_dir: the only folder to look in; None for the usual places.

    Raises:
        UserError: it is in none of the places; says which they were, who publishes the set and which file to put there.
    """
    roots = data_roots(data_dir)
    for folder in (folder for root in roots for folder in (root / kind, root)):
        splits: dict[str, list[Path]] = {}
        for stem, path in _files_of(folder):
            if (split := _split_of(stem, name)) is not None:
                splits.setdefault(split, []).append(path)
        if splits:
            return splits
        if _files_of(folder / name):
            return own_files(folder / name)
    places = ", ".join(str(root / kind) for root in roots)
    raise UserError(
        f"data set {name!r} is not on this machine (looked in {places}). Get it from {source} and save it as "
        f"{name}_test.jsonl (or _train, ...) in one of these, or name its folder with $ROLLCAGE_DATA or data_dir=."
    )


def own_files(data: str | Path | Mapping[str, str | Path]) -> dict[str, list[Path]]:
    """Return the files of a user's own data by split: a file, a folder of files, or {split: file or folder}.

    A file belongs to the split at the end of its name (``sums_train.jsonl``, ``train.jsonl``); any other file to "test".

    Raises:
        UserError: there is no such file, or a folder holds none.
    """
    if isinstance(data, Mapping):
        return {split: [file for _, file in _files_at(Path(path))] for split, path in data.items()}
    splits: dict[str, list[Path]] = {}
    for stem, path in _files_at(Path(data)):
        splits.setdefault(SPLITS.get(stem.rpartition("_")[2].lower(), "test"), []).append(path)
    return splits


def read_rows(path: Path, convert: Convert) -> list[Row]:
    """Read one data file: JSON lines, a JSON array, ``{"examples": [...]}`` (BIG-Bench Hard) or a table without header (MMLU).

    ``convert`` checks and changes each row; its ValueError says what is wrong with the row.

    Raises:
        UserError: the file cannot be read or a row is refused; names the file and the line (in a JSON array: the item).
    """
    if path.suffix not in (".json", ".csv"):
        return read_jsonl(path, convert=convert)
    rows = []
    for number, row in enumerate(_read_table(path) if path.suffix == ".csv" else _read_array(path), start=1):
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}.")
        try:
            rows.append(convert(row))
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}.") from None
    return rows


def _read_array(path: Path) -> list[Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: cannot be read as JSON ({error}); one object a line belongs in a .jsonl file."
        ) from None
    if isinstance(content, dict) and isinstance(content.get("examples"), list):
        content = content["examples"]
    if not isinstance(content, list):
        raise UserError(f"{path}: expected a JSON array of objects, found {type(content).__name__}.")
    return content


def _read_table(path: Path) -> Iterable[Row]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as a table ({error}).") from None
    for number, line in enumerate(lines, start=1):
        if len(line) < 4:
            raise UserError(
                f"{path}:{number}: expected a question, two or more options and a letter, found {len(line)} fields."
            )
        yield {"question": line[0], "options": line[1:-1], "answer": line[-1]}


def _files_of(folder: Path) -> Sequence[tuple[str, Path]]:
    """The data files of a folder as (name without ending, path), in order of name; none where there is no folder."""
    if not folder.is_dir():
        return []
    files = sorted(path for path in folder.iterdir() if path.name.endswith(ENDINGS) and path.is_file())
    return [
        (path.name[: path.name.index(ending)], path)
        for path in files
        for ending in ENDINGS
        if path.name.endswith(ending)
    ]


def _files_at(path: Path) -> Sequence[tuple[str, Path]]:
    if not path.is_dir():
        if not path.is_file():
            raise UserError(
                f"{path}: no such file or folder; give a data file ({', '.join(ENDINGS)}) or a folder of them."
            )
        return [(path.name.partition(".")[0], path)]
    files = _files_of(path)
    if not files:
        raise UserError(f"{path}: this folder holds no data file ({', '.join(ENDINGS)}).")
    return files


def _split_of(stem: str, name: str) -> str | None:
    if stem == name:
        return "test"
    prefix, _, last = stem.rpartition("_")
    if prefix != name:
        return None
    return "test" if last.isdecimal() else SPLITS.get(last)
