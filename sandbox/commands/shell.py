"""``rollcage sandbox shell``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rollcage.command import CommandParser, natural_float
from rollcage.sandbox.commands.naming import ABOUT, find
from rollcage.sandbox.commands.opened import add_place, opened, say
from rollcage.sandbox.commands.running import exit_code, variable
from rollcage.sandbox.types import MIB


def run_shell(argv: Sequence[str]) -> int:
    """Type commands into a sandbox; returns the last one's exit code."""
    parser = CommandParser(
        "rollcage sandbox shell",
        "Type commands into a shell in a sandbox, line by line: directory, variables and background jobs stay.\n"
        "Ctrl-C kills the command that runs; Ctrl-D or `exit` leaves. Programs that need a terminal (editors, pagers)\n"
        "do not work in it.",
        "rollcage sandbox shell mine\necho 'cd /tmp; ls' | rollcage sandbox shell mine",
    )
    add_place(parser)
    parser.add_argument("--timeout", type=natural_float, default=3600.0, metavar="S", help="of each command")
    parser.add_argument("--env", type=variable, action="append", default=[], metavar="NAME=VALUE", help="repeatable")
    parser.add_argument("--cwd", default="", help="where it starts; default: the sandbox's folder")
    parser.add_argument("id", help=ABOUT)
    args = parser.parse_args(argv)
    is_typed, code = sys.stdin.isatty(), 0
    env = dict(args.env)
    with opened(args) as sandboxes, find(sandboxes, args.id).session(env=env, cwd=args.cwd) as session:
        while True:
            if is_typed:
                sys.stderr.write(f"{args.id}$ ")
                sys.stderr.flush()
            try:
                line = sys.stdin.readline()
                if not line or line.strip() == "exit":
                    break
                if not line.strip():
                    continue
                result = session.run(line.rstrip("\n"), timeout_s=args.timeout, max_output_bytes=16 * MIB)
            except KeyboardInterrupt:
                if not is_typed:
                    raise
                sys.stderr.write("\n")
                continue
            sys.stdout.buffer.write(result.stdout)
            sys.stdout.buffer.flush()
            sys.stderr.buffer.write(result.stderr)
            sys.stderr.buffer.flush()
            code = exit_code(result)
            if result.timed_out:
                say(f"killed at its deadline of {args.timeout:g} s (--timeout)")
            if result.truncated:
                say("output in the middle was left out")
    return code
