"""Networks by allow-list, and published ports: what is not allowed is not there."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.sandbox.drivers.docker_rig import Box, Rig

from rollcage.sandbox.drivers.docker_network import plan_network
from rollcage.sandbox.errors import BadSpec
from rollcage.sandbox.types import SandboxSpec

OnDocker = Callable[[Callable[[Rig], Any]], None]

ASK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 3) as s:
        s.sendall(b"question")
        s.shutdown(socket.SHUT_WR)
        print(s.makefile().read())
except OSError as error:
    print("refused", type(error).__name__)
"""
ANSWER = """
import socketserver
class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"inside heard " + self.rfile.read())
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
Server(("0.0.0.0", 8000), Answer).serve_forever()
"""


@asynccontextmanager
async def host_service(name: str) -> AsyncIterator[int]:
    """A service on all interfaces of this host; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{name} heard ".encode() + await reader.read())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def ask(box: Box, host: str, port: int) -> str:
    return (await box.python(ASK, host, str(port))).stdout_text.strip()


async def ask_loopback(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"question")
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def bridge_address(rig: Rig) -> str:
    """This host, as a container on Docker's own bridge sees it."""
    async with rig.driver._engine.call("inspect") as docker:
        bridge = await docker._query_json("networks/bridge")
    return str(bridge["IPAM"]["Config"][0].get("Gateway", "172.17.0.1"))


def test_only_what_is_allowed_is_reached(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        host = await bridge_address(rig)
        async with host_service("one") as one, host_service("two") as two:
            spec = SandboxSpec(network=(f"model={host}:{one}", f"same={host}:{one}"))
            box = await rig.start(spec)
            assert await ask(box, "model", one) == "one heard question"
            assert await ask(box, "same", one) == "one heard question", "two names share a port"
            assert await ask(box, "model", two) == "refused ConnectionRefusedError"
            # neither the host itself, by any of its addresses, nor the world, nor a name
            route = (await box.sh("cat /proc/net/fib_trie")).stdout_text
            inside = next(line.split()[-1] for line in route.splitlines() if "10.20" in line and "|--" in line)
            gateway = inside.rpartition(".")[0] + ".1"
            tries = [(host, one), (host, two), (gateway, one), ("8.8.8.8", 53), (inside, 22)]
            answers = await asyncio.gather(*(ask(box, *target) for target in tries))
            assert all(answer.startswith("refused") for answer in answers), answers
            assert (await ask(box, "pypi.org", 443)) == "refused gaierror"
            assert (await box.sh("cat /sys/class/net/eth0/address; ls /proc/sys/net/ipv6/conf/eth0")).exit_code != 1
            assert b"inet6" not in (await box.sh("cat /proc/net/if_inet6 | grep eth0 | sed s/^/inet6/")).stdout

    on_docker(scenario)


def test_sandboxes_do_not_reach_each_other(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        host = await bridge_address(rig)
        async with host_service("one") as one:
            spec = SandboxSpec(network=(f"model={host}:{one}",), ports=(8000,))
            boxes = await asyncio.gather(rig.start(spec), rig.start(spec))
            for box in boxes:
                await box.sh(f"python3 -c '{ANSWER}' >/dev/null 2>&1 &")
            found = await rig.driver.inspect(boxes[1].name)
            assert found is not None
            for _ in range(50):
                if await ask_loopback(found.ports[8000]) == b"inside heard question":
                    break
                await asyncio.sleep(0.1)
            async with rig.driver._engine.call("inspect") as docker:
                networks = [await docker._query_json(f"networks/{box.name}-gate") for box in boxes]
            addresses = [entry["IPv4Address"].split("/")[0] for entry in networks[1]["Containers"].values()]
            assert len(addresses) == 2
            for address in addresses:
                assert (await ask(boxes[0], address, 8000)).startswith("refused")
            # nor through the host, or through the other gate's outer side
            assert (await ask(boxes[0], host, found.ports[8000])).startswith("refused")

    on_docker(scenario)


def test_a_published_port_is_on_the_loopback_only_and_opens_no_way_out(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        host = await bridge_address(rig)
        async with host_service("one") as one:
            box = await rig.start(SandboxSpec(ports=(8000,)))
            await box.sh(f"python3 -c '{ANSWER}' >/dev/null 2>&1 &")
            found = await rig.driver.inspect(box.name)
            assert found is not None
            assert (await rig.driver.list_containers(rig.manager))[0].ports == found.ports
            port = found.ports[8000]
            for _ in range(50):
                answer = await ask_loopback(port)
                if answer:
                    break
                await asyncio.sleep(0.1)
            assert answer == b"inside heard question"
            async with rig.driver._engine.call("inspect") as docker:
                gate = await docker.containers.container(f"{box.name}-gate").show()
            assert gate["NetworkSettings"]["Ports"] == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}]}
            with socket.socket() as other, pytest.raises(OSError, match="refused"):
                other.connect((host, port))  # another address of this host
            for target in ((host, one), ("8.8.8.8", 53), ("pypi.org", 443)):
                assert (await ask(box, *target)).startswith("refused")
            # a neighbour on Docker's bridge is no loopback either
            outer = gate["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]
            with socket.socket() as beside:
                beside.bind(("127.0.0.1", 0))
            neighbour = rig.container(SandboxSpec(network=(f"gate={outer}:8000",)))
            await rig.driver.create(neighbour)
            guest = await rig.driver.connect(neighbour.name, neighbour.spec)
            rig.boxes.append(Box(neighbour.name, neighbour.spec, guest))
            assert "inside" not in await ask(rig.boxes[-1], "gate", 8000)

    on_docker(scenario)


def test_S16_ports_are_chosen_by_docker_while_others_bind_at_random(on_docker: OnDocker) -> None:
    """10 sandboxes here; 50 are in benchmarks/sandbox."""

    async def scenario(rig: Rig) -> None:
        taken: deque[socket.socket] = deque()

        async def bind_at_random() -> None:
            while True:
                other = socket.socket()
                try:
                    other.bind(("127.0.0.1", random.randrange(32768, 33500)))
                    other.listen()
                    taken.append(other)
                except OSError:
                    other.close()
                if len(taken) > 200:  # else a slow machine has none left
                    taken.popleft().close()
                await asyncio.sleep(0.005)

        binding = asyncio.create_task(bind_at_random())
        limit = asyncio.Semaphore(4)

        async def one() -> dict[int, int]:
            container = rig.container(SandboxSpec(ports=(8000, 9000)))
            async with limit:
                await rig.driver.create(container)
            found = await rig.driver.inspect(container.name)
            assert found is not None
            return dict(found.ports)

        try:
            ports = await asyncio.gather(*(one() for _ in range(10)))
        finally:
            binding.cancel()
            await asyncio.gather(binding, return_exceptions=True)
            for other in taken:
                other.close()
        assert len({port for found in ports for port in found.values()}) == 20

    on_docker(scenario)


def test_what_a_dead_manager_left_is_found_by_its_label(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        container = rig.container(SandboxSpec(ports=(8000,)))
        await rig.driver._gate.open(container)  # and then the manager is killed
        (left,) = await rig.driver.list_containers(rig.manager)
        assert (left.name, left.status) == (container.name, "created")
        await rig.driver.remove(left.name)
        assert await rig.driver.list_containers(rig.manager) == []
        await rig.driver.create(container)  # the name is free
        await rig.driver.create(container)

    on_docker(scenario)


def test_names_that_share_a_port_get_addresses_of_their_own() -> None:
    plan = plan_network(SandboxSpec(network=("a.org:443", "b.org:443", "a.org:80", "b.org:22", "c=1.2.3.4:80")))
    assert plan.names == {"a.org": 0, "b.org": 1, "c": 1}
    assert plan.out == [(0, 443, "a.org", 443), (0, 80, "a.org", 80), (1, 443, "b.org", 443), (1, 22, "b.org", 22),
                        (1, 80, "1.2.3.4", 80)]  # fmt: skip
    for bad in ("a.org", "a.org:0", "a.org:99999", "localhost:80", "1.2.3.4:80", "http://a.org:80", "a b:80", "*:80"):
        with pytest.raises(BadSpec):
            plan_network(SandboxSpec(network=(bad,)))
