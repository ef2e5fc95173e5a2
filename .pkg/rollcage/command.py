"""The argument parser of every command: examples in its help, and errors of one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from rollcage.errors import UserError


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line: `UserError`.

    Args:
        prog: the command, such as "rollcage eval".
        description: what it does.
        examples: one a line.
    """

    def __init__(self, prog: str, description: str, examples: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise the message as a `UserError`."""
        raise UserError(f"{message}  See: {self.prog} --help")


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """Read a whole number of at least 0."""
    return _whole(text, 0)


def natural_float(text: str) -> float:
    """Read a finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, not {text!r}")
    return value


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, not {text!r}")
    return value
