"""The harness: proxy, manager, witness and cycles, and at the end the count of what is left."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcage.errors import RollcageError, unwrap
from rollcage.sandbox.chaos.cycle import Cycle, Stage
from rollcage.sandbox.chaos.keeper import COMMAND, Keeper
from rollcage.sandbox.chaos.ledger import Ledger
from rollcage.sandbox.chaos.own_daemon import OwnDaemon
from rollcage.sandbox.chaos.proxy import Proxy
from rollcage.sandbox.chaos.schedule import Schedule, plan
from rollcage.sandbox.chaos.witness import Witness, until
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.errors import BadSpec
from rollcage.sandbox.types import MIB, SandboxSpec

LEFT_S = 60.0
"""Longest wait at the end until nothing is left."""
ALIVE_S = 60.0


@dataclass(frozen=True)
class Options:
    """What is run.

    Attributes:
        endpoint: the daemon, on a unix socket.
        image: of the sandboxes.
        cycles: their numbers.
        seed: what goes wrong, and when.
        concurrency: cycles at once.
        fault_share: of requests to the daemon that something happens to.
        own_daemon: start a private daemon, which is killed at times, with the image of ``endpoint``; root only.
        command: what runs the manager.
    """

    endpoint: str
    image: str = "rollcage-base"
    cycles: Sequence[int] = range(20)
    seed: int = 0
    concurrency: int = 4 * (os.cpu_count() or 1)
    fault_share: float = 0.08
    own_daemon: bool = False
    command: Sequence[str] = COMMAND


@dataclass
class Report:
    """What came of it."""

    options: Options
    ledger: Ledger
    num_faults: int = 0
    num_kills: int = 0
    num_daemon_restarts: int = 0
    duration_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every promise held and nothing was left."""
        return not self.ledger.breaches

    def __str__(self) -> str:
        """Return the summary line."""
        left = "; ".join(it.text for it in self.ledger.breaches if it.promise == "nothing left") or "nothing"
        end = "every promise held, nothing left" if self.ok else f"{len(self.ledger.breaches)} BROKEN; left: {left}"
        num_checks = sum(self.ledger.kept.values()) + len(self.ledger.breaches)
        num_promises = len({*self.ledger.kept, *(breach.promise for breach in self.ledger.breaches)})
        restarts = f", {self.num_daemon_restarts} restarts of the daemon" if self.options.own_daemon else ""
        num_cycles = len(self.options.cycles)
        time = f"{self.duration_s:.0f} s ({self.duration_s / num_cycles:.1f} s a cycle)"
        return (
            f"chaos: {num_cycles} cycles, seed {self.options.seed}: {self.num_faults} faults, "
            f"{self.num_kills} kills of the manager{restarts}; "
            f"{num_promises} promises tested {num_checks} times in {time}: {end}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        told = {"ok": self.ok, "seed": self.options.seed, "cycles": list(self.options.cycles), "faults": self.faults}
        numbers = {"num_kills": self.num_kills, "num_daemon_restarts": self.num_daemon_restarts}
        return told | numbers | {"duration_s": round(self.duration_s, 1)} | self.ledger.to_json()


async def run(options: Options, tell: Callable[[str], None]) -> Report:
    """Run the cycles and count; ``tell`` gets a line about each.

    Raises:
        BadSpec: the endpoint is no unix socket.
        RollcageError: there is no daemon, no image, or the manager cannot be started at all.
    """
    loop, num_files = asyncio.get_running_loop(), len(os.listdir("/proc/self/fd"))
    begin_s, report = loop.time(), Report(options, Ledger())
    schedule = Schedule(options.seed, options.fault_share)
    try:
        async with _staged(options, schedule, report) as (stage, num_idle):
            places = asyncio.Semaphore(options.concurrency)

            async def one(number: int) -> None:
                async with places:
                    tell(f"cycle {number}: {await Cycle(stage, plan(options.seed, number)).run()}")
                    for breach in report.ledger.breaches:
                        if breach.cycle == number:
                            tell(str(breach))

            try:
                async with asyncio.TaskGroup() as cycles:
                    for number in options.cycles:
                        cycles.create_task(one(number))
            except BaseExceptionGroup as errors:
                raise unwrap(errors) from errors
            schedule.is_calm = True
            tell("the storm is over: counting")
            try:
                await _count(stage, num_idle, report)
            except RollcageError as error:
                report.ledger.check("alive", -1, False, str(error))
    finally:
        report.duration_s = loop.time() - begin_s
    left = len(os.listdir("/proc/self/fd")) - num_files
    report.ledger.check("nothing left", -1, left <= 0, f"{left} more file descriptors in the harness itself")
    report.faults = {str(kind): number for kind, number in schedule.counts.items()}
    report.num_faults = schedule.counts.total()
    return report


@asynccontextmanager
async def _staged(options: Options, schedule: Schedule, report: Report) -> AsyncIterator[tuple[Stage, list[str]]]:
    """Set the stage; also returns what files a manager with nothing to do has open."""
    _path_of(options.endpoint)
    async with AsyncExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rollcage-chaos-"))
        stack.callback(shutil.rmtree, folder)
        endpoint, restart = options.endpoint, None
        if options.own_daemon:
            daemon = OwnDaemon(folder / "d")
            await stack.enter_async_context(daemon)
            await daemon.copy_image(options.endpoint, options.image)
            endpoint, restart = daemon.endpoint, daemon.restart
            stack.callback(lambda: setattr(report, "num_daemon_restarts", daemon.num_restarts))
        driver = DockerDriver(endpoint)
        stack.push_async_callback(driver.close)
        await driver.status()  # says at once where there is none
        state = folder / "m"
        state.mkdir(mode=0o700)
        (state / "id").write_text(store_id := secrets.token_hex(6))
        witness = Witness(endpoint, store_id, report.ledger)
        stack.push_async_callback(witness.close)
        await witness.open()
        if not options.own_daemon:  # whatever ends it: a harness that fails leaves nothing either
            stack.push_async_callback(witness.remove_left)
        proxy = Proxy(_path_of(endpoint), folder / "proxy", schedule.fault)
        stack.push_async_callback(proxy.close)
        await proxy.open()
        keeper = Keeper(state, proxy.endpoint, options.command)
        stack.push_async_callback(keeper.stop)
        stack.callback(lambda: setattr(report, "num_kills", keeper.num_kills))
        schedule.is_calm = True
        await keeper.start()
        async with keeper.client() as first:  # says at once where the image is missing
            await (await first.create(SandboxSpec(image=options.image), deadline_s=ALIVE_S)).delete()
        files = await _fewest_files(keeper)
        client = keeper.client()
        stack.push_async_callback(client.close)
        schedule.is_calm = False
        stage = Stage(
            *(options.image, client, keeper, witness, driver, report.ledger, options.seed), proxy.no_starts, restart
        )
        yield stage, files


def _path_of(endpoint: str) -> Path:
    if not endpoint.startswith("unix://"):
        raise BadSpec(f"endpoint {endpoint!r}: the harness stands before a unix socket: unix:///PATH.")
    return Path(endpoint.removeprefix("unix://"))


async def _fewest_files(keeper: Keeper) -> list[str]:
    """Return what files the manager has open between its looks at the host."""
    fewest = keeper.files()
    for _ in range(30):
        await asyncio.sleep(0.1)
        fewest = min(fewest, keeper.files(), key=len)
    return fewest


async def _count(stage: Stage, files: list[str], report: Report) -> None:
    ledger, keeper, client = report.ledger, stage.keeper, stage.client

    async def lives() -> bool:
        try:
            box = await client.create(SandboxSpec(image=stage.image, memory_bytes=64 * MIB), deadline_s=20.0)
            try:
                return (await box.exec("echo on")).stdout == b"on\n"
            finally:
                await box.delete()
        except RollcageError:
            return False

    ledger.check("alive", -1, await until(lives, ALIVE_S), f"none within {ALIVE_S:g} s")

    async def is_empty() -> bool:
        try:
            for info in await client.list_sandboxes():
                await (await client.attach(info.id)).delete()
            await client.reap()
            await client.prune_images()
            return not await stage.witness.left()
        except RollcageError:
            return False  # a busy daemon: once more

    await until(is_empty, LEFT_S)
    left = await stage.witness.left()
    ledger.check("nothing left", -1, not left, ", ".join(left))
    await client.close()

    async def has_let_go() -> bool:
        return len(keeper.files()) <= len(files) and not keeper.children()

    held = await until(has_let_go, LEFT_S / 2)
    text = f"the manager has these files open: {keeper.files()}; before: {files}; child processes: {keeper.children()}"
    ledger.check("nothing left", -1, held, text)
    code = await keeper.stop()
    ledger.check("orderly end", -1, code == 0, f"exit code {code}: {keeper.log_tail()}")
    ledger.check("no surprise", -1, not (trace := keeper.traceback()), trace)
    left = await stage.witness.left()
    ledger.check("nothing left", -1, not left, f"after the manager's end: {', '.join(left)}")
