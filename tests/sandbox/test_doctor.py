"""The doctor: what it finds on machines that lack something."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rollcage.sandbox import doctor
from rollcage.sandbox.doctor import Finding, examine

BASE = [sys.executable, "-m", "rollcage", "sandbox", "doctor"]


def look(endpoint: str, folder: Path) -> dict[str, Finding]:
    async def main() -> list[Finding]:
        return [finding async for finding in examine(endpoint, folder)]

    return {finding.check: finding for finding in asyncio.run(main())}


def test_all_is_well_on_a_machine_that_runs_these_tests(tmp_path: Path) -> None:
    done = subprocess.run([*BASE, "--json", "--folder", str(tmp_path)], capture_output=True, text=True, timeout=100)
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)}
    checks = ["client", "service", "daemon", "seccomp", "limits", "disk", "image", "leftovers", "trial", "state"]
    assert list(findings) == checks
    wrong = {name for name, finding in findings.items() if not finding["ok"]}
    assert wrong <= {"leftovers"}, findings  # other tests' containers
    assert done.returncode == (1 if wrong else 0)
    left = subprocess.run(["docker", "ps", "-aq", "--filter", "label=rollcage.sandbox"], capture_output=True, text=True)
    assert left.returncode == 0


def test_no_daemon_is_told_with_how_to_start_it(tmp_path: Path) -> None:
    done = subprocess.run([*BASE, "--endpoint", f"unix://{tmp_path}/none"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    *_, wrong, mend = done.stdout.splitlines()
    assert wrong.startswith("NO  daemon")
    assert "dockerd" in mend


def test_a_socket_that_nobody_listens_on_is_no_daemon(tmp_path: Path) -> None:
    import socket

    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(path))
        assert not look(f"unix://{path}", tmp_path)["daemon"].ok


def test_a_daemon_that_never_answers_is_told_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ANSWER_S", 1.0)

    async def main() -> list[Finding]:
        calls: set[asyncio.Task[None]] = set()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            await writer.wait_closed()

        def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            calls.add(asyncio.create_task(silent(reader, writer)))

        server = await asyncio.start_unix_server(called, str(tmp_path / "socket"))
        async with asyncio.timeout(30.0), server:
            findings = [finding async for finding in examine(f"unix://{tmp_path}/socket", tmp_path)]
            await asyncio.gather(*calls)
        return findings

    *_, finding = asyncio.run(main())
    assert (finding.check, finding.ok) == ("daemon", False)
    assert "within 1 s" in finding.text


def test_a_daemon_that_fails_midway_is_told(tmp_path: Path) -> None:
    well = dict.fromkeys(("MemoryLimit", "SwapLimit", "PidsLimit", "CpuCfsQuota"), True)
    about_itself = json.dumps(well | {"SecurityOptions": ["name=seccomp"]}).encode()

    async def main() -> list[Finding]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            status, body = ("200 OK", about_itself) if b"/info" in head else ("500 No", b'{"message": "disk full"}')
            about = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            writer.write(about.encode() + b"Connection: close\r\n\r\n" + body)
            writer.close()
            await writer.wait_closed()

        async with asyncio.timeout(30.0), await asyncio.start_unix_server(answer, str(tmp_path / "socket")):
            return [finding async for finding in examine(f"unix://{tmp_path}/socket", tmp_path)]

    findings = asyncio.run(main())
    assert [it.check for it in findings if not it.ok] == ["daemon"]
    assert "disk full" in findings[-1].text
    assert "systemctl restart" in findings[-1].mend


def test_folders_that_this_user_may_not_enter_are_no_crash(tmp_path: Path) -> None:
    code = (
        "import os, sys, tempfile\nfrom pathlib import Path\nfrom rollcage.sandbox import doctor\n"
        "folder = Path(sys.argv[1]); folder.chmod(0)\n"
        "if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "it = doctor.disk({'DockerRootDir': str(folder / 'docker')}, 'unix:///x'); print(it.ok, it.text)\n"
        "it = doctor.state_folder(folder / 'state'); print(it.ok, it.text)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=60)
        os.chmod(folder, 0o700)
    disk, state = done.stdout.splitlines() or [done.stderr, ""]
    assert disk.startswith("True Docker's disk is not on this machine, or not for this user's eyes")
    assert state.startswith("False the state folder")


def test_no_permission_is_told_with_how_to_get_it() -> None:
    with tempfile.TemporaryDirectory() as folder:  # not under tmp_path, which others may not enter
        os.chmod(folder, 0o755)
        code = (
            "import asyncio, os, socket, sys\n"
            "from rollcage.sandbox.doctor import examine\nfrom rollcage.sandbox.drivers import docker_api\n"
            "from pathlib import Path\n"
            "path = sys.argv[1] + '/socket'\n"
            "listener = socket.socket(socket.AF_UNIX); listener.bind(path); listener.listen(); os.chmod(path, 0)\n"
            "if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
            "async def main():\n"
            "    async for it in examine('unix://' + path, Path('/tmp/none')):\n"
            "        print(it.check, it.ok, it.text, '->', it.mend)\n"
            "asyncio.run(main())\n"
        )
        done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=60)
    assert "permission False no permission to talk to the Docker daemon" in done.stdout, done.stderr
    assert "usermod -aG docker" in done.stdout


def test_what_the_daemon_tells_of_itself_is_understood() -> None:
    about: dict[str, Any] = {"SecurityOptions": ["name=seccomp,profile=default"], "CgroupVersion": "2"}
    about |= dict.fromkeys(("MemoryLimit", "SwapLimit", "PidsLimit", "CpuCfsQuota"), True)
    assert doctor.seccomp(about).ok
    assert doctor.limits(about).ok
    assert "v2" in doctor.limits(about).text
    lacking = doctor.limits(about | {"PidsLimit": False, "SwapLimit": None})
    assert not lacking.ok
    assert "swap, processes" in lacking.text
    assert not doctor.seccomp({"SecurityOptions": ["name=apparmor"]}).ok
    assert not doctor.seccomp({}).ok


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"DockerRootDir": str(tmp_path)}
    usage = doctor.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage._replace(free=10**9))
    finding = doctor.disk(about, "unix:///x")
    assert not finding.ok
    assert "0.9 GiB free" in finding.text
    assert doctor.disk(about, "tcp://elsewhere:1").ok


def test_a_missing_image_is_told_with_how_to_make_it() -> None:
    assert doctor.base_image(["rollcage-base:latest"]).ok
    assert doctor.base_image(["debian:12"]).mend == "rollcage sandbox images build base"


def test_missing_libraries_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    findings = look("unix:///nowhere", tmp_path)
    assert {name: finding.ok for name, finding in findings.items()} == {"client": False, "service": False}
    assert "pip install 'rollcage[sandbox]'" in findings["client"].mend


def test_leftovers_of_dead_managers_are_told() -> None:
    def container(manager: str, expires_at: float) -> dict[str, Any]:
        record = json.dumps({"expires_at": expires_at})
        labels = {"rollcage.manager": manager, "rollcage.record": record}
        return {"Names": [f"/{manager}-{expires_at:g}"], "Labels": labels}

    now = 10_000.0
    live = [container("mine", now + 60), container("other", now + 60), container("mine", 0.0), {"Labels": None}]
    assert doctor.leftovers(live, "mine", False, now).ok
    mine = [*live, container("mine", 5000.0)]
    assert doctor.leftovers(mine, "mine", False, now).mend == "rollcage sandbox reap"
    assert doctor.leftovers(mine, "mine", True, now).ok, "a manager is at work on it"
    others = doctor.leftovers([*live, container("other", 5000.0)], "mine", True, now)
    assert not others.ok
    assert "docker rm -f -v other-5000" in others.mend


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert not doctor.state_folder(file / "inner").ok
    assert doctor.state_folder(tmp_path / "new" / "inner").ok
