"""``rollcage bench sandbox``: how fast sandboxes are and how they behave, side by side with public packages."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rollcage.benchmarks.machine import cpu_name
from rollcage.benchmarks.sandbox.contender import RIVALS
from rollcage.benchmarks.sandbox.image import shared_image
from rollcage.command import CommandParser, positive
from rollcage.errors import RollcageError, UserError

OURS = ("rollcage", "rollcage, warm")
TIMES = {
    "cold": "Create to first command, ms",
    "exec": "A command in a sandbox that is there, ms",
    "session": "A command in a shell that stays, ms",
}
MANY_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 100.0
"""Longest wait for a contender's answer; one that blocks its own event loop is killed then."""
MAX_LINE_BYTES = 64 * 1024 * 1024


def main(argv: Sequence[str]) -> int:
    """Measure; the last line on stdout is one JSON object."""
    arguments = _arguments(argv)
    load_before = os.getloadavg()[0]
    with shared_image(arguments.image, arguments.rivals) as (image, network):
        measured = asyncio.run(_measure(arguments, image, network))
    result = {
        "how": {
            "command": f"rollcage bench sandbox {' '.join(argv)}".strip(),
            "image": arguments.image,
            "turns": arguments.turns,
            "many": arguments.many,
            "megabytes": arguments.megabytes,
            "python": platform.python_version(),
            "cpu": f"{cpu_name()}, {os.cpu_count()} cores",
            "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
            "kernel": platform.release(),
            "docker": _docker_version(),
            "load_before": load_before,
            "load_after": os.getloadavg()[0],
        },
        "measured": measured,
    }
    text = report(result)
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "sandbox.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (arguments.output / "sandbox.md").write_text(text, encoding="utf-8")
        sys.stderr.write(f"written: {arguments.output / 'sandbox.md'} and sandbox.json\n")
    else:
        sys.stderr.write(text)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    how, measured = result["how"], result["measured"]
    versions = {
        name.partition(" ")[0].rstrip(","): found["begin"]["version"]
        for name, found in measured.items()
        if "begin" in found
    }
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    lines = [
        "# Sandboxes: speed and behaviour",
        "",
        f"How: `{how['command']}`. Same daemon (Docker {how['docker']}), same image ({how['image']}, with swe-rex's "
        f"server added where it takes part), one CPU and 256 MiB each. Everyone has a process of its own and takes "
        f"turns, {how['turns']} of each kind, in random order. {how['cpu']}, {how['memory_gib']:.0f} GiB, Linux "
        f"{how['kernel']}; Python {how['python']}; {listed}; load {how['load_before']:.2f} before and "
        f"{how['load_after']:.2f} after. swe-rex needs a network (its server is spoken to over a port). "
        "rl-rock (1.11.0) takes no part: it starts every sandbox with `--privileged`, which the daemon of the machine "
        'that this comparison was written on refuses ("unable to apply caps: operation not permitted").',
    ]
    for name, error in ((name, found["error"]) for name, found in measured.items() if "error" in found):
        lines += ["", f"{name} could not be measured: {error}"]
    took_part = {name: found for name, found in measured.items() if "error" not in found}
    for kind, title in TIMES.items():
        rows = [[name, *_quantiles(found[kind])] for name, found in took_part.items() if found[kind]]
        lines += ["", f"## {title}", "", *_table(["", "p50", "p99", "least", "n"], rows)]
    lines += ["", "## Many at once, much output, children that stay, commands that hang", ""]
    head = ["", f"{how['many']} creations, 8 at a time", f"{how['megabytes']} MB of output", "`sleep 30 & echo hi`"]
    head.append("`echo begun; sleep 600`, 2 s allowed")
    lines += [*_table(head, [[name, *_behaviour(found)] for name, found in took_part.items()]), ""]
    lines += [
        "Memory is the growth of the caller's process at its peak. Survivors are processes of the command that live "
        "2 s after its time is over. docker-py has no timeout for a command: the caller stops waiting.",
        "",
    ]
    return "\n".join(lines)


async def _measure(arguments: argparse.Namespace, image: str, network: str) -> dict[str, Any]:
    order = random.Random(0)
    found: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        processes = {}
        for name in (*OURS, *(RIVALS if arguments.rivals is not None else ())):
            process = await stack.enter_async_context(_Asked(name, arguments.rivals, image, network))
            try:
                found[name] = {"begin": await process.ask("begin"), **{kind: [] for kind in TIMES}}
                processes[name] = process
            except RollcageError as error:
                found[name] = {"error": str(error)}
        per_turn = {"cold": 1, "exec": 10, "session": 10}
        for kind in TIMES:
            sys.stderr.write(f"{TIMES[kind].lower()} ...\n")
            for _ in range(arguments.turns):
                for name in order.sample(list(processes), len(processes)):
                    found[name][kind] += await processes[name].ask(kind, num=per_turn[kind])
        for name, process in processes.items():
            sys.stderr.write(f"{name}: many at once, output, children, time limits ...\n")
            asked: dict[str, dict[str, Any]] = {
                "output": {"num_bytes": arguments.megabytes * 10**6},
                "background": {"timeout_s": 10.0},
                "timeout": {"timeout_s": 2.0},
                "many": {"num": arguments.many, "num_at_once": 8, "timeout_s": MANY_TIMEOUT_S},
            }
            for kind, options in asked.items():
                try:
                    found[name][kind] = await process.ask(kind, **options)
                except RollcageError as error:
                    found[name][kind] = {"error": str(error)}
    return found


class _Asked:
    """A contender's process."""

    def __init__(self, name: str, rivals: Path | None, image: str, network: str) -> None:
        self._name = name
        script = str(Path(__file__).with_name("contender.py"))
        mine = [sys.executable, "-m", "rollcage.benchmarks.sandbox.ours"]
        self._command = [*(mine if name in OURS else [str(rivals), script]), name, image, network]

    async def __aenter__(self) -> _Asked:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=MAX_LINE_BYTES,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.ask("end")
        except RollcageError as error:
            sys.stderr.write(f"{self._name}: {error}\n")
        if self._process.returncode is None and self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(30):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def ask(self, kind: str, **options: Any) -> Any:
        """Return the answer; raises RollcageError where it fails, has ended or does not answer."""
        if self._process.stdin is None or self._process.stdout is None or self._process.returncode is not None:
            raise RollcageError(f"{kind}: its process has ended")
        self._process.stdin.write(json.dumps({"do": kind, **options}).encode() + b"\n")
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            raise RollcageError(f"{kind}: no answer within {ANSWER_TIMEOUT_S:g} s") from None
        answer = json.loads(line) if line else {"error": "its process has ended"}
        if "error" in answer:
            raise RollcageError(f"{kind}: {answer['error']}")
        return answer["answer"]


def _behaviour(found: dict[str, Any]) -> list[str]:
    shown: dict[str, Callable[[dict[str, Any]], str]] = {
        "many": lambda many: f"{many['seconds']:.1f} s, {many['num_ready']} ready, {many['num_failed']} failed",
        "output": lambda output: f"+{output['grown_mib']:.0f} MiB, {output['seconds']:.1f} s; {output['outcome']}",
        "background": lambda child: f"{child['outcome']} after {child['seconds'] * 1000:,.0f} ms",
        "timeout": lambda late: f"{late['outcome']} after {late['seconds']:.1f} s; {late['num_survivors']} survive",
    }
    return [found[kind]["error"] if "error" in found[kind] else show(found[kind]) for kind, show in shown.items()]


def _quantiles(seconds: Sequence[float]) -> list[str]:
    ms = sorted(1000 * each for each in seconds)
    p99 = statistics.quantiles(ms, n=100, method="inclusive")[98] if len(ms) > 1 else ms[0]
    return [*(f"{each:,.1f}" for each in (statistics.median(ms), p99, ms[0])), str(len(ms))]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] + ["--:"] * (len(head) - 1), *rows)]


def _docker_version() -> str:
    show = ["docker", "version", "--format", "{{.Server.Version}}"]
    return subprocess.run(show, check=True, capture_output=True, text=True).stdout.strip()


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        "rollcage bench sandbox",
        "Measure the sandbox manager on the local Docker daemon, side by side with the packages of "
        "benchmarks/sandbox/requirements.txt. The last line on stdout is one JSON object.",
        "rollcage bench sandbox\nrollcage bench sandbox --rivals rivals/bin/python --output benchmarks/results",
    )
    parser.add_argument("--rivals", type=Path, help="Python that has the other packages (default: Rollcage alone)")
    parser.add_argument("--image", default="rollcage-base", help="image of all sandboxes (default: rollcage-base)")
    parser.add_argument("--turns", type=positive, default=20, help="turns of each (default: 20)")
    parser.add_argument("--many", type=positive, default=50, help="creations, 8 at a time (default: 50)")
    parser.add_argument("--megabytes", type=positive, default=300, help="of output (default: 300)")
    parser.add_argument("--output", type=Path, help="folder for sandbox.md and sandbox.json")
    arguments = parser.parse_args(argv)
    if arguments.rivals is not None and not arguments.rivals.exists():
        raise UserError(f"--rivals: there is no {arguments.rivals} (see benchmarks/sandbox/requirements.txt).")
    return arguments
