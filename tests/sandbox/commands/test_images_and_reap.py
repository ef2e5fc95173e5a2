"""``images prune`` removes snapshots that nobody needs; ``reap`` removes containers without a sandbox."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.sandbox.commands.in_process import Commands

from rollcage.sandbox.sync import SyncSandboxes
from rollcage.sandbox.types import SandboxSpec


def docker(endpoint: str, *arguments: str) -> list[str]:
    done = subprocess.run(["docker", "-H", endpoint, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_each_removes_its_own_kind_and_no_other(
    docker_endpoint: str, bare_image: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    do, place = Commands(tmp_path, capfd), ["--endpoint", docker_endpoint]
    with SyncSandboxes(folder=tmp_path, endpoints=(docker_endpoint,)) as sandboxes:
        box = sandboxes.create(SandboxSpec(image=bare_image, network=("example.com:443",)))
        needed = box.snapshot().image
        manager = (tmp_path / "id").read_text().strip()
    mine = ["--filter", f"label=rollcage.manager={manager}"]
    try:
        lost = "rollcage-snapshot:of-nobody"
        docker(docker_endpoint, "commit", "--change", f"LABEL rollcage.manager={manager}", f"rollcage-{box.id}-1", lost)

        assert do("reap", *place).out == ""
        images = set(docker(docker_endpoint, "images", *mine, "--format", "{{.Repository}}:{{.Tag}}"))
        assert images == {needed, lost}, "reap leaves images alone"
        assert json.loads(do("images", "prune", *place, "--json").out) == [lost]
        assert docker(docker_endpoint, "images", *mine, "--format", "{{.Repository}}:{{.Tag}}") == [needed]
        assert len(docker(docker_endpoint, "ps", "-aq", *mine)) >= 1, "images prune leaves containers alone"

        name, label = f"rollcage-{'0' * 12}-1", ["--label", f"rollcage.manager={manager}"]
        part, orphan = ["--label", f"rollcage.part-of={name}"], ["--label", f"rollcage.sandbox={'0' * 12}"]
        docker(docker_endpoint, "network", "create", "--internal", *label, *part, f"{name}-net")
        started = ["run", "-d", "--network", "none", "-v", "/data", "--name", name, *label, *part, *orphan]
        docker(docker_endpoint, *started, bare_image, "sleep", "600")
        mounts = ["inspect", "--format", "{{range .Mounts}}{{.Name}}{{end}}", name]
        [volume] = docker(docker_endpoint, *mounts)
        assert json.loads(do("reap", *place, "--json").out) == [name]
        assert docker(docker_endpoint, "network", "ls", "-q", "--filter", f"label=rollcage.part-of={name}") == []
        assert volume not in docker(docker_endpoint, "volume", "ls", "-q")
        assert [info["id"] for info in json.loads(do("ls", *place, "--json").out)] == [box.id]
    finally:
        do("rm", *place, "--all")
    assert docker(docker_endpoint, "ps", "-aq", *mine) == []
    assert docker(docker_endpoint, "images", "-q", *mine) == []
