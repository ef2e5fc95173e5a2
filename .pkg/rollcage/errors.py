"""The errors of every part: one root, flat, so that ``except RollcageError`` is always enough."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType


class RollcageError(Exception):
    """Root of all errors that Rollcage raises on purpose."""


class UserError(RollcageError):
    """Bad input. The message is one line that says what is wrong, where, and what to do; commands exit with code 2."""


class MissingExtra(UserError):
    """An optional dependency is not installed; the message names the extra that brings it."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the known name closest to ``name``, or ``""`` where none is close.

    >>> did_you_mean("rolcage/Countdown-v0", ["rollcage/Countdown-v0", "rollcage/Math-v0"])
    " Did you mean 'rollcage/Countdown-v0'?"
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def require(module: str, extra: str) -> ModuleType:
    """Import ``module``, or raise `MissingExtra` with the ``pip install`` line that brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise MissingExtra(
            f"{module!r} is not installed: run  pip install 'rollcage[{extra}]'  (extra {extra!r})."
        ) from error


def unwrap(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one error of a task group to tell the user: the first of ours, however deep, else the first of any."""
    error: BaseException = group.subgroup(RollcageError) or group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
