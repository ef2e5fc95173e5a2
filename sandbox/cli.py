"""The command ``rollcage sandbox``: finds the command that is meant and runs it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from types import FrameType
from typing import NoReturn

from rollcage.errors import UserError, did_you_mean
from rollcage.recorder import Measuring

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("running", "start a sandbox, run one command in it, and delete it"),
    "exec": ("running", "run a command in a sandbox"),
    "shell": ("shell", "type commands into a sandbox"),
    "cp": ("copying", "copy a file or folder into a sandbox or out of it"),
    "ls": ("looking", "list the sandboxes"),
    "logs": ("looking", "show what a sandbox's main process wrote"),
    "events": ("looking", "show what happened, or follow it"),
    "rm": ("removing", "delete sandboxes"),
    "reap": ("removing", "remove ended sandboxes, and containers, networks and volumes without a sandbox"),
    "images": ("images", "make the base image, list images, remove snapshots that nobody needs"),
    "doctor": ("doctor", "say what is missing on this machine, and how to mend it"),
    "chaos": ("chaos", "let everything go wrong on a real daemon, and see whether every promise holds"),
    "serve": ("serving", "serve the sandboxes over HTTP"),
}
"""command -> (module of `rollcage.sandbox.commands` that holds `run_<command>(argv) -> exit code`, what it does)"""

HELP = """usage: rollcage sandbox COMMAND [arguments]

{commands}

Commands use the service that runs for the state folder (rollcage sandbox serve), else a manager of their own.

examples:
  rollcage sandbox doctor
  rollcage sandbox images build base
  rollcage sandbox run rollcage-base 'echo hello from $(hostname)'
  rollcage sandbox COMMAND --help
"""


def run_sandbox(argv: Sequence[str], *, measuring: Measuring | None = None) -> int:
    """Run one command; returns its exit code. SIGTERM ends it in order, with exit code 143.

    Args:
        argv: the command and its arguments.
        measuring: lends `serve` a recorder; without it nothing is measured.
    """
    arguments = list(argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        lines = "\n".join(f"  {name:8}{text}" for name, (_, text) in COMMANDS.items())
        sys.stdout.write(HELP.format(commands=lines))
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}.{did_you_mean(name, COMMANDS)}  See: rollcage sandbox --help")
    module = import_module(f"rollcage.sandbox.commands.{COMMANDS[name][0]}")
    run: Callable[..., int] = getattr(module, f"run_{name}")
    if name == "serve":
        run = partial(run, measuring=measuring)
    if threading.current_thread() is not threading.main_thread():
        return run(rest)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        return run(rest)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
