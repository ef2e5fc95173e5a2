"""The line to a replica that an engine server runs, and how the two ends make sure of each other."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import socket
from dataclasses import asdict
from pathlib import Path

from rollcage import __version__
from rollcage.errors import UserError
from rollcage.trainer.engines.base import EngineDied
from rollcage.trainer.engines.vllm_options import VllmEngineConfig
from rollcage.trainer.line import Line
from rollcage.trainer.wire import HEADER

NONCE_BYTES = 32
MAX_HELLO_BYTES = 65_536
HANDSHAKE_TIMEOUT_S = 10.0


class ServedReplica(Line):
    """A replica on a server of ours, which starts a process for it when we call and ends it when we hang up.

    Args:
        name: for messages ("engine 0").
        address: of the server, HOST:PORT or unix:PATH.
        token: what both ends know. It is never sent.
    """

    def __init__(self, name: str, address: str, token: bytes) -> None:
        super().__init__(f"{name} at {address}", died=EngineDied)
        self._address, self._token = address, token
        self.host = "127.0.0.1"
        """Our own address as the server sees it."""

    async def open(self, config: VllmEngineConfig, place: int) -> None:
        """Connect, and let the server start the process of replica number ``place`` on its machine.

        Raises:
            EngineDied: the server cannot be reached, or does not answer in time.
            UserError: it has another token, or another version of Rollcage.
        """
        family, where = parse_address(self._address)
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                if isinstance(where, str):
                    reader, writer = await asyncio.open_unix_connection(where)
                else:
                    reader, writer = await asyncio.open_connection(*where)
                try:
                    await self._introduce(reader, writer, config, place)
                except BaseException:
                    writer.transport.abort()
                    raise
        except (OSError, asyncio.IncompleteReadError) as error:  # TimeoutError is one too
            raise EngineDied(f"{self._name}: cannot be reached ({error or 'no answer'})") from None
        if family != socket.AF_UNIX:
            keep_alive(writer.get_extra_info("socket"))
            self.host = writer.get_extra_info("sockname")[0]
        self.listen(reader, writer)

    async def _introduce(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, config: VllmEngineConfig, place: int
    ) -> None:
        ours = os.urandom(NONCE_BYTES)
        writer.write(ours)
        theirs = await reader.readexactly(NONCE_BYTES)
        if not hmac.compare_digest(await reader.readexactly(NONCE_BYTES), prove(self._token, b"server", ours, theirs)):
            raise UserError(
                f"engine: the server at {self._address} has another token: give the file it was started with."
            )
        hello = json.dumps({"rollcage": __version__, "config": asdict(config), "place": place}).encode()
        writer.write(prove(self._token, b"client", ours, theirs) + HEADER.pack(len(hello)) + hello)
        (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
        answer = await reader.readexactly(min(size, MAX_HELLO_BYTES))
        if answer:
            raise UserError(f"engine: the server at {self._address} refuses: {answer.decode(errors='replace')}")


def prove(token: bytes, who: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return what only one who knows the token can say, in this conversation."""
    return hmac.digest(token, who + client_nonce + server_nonce, hashlib.sha256)


def parse_address(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    """Return the socket's family and its address.

    Raises:
        UserError: it is neither HOST:PORT nor unix:PATH.
    """
    if address.startswith("unix:"):
        return socket.AF_UNIX, address.removeprefix("unix:")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise UserError(f"engine: {address!r} is no address: HOST:PORT or unix:PATH.")
    host = host.strip("[]")
    return socket.AF_INET6 if ":" in host else socket.AF_INET, (host, int(port))


def read_token(file: Path) -> bytes:
    """Return the token in ``file``.

    Raises:
        UserError: the file cannot be read, or holds fewer than 16 characters.
    """
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        raise UserError(f"engine: the token file {file} cannot be read: {error.strerror}.") from None
    if len(token) < 16:
        raise UserError(f"engine: the token in {file} is too short: 16 characters at least.")
    return token


def keep_alive(connection: socket.socket) -> None:
    """Send at once, and notice within two minutes that the other machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
