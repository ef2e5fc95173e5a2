"""``rollcage sandbox rm`` and ``reap``."""

from __future__ import annotations

from collections.abc import Sequence

from rollcage.command import CommandParser
from rollcage.errors import RollcageError
from rollcage.sandbox.commands.naming import ABOUT, find
from rollcage.sandbox.commands.opened import add_place, opened, patience, say, show, show_json


def run_rm(argv: Sequence[str]) -> int:
    """Delete sandboxes; exit code 1 where one could not be deleted."""
    parser = CommandParser(
        "rollcage sandbox rm",
        "Delete sandboxes, and print the ids of those that are gone.",
        "rollcage sandbox rm mine other\nrollcage sandbox rm --all --owner alice\nrollcage sandbox rm --all",
    )
    add_place(parser)
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--owner", help="with --all: only this one's")
    parser.add_argument("--json", action="store_true", help="one JSON list on stdout")
    parser.add_argument("ids", nargs="*", metavar="ID", help=ABOUT)
    args = parser.parse_args(argv)
    if bool(args.ids) == args.all or (args.owner is not None and not args.all):
        parser.error("name the sandboxes, or say --all (--owner goes with it).")
    num_failed, gone = 0, []
    with opened(args) as sandboxes:
        for name in args.ids or [info.id for info in sandboxes.list_sandboxes(owner=args.owner)]:
            try:
                with patience(f"deleting {name}"):
                    sandbox = find(sandboxes, name)
                    sandbox.delete()
                gone.append(sandbox.id)
                if not args.json:
                    show(sandbox.id)
            except RollcageError as error:
                num_failed += 1
                say(f"rollcage sandbox rm: {error}")
    if args.json:
        show_json(gone)
    return 1 if num_failed else 0


def run_reap(argv: Sequence[str]) -> int:
    """Remove what has no right to live."""
    parser = CommandParser(
        "rollcage sandbox reap",
        "Remove now what has no right to live: sandboxes whose lease has ended, and containers without a\n"
        "sandbox, with their networks and volumes; prints their names. Only what the manager of the state\n"
        "folder made is touched. A manager that runs does so by itself every few seconds.\n"
        "Images stay: `rollcage sandbox images prune` removes those of snapshots.",
        "rollcage sandbox reap\nrollcage sandbox reap --json",
    )
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="one JSON list on stdout")
    args = parser.parse_args(argv)
    with opened(args) as sandboxes, patience("looking through the hosts"):
        names = sandboxes.reap()
    if args.json:
        show_json(names)
    for name in [] if args.json else names:
        show(name)
    return 0
