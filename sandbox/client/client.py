"""The service's client: the same interface as the manager in process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rollcage.sandbox.client.address import ServiceAddress, default_folder, read_address
from rollcage.sandbox.client.connection import Connection, follow
from rollcage.sandbox.client.remote import CALL_LIMIT_S, GRACE_S, RemoteSandbox
from rollcage.sandbox.client.wire import (
    event_from_json,
    host_from_json,
    info_from_json,
    snapshot_from_json,
)
from rollcage.sandbox.errors import SandboxNotFound, ServiceUnreachable
from rollcage.sandbox.types import Event, HostInfo, SandboxInfo, SandboxSpec, Snapshot


def connect(folder: Path | str | None = None) -> Client:
    """Return a client of the service that runs for a state folder (default: this user's); it follows a restart.

    Raises:
        ServiceUnreachable: none has been started there.
    """
    where = Path(folder) if folder is not None else default_folder()
    service = read_address(where)
    if service is None:
        raise ServiceUnreachable(f"no sandbox service runs for {where}: start one with  rollcage sandbox serve.")
    return Client(service.address, service.token, folder=where)


class Client:
    """All sandboxes of one service; see `rollcage.sandbox.base.Sandboxes`, whose calls these are.

    Besides what they raise there, calls raise ServiceUnreachable, Unauthorized and BadRequest. What may be repeated is
    tried again for 10 s where the connection breaks, which is longer than a restart of the service takes: all that
    only looks, and creation with a key. Everything else fails at once, with ServiceUnreachable whose
    ``may_have_happened`` says whether the call may have been carried out.

    Args:
        address: "http://HOST:PORT" or "unix:///PATH".
        token: the service's.
        folder: where its address file is, if a new one shall be found there after a restart.
    """

    def __init__(self, address: str, token: str, *, folder: Path | None = None) -> None:
        service = ServiceAddress(address, token, 0)
        self.connection = Connection(service, follow(folder)) if folder is not None else Connection(service)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def check(self) -> None:
        """Return if the service answers and takes the token; raises ServiceUnreachable or Unauthorized, at once."""
        await self.connection.ask("GET", "snapshots", limit_s=10.0)

    async def create(
        self, spec: SandboxSpec, *, key: str = "", owner: str = "", deadline_s: float = 120.0
    ) -> RemoteSandbox:
        """See `Sandboxes`."""
        body = {"spec": spec.to_json(), "key": key, "owner": owner, "deadline_s": deadline_s}
        info = await self.connection.ask("POST", "sandboxes", body=body, limit_s=deadline_s + GRACE_S, repeat=bool(key))
        return RemoteSandbox(self.connection, info_from_json(info))

    async def attach(self, sandbox_id: str) -> RemoteSandbox:
        """See `Sandboxes`."""
        if not sandbox_id or "/" in sandbox_id:
            raise SandboxNotFound(f"there is no sandbox {sandbox_id!r}.")
        info = await self.connection.ask("GET", "sandboxes", sandbox_id, limit_s=CALL_LIMIT_S, repeat=True)
        return RemoteSandbox(self.connection, info_from_json(info))

    async def list_sandboxes(self, *, owner: str | None = None) -> list[SandboxInfo]:
        """See `Sandboxes`."""
        return [
            info_from_json(data) for data in await self._look("sandboxes", {} if owner is None else {"owner": owner})
        ]

    async def hosts(self) -> list[HostInfo]:
        """See `Sandboxes`."""
        return [host_from_json(data) for data in await self._look("hosts")]

    async def drain(self, host: str, *, on: bool = True) -> None:
        """See `Sandboxes`."""
        await self.connection.ask("POST", "hosts", host, "drain", body={"on": on}, limit_s=CALL_LIMIT_S, repeat=True)

    async def events(self, *, after: int = 0) -> list[Event]:
        """See `Sandboxes`."""
        return [event_from_json(data) for data in await self._look("events", {"after": after})]

    async def snapshots(self) -> list[Snapshot]:
        """See `Sandboxes`."""
        return [snapshot_from_json(data) for data in await self._look("snapshots")]

    async def reap(self) -> list[str]:
        """See `Sandboxes`."""
        names: list[str] = await self.connection.ask("POST", "reap", limit_s=CALL_LIMIT_S)
        return names

    async def prune_images(self) -> list[str]:
        """See `Sandboxes`."""
        names: list[str] = await self.connection.ask("POST", "images", "prune", limit_s=CALL_LIMIT_S)
        return names

    async def close(self) -> None:
        """Close the connections; service and sandboxes live on. Idempotent."""
        await self.connection.close()

    async def _look(self, what: str, query: Mapping[str, Any] | None = None) -> Any:
        return await self.connection.ask("GET", what, query=query, limit_s=CALL_LIMIT_S, repeat=True)
