"""Which sandboxes a command works on, and how commands show things: text, tables, JSON, and patience."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollcage.sandbox.client.address import default_folder
from rollcage.sandbox.sync import SyncSandboxes

MAX_CELL = 32
"""Most characters in a column of a table, but the last."""
PATIENCE_S = 1.5
"""What takes longer is told."""


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add ``--folder`` and ``--endpoint``; `opened` reads what was given."""
    parser.add_argument(
        "--folder", type=Path, help=f"the manager's state; default: $ROLLCAGE_SANDBOX, else {default_folder()}"
    )
    parser.add_argument(
        "--endpoint",
        action="append",
        default=[],
        metavar="[NAME=]URL",
        help="Docker daemon of a manager in this process: unix:///PATH, tcp://HOST:PORT, ssh://USER@HOST; repeatable. "
        "'process:' has no containers and no isolation: trusted code only. Default: $DOCKER_HOST, else this machine's",
    )


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[SyncSandboxes]:
    """Lend the sandboxes that the arguments name."""
    with patience("looking for the sandboxes"):
        sandboxes = SyncSandboxes(folder=args.folder, endpoints=tuple(args.endpoint))
    with sandboxes:
        yield sandboxes


@contextmanager
def patience(what: str) -> Iterator[None]:
    """Say on standard error that something goes on, where it takes long."""
    ended, begin_s = threading.Event(), time.monotonic()

    def tell() -> None:
        wait_s = PATIENCE_S
        while not ended.wait(wait_s):
            say(f"{what} ({time.monotonic() - begin_s:.0f} s)")
            wait_s = 10.0

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    try:
        yield
    finally:
        ended.set()
        telling.join()


class Progress:
    """Lines on standard error and, where that is a terminal, a bar below them that says how much is done.

    Args:
        total: steps in all.
        is_terminal: None: found out.
        clock: seconds, of any origin.
    """

    def __init__(
        self, total: int, *, is_terminal: bool | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._done, self._clock = total, 0, clock
        self._is_terminal = sys.stderr.isatty() if is_terminal is None else is_terminal
        self._begin_s = clock()

    def tell(self, line: str, *, is_step: bool) -> None:
        """Write a line; ``is_step``: it says that a step is done."""
        self._done += is_step
        if not self._is_terminal:
            say(f"[{self._done}/{self._total}] {line}" if is_step else line)
            return
        sys.stderr.write("\r\x1b[K" + printable(line) + "\n" + self._bar())
        sys.stderr.flush()

    def end(self) -> None:
        """Take the bar away."""
        if self._is_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _bar(self) -> str:
        filled = 30 * self._done // max(self._total, 1)
        text = f"[{'#' * filled}{'.' * (30 - filled)}] {self._done}/{self._total}"
        if not 0 < self._done < self._total:
            return text
        left_s = (self._clock() - self._begin_s) / self._done * (self._total - self._done)
        return f"{text}, about {left_s // 60:.0f}:{left_s % 60:02.0f} left"


def say(line: str) -> None:
    """Write a line on standard error."""
    sys.stderr.write(printable(line) + "\n")
    sys.stderr.flush()


def show(line: str) -> None:
    """Write a line on standard output."""
    sys.stdout.write(printable(line) + "\n")


def show_json(value: Any) -> None:
    """Write one JSON document on standard output, in one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def printable(text: str) -> str:
    r"""Return text that cannot command a terminal.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)


def cut(text: str, most: int) -> str:
    """Return a text without its middle where it is longer than ``most`` characters: both ends tell keys apart.

    >>> cut("swe-bench-astropy-12907-try-3", 20), cut("short", 20)
    ('swe-bench-…907-try-3', 'short')
    """
    half = (most - 1) // 2
    return text if len(text) <= most else text[: most - 1 - half] + "…" + text[len(text) - half :]


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a table as text; cells are cut, but those of the last column.

    >>> table(["ID", "STATE"], [["a1", "READY"]])
    'ID  STATE\\na1  READY\\n'
    """
    printed = [[printable(cell) for cell in row] for row in rows]
    lines = [heads, *([*(cut(cell, MAX_CELL) for cell in row[:-1]), row[-1]] for row in printed)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "".join("  ".join(f"{c:{w}}" for c, w in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines)
