"""``rollcage sandbox chaos``."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
from collections.abc import Sequence

from rollcage.command import CommandParser, natural, positive
from rollcage.errors import require
from rollcage.sandbox.commands.opened import Progress, say, show, show_json
from rollcage.sandbox.opening import default_endpoint, parse_endpoint


def run_chaos(argv: Sequence[str]) -> int:
    """Let everything go wrong and see whether every promise holds; exit code 0 only where it does."""
    parser = CommandParser(
        "rollcage sandbox chaos",
        "Create, use, injure, restore and delete sandboxes while a proxy before the Docker daemon delays, drops,\n"
        "refuses and hangs, and the manager is killed and started again; then say which promises held, and count what\n"
        "is left. It has a manager and a folder of its own, and touches no other sandboxes. Exit code 0 only where\n"
        "every promise held and nothing is left.",
        "rollcage sandbox chaos --cycles 4 --seed 7                     # 100 and more say more\n"
        "rollcage sandbox chaos --seed 7 --only 2 --at-once 1           # one cycle again, with the same faults\n"
        "sudo rollcage sandbox chaos --cycles 2 --own-daemon            # the daemon is killed, too",
    )
    parser.add_argument("--cycles", type=positive, default=20, metavar="N", help="default 20")
    parser.add_argument("--seed", type=natural, help="of all that goes wrong; default: any")
    parser.add_argument("--only", type=natural, action="append", metavar="CYCLE", help="just this cycle; repeatable")
    at_once = 4 * (os.cpu_count() or 1)
    parser.add_argument(
        *("--at-once", "--concurrency"),
        type=positive,
        default=at_once,
        metavar="C",
        dest="concurrency",
        help=f"cycles at once; default 4 per core, here {at_once}",
    )
    parser.add_argument("--faults", type=percent, default=8, metavar="PERCENT", help="of the requests; default 8")
    parser.add_argument("--image", default="rollcage-base", help="of the sandboxes; default rollcage-base")
    parser.add_argument(
        "--endpoint",
        metavar="unix:///PATH",
        help="the daemon, on a unix socket; default: $DOCKER_HOST, else this machine's",
    )
    parser.add_argument(
        "--own-daemon", action="store_true", help="with a private daemon, which is killed at times; root only"
    )
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    args = parser.parse_args(argv)
    require("aiodocker", "sandbox")
    require("fastapi", "sandbox")
    require("uvicorn", "sandbox")
    from rollcage.sandbox.chaos.harness import Options, run

    options = Options(
        endpoint=parse_endpoint(args.endpoint or default_endpoint())[1],
        image=args.image,
        cycles=sorted(set(args.only)) if args.only else range(args.cycles),
        seed=random.randrange(1_000_000) if args.seed is None else args.seed,
        concurrency=args.concurrency,
        fault_share=args.faults / 100,
        own_daemon=args.own_daemon,
    )
    say(f"seed {options.seed}")
    progress, ended = Progress(len(options.cycles)), set[str]()

    def tell(line: str) -> None:
        cycle = re.match(r"cycle \d+: ", line)
        is_step = cycle is not None and cycle[0] not in ended  # what else is told of a cycle comes after its end
        ended.update([cycle[0]] if cycle else [])
        progress.tell(line, is_step=is_step)

    try:
        report = asyncio.run(run(options, tell))
    finally:
        progress.end()
    for breach in report.ledger.breaches:
        say(str(breach))
    if args.json:
        show_json(report.to_json())
    else:
        show(str(report))
    return 0 if report.ok else 1


def percent(text: str) -> int:
    """Read a whole number from 0 to 100."""
    number = natural(text)
    if number > 100:
        raise argparse.ArgumentTypeError(f"must be 100 at most, not {text}")
    return number
