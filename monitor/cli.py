"""The commands ``rollcage monitor``, ``rollcage monitor doctor`` and ``rollcage top``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rollcage.command import CommandParser, natural, natural_float
from rollcage.errors import UserError, require

if TYPE_CHECKING:
    from rollcage.monitor.server.sandbox_routes import FindSandboxes

MIN_TOKEN_CHARS = 16


def run_monitor(argv: Sequence[str], *, find_sandboxes: FindSandboxes | None = None) -> int:
    """``rollcage monitor``: serve the dashboard until Ctrl-C; ``rollcage monitor doctor``: see `run_doctor`."""
    if argv and argv[0] == "doctor":
        return run_doctor(argv[1:])
    parser = CommandParser(
        "rollcage monitor",
        "Serve the dashboard of all runs below a folder, live and finished ones, until Ctrl-C. Only this machine can\n"
        "reach it, unless --host says otherwise; then every viewer must show the token. Whoever has the printed\n"
        "address may also act: pause and resume runs, drain hosts, restart and delete sandboxes.",
        "rollcage monitor\nrollcage monitor runs --port 8080\nrollcage monitor doctor runs/my-run\n"
        "rollcage monitor runs --host 0.0.0.0 --token-file ~/.rollcage-token",
    )
    parser.add_argument("runs", nargs="?", type=Path, default=Path("runs"), help="folder with runs (default: runs)")
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1")
    parser.add_argument("--port", type=natural, default=0, help="default 0: any free one")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with a token of at least {MIN_TOKEN_CHARS} characters; then reading needs it too. Must be there "
        "with a --host that other machines reach",
    )
    parser.add_argument(
        "--until-stdin-ends", action="store_true", help="end when standard input does, instead of at Ctrl-C only"
    )
    args = parser.parse_args(argv)
    require("fastapi", "monitor")
    require("uvicorn", "monitor")
    from rollcage.monitor.server.serving import Listen, serve

    listen = Listen(args.host, args.port, read_token(args.token_file) if args.token_file else "")
    sys.setswitchinterval(0.001)  # a viewer's answer does not wait long behind threads that read runs

    def on_ready(address: str) -> None:
        sys.stdout.write(f"monitor: {address}\n")
        sys.stdout.flush()

    async def main() -> None:
        ended = asyncio.Event()
        if args.until_stdin_ends:
            _when_stdin_ends(ended.set)
        await serve(args.runs, listen, on_ready=on_ready, find_sandboxes=find_sandboxes, ended=ended)

    asyncio.run(main())
    return 0


def _when_stdin_ends(told: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(told)

    threading.Thread(target=wait, name="stdin", daemon=True).start()


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        UserError: it cannot be read, is too short, or others can read it too.
    """
    try:
        with path.expanduser().open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(1000).strip()
    except (OSError, ValueError) as error:
        raise UserError(f"--token-file {path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from None
    if mode & 0o077:
        raise UserError(f"--token-file {path}: others can read it: run  chmod 600 {path}")
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            f"--token-file {path}: must hold one word of at least {MIN_TOKEN_CHARS} ASCII characters, such as what  "
            "openssl rand -hex 24  prints."
        )
    return token


def run_doctor(argv: Sequence[str]) -> int:
    """``rollcage monitor doctor``: say in plain words what went wrong with a run. Exit code 1 where it is unwell."""
    parser = CommandParser(
        "rollcage monitor doctor",
        "Say in plain words what went wrong with a run, what that means, and what to try. Exit code 1 where something\n"
        "is seriously wrong.",
        "rollcage monitor doctor runs/my-run\nrollcage monitor doctor runs/my-run --json",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--json", action="store_true", help="as one JSON line")
    args = parser.parse_args(argv)
    from rollcage.monitor.doctor import diagnose, in_words
    from rollcage.monitor.store import RunReader

    reader = RunReader(args.run)
    try:
        found = diagnose(reader)
    finally:
        reader.close()
    sys.stdout.write(json.dumps(found) + "\n" if args.json else in_words(found))
    return 0 if found["healthy"] else 1


def run_top(argv: Sequence[str]) -> int:
    """``rollcage top``: the essentials of a run in the terminal, live."""
    parser = CommandParser(
        "rollcage top",
        "Show the essentials of a run in the terminal until Ctrl-C, or once.",
        "rollcage top runs/my-run\nrollcage top runs/my-run --once\nrollcage top runs/my-run --every 5",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--once", action="store_true", help="show it once and end")
    parser.add_argument("--every", type=natural_float, default=1.0, metavar="S", help="seconds between looks (1)")
    args = parser.parse_args(argv)
    require("rich", "monitor")
    from rollcage.monitor.store import RunReader
    from rollcage.monitor.top import show

    reader = RunReader(args.run)
    try:
        show(reader, once=args.once, every_s=max(args.every, 0.2))
    finally:
        reader.close()
    return 0
