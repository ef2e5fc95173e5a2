"""The gate's program: carries TCP connections between a sandbox that has no network and what it may reach.

This one file needs only the standard library of Python and Linux: its source is handed to `python3 -c` in the gate's
container, with a JSON argument; importing it on the host does nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import struct
import sys

_SET_ADDRESS, _SET_NETMASK, _GET_ADDRESS = 0x8916, 0x891C, 0x8915
_NOBODY = 65534
_CONNECT_S = 10.0
NO_BRIDGE = "the daemon has no bridge network"


def interface_address(name: str) -> str:
    """Return the IPv4 address of an interface, "" where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, _GET_ADDRESS, struct.pack("16s24x", name.encode()))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def add_address(interface: str, number: int, address: str, netmask: str) -> None:
    """Give an interface one more address (needs NET_ADMIN)."""
    name = f"{interface}:{number}".encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for request, value in ((_SET_ADDRESS, address), (_SET_NETMASK, netmask)):
            packed = struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(value))
            fcntl.ioctl(sock, request, packed)


def gateway() -> str:
    """Return the default gateway's address: the only one that published ports are asked from."""
    with open("/proc/net/route") as lines:
        for line in lines:
            fields = line.split()
            if fields[1] == "00000000" and int(fields[3], 16) & 2:
                return socket.inet_ntoa(struct.pack("<L", int(fields[2], 16)))
    return ""


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry one direction to its end."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: tuple[str, int]) -> None:
    """Carry one connection to ``target``."""
    try:
        far_reader, far_writer = await asyncio.wait_for(asyncio.open_connection(*target), _CONNECT_S)
    except (OSError, asyncio.TimeoutError):  # noqa: UP041  (they differ before Python 3.11)
        writer.transport.abort()  # the sandbox sees a reset
        return
    try:
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
    finally:
        far_writer.close()
        writer.close()


async def main(plan: dict) -> None:  # type: ignore[type-arg]
    """Serve ``plan``: "inside" (own addresses in the sandbox's network), "out" and "published" (port, host, port)."""
    names = [name for _, name in socket.if_nameindex()]
    inner = next((name for name in names if interface_address(name) == plan["inside"][0]), "")
    outer = next((name for name in names if name not in ("lo", inner) and interface_address(name)), "")
    if not inner or not outer:
        sys.exit(NO_BRIDGE)
    for number, address in enumerate(plan["inside"][1:], 1):
        add_address(inner, number, address, plan["netmask"])
    allowed = gateway()
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)  # with the user go all capabilities
    for address, port, host, far_port in plan["out"]:

        def go_out(reader, writer, target=(host, far_port)):  # type: ignore[no-untyped-def]
            return carry(reader, writer, target)

        await asyncio.start_server(go_out, address, port)
    for port, address in plan["published"]:

        def come_in(reader, writer, target=(address, port)):  # type: ignore[no-untyped-def]
            if writer.get_extra_info("peername")[0] != allowed:
                writer.transport.abort()
                return None
            return carry(reader, writer, target)

        await asyncio.start_server(come_in, interface_address(outer), port)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
