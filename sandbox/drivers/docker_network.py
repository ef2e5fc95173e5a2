"""Networks by allow-list: a sandbox is alone with a gate, which carries what is allowed, in a closed network.

Docker makes the network with neither a route out nor an address of the host, so that this holds without firewall rules,
without rights on the host, and on remote hosts. The gate is a second container, also in Docker's own bridge network. It
listens on addresses of its own under the allowed names, and publishes the sandbox's ports on the host's loopback.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import random
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcage.sandbox.drivers import relay
from rollcage.sandbox.drivers.base import Container
from rollcage.sandbox.drivers.docker_api import Engine, one_line, show, together
from rollcage.sandbox.drivers.docker_config import LABEL_PART_OF, confinement
from rollcage.sandbox.errors import BadSpec, HostUnavailable, ImageMissing, StartFailed
from rollcage.sandbox.types import MIB, SandboxSpec

from aiodocker import Docker, DockerError  # isort: skip  (docker_api says how to get it where it is missing)
from aiodocker.multiplexed import multiplexed_result_stream  # isort: skip

_POOL = ipaddress.ip_network("10.200.0.0/14")
"""Where the networks are cut from; since the host has no address in them, they hide nothing of the user's."""
_PREFIX = 26
_FIRST_GATE, _SANDBOX = 3, 2
_MAX_ADDRESSES = 50
_TARGET = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9_.-]*)=)?([A-Za-z0-9][A-Za-z0-9_.-]*):(\d+)")
_PORT_TAKEN = ("port is already allocated", "address already in use", "failed programming external connectivity")


def gate_name(name: str) -> str:
    """Return the name of the gate, and of the network, of a container."""
    return f"{name}-gate"


@dataclass
class Plan:
    """Who listens where. ``out``: number of a gate address, port, host, port there. ``names``: name -> number."""

    out: list[tuple[int, int, str, int]] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)


def plan_network(spec: SandboxSpec) -> Plan:
    """Give each allowed name the first of the gate's addresses on which its ports are free."""
    wanted: dict[str, list[tuple[int, str]]] = {}
    for entry in spec.network:
        match = _TARGET.fullmatch(entry)
        if match is None or not 0 < int(match[3]) < 65536:
            raise BadSpec(f"network entry {entry!r} must be 'host:port', such as 'pypi.org:443'.")
        name, host, port = match[1] or match[2], match[2], int(match[3])
        if name == "localhost" or (match[1] is None and _is_address(host)):
            raise BadSpec(
                f"network entry {entry!r}: give an address a name to reach it by, as in 'model=10.0.0.5:8000'."
            )
        if (port, host) not in wanted.setdefault(name, []):
            if port in (there for there, _ in wanted[name]):
                raise BadSpec(f"network entry {entry!r}: {name}:{port} leads elsewhere already.")
            wanted[name].append((port, host))
    plan, taken = Plan(), set[tuple[int, int]]()
    for name, targets in wanted.items():
        number = next(n for n in range(len(wanted)) if not any((n, port) in taken for port, _ in targets))
        if number >= _MAX_ADDRESSES:
            raise BadSpec(f"network: more than {_MAX_ADDRESSES} hosts on one port.")
        plan.names[name] = number
        for port, host in targets:
            taken.add((number, port))
            plan.out.append((number, port, host, port))
    return plan


def _is_address(host: str) -> bool:
    return host.replace(".", "").isdigit()


class Gate:
    """The gates of one host.

    Args:
        engine: the host.
        image: what gates are made of; has Python.
    """

    def __init__(self, engine: Engine, image: str) -> None:
        self._engine = engine
        self._image = image
        self._source = Path(relay.__file__).read_text()

    async def open(self, container: Container) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make a container's network and start its gate; idempotent. Returns what is added to the container's
        host configuration, and its networking configuration."""
        plan = plan_network(container.spec)
        async with self._engine.call(f"make a network for {container.name}") as docker:
            network, subnet = await self._make_network(docker, container)
            await self._make_gate(docker, container, plan, network, subnet)
        host = {
            "NetworkMode": network,
            "ExtraHosts": [f"{name}:{subnet[_FIRST_GATE + number]}" for name, number in plan.names.items()],
            "DnsOptions": ["timeout:1", "attempts:1"],
            "Dns": ["127.0.0.1"],  # nobody: Docker's own resolver would carry questions out
        }
        return host, {"EndpointsConfig": {network: _endpoint(subnet[_SANDBOX])}}

    async def _make_network(self, docker: Docker, container: Container) -> tuple[str, ipaddress.IPv4Network]:
        """Return the id and the addresses of a container's network.

        Docker allows two networks of one name, but none of the same addresses: so these come from the name, and of two
        tries at once the second is refused, and takes what the first has made.
        """
        wishes = random.Random(container.name)
        for _ in range(200):
            base = wishes.randrange(_POOL.num_addresses >> (32 - _PREFIX)) << (32 - _PREFIX)
            subnet = ipaddress.IPv4Network((int(_POOL.network_address) + base, _PREFIX))
            try:
                network = await docker.networks.create(
                    {
                        "Name": gate_name(container.name),
                        "Driver": "bridge",
                        "Internal": True,
                        "EnableIPv6": False,
                        "IPAM": {"Config": [{"Subnet": str(subnet), "Gateway": str(subnet[1])}]},
                        "Options": {"com.docker.network.bridge.inhibit_ipv4": "true"},
                        "Labels": {**container.labels, LABEL_PART_OF: container.name},
                    }
                )
                return network.id, subnet
            except DockerError as error:
                if "overlaps" not in error.message:
                    raise BadSpec(f"{self._engine.endpoint} makes no networks: {one_line(error.message)}") from error
            for attempt in range(6):
                for found in await _networks(docker, container.name):
                    return found["Id"], ipaddress.IPv4Network(found["IPAM"]["Config"][0]["Subnet"])
                await asyncio.sleep(0.02 * attempt)  # the other try has the addresses, and not yet the network
        raise HostUnavailable(f"{self._engine.endpoint} has no free addresses in {_POOL} for {container.name}.")

    async def _make_gate(
        self, docker: Docker, container: Container, plan: Plan, network: str, subnet: ipaddress.IPv4Network
    ) -> None:
        name, spec = gate_name(container.name), container.spec
        num_addresses = 1 + max(plan.names.values(), default=0)
        argument = {
            "inside": [str(subnet[_FIRST_GATE + number]) for number in range(num_addresses)],
            "netmask": str(subnet.netmask),
            "out": [(str(subnet[_FIRST_GATE + number]), port, host, to) for number, port, host, to in plan.out],
            "published": [(port, str(subnet[_SANDBOX])) for port in spec.ports],
        }
        host = confinement(num_pids=16, memory_bytes=128 * MIB)
        host |= {
            "CapAdd": ["NET_ADMIN", "SETUID", "SETGID"],  # until it has its addresses
            "ReadonlyRootfs": True,
            "NetworkMode": "bridge",
            "RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 5},
            "Sysctls": {"net.ipv4.ip_unprivileged_port_start": "0"},
            "PortBindings": {f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}] for port in spec.ports},
        }
        config: dict[str, Any] = {
            "Image": self._image,
            "Entrypoint": ["python3", "-I", "-S", "-c", self._source, json.dumps(argument)],
            "User": "0:0",
            "Labels": {**container.labels, LABEL_PART_OF: container.name},
            "ExposedPorts": {f"{port}/tcp": {} for port in spec.ports},
            "HostConfig": host,
        }
        try:
            await docker.containers.create(config, name=name)
        except DockerError as error:
            if error.status == 404:
                raise ImageMissing(
                    f"a network or ports need image {self._image!r} on {self._engine.endpoint}:"
                    " run  rollcage sandbox images build base"
                ) from error
            if error.status != 409:
                raise
            while await show(docker, name) is None:  # a try beside this one is making it
                await asyncio.sleep(0.05)
        try:
            body = {"Container": name, "EndpointConfig": _endpoint(subnet[_FIRST_GATE])}
            await docker._query_json(f"networks/{network}/connect", "POST", data=body)
        except DockerError as error:
            if "already exists in network" not in error.message:
                raise
        await self._start(docker, name)

    async def _start(self, docker: Docker, name: str) -> None:
        """Start the gate; where another process takes the port that Docker has chosen, it chooses again."""
        for attempt in range(1, 21):
            try:
                await docker.containers.container(name).start()
                return
            except DockerError as error:
                if not any(words in error.message for words in _PORT_TAKEN):
                    raise StartFailed(f"the gate {name} could not be started: {one_line(error.message)}") from error
            await asyncio.sleep(0.01 * attempt)
        raise HostUnavailable(f"{self._engine.endpoint} found no free port for {name} in 20 tries.")

    async def wait_ready(self, name: str) -> None:
        """Wait until a container's gate listens; raises StartFailed or BadSpec where it ends instead."""
        seen = ""
        async with self._engine.call(f"open the gate of {name}"):
            path, query = f"containers/{gate_name(name)}/logs", [("stdout", "1"), ("stderr", "1"), ("follow", "1")]
            async with await self._engine.request("GET", path, query=query) as response:  # aiodocker closes it nowhere
                async for line in multiplexed_result_stream(response):  # type: ignore[no-untyped-call]
                    seen += line
                    if "ready" in line:
                        return
        if relay.NO_BRIDGE in seen:
            raise BadSpec(f"{self._engine.endpoint} gives no network and no ports: {relay.NO_BRIDGE}.")
        raise StartFailed(f"the gate of {name} ended: {one_line(seen)[-300:]}", log_tail=seen)

    async def remove_all(self, docker: Docker, name: str) -> None:
        """Remove a container, its gate and its network, or what there is of them."""
        await together(_remove_container(docker, name), _remove_container(docker, gate_name(name)))
        for network in await _networks(docker, name):
            for attempt in range(1, 51):
                try:
                    await docker._query_json(f"networks/{network['Id']}", "DELETE")
                    break
                except DockerError as error:
                    if error.status == 404:
                        break
                    if "active endpoints" not in error.message or attempt == 50:
                        raise
                await asyncio.sleep(0.02 * attempt)


async def _networks(docker: Docker, name: str) -> list[dict[str, Any]]:
    filters = json.dumps({"label": [f"{LABEL_PART_OF}={name}"]})
    return list(await docker._query_json("networks", params={"filters": filters}))


async def _remove_container(docker: Docker, name: str) -> None:
    container = docker.containers.container(name)
    for attempt in range(1, 1000):
        try:
            await container.delete(force=True, v=True)
        except DockerError as error:
            if error.status == 404:
                return
            if error.status != 409 and "did not receive an exit event" not in error.message:
                raise
            with suppress(DockerError):  # where it is frozen it cannot die
                await container.unpause()
            await asyncio.sleep(min(0.02 * attempt, 0.5))  # somebody else removes it: wait until it is gone
        # A removal that is answered is done; ask once more only after a conflict.
        else:
            return


def _endpoint(address: ipaddress.IPv4Address) -> dict[str, Any]:
    return {"IPAMConfig": {"IPv4Address": str(address)}}
