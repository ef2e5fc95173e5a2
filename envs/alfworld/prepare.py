"""``rollcage data alfworld``: says where the games are or how to get them, and translates them ahead of time."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rollcage.command import CommandParser, positive
from rollcage.envs.alfworld.games import DATASETS, MAX_CACHE_BYTES, GameTasks, find_source, open_game, translations
from rollcage.envs.alfworld.source import Source
from rollcage.envs.tasks import check_split
from rollcage.errors import UserError

_DESCRIPTION = """Say which games of ALFWorld are on this machine, or how to get them; with --translate, make them
ready. The official games are looked for in the folder alfworld of $ROLLCAGE_DATA, ./data and ../shared/data, in these
themselves, and where `alfworld-download` puts them ($ALFWORLD_DATA or ~/.cache/alfworld). To get them:

  pip install alfworld && alfworld-download

A game is translated when it is first played (half a second), and from then on taken from the cache, which is in
$ROLLCAGE_CACHE or the user's cache folder. --translate does that for all games of a split (train: half an hour of one
core), and plays every walkthrough: a game whose walkthrough does not win is named."""


def main(argv: Sequence[str]) -> int:
    """Run the command; exit code 1 where a game does not work."""
    parser = CommandParser(
        "rollcage data alfworld",
        _DESCRIPTION,
        "rollcage data alfworld\nrollcage data alfworld --translate valid_unseen\n"
        "rollcage data alfworld --data-dir ~/alfworld --translate train --workers 8",
    )
    parser.add_argument("--dataset", choices=DATASETS, default="official", help="which games (default: official)")
    parser.add_argument("--data-dir", type=Path, help="the only folder in which they are looked for")
    parser.add_argument("--translate", action="append", default=[], metavar="SPLIT", help="or 'all'; repeatable")
    parser.add_argument("--workers", type=positive, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line on stdout")
    arguments = parser.parse_args(argv)
    source = find_source(arguments.dataset, arguments.data_dir)
    tasks = GameTasks(f"alfworld-{arguments.dataset}", source, None)
    splits = list(tasks.splits) if "all" in arguments.translate else list(dict.fromkeys(arguments.translate))
    wanted = [tasks.task(split, index).id for split in splits for index in range(check_split(tasks, split))]
    failed = _translate(source, wanted, arguments.workers)
    num_kept, kept_bytes = translations().size()
    found: dict[str, Any] = {
        "source": str(getattr(source, "folder", "our own")),
        "licence": source.licence,
        "splits": {split: _types(tasks, split) for split in tasks.splits},
        "translated": num_kept,
        "translated_bytes": kept_bytes,
        "checked": len(wanted),
        "failed": failed,
    }
    if arguments.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return 1 if failed else 0
    sys.stdout.write(f"games: {found['source']}  ({source.licence or 'made here'})\n")
    for split, types in found["splits"].items():
        listed = ", ".join(f"{kind} {number}" for kind, number in types.items())
        sys.stdout.write(f"  {split:13}{sum(types.values()):>5}  {listed}\n")
    kept = f"{num_kept:,} games, {kept_bytes / 2**20:.1f} MiB of at most {MAX_CACHE_BYTES // 2**20}"
    sys.stdout.write(f"translated: {kept}, in {translations().folder}\n")
    if wanted:
        sys.stdout.write(f"made ready: {len(wanted) - len(failed):,} of {len(wanted):,}\n")
        sys.stdout.write("".join(f"  {reason}\n" for reason in failed))
    return 1 if failed else 0


def _types(tasks: GameTasks, split: str) -> dict[str, int]:
    return dict(sorted(Counter(tasks.task(split, i).data["task_type"] for i in range(tasks.splits[split])).items()))


def _translate(source: Source, task_ids: Sequence[str], workers: int) -> list[str]:
    """Make games ready; returns why the others cannot be."""
    if not task_ids:
        return []
    failed = []
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for done, reason in enumerate(pool.map(partial(_make_ready, source), task_ids, chunksize=4), start=1):
            failed += [reason] if reason else []
            if done % 100 == 0 or done == len(task_ids):
                sys.stderr.write(f"{done:,} of {len(task_ids):,}\n")
    return failed


def _make_ready(source: Source, task_id: str) -> str:
    try:
        open_game(source, task_id)
    except UserError as error:
        return str(error)
    return ""
