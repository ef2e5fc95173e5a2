"""``rollcage bench endurance``: what the tests of sandboxes show at small size, at full size, on a real daemon.

The manager runs in a process of its own, which is killed where that is part of the case, and whose memory is measured.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rollcage.benchmarks.machine import describe
from rollcage.benchmarks.sandbox.crowd import crowd, ports
from rollcage.command import CommandParser
from rollcage.sandbox.chaos.keeper import Keeper
from rollcage.sandbox.client.client import Client
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.errors import SandboxError
from rollcage.sandbox.images.bare import build_bare
from rollcage.sandbox.opening import default_endpoint
from rollcage.sandbox.types import MIB, SandboxSpec, State

Case = Callable[["Bench"], Awaitable[dict[str, Any]]]
NUM_BYTES = 500 * MIB
LEASE_S, RENEW_S, RENEWED_FOR_S = 2.0, 1.9, 60.0
NUM_CYCLES, NUM_COMMITS, RETENTION = 50, 20, 5


class Bench:
    """Where the cases are run."""

    def __init__(self, keeper: Keeper, client: Client, driver: DockerDriver, folder: Path, image: str) -> None:
        self.keeper, self.client, self.driver, self.folder, self.image = keeper, client, driver, folder, image


async def leases(bench: Bench) -> dict[str, Any]:
    """S8: a lease of 2 s, renewed every 1.9 s for a minute, holds over a restart of the manager; then it ends."""
    box = await bench.client.create(SandboxSpec(image=bench.image, ttl_s=LEASE_S))
    begin_s, num_renewals, killed, lost = time.monotonic(), 0, False, 0
    while time.monotonic() - begin_s < RENEWED_FOR_S:
        try:
            await box.renew()
            num_renewals += 1
        except SandboxError:
            lost += 1
        if not killed and time.monotonic() - begin_s > RENEWED_FOR_S / 2:
            killed = True
            await bench.keeper.kill()
        else:
            await asyncio.sleep(RENEW_S)
    is_alive = (await box.exec("true")).ok
    await box.renew()
    renewed_s = time.monotonic()
    while time.monotonic() - renewed_s < 30.0 and (await box.info()).state is not State.DELETED:
        await asyncio.sleep(0.1)
    gone_s = time.monotonic() - renewed_s
    ok = is_alive and killed and LEASE_S <= gone_s < LEASE_S + 3.0
    return {"ok": ok, "renewals": num_renewals, "lost_renewals": lost, "gone_after_s": round(gone_s, 2)}


async def snapshots(bench: Bench) -> dict[str, Any]:
    """S17: 20 snapshots with the default retention leave 5 images; 50 sandboxes with a volume leave nothing."""
    box = await bench.client.create(SandboxSpec(image=bench.image))
    for number in range(NUM_COMMITS):
        await box.put(str(number).encode(), "number")
        await box.snapshot()
    store_id = (bench.folder / "id").read_text().strip()
    num_images = len(await bench.driver.list_images(store_id))
    await box.restore()
    last = await box.read("number")
    await box.delete()
    before, most = await _volumes(bench.driver), 0
    image = await build_bare(bench.driver.endpoint, image="rollcage-bench-volume", changes=("VOLUME /data",))
    try:
        for _ in range(NUM_CYCLES):
            each = await bench.client.create(SandboxSpec(image=image))
            most = max(most, len(await _volumes(bench.driver) - before))
            await each.delete()
    finally:
        await bench.driver.remove_image(image)
    left = [each.name for each in await bench.driver.list_containers(store_id)]
    images = await bench.driver.list_images(store_id)
    num_volumes = len(await _volumes(bench.driver) - before)
    ok = (
        num_images == RETENTION
        and last == str(NUM_COMMITS - 1).encode()
        and not left + images
        and most
        and not num_volumes
    )
    numbers = {"images_of_20_snapshots": num_images, "containers_left": len(left), "volumes_left": num_volumes}
    return {"ok": ok, "cycles": NUM_CYCLES, **numbers, "images_left": len(images)}


async def files(bench: Bench) -> dict[str, Any]:
    """S18: 500 MiB in and out again, with the growth of the manager's memory."""
    source, copy, digest = bench.folder / "source", bench.folder / "copy", hashlib.sha256()
    with source.open("wb") as file:
        for _ in range(NUM_BYTES // MIB):
            block = os.urandom(MIB)
            digest.update(block)
            file.write(block)
    box = await bench.client.create(SandboxSpec(image=bench.image))
    await box.exec("true")
    before = bench.keeper.memory_bytes()
    times_s = [time.monotonic()]
    await box.put(source, "big")
    times_s.append(time.monotonic())
    await box.get("big", copy)
    times_s.append(time.monotonic())
    growth = bench.keeper.peak_bytes() - before
    await box.delete()
    with copy.open("rb") as file:
        is_same = hashlib.file_digest(file, "sha256").digest() == digest.digest()
    source.unlink()
    copy.unlink()
    rates = {name: round(500 / (times_s[at + 1] - times_s[at])) for at, name in enumerate(("put_mib_s", "get_mib_s"))}
    return {"ok": is_same and growth < 64 * MIB, "manager_growth_mib": round(growth / MIB, 1), **rates}


def _of_image(case: Callable[[str], Awaitable[dict[str, Any]]]) -> Case:
    @functools.wraps(case)
    async def run(bench: Bench) -> dict[str, Any]:
        return await case(bench.image)

    return run


CASES: dict[str, Case] = {
    "leases": leases,
    "snapshots": snapshots,
    "files": files,
    "crowd": _of_image(crowd),
    "ports": _of_image(ports),
}


def main(argv: Sequence[str]) -> int:
    """Run the cases; exit code 0 only where all hold."""
    parser = CommandParser(
        "rollcage bench endurance",
        "Leases for a minute over a kill of the manager, 20 snapshots and 50 sandboxes with volumes, 500 MiB in and\n"
        "out, 100 sandboxes at once, 50 with ports: each with what it must not cost. One JSON line a case on stdout.\n"
        "It takes five minutes.",
        "rollcage bench endurance files ports\nrollcage bench endurance --output benchmarks/results",
    )
    parser.add_argument("--image", default="rollcage-base", help="default rollcage-base")
    parser.add_argument("--output", type=Path, help="folder for endurance.md")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    args = parser.parse_args(argv)
    if unknown := set(args.cases) - set(CASES):
        parser.error(f"no case {unknown.pop()!r}; there are: {', '.join(CASES)}.")
    how = f"`{' '.join(['rollcage bench endurance', *argv])}`. {describe()} when it began."
    before = signal.signal(signal.SIGTERM, _end)
    try:
        found = asyncio.run(_run(args.cases or list(CASES), args.image))
    finally:
        signal.signal(signal.SIGTERM, before)
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "endurance.md").write_text(report(found, how), encoding="utf-8")
        sys.stderr.write(f"written: {args.output / 'endurance.md'}\n")
    return 0 if all(case["ok"] for case in found.values()) else 1


def report(found: Mapping[str, Mapping[str, Any]], how: str) -> str:
    """Return what the cases found as Markdown."""
    lines = ["# Sandboxes at full size", "", f"How: {how}"]
    for name, numbers in found.items():
        lines += ["", f"## {name}", "", str(CASES[name].__doc__), "", "|  |  |", "| --- | --: |"]
        lines += [f"| {key.replace('_', ' ')} | {value} |" for key, value in numbers.items()]
    return "\n".join([*lines, ""])


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)  # in order: what was made is removed


async def _run(names: Sequence[str], image: str) -> dict[str, dict[str, Any]]:
    results = {}
    with tempfile.TemporaryDirectory(prefix="rollcage-bench-") as folder:
        keeper, driver = Keeper(Path(folder), default_endpoint()), DockerDriver(default_endpoint())
        try:
            await keeper.start()
            async with keeper.client() as client:
                try:
                    for name in names:
                        sys.stderr.write(f"{name}: {CASES[name].__doc__}\n")
                        results[name] = await CASES[name](Bench(keeper, client, driver, Path(folder), image))
                        sys.stdout.write(json.dumps({"case": name, **results[name]}) + "\n")
                        sys.stdout.flush()
                finally:
                    for info in await client.list_sandboxes():
                        await (await client.attach(info.id)).delete()
        finally:
            await keeper.stop()
            await driver.close()
    return results


async def _volumes(driver: DockerDriver) -> set[str]:
    async with driver._engine.call("list volumes") as docker:
        return {row["Name"] for row in (await docker._query_json("volumes")).get("Volumes") or []}
