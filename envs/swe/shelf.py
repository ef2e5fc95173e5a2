"""The images that were pulled or built for environments: who works with them, and which go when there are too many.

Each is noted in a file in the user's cache. Who works with an image holds a shared lock on its file; when there are too
many, the ones unused for longest go. What a user has pulled or built by command is not noted, and never removed. A kill
at any moment leaves no lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from rollcage.envs.alfworld.cache import cache_root
from rollcage.sandbox.errors import ImageMissing, SandboxError

T = TypeVar("T")
_POLL_S = 0.2


def prune(keep: int) -> list[str]:
    """Remove all but the newest ``keep`` of the images that were got for environments; returns the names that went.

    Those that are in use stay.
    """
    removed = []
    files = sorted(shelf().glob("*.image"), key=_used_at, reverse=True)
    for path in files[keep:]:
        # OSError: it is in use, or gone already; SandboxError: its host does not answer. It stays for the next time.
        with suppress(OSError, SandboxError), path.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            noted = json.loads(file.read())
            if run(_remove(noted["endpoint"], noted["image"])):
                removed.append(noted["image"])
                path.unlink()
    return removed


def shelf() -> Path:
    """Return the folder of the notes."""
    folder = cache_root() / "swebench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _file_of(endpoint: str, image: str) -> Path:
    return shelf() / f"{hashlib.sha256(f'{endpoint} {image}'.encode()).hexdigest()[:32]}.image"


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def hold(endpoint: str, image: str) -> IO[str] | None:
    """Return the image's file with a shared lock on it; None where it has none, or is being removed."""
    path = _file_of(endpoint, image)
    try:
        file = path.open("r+", encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        os.utime(path)
    except FileNotFoundError:  # it was removed while we waited
        file.close()
        return None
    except BaseException:
        file.close()
        raise
    return file


def note(endpoint: str, image: str) -> IO[str]:
    """Note that an image was got for an environment; returns its file with a shared lock on it."""
    path = _file_of(endpoint, image)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"endpoint": endpoint, "image": image}), encoding="utf-8")
    file = partial.open("r+", encoding="utf-8")
    fcntl.flock(file, fcntl.LOCK_SH)
    partial.replace(path)
    return file


@contextmanager
def building(timeout_s: float) -> Iterator[None]:
    """Let one of all processes pull or build at a time: that bounds the disk and memory that it takes."""
    ends_at = time.monotonic() + timeout_s
    with (shelf() / "building").open("w", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends_at:
                    raise ImageMissing(f"others have been building images for {timeout_s:g} s.") from None
                time.sleep(_POLL_S)
        yield


def run(call: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, also where the caller's own thread runs an event loop."""
    from rollcage.sandbox.loop_thread import LoopThread

    loop = LoopThread()
    try:
        return loop.call(call)
    finally:
        loop.stop()


async def _remove(endpoint: str, image: str) -> bool:
    from rollcage.sandbox.images.catalogue import Catalogue

    async with Catalogue(endpoint) as host:
        return await host.remove(image)
