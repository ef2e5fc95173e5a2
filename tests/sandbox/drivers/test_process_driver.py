"""The process driver: the driver contract, and what it adds."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.sandbox.drivers.driver_contract import CONTRACT, GUEST_CONTRACT, Host, Promise

from rollcage.sandbox.drivers.base import LABEL_MANAGER, Container
from rollcage.sandbox.drivers.process import ProcessDriver
from rollcage.sandbox.drivers.process_folder import find_marked
from rollcage.sandbox.errors import HostUnavailable
from rollcage.sandbox.guest.agent.processes import list_processes
from rollcage.sandbox.types import ExecRequest, SandboxSpec

LABELS = {LABEL_MANAGER: "m"}


@pytest.mark.parametrize("promise", CONTRACT + GUEST_CONTRACT, ids=lambda promise: promise.__name__)
def test_the_process_driver_keeps(promise: Promise, tmp_path: Path) -> None:
    root = tmp_path / "root"
    host = Host(lambda: ProcessDriver(root), SandboxSpec(), "m", tmp_path)
    asyncio.run(promise(host))
    assert [path.name for path in root.rglob("*")] in ([], ["containers"], ["containers", "images"])
    assert find_all(root) == []


def find_all(root: Path) -> list[int]:
    """Return all processes of all containers that are or were under ``root``."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                environ = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue
            if b"ROLLCAGE_CONTAINER=" + os.fsencode(root) in environ:
                found.append(int(entry))
    return found


MANAGER = """
import asyncio, os, signal, sys
from rollcage.sandbox.drivers.base import Container
from rollcage.sandbox.drivers.process import ProcessDriver
from rollcage.sandbox.types import ExecRequest, SandboxSpec

async def main():
    driver = ProcessDriver(sys.argv[1])
    await driver.create(Container("one", SandboxSpec(), labels={"rollcage.manager": "m", "more": "1"}))
    guest = await driver.connect("one", SandboxSpec())
    await guest.exec(ExecRequest("echo kept > file"))
    running = asyncio.create_task(guest.exec(ExecRequest("echo $$ > pid; exec sleep 600")))
    await asyncio.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_containers_are_found_again_after_kill_9_of_the_manager(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MANAGER, tmp_path], check=False)
    assert done.returncode == -9

    async def main() -> None:
        driver = ProcessDriver(tmp_path)
        (found,) = await driver.list_containers("m")
        assert (found.name, found.status, found.labels["more"]) == ("one", "running", "1")
        guest = await driver.connect("one", SandboxSpec())
        assert (await guest.exec(ExecRequest("cat file"))).stdout == b"kept\n"
        pid = int((await guest.exec(ExecRequest("cat pid"))).stdout)
        until = time.monotonic() + 5
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < until, "what the dead manager ran is killed"
            await asyncio.sleep(0.02)
        await guest.close()
        await driver.kill("one")
        (found,) = await driver.list_containers("m")
        assert (found.status, found.exit_code) == ("exited", 137)
        await driver.remove("one")
        await driver.close()

    asyncio.run(main())
    assert find_all(tmp_path) == []


def test_what_a_dying_creation_left_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "containers" / "one"
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "stale").touch()
    stray = subprocess.Popen(["sleep", "600"], env={"PATH": "/usr/bin", "ROLLCAGE_CONTAINER": str(folder)})

    async def main() -> None:
        driver = ProcessDriver(tmp_path)
        assert await driver.list_containers("m") == []
        await driver.create(Container("one", SandboxSpec(), labels=LABELS))
        assert stray.wait(5) == -9
        assert not (folder / "files" / "stale").exists()
        assert (await driver.list_containers("m"))[0].status == "running"
        await driver.remove("one")
        await driver.close()

    asyncio.run(main())


def test_detached_processes_end_with_their_container(tmp_path: Path) -> None:
    async def main() -> None:
        driver = ProcessDriver(tmp_path)
        await driver.create(Container("one", SandboxSpec(), labels=LABELS))
        guest = await driver.connect("one", SandboxSpec())
        await guest.exec(ExecRequest("(setsid nohup sleep 600 >/dev/null 2>&1 &)"))
        assert len(find_all(tmp_path)) >= 4
        (tmp_path / "containers" / "one" / "files" / "work" / "locked").mkdir(mode=0o500)
        await driver.remove("one")
        assert find_all(tmp_path) == []
        assert not (tmp_path / "containers" / "one").exists()
        await guest.close()
        await driver.close()

    asyncio.run(main())


def test_when_the_main_process_ends_by_itself_the_others_are_killed(tmp_path: Path) -> None:
    async def main() -> None:
        driver = ProcessDriver(tmp_path)
        spec = SandboxSpec(command=("sleep", "0.5"))
        await driver.create(Container("one", spec, labels=LABELS))
        guest = await driver.connect("one", spec)
        await guest.exec(ExecRequest("(setsid nohup sleep 600 >/dev/null 2>&1 &)"))
        until = time.monotonic() + 5
        while find_all(tmp_path):
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
        await guest.close()
        await driver.remove("one")
        await driver.close()

    asyncio.run(main())


def test_a_paused_container_stands_still(tmp_path: Path) -> None:
    async def main() -> None:
        driver = ProcessDriver(tmp_path)
        await driver.create(Container("one", SandboxSpec(), labels=LABELS))
        guest = await driver.connect("one", SandboxSpec())
        beat = tmp_path / "containers" / "one" / "files" / "work" / "beat"
        command = "(while :; do date +%N > beat; sleep 0.02; done >/dev/null 2>&1 &)"
        await guest.exec(ExecRequest(command))
        await asyncio.sleep(0.3)
        await driver.pause("one")
        await asyncio.sleep(0.1)
        before = beat.read_text()
        await asyncio.sleep(0.3)
        assert beat.read_text() == before
        await driver.unpause("one")
        await asyncio.sleep(0.3)
        assert beat.read_text() != before
        await guest.close()
        await driver.remove("one")
        await driver.close()

    asyncio.run(main())


def test_the_environment_of_this_process_stays_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "secret")

    async def main() -> None:
        driver = ProcessDriver(tmp_path)
        await driver.create(Container("one", SandboxSpec(), labels=LABELS))
        guest = await driver.connect("one", SandboxSpec())
        assert b"secret" not in (await guest.exec(ExecRequest("env"))).stdout
        await guest.close()
        for pid in find_all(tmp_path):
            assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        await driver.remove("one")
        await driver.close()

    asyncio.run(main())


def test_a_pid_used_again_is_not_taken_for_the_container(tmp_path: Path) -> None:
    async def main() -> None:
        driver = ProcessDriver(tmp_path)
        await driver.create(Container("one", SandboxSpec(), labels=LABELS))
        await driver.kill("one")
        path = tmp_path / "containers" / "one" / "container.json"
        saved = json.loads(path.read_text())
        path.write_text(json.dumps({**saved, "pid": os.getpid()}))
        observed = await driver.inspect("one")
        assert observed is not None
        assert observed.status == "exited"
        await driver.kill("one")
        await driver.remove("one")
        await driver.close()

    asyncio.run(main())
    assert find_marked(str(tmp_path)) == set()


def test_calls_end_by_their_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        driver = ProcessDriver(tmp_path, call_timeout_s=0.2)
        monkeypatch.setattr("shutil.disk_usage", lambda path: time.sleep(1.0))
        started = time.monotonic()
        with pytest.raises(HostUnavailable, match=r"0\.2 s"):
            await driver.status()
        assert time.monotonic() - started < 0.8
        await driver.close()

    asyncio.run(main())


FORGETFUL = """
import asyncio, sys
from rollcage.sandbox.drivers.base import Container
from rollcage.sandbox.drivers.process import ProcessDriver
from rollcage.sandbox.types import SandboxSpec

async def main():
    driver = ProcessDriver(sys.argv[1])
    await driver.create(Container("one", SandboxSpec()))
    await driver.connect("one", SandboxSpec())
    [pipe] = driver._pipes
    print(pipe.process.pid)

asyncio.run(main())
"""


def test_an_agent_ends_with_a_process_that_does_not_close_its_driver(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", FORGETFUL, tmp_path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "still running" not in done.stderr, "somebody saw the agent end"
    assert not Path(f"/proc/{done.stdout.strip()}").exists()

    async def main() -> None:
        driver = ProcessDriver(tmp_path)
        await driver.remove("one")
        await driver.close()

    asyncio.run(main())


def test_a_connection_that_is_called_off_leaves_no_agent(tmp_path: Path) -> None:
    async def main() -> None:
        driver = ProcessDriver(tmp_path)
        await driver.create(Container("one", SandboxSpec(), labels=LABELS))
        num_cancelled = 0
        for number in range(40):
            connecting = asyncio.create_task(driver.connect("one", SandboxSpec()))
            await asyncio.sleep(0.0005 * number)
            connecting.cancel()
            try:
                await (await connecting).close()  # on a fast machine the last ones are there before they are called off
            except asyncio.CancelledError:
                num_cancelled += 1
        gc.collect()  # of those that nobody saw end, Python complains
        assert num_cancelled > 5
        living = list_processes()
        assert [pid for pid in find_all(tmp_path) if living.get(pid, (0,))[0] == os.getpid()] == []
        num_files = len(os.listdir("/proc/self/fd"))
        await (await driver.connect("one", SandboxSpec())).close()
        assert len(os.listdir("/proc/self/fd")) == num_files
        await driver.remove("one")
        await driver.close()

    asyncio.run(main())
