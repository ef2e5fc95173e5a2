"""Nodes with a Docker endpoint are hosts of the run's one manager: two real daemons behind two ports."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

import pytest
from tests.trainer.cluster.docker_port import port_of

from rollcage.errors import UserError
from rollcage.recorder import NullRecorder
from rollcage.sandbox.chaos.own_daemon import OwnDaemon
from rollcage.sandbox.images.bare import build_bare
from rollcage.sandbox.types import SandboxSpec
from rollcage.trainer.cluster.demands import Node
from rollcage.trainer.cluster.sandbox_hosts import DOCKER_LABEL, SandboxHosts, docker_endpoints


def node(address: str, port: str = "") -> Node:
    return Node(address + port, address, {"CPU": 1.0}, {DOCKER_LABEL: port} if port else {})


def test_each_endpoint_that_nodes_report_is_one_host() -> None:
    nodes = [node("10.0.0.2", "2375"), node("10.0.0.1", "2375"), node("10.0.0.1", "2375"), node("10.0.0.3")]
    assert docker_endpoints(nodes) == ("tcp://10.0.0.1:2375", "tcp://10.0.0.2:2375")
    with pytest.raises(UserError, match=r"10.0.0.1 has the label rollcage-docker=unix: give the port"):
        docker_endpoints([node("10.0.0.1", "unix")])


def test_sandboxes_run_on_the_daemons_of_two_nodes(docker_endpoint: str, bare_image: str, tmp_path: Path) -> None:
    async def main(folder: Path) -> None:
        async with contextlib.AsyncExitStack() as stack:
            daemon = await stack.enter_async_context(OwnDaemon(folder))
            await build_bare(daemon.endpoint)
            ports = [
                await stack.enter_async_context(port_of(endpoint)) for endpoint in (docker_endpoint, daemon.endpoint)
            ]
            hosts = SandboxHosts(tmp_path / "sandboxes", NullRecorder())
            hosts.endpoints = docker_endpoints(node("127.0.0.1", port) for port in ports)
            stack.push_async_callback(hosts.close)
            manager = await hosts.manager()
            assert manager is await hosts.manager()
            names = {host.name for host in await manager.hosts()}
            assert names == {f"tcp://127.0.0.1:{port}" for port in ports}
            for name in names:
                for other in names - {name}:
                    await manager.drain(other)
                box = await manager.create(SandboxSpec(image=bare_image, memory_bytes=64 << 20))
                assert (await box.info()).host == name
                assert (await box.exec("echo $((6 * 7))")).stdout == b"42\n"
                await box.delete()
                for other in names - {name}:
                    await manager.drain(other, on=False)

    with tempfile.TemporaryDirectory(prefix="rollcage-d-") as folder:  # short: it holds unix sockets
        asyncio.run(main(Path(folder) / "d"))
