"""``rollcage sandbox serve``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rollcage.command import CommandParser, natural, natural_float
from rollcage.errors import require
from rollcage.recorder import Measuring, NullRecorder
from rollcage.sandbox.client.address import FILE, ServiceAddress, default_folder
from rollcage.sandbox.commands.opened import add_place, say, show_json
from rollcage.sandbox.opening import open_manager


def run_serve(argv: Sequence[str], *, measuring: Measuring | None = None) -> int:
    """Serve the sandboxes over HTTP until Ctrl-C or SIGTERM; ``measuring`` lends the manager a recorder."""
    parser = CommandParser(
        "rollcage sandbox serve",
        "Serve the sandboxes over HTTP, on loopback or a unix socket, until Ctrl-C or SIGTERM; sandboxes live on.\n"
        f"Address and token are written to {FILE} in the state folder, which only its owner can read: commands and\n"
        "`rollcage.sandbox.connect` find them there. The address itself is a page that explains every call\n"
        "(any user name; the token is the password).",
        "rollcage sandbox serve\nrollcage sandbox serve --port 8765\nrollcage sandbox serve --socket ~/cage.sock\n"
        "rollcage sandbox serve --endpoint here=unix:///var/run/docker.sock",
    )
    add_place(parser)
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1")
    parser.add_argument("--port", type=natural, default=0, help="default 0: any free one")
    parser.add_argument("--socket", type=Path, help="a unix socket instead of a port")
    parser.add_argument(
        "--beyond-loopback", action="store_true", help="allow a --host that other machines reach; not encrypted"
    )
    parser.add_argument(
        "--metrics-port", type=natural, default=0, help="of /metrics, on loopback; default 0: any free one"
    )
    parser.add_argument("--grace", type=natural_float, default=10.0, metavar="S", help="for calls at the end")
    parser.add_argument(
        "--json", action="store_true", help="address, pid, file and address of /metrics as one JSON line"
    )
    args = parser.parse_args(argv)
    require("fastapi", "sandbox")
    require("uvicorn", "sandbox")
    from rollcage.sandbox.service.server import Listen, serve

    folder = args.folder or default_folder()

    listen = Listen(args.host, args.port, args.socket, args.beyond_loopback)
    with measuring(args.metrics_port) if measuring else nullcontext((NullRecorder(), "")) as (recorder, metrics):

        def on_ready(service: ServiceAddress) -> None:
            if args.json:
                file = str(folder / FILE)
                show_json({"address": service.address, "pid": service.pid, "file": file, "metrics": metrics})
            else:
                say(f"sandboxes at {service.address}; the token is in {folder / FILE}")
                if metrics:
                    say(f"metrics: {metrics}")

        manager = partial(open_manager, folder, args.endpoint, recorder=recorder)
        asyncio.run(serve(manager, folder, listen, on_ready=on_ready, grace_s=args.grace))
    return 0
