"""Images that need no registry."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.sandbox.drivers.docker_rig import Rig, run_on

from rollcage.sandbox.drivers.docker_api import Engine
from rollcage.sandbox.errors import DaemonUnreachable, ImageMissing
from rollcage.sandbox.images import base
from rollcage.sandbox.images.bare import build_bare
from rollcage.sandbox.types import SandboxSpec


def test_the_base_image_has_what_environments_need(docker_endpoint: str, base_image: str, manager_id: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=base_image))
        for command in (
            "python --version",
            "python3 -m venv v",
            "git --version",
            "patch --version",
            "ps",
            "bash -c true",
        ):
            assert (await box.sh(command)).ok, command
        assert (await box.sh("git init -q r && cd r && git status")).ok
        assert (await box.sh("whoami; pwd; stat -c %U /work")).stdout.split() == [b"agent", b"/work", b"agent"]

    run_on(docker_endpoint, manager_id, scenario)


def test_making_it_again_takes_no_time(docker_endpoint: str, base_image: str) -> None:
    lines: list[str] = []
    started = time.monotonic()
    assert asyncio.run(base.build_base(docker_endpoint, progress=lines.append)) == base_image
    assert time.monotonic() - started < 2.0
    assert lines == ["rollcage-base is there"]


def test_where_it_cannot_be_made_each_way_says_why(docker_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "REGISTRY_IMAGE", "no-such-registry.invalid/python:3")
    with pytest.raises(ImageMissing, match="cannot be pulled") as caught:
        asyncio.run(base.build_base(docker_endpoint, source="registry", rebuild=True))
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ImageMissing, match=r"cannot be pulled.*debootstrap needs root") as caught:
        asyncio.run(base.build_base(docker_endpoint, rebuild=True))
    assert "\n" not in str(caught.value)
    with pytest.raises(ImageMissing, match=r"no release of Debian brings Python 3.10 \(there are 3.9, 3.11, 3.13\)"):
        asyncio.run(base.build_base(docker_endpoint, python="3.10"))
    with pytest.raises(DaemonUnreachable):
        asyncio.run(base.build_base("unix:///nowhere/docker.sock"))
    with pytest.raises(ImageMissing, match="busybox-static"):
        asyncio.run(build_bare(docker_endpoint, image="rollcage-test-none", busybox="/nowhere/busybox"))


def test_a_bootstrap_that_is_called_off_leaves_nothing(docker_endpoint: str, monkeypatch: pytest.MonkeyPatch,
                                                       tmp_path: Path) -> None:  # fmt: skip
    if os.geteuid() != 0:
        pytest.fail("debootstrap is for root only: run the sandbox tests as root")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    async def main() -> None:
        reached = asyncio.Event()
        building = asyncio.create_task(
            base.build_base(docker_endpoint, source="debootstrap", rebuild=True, progress=lambda _: reached.set())
        )
        await reached.wait()
        await asyncio.sleep(0.7)
        assert any(tmp_path.iterdir())
        building.cancel()
        await asyncio.gather(building, return_exceptions=True)

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []
    assert subprocess.run(("pgrep", "-f", str(tmp_path)), capture_output=True, check=False).stdout == b""


def test_the_image_from_a_registry_is_built_the_same(
    second_docker_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No registry answers here: an image that is on the host already stands for the one that would be pulled."""

    async def main() -> dict[str, str]:
        engine = Engine(second_docker_endpoint)
        try:
            async with engine.call("tag") as docker:
                await docker.images.tag("rollcage-base", "rollcage-test-python", tag="3")
            lines: list[str] = []
            monkeypatch.setattr(base, "base_image", lambda python: "rollcage-test-built")
            monkeypatch.setattr(base, "REGISTRY_IMAGE", "rollcage-test-python:3")
            monkeypatch.setattr(base, "_INSTALL", "RUN git --version")  # its network would be the registry's
            await base.build_base(second_docker_endpoint, source="registry", progress=lines.append)
            assert any("Step 1/" in line for line in lines)
            async with engine.call("inspect") as docker:
                found = await docker.images.inspect("rollcage-test-built")
                return dict(found["Config"]["Labels"])
        finally:
            await engine.close()

    assert asyncio.run(main())[base.LABEL_RECIPE] == base.RECIPE
