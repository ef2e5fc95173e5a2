"""The folder of one evaluation: every finished episode is a line on disk, so that a killed evaluation goes on.

- evaluation.json: what is evaluated; going on with anything else is refused
- episodes.jsonl: one finished episode a line (see `rollcage.trainer.rollout.record`)
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcage.errors import UserError
from rollcage.trainer.rollout.record import dump_line

_SYNC_EVERY_S = 0.5


class EpisodeStore:
    """Appends episodes to a folder, and knows those that an earlier call has finished.

    Every line is with the operating system before `append` returns (a kill loses nothing), and on the disk within half
    a second and at `close` (a power cut loses half a second at most).

    Attributes:
        episodes: the finished ones, in the order of the file.

    Args:
        folder: made where missing.
        fingerprint: all that the episodes depend on, JSON-able.

    Raises:
        UserError: the folder holds another evaluation, cannot be written, or is in use by another process.
    """

    def __init__(self, folder: Path, fingerprint: Mapping[str, Any]) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / "episodes.jsonl").open("ab+")
        except OSError as error:
            raise UserError(f"{folder}: cannot be written ({error.strerror}); choose another --output.") from None
        try:
            self._lock()
            self._check(json.loads(dump_line(fingerprint)))
            self.episodes = self._read()
        except BaseException:
            self._file.close()
            raise
        self._synced_s = time.monotonic()

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one finished episode."""
        self._file.write(dump_line(record).encode("ascii"))
        self._file.flush()
        if time.monotonic() - self._synced_s > _SYNC_EVERY_S:
            self._sync()

    def close(self) -> None:
        """Put everything on the disk; idempotent. Where not one episode was finished, nothing stays behind."""
        if self._file.closed:
            return
        self._sync()
        empty = self._file.tell() == 0
        self._file.close()
        if empty:
            for name in ("episodes.jsonl", "evaluation.json"):
                (self.folder / name).unlink(missing_ok=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced_s = time.monotonic()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{self.folder}: another evaluation is writing there at this moment.") from None

    def _check(self, fingerprint: Mapping[str, Any]) -> None:
        path = self.folder / "evaluation.json"
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if self._file.seek(0, os.SEEK_END) > 0:
                text = f"{self.folder}: has episodes.jsonl but no evaluation.json; choose another --output."
                raise UserError(text) from None
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(fingerprint, indent=1) + "\n", encoding="utf-8")
            partial.replace(path)
            return
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error}); choose another --output.") from None
        for key, value in fingerprint.items():
            was = earlier.get(key) if isinstance(earlier, dict) else None
            if was != value:
                raise UserError(
                    f"{self.folder} holds another evaluation: {key} was {_short(was)}, now it is {_short(value)}; "
                    "choose another --output, or the same arguments to go on."
                )

    def _read(self) -> list[dict[str, Any]]:
        """Return the complete lines; a line that a kill has cut short is taken off the file."""
        self._file.seek(0)
        data = self._file.read()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            self._file.truncate(end)
        episodes = []
        for number, line in enumerate(data[:end].splitlines(), start=1):
            try:
                record = json.loads(line)
                record["task_id"], record["attempt"], record["success"], record["return"], record["failure"]
            except (ValueError, LookupError, TypeError) as error:
                raise UserError(
                    f"{self._file.name}:{number}: not an episode ({type(error).__name__}: {error}); remove the line."
                ) from None
            episodes.append(record)
        return episodes


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
