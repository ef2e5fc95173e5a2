"""``rollcage sandbox ls``, ``logs`` and ``events``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from rollcage.command import CommandParser, natural, natural_float
from rollcage.sandbox.client.wire import to_json
from rollcage.sandbox.commands.naming import ABOUT, find, find_id
from rollcage.sandbox.commands.opened import add_place, cut, opened, show, show_json, table
from rollcage.sandbox.types import Event, SandboxInfo

MAX_DATA = 160
"""Most characters of an event's details in a line."""


def run_ls(argv: Sequence[str]) -> int:
    """List the sandboxes."""
    parser = CommandParser(
        "rollcage sandbox ls",
        "List the sandboxes that are not deleted, oldest first. Long texts are cut in their middle; --json has all of\n"
        "them.",
        "rollcage sandbox ls\nrollcage sandbox ls --owner alice --json",
    )
    add_place(parser)
    parser.add_argument("--owner", help="only this one's")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args(argv)
    with opened(args) as sandboxes:
        infos = sandboxes.list_sandboxes(owner=args.owner)
    if args.json:
        show_json([to_json(info) for info in infos])
        return 0
    heads = ["ID", "STATE", "KEY", "OWNER", "LIFE", "HOST", "IMAGE", "AGE", "EXPIRES", "WHY"]
    sys.stdout.write(table(heads, [_row(info, time.time()) for info in infos]))
    return 0


def _row(info: SandboxInfo, now: float) -> list[str]:
    expires = f"in {span(info.expires_at - now)}" if info.expires_at else "never"
    where = [info.host or "-", info.spec.image, span(now - info.created_at), expires, info.message]
    return [info.id, info.state, info.key or "-", info.owner or "-", str(info.generation), *where]


def span(duration_s: float) -> str:
    """Return a duration in its largest unit.

    >>> span(59), span(3600), span(-5)
    ('59s', '60m', '0s')
    """
    duration_s = max(duration_s, 0.0)
    for unit, length_s in (("d", 172_800.0), ("h", 7200.0), ("m", 120.0)):
        if duration_s >= length_s:
            return f"{duration_s / {'d': 86_400, 'h': 3600, 'm': 60}[unit]:.0f}{unit}"
    return f"{duration_s:.0f}s"


def run_logs(argv: Sequence[str]) -> int:
    """Show what a sandbox's main process wrote."""
    parser = CommandParser(
        "rollcage sandbox logs",
        "Show the last lines that a sandbox's main process wrote. By default that one only waits: what\n"
        "commands write goes to whoever runs them.",
        "rollcage sandbox logs mine\nrollcage sandbox logs mine --lines 1000",
    )
    add_place(parser)
    parser.add_argument("--lines", type=natural, default=100, help="so many at most; default 100")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("id", help=ABOUT)
    args = parser.parse_args(argv)
    with opened(args) as sandboxes:
        sandbox = find(sandboxes, args.id)
        text = sandbox.logs(num_lines=args.lines)
    if args.json:
        show_json({"id": sandbox.id, "logs": text})
        return 0
    sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
    return 0


def run_events(argv: Sequence[str]) -> int:
    """Show what happened."""
    parser = CommandParser(
        "rollcage sandbox events",
        "Show what happened to one sandbox or to all, oldest first; deleted ones too. Long texts are cut in their\n"
        "middle; --json has all of them.",
        "rollcage sandbox events\nrollcage sandbox events mine --json\nrollcage sandbox events --follow",
    )
    add_place(parser)
    parser.add_argument("--after", type=natural, default=0, help="only events with a number above this one")
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    parser.add_argument("--interval", type=natural_float, default=0.5, metavar="S", help="of --follow; default 0.5")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("id", nargs="?", help=f"{ABOUT}; none: all")
    args = parser.parse_args(argv)
    after = args.after
    with opened(args) as sandboxes:
        sandbox_id = None if args.id is None else find_id(sandboxes, args.id)
        while True:
            events = sandboxes.events(after=after)
            for event in events:
                after = event.number
                if sandbox_id in (None, event.sandbox_id):
                    show_json(to_json(event)) if args.json else show(_line(event))
            sys.stdout.flush()
            if not events and not args.follow:
                break
            if not events:
                time.sleep(args.interval)
    return 0


def _line(event: Event) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
    data = cut(json.dumps(dict(event.data), ensure_ascii=False), MAX_DATA)
    return f"{event.number:6}  {when}  {event.sandbox_id or '-':12}  {event.kind:10}  {data}"
