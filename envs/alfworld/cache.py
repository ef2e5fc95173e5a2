"""A bounded cache of JSON values on disk that any number of processes may use at once."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any


def cache_root() -> Path:
    """Return the folder for what can be made again: ``$ROLLCAGE_CACHE``, or ``rollcage`` in the user's cache folder."""
    if named := os.environ.get("ROLLCAGE_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollcage"


class DiskCache:
    """Values by key, one compressed file each; those unused for longest go first when there are too many bytes.

    A file appears whole or not at all, and one that is not whole (a disk that was full, a machine that went down) is a
    value that is not there. Where nothing can be written, nothing is kept.

    Args:
        folder: of the files; nothing else may be in it.
        max_bytes: so many are kept on disk.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes

    def get(self, key: str) -> Any:
        """Return the value of ``key`` (letters and digits), or None."""
        path = self.folder / key
        try:
            value = json.loads(zlib.decompress(path.read_bytes()))
            os.utime(path)
        except (OSError, ValueError, zlib.error):
            return None
        return value

    def put(self, key: str, value: Any) -> None:
        """Keep ``value``."""
        data = zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 6)
        with contextlib.suppress(OSError):
            write_whole(self.folder / key, data)
            self._prune()

    def size(self) -> tuple[int, int]:
        """Return the number of files and their bytes."""
        files = self._files()
        return len(files), sum(size for _, size, _ in files)

    def _files(self) -> list[tuple[float, int, str]]:
        found = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process has removed it
                    status = entry.stat()
                    found.append((status.st_mtime, status.st_size, entry.path))
        return found

    def _prune(self) -> None:
        files = self._files()
        excess = sum(size for _, size, _ in files) - self.max_bytes
        for _, size, path in sorted(files) if excess > 0 else ():
            if excess <= 0:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            excess -= size


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that others see whole or not at all; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(data)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
