"""SWE-bench's data sets on this machine, and the rows of them that are quarantined."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollcage.envs.alfworld.cache import cache_root
from rollcage.envs.data import Data, FileTasks, Published, find_dataset, own_files
from rollcage.envs.swe.rows import read_rows, row_files
from rollcage.envs.swe.sample import sample_rows
from rollcage.envs.tasks import read_jsonl
from rollcage.errors import UserError

_LICENCE = "MIT; issues and patches under their projects' licences"
DATASETS = {
    name: Published(f"https://huggingface.co/datasets/princeton-nlp/SWE-bench{suffix}", _LICENCE)
    for name, suffix in (("lite", "_Lite"), ("verified", "_Verified"), ("full", ""))
}


def swe_tasks(
    dataset: str = "lite",
    data: Data | None = None,
    data_dir: str | Path | None = None,
    quarantine: str | Path | None = None,
) -> FileTasks:
    """Return the rows as tasks; a task's id is ``split/instance_id``.

    Args:
        dataset: one of `DATASETS`, looked for as `rollcage.envs.data` says, in a folder ``swebench``; or "sample".
        data: files of one's own instead, as `rollcage.envs.data.own_files` takes them, or a folder of .parquet files.
        data_dir: the only folder in which ``dataset`` is looked for.
        quarantine: see `read_quarantine`.

    Raises:
        UserError: no such data, or they are malformed; the message names file and row.
    """
    if dataset == "sample" and data is None:
        own = {split: [{**row, "id": row["instance_id"]} for row in rows] for split, rows in sample_rows().items()}
        return FileTasks("swebench-sample", own, "Apache-2.0", {})
    files = _parquet_files(data) or own_files(data) if data is not None else None
    files = files if files is not None else find_dataset(dataset, "swebench", DATASETS, data_dir)
    if isinstance(data, str | Path) and Path(data).is_dir():
        files = {split: kept for split, paths in files.items() if (kept := row_files(paths))}
        if not files:
            raise UserError(f"{data}: no file of this folder holds rows in SWE-bench's format; name a file.")
    name, licence = (f"swebench-{dataset}", _LICENCE) if data is None else ("swebench-own", "")
    stamps = [(split, path, path.stat()) for split, paths in files.items() for path in paths]
    stamped = tuple((split, path, at.st_mtime_ns, at.st_size) for split, path, at in stamps)
    return _load(name, licence, stamped, tuple(read_quarantine(quarantine).items()))


@lru_cache(maxsize=4)  # an evaluation makes many instances; the stamps notice a changed file
def _load(
    name: str, licence: str, stamped: Sequence[tuple[str, Path, int, int]], quarantine: Sequence[tuple[str, str]]
) -> FileTasks:
    why = dict(quarantine)
    splits: dict[str, dict[str, dict[str, Any]]] = {}
    for split, path, *_ in stamped:
        rows = splits.setdefault(split, {})
        for row in read_rows(path):
            if rows.setdefault(row["instance_id"], row) != row:
                raise UserError(f"{path}: {row['instance_id']} stands twice, and differs.")
    kept = {
        split: [{**row, "id": id_} for id_, row in rows.items() if id_ not in why] for split, rows in splits.items()
    }
    quarantined = {f"{split}/{id_}": why[id_] for split, rows in splits.items() for id_ in rows if id_ in why}
    return FileTasks(name, kept, licence, quarantined)


def quarantine_file() -> Path:
    """Return where `rollcage swebench check` notes the instances that cannot be scored here."""
    return cache_root() / "swebench" / "quarantine.jsonl"


def read_quarantine(path: str | Path | None) -> Mapping[str, str]:
    """Return instance id -> why it is left out.

    Args:
        path: JSON lines of {"instance_id", "reason"}; None for `quarantine_file`, which may be missing; "" for nothing.

    Raises:
        UserError: the file cannot be read, or is in another format.
    """
    if path == "" or (path is None and not quarantine_file().is_file()):
        return {}
    rows = read_jsonl(path or quarantine_file(), ("instance_id", "reason"))
    return {str(row["instance_id"]): str(row["reason"]) for row in rows}


def write_quarantine(path: Path, reasons: Mapping[str, str]) -> None:
    """Write a quarantine; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    lines = (json.dumps({"instance_id": name, "reason": reason}) for name, reason in sorted(reasons.items()))
    partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    partial.replace(path)


def _parquet_files(data: Data) -> dict[str, list[Path]] | None:
    """Return the files of a folder as data hubs lay them out (``test-00000-of-00001.parquet``); None: it is none."""
    if isinstance(data, Mapping) or not (folder := Path(data)).is_dir():
        return None
    splits: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.parquet")):
        splits.setdefault(path.name.partition("-")[0].removesuffix(".parquet"), []).append(path)
    return splits or None
