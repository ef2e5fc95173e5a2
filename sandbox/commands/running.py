"""``rollcage sandbox run`` and ``rollcage sandbox exec``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any

from rollcage.command import CommandParser, natural_float, positive
from rollcage.errors import UserError
from rollcage.sandbox.base import Command
from rollcage.sandbox.client.wire import result_to_json
from rollcage.sandbox.commands.naming import ABOUT, find
from rollcage.sandbox.commands.opened import add_place, opened, patience, say, show_json
from rollcage.sandbox.sync import SyncSandbox
from rollcage.sandbox.types import MIB, ExecResult, Output, SandboxSpec

TIMED_OUT = 124
"""Exit code of a command that was killed at its deadline, as of ``timeout``."""
UNITS = {"": 1, "k": 1024, "m": MIB, "g": 1024 * MIB, "t": 1024 * 1024 * MIB}


def run_run(argv: Sequence[str]) -> int:
    """Start a sandbox, run one command in it, and delete it; returns the command's exit code."""
    parser = CommandParser(
        "rollcage sandbox run",
        "Start a sandbox of an image, run one command in it, show its output as it comes, and delete the sandbox.\n"
        "One argument is a command line for the shell; several are a program and its arguments.\n"
        "The exit code is the command's; 124 where it was killed at its deadline, 128 + N where signal N ended it.",
        "rollcage sandbox run rollcage-base 'echo $((6 * 7))'\n"
        "rollcage sandbox run --memory 128m --timeout 10 rollcage-base python3 -c 'print(1)'\n"
        "rollcage sandbox run --network example.com:443 rollcage-base 'getent hosts example.com'\n"
        "rollcage sandbox run --keep --key mine rollcage-base true       # stays: rollcage sandbox exec mine ...",
    )
    add_place(parser)
    parser.add_argument("--memory", type=size, default=512 * MIB, help="limit, such as 64m or 2g; default 512m")
    parser.add_argument("--cpus", type=natural_float, default=1.0, help="cores; default 1")
    parser.add_argument("--pids", type=positive, default=512, help="most processes and threads; default 512")
    parser.add_argument("--disk", type=size, default=0, help="most bytes written; default: no limit")
    parser.add_argument("--read-only", action="store_true", help="read-only root file system")
    parser.add_argument("--user", default="1000:1000", help="uid:gid; default 1000:1000")
    parser.add_argument(
        "--network", action="append", default=[], metavar="HOST:PORT", help="may be reached; repeatable; default: none"
    )
    parser.add_argument("--ttl", type=natural_float, default=3600.0, metavar="S", help="deleted then; 0: never")
    parser.add_argument("--key", default="", help="name; the same key gives the same sandbox")
    parser.add_argument("--owner", default="", help="whose turn it counts as where creations wait")
    parser.add_argument("--keep", action="store_true", help="do not delete it; its id goes to standard error")
    parser.add_argument("--start-timeout", type=natural_float, default=30.0, metavar="S", help="default 30")
    _add_command(parser, "image", "image on the host")
    args = parser.parse_args(argv)
    command = _command(args)
    spec = SandboxSpec(
        image=args.image,
        cpus=args.cpus,
        memory_bytes=args.memory,
        num_pids=args.pids,
        disk_bytes=args.disk,
        read_only=args.read_only,
        user=args.user,
        network=tuple(args.network),
        ttl_s=args.ttl,
        start_timeout_s=args.start_timeout,
    )
    with opened(args) as sandboxes:
        with patience(f"starting a sandbox of {spec.image}"):
            sandbox = sandboxes.create(spec, key=args.key, owner=args.owner)
        try:
            return _execute(sandbox, command, args)
        finally:
            if args.keep:
                say(f"kept: {sandbox.id}")
            else:
                sandbox.delete()


def run_exec(argv: Sequence[str]) -> int:
    """Run a command in a sandbox; returns its exit code."""
    parser = CommandParser(
        "rollcage sandbox exec",
        "Run a command in a sandbox and show its output as it comes; Ctrl-C kills it.\n"
        "One argument is a command line for the shell; several are a program and its arguments.\n"
        "The exit code is the command's; 124 where it was killed at its deadline, 128 + N where signal N ended it.",
        "rollcage sandbox exec mine 'ls -l | wc -l'                      # made by run --keep --key mine\n"
        "rollcage sandbox exec --timeout 600 mine python3 -c 'print(6 * 7)'\n"
        "rollcage sandbox exec --json mine cat /etc/os-release\n"
        "tar -c ./data | rollcage sandbox exec --stdin mine tar -x",
    )
    add_place(parser)
    _add_command(parser, "id", ABOUT)
    args = parser.parse_args(argv)
    command = _command(args)
    with opened(args) as sandboxes:
        return _execute(find(sandboxes, args.id), command, args)


def _add_command(parser: argparse.ArgumentParser, first: str, about: str) -> None:
    parser.add_argument("--timeout", type=natural_float, default=3600.0, metavar="S", help="then it is killed")
    parser.add_argument("--env", type=variable, action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    parser.add_argument("--cwd", default="", help="where it starts; default: the sandbox's folder")
    parser.add_argument("--stdin", action="store_true", help="give it what comes on standard input")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object, when the command has ended")
    parser.add_argument(first, help=about)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run")


def _command(args: argparse.Namespace) -> Command:
    given: list[str] = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not given:
        like = "run rollcage-base" if hasattr(args, "image") else "exec mine"
        raise UserError(f"say what to run: rollcage sandbox {like} 'ls -l'.")
    return given[0] if len(given) == 1 else given


def _execute(sandbox: SyncSandbox, command: Command, args: argparse.Namespace) -> int:
    how: dict[str, Any] = {
        "timeout_s": args.timeout,
        "env": dict(args.env),
        "cwd": args.cwd,
        "stdin": sys.stdin.buffer.read() if args.stdin else b"",
    }
    if args.json:
        result = sandbox.exec(command, **how)
        told = result_to_json(result)
        told |= {"stdout_base64": told["stdout"], "stderr_base64": told["stderr"]}
        show_json(told | {"stdout": result.stdout_text, "stderr": result.stderr_text})
        return exit_code(result)
    code = 0
    for item in sandbox.stream(command, **how):
        if isinstance(item, Output):
            target = (sys.stdout if item.source == "stdout" else sys.stderr).buffer
            target.write(item.data)
            target.flush()
        else:
            code = exit_code(item)
            _remark(item, args.timeout)
    return code


def _remark(result: ExecResult, timeout_s: float) -> None:
    if result.timed_out:
        say(f"killed at its deadline of {timeout_s:g} s (--timeout)")
    if result.oom_killed:
        say("a process was killed for memory (--memory)")


def exit_code(result: ExecResult) -> int:
    """Return what a shell would say of it."""
    if result.timed_out:
        return TIMED_OUT
    return 128 + (result.signal or 0) if result.exit_code is None else result.exit_code


def variable(text: str) -> tuple[str, str]:
    """Read a variable of the environment.

    >>> variable("A=b=c"), variable("A=")
    (('A', 'b=c'), ('A', ''))
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, not {text!r}")
    return name, value


def size(text: str) -> int:
    """Read a number of bytes, such as 64m.

    >>> size("64m"), size("1.5G"), size("4096")
    (67108864, 1610612736, 4096)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", text.lower())
    if not found:
        raise argparse.ArgumentTypeError(f"must be a number of bytes such as 4096, 64m or 2g, not {text!r}")
    return int(float(found[1]) * UNITS[found[2]])
