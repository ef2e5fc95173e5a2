"""The witness: sees at the daemon itself, past proxy and manager, what there is and what was there at once."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcage.sandbox.chaos.ledger import Ledger
from rollcage.sandbox.drivers.base import LABEL_GENERATION, LABEL_MANAGER, LABEL_RECORD, LABEL_SANDBOX
from rollcage.sandbox.drivers.docker_api import Engine
from rollcage.sandbox.drivers.docker_config import LABEL_PART_OF
from rollcage.sandbox.errors import SandboxError

from aiohttp import ClientError  # isort: skip  (docker_api says how to get it where it is missing)

RETRY_S = 0.3
REMOVE_TRIES = 4


@dataclass
class Seen:
    """A container that exists: one life of a sandbox."""

    key: str
    sandbox_id: str
    generation: int
    is_running: bool = False


class Witness:
    """Watches the containers of one manager, and counts what is left of it.

    Args:
        endpoint: the daemon, without the proxy.
        store_id: the manager's label.
        ledger: told where a sandbox had two running containers.
    """

    def __init__(self, endpoint: str, store_id: str, ledger: Ledger) -> None:
        self._engine, self._store_id, self._ledger = Engine(endpoint), store_id, ledger
        self._filter = {"label": [f"{LABEL_MANAGER}={store_id}"]}
        self._ids: set[str] = set()
        self._volumes: set[str] = set()
        self.seen: dict[str, Seen] = {}
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to watch."""
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop; idempotent."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        await self._engine.close()

    def sandboxes_of(self, key: str) -> set[str]:
        """Return the sandboxes of a key that have a container."""
        self._raise_if_blind()
        return {seen.sandbox_id for seen in self.seen.values() if seen.key == key}

    def containers_of(self, sandbox_id: str) -> list[str]:
        """Return the containers of a sandbox."""
        self._raise_if_blind()
        return [name for name, seen in self.seen.items() if seen.sandbox_id == sandbox_id]

    def _raise_if_blind(self) -> None:
        if self._watching is not None and self._watching.done():
            self._watching.result()

    async def left(self) -> list[str]:
        """Return, one by one, what the daemon and this machine still have of the manager."""
        filters = {"filters": json.dumps(self._filter)}
        async with self._engine.call("count what is left") as docker:
            containers = await docker._query_json("containers/json", params={"all": "1", **filters})
            networks = await docker._query_json("networks", params=filters)
            images = await docker._query_json("images/json", params={"all": "1", **filters})
            volumes = (await docker._query_json("volumes")).get("Volumes") or []
        left = [f"container {row['Names'][0]} ({row['State']})" for row in containers]
        left += [f"network {row['Name']}" for row in networks]
        left += [f"image {(row.get('RepoTags') or [row['Id']])[0]}" for row in images]
        left += [f"volume {row['Name']}" for row in volumes if row["Name"] in self._volumes]
        return left + [f"process {pid}" for pid in await asyncio.to_thread(_processes_of, self._ids)]

    async def remove_left(self) -> None:
        """Remove what is left of containers, networks and images: a harness that has failed leaves nothing either."""
        left = ["?"]
        for _ in range(REMOVE_TRIES):
            try:
                if not (left := await self.left()):
                    return
                await self._remove_all()
            except SandboxError as error:
                left = [*left, str(error)]
        self._ledger.check("nothing left", -1, False, f"cannot be removed: {', '.join(left)}")

    async def _remove_all(self) -> None:
        filters = {"filters": json.dumps(self._filter)}
        async with self._engine.call("remove what is left") as docker:
            for row in await docker._query_json("containers/json", params={"all": "1", **filters}):
                await docker.containers.container(row["Id"]).delete(force=True, v=True)
            for row in await docker._query_json("networks", params=filters):
                await docker._query_json(f"networks/{row['Id']}", "DELETE")
            for row in await docker._query_json("images/json", params={"all": "1", **filters}):
                await docker.images.delete(row["Id"], force=True)

    async def _watch(self) -> None:
        while True:
            try:
                await self._follow()
            except (SandboxError, OSError, ValueError, ClientError):
                pass  # the daemon is being restarted
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        query = [("filters", json.dumps({**self._filter, "type": ["container"]}))]
        async with self._engine.call("send events"):
            response = await self._engine.request("GET", "events", query=query)
        try:
            async with self._engine.call("list containers") as docker:
                params = {"all": "1", "filters": json.dumps(self._filter)}
                rows = await docker._query_json("containers/json", params=params)
            self.seen.clear()
            for row in rows:
                self._note(row["Names"][0].lstrip("/"), row["Id"], row["Labels"], row["State"] in ("running", "paused"))
                self._volumes |= {it["Name"] for it in row.get("Mounts") or [] if it.get("Type") == "volume"}
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        await self._take(json.loads(line))
        finally:
            response.close()

    async def _take(self, event: dict[str, Any]) -> None:
        action, actor = event["Action"], event["Actor"]
        name = actor["Attributes"].get("name", "")
        if action == "create":
            self._note(name, actor["ID"], actor["Attributes"], False)
            async with self._engine.call("inspect a container") as docker:
                found = await docker._query_json("containers/json", params=_only(actor["ID"]))
            for row in found:
                self._volumes |= {it["Name"] for it in row.get("Mounts") or [] if it.get("Type") == "volume"}
        elif action == "destroy":
            self.seen.pop(name, None)
        elif action in ("start", "die") and name in self.seen:
            self.seen[name].is_running = action == "start"
            if action == "start":
                self._check_alone(name, self.seen[name])

    def _note(self, name: str, container_id: str, labels: dict[str, str], is_running: bool) -> None:
        self._ids.add(container_id)
        if labels.get(LABEL_PART_OF, name) == name:  # else a gate
            key = str(json.loads(labels[LABEL_RECORD]).get("key", ""))
            self.seen[name] = Seen(key, labels[LABEL_SANDBOX], int(labels[LABEL_GENERATION]), is_running)

    def _check_alone(self, name: str, new: Seen) -> None:
        others = [it for it, seen in self.seen.items() if seen.sandbox_id == new.sandbox_id and seen.is_running]
        others.remove(name)
        cycle = int(new.key.rpartition("-")[2]) if new.key[-1:].isdigit() else -1
        self._ledger.check("one life", cycle, not others, f"{name} was started while {', '.join(others)} ran")


def _only(container_id: str) -> dict[str, str]:
    return {"all": "1", "filters": json.dumps({"id": [container_id]})}


def _processes_of(container_ids: set[str]) -> list[str]:
    """Return the processes of this machine that are in these containers, or watch over them."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            folder = Path(entry.path)
            try:
                text = (folder / "cgroup").read_text() + (folder / "cmdline").read_text(errors="replace")
            except OSError:
                continue  # it has ended
            if any(container_id in text for container_id in container_ids):
                found.append(f"{entry.name} ({(text.rpartition(chr(10))[2] or '?').replace(chr(0), ' ')[:80].strip()})")
    return found


async def until(holds: Callable[[], Awaitable[bool]], timeout_s: float) -> bool:
    """Wait until something holds; returns whether it did in time."""
    try:
        async with asyncio.timeout(timeout_s):
            while not await holds():
                await asyncio.sleep(0.2)
            return True
    except TimeoutError:
        return False
