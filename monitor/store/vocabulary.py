"""The texts of a run's tokens: written once for the whole run, since episodes hold ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

NAME = "vocabulary.json"


def write_vocabulary(folder: Path, texts: Sequence[str]) -> None:
    """Write the text of every token, by id."""
    (folder / NAME).write_text(json.dumps(list(texts)), encoding="utf-8")


def add_pieces(folder: Path, record: dict[str, Any]) -> None:
    """Give each segment of an episode its ``pieces``, the texts of its tokens; none where the run wrote no vocabulary.

    A token that is no whole character (part of an emoji, say) shows as U+FFFD.
    """
    try:
        texts = _read(folder / NAME, (folder / NAME).stat().st_mtime_ns)
    except (OSError, ValueError):
        return
    for segment in record.get("segments") or ():
        segment["pieces"] = [texts[token] if 0 <= token < len(texts) else "" for token in segment["token_ids"]]


@lru_cache(maxsize=8)
def _read(path: Path, _written_ns: int) -> list[str]:
    texts: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return texts
