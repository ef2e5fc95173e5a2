"""Where published data sets lie on this machine, and how their files become tasks.

Rollcage ships no data of others: a named data set is read from the files that its publisher offers. They are looked for
under ``data_dir`` where that is given, and else under ``$ROLLCAGE_DATA``, ``./data`` and ``../shared/data``, in this
order; in each of them first in a folder of the kind ("math", "qa", ...), then in the root itself. The first place that
holds any file of the set wins. Within a place, these names are taken, with the endings of `ENDINGS`:

- ``NAME_train``, ``NAME_test`` and so on (`SPLITS`): these splits;
- ``NAME`` alone, or ``NAME_1140`` (a count of rows): one file, which is the split "test";
- a folder ``NAME``: all its files, each in the split at the end of its name, or "test".
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rollcage.envs.tasks import RowTasks, read_jsonl
from rollcage.errors import UserError, did_you_mean

ENDINGS = (".jsonl", ".jsonl.xz", ".json", ".csv")
SPLITS = {
    "train": "train",
    **dict.fromkeys(("validation", "valid", "val"), "validation"),
    "dev": "dev",
    "test": "test",
}
SAMPLES = Path(__file__).with_name("samples")

Data = str | Path | Mapping[str, str | Path]
Files = Mapping[str, Sequence[Path]]
Row = dict[str, Any]


class Converter(Protocol):
    """Makes a task's data out of a row and the ``stem`` of its file (its name without split and ending).

    The data may hold an "id", and "quarantined": why the row cannot be scored. A ValueError says what is malformed.
    """

    def __call__(self, row: Row, *, stem: str) -> Row: ...  # noqa: D102
    def __hash__(self) -> int: ...


class Published(NamedTuple):
    """A published data set: where it comes from and on which terms."""

    source: str
    licence: str


class FileTasks(RowTasks):
    """Tasks that were read from files.

    Attributes:
        quarantined: id -> why, of the rows that cannot be scored and were left out.
    """

    def __init__(
        self, name: str, splits: Mapping[str, Sequence[Row]], licence: str, quarantined: Mapping[str, str]
    ) -> None:
        super().__init__(name, splits, licence=licence)
        self.quarantined = quarantined


def data_roots(data_dir: str | Path | None = None) -> list[Path]:
    """Return the folders in which data sets are looked for, in order; see the module."""
    if data_dir is not None:
        return [Path(data_dir)]
    named = os.environ.get("ROLLCAGE_DATA")
    return [*([Path(named)] if named else []), Path("data"), Path("..", "shared", "data")]


def find_dataset(
    name: str, kind: str, known: Mapping[str, Published], data_dir: str | Path | None = None
) -> dict[str, list[Path]]:
    """Return the files of a published data set by split.

    Args:
        name: the set's name, as its files carry it.
        kind: the sub-folder in which it is looked for first: "math", "qa", ...
        known: the sets of this kind.
        data_dir: the only folder to look in; None for the usual places.

    Raises:
        UserError: it is not known, or in none of the places; then says which these were, who publishes the set and
            which file to put there.
    """
    if name not in known:
        raise UserError(f"no {kind} data set {name!r} (known: sample, {', '.join(known)}).{did_you_mean(name, known)}")
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
        f"data set {name!r} is not on this machine (looked in {places}). Get it from {known[name].source}, save it as "
        f"{name}_test.jsonl (or _train, ...) in one of these, or name its folder with $ROLLCAGE_DATA or data_dir=."
    )


def own_files(data: Data) -> dict[str, list[Path]]:
    """Return the files of a user's own data by split: a file, a folder of files, or {split: file or folder}.

    A file belongs to the split at the end of its name (``sums_train.jsonl``, ``train.jsonl``), any other to "test".

    Raises:
        UserError: there is no such file, or a folder holds none.
    """
    if isinstance(data, Mapping):
        return {split: [file for _, file in _files_at(Path(path))] for split, path in data.items()}
    splits: dict[str, list[Path]] = {}
    for stem, path in _files_at(Path(data)):
        splits.setdefault(SPLITS.get(stem.rpartition("_")[2].lower(), "test"), []).append(path)
    return splits


def load_tasks(name: str, files: Files, convert: Converter, *, licence: str = "") -> FileTasks:
    """Read files into tasks.

    Args:
        name: the set's name.
        files: the files of each split, as `find_dataset` and `own_files` return them.
        convert: see `Converter`.
        licence: licence of the data.

    A task's id is its split and the row's own id (``test/aime24-0``); where that is only a number, or missing (then its
    position, from 0, takes its place), the name of the file without its split is put before it (``test/gsm8k-0``).

    Raises:
        UserError: a file cannot be read or a row is malformed; names the file and the line.
    """
    stamps = [(split, path, path.stat()) for split, paths in files.items() for path in paths]
    return _load(name, licence, convert, tuple((split, path, at.st_mtime_ns, at.st_size) for split, path, at in stamps))


class _Numbered:
    """Converts the rows of one file and gives each its id, different from ``earlier`` ones of its split."""

    def __init__(self, convert: Converter, stem: str, earlier: set[str]) -> None:
        self._convert, self._stem, self._earlier = convert, stem, earlier
        self._ids: set[str] = set()
        self._position = -1

    def __call__(self, row: Row) -> Row:
        self._position += 1
        row = self._convert(row, stem=self._stem)
        row_id = str(row.get("id", self._position))
        if row_id.isdigit() or row_id in self._earlier:
            row_id = f"{self._stem}-{row_id}"
        if row_id in self._ids or row_id in self._earlier:
            raise ValueError(f"the id {row_id!r} stands twice; ids must be unique")
        self._ids.add(row_id)
        row["id"] = row_id
        return row


@lru_cache(maxsize=16)  # a vector environment makes many instances; the stamps notice a changed file
def _load(name: str, licence: str, convert: Converter, stamped: Sequence[tuple[str, Path, int, int]]) -> FileTasks:
    splits: dict[str, list[Row]] = {}
    quarantined: dict[str, str] = {}
    for split, path, *_ in stamped:
        rows = splits.setdefault(split, [])
        earlier = {row["id"] for row in rows}
        for row in read_rows(path, _Numbered(convert, _without_split(_stem(path)), earlier)):
            if reason := row.get("quarantined"):
                quarantined[f"{split}/{row['id']}"] = reason
            else:
                rows.append(row)
    return FileTasks(name, splits, licence, quarantined)


def default_split(tasks: RowTasks) -> str:
    """Return "train" where the tasks have it, else their first split that is not empty."""
    filled = [split for split, size in tasks.splits.items() if size]
    return "train" if "train" in filled or not filled else filled[0]


def read_rows(path: Path, convert: Callable[[Row], Row]) -> list[Row]:
    """Read one file: JSON lines, a JSON array, ``{"examples": [...]}`` (as BIG-Bench Hard) or a plain table (as MMLU).

    ``convert`` checks and changes each row; its ValueError says what is wrong with the row.

    Raises:
        UserError: the file cannot be read, is empty, or a row is refused; names the file and the line (in a JSON array:
            the item).
    """
    rows = read_jsonl(path, convert=convert) if path.suffix not in (".json", ".csv") else _converted(path, convert)
    if not rows:
        raise UserError(f"{path}: is empty: it holds no rows; fill or remove it.")
    return rows


def _converted(path: Path, convert: Callable[[Row], Row]) -> list[Row]:
    rows = []
    for number, row in _read_table(path) if path.suffix == ".csv" else enumerate(_read_array(path), start=1):
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}.")
        try:
            rows.append(convert(row))
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}.") from None
    return rows


def _read_array(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # as `read_jsonl`: with or without a byte order mark
        content = json.loads(text) if text.strip() else []
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error}); name a file of JSON lines .jsonl.") from None
    if isinstance(content, dict) and isinstance(content.get("examples"), list):
        content = content["examples"]
    if not isinstance(content, list):
        raise UserError(f"{path}: expected a JSON array of objects, found {type(content).__name__}.")
    return content


def _read_table(path: Path) -> Iterable[tuple[int, Row]]:
    """The rows of a table, each with its line (its last, of several); blank lines are skipped."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, line) for line in reader if any(field.strip() for field in line)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as a table ({error}).") from None
    for number, line in lines:
        if len(line) < 4:
            raise UserError(f"{path}:{number}: expected a question, options and a letter, found {len(line)} fields.")
        yield number, {"question": line[0], "options": line[1:-1], "answer": line[-1]}


def _files_of(folder: Path) -> list[tuple[str, Path]]:
    """The data files of a folder as (name without ending, path), in order of name; none where there is no folder."""
    if not folder.is_dir():
        return []
    return [(_stem(path), path) for path in sorted(folder.iterdir()) if path.name.endswith(ENDINGS) and path.is_file()]


def _files_at(path: Path) -> list[tuple[str, Path]]:
    if path.is_file():
        return [(_stem(path), path)]
    if not path.is_dir():
        raise UserError(f"{path}: no such file or folder; give a data file ({', '.join(ENDINGS)}) or a folder of them.")
    files = _files_of(path)
    if not files:
        raise UserError(f"{path}: this folder holds no data file ({', '.join(ENDINGS)}).")
    return files


def _stem(path: Path) -> str:
    ending = next((ending for ending in ENDINGS if path.name.endswith(ending)), path.suffix)
    return path.name.removesuffix(ending)


def _without_split(stem: str) -> str:
    name, _, last = stem.rpartition("_")
    return name if name and (last in SPLITS or last.isdecimal()) else stem


def _split_of(stem: str, name: str) -> str | None:
    if stem == name:
        return "test"
    prefix, _, last = stem.rpartition("_")
    if prefix != name:
        return None
    return "test" if last.isdecimal() else SPLITS.get(last)
