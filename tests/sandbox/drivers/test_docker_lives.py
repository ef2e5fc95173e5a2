"""The life of a container through the Docker driver: made once however often it is asked for, gone without a trace."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.drivers.docker_rig import Rig, run_on
from tests.sandbox.drivers.slow_proxy import open_proxy

from rollcage.sandbox.drivers.base import LABEL_MANAGER, HostEvent
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.errors import (
    BadSpec,
    DaemonForbidden,
    DaemonUnreachable,
    GuestLost,
    HostUnavailable,
    ImageMissing,
    SandboxUnavailable,
    StartFailed,
)
from rollcage.sandbox.images.bare import build_bare
from rollcage.sandbox.types import MIB, SandboxSpec

OnDocker = Callable[[Callable[[Rig], Any]], None]


def test_a_life_from_start_to_removal(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        before = time.time()
        box = await rig.start(SandboxSpec(env={"COLOUR": "blue"}))
        assert (await box.sh("echo $COLOUR; pwd")).stdout == b"blue\n/work\n"
        found = await rig.driver.inspect(box.name)
        assert found is not None
        assert (found.name, found.status, found.exit_code, found.ports) == (box.name, "running", None, {})
        assert found.labels[LABEL_MANAGER] == rig.manager
        assert before - 1 < found.started_at < time.time() + 1
        (listed,) = await rig.driver.list_containers(rig.manager)
        assert (listed.name, listed.status) == (box.name, "running")
        await rig.driver.remove(box.name)
        await rig.driver.remove(box.name)  # again: nothing
        assert await rig.driver.inspect(box.name) is None
        assert await rig.driver.list_containers(rig.manager) == []
        assert await rig.driver.logs(box.name, num_lines=5) == ""
        await rig.driver.kill(box.name)
        with pytest.raises(GuestLost):
            await box.sh("true")
        with pytest.raises(SandboxUnavailable, match="no container"):
            await rig.driver.connect(box.name, box.spec)

    on_docker(scenario)


def test_creating_again_is_no_error_whatever_an_earlier_try_left(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        container = rig.container()
        await asyncio.gather(*(rig.driver.create(container) for _ in range(8)))
        first = await rig.driver.inspect(container.name)
        await rig.driver.create(container)
        assert await rig.driver.inspect(container.name) == first
        await rig.driver.pause(container.name)
        await rig.driver.create(container)
        # made, and never started
        half = rig.container()
        async with rig.driver._engine.call("create") as docker:
            config = {"Image": "rollcage-base", "Entrypoint": ["sleep", "600"], "Labels": dict(half.labels)}
            await docker.containers.create(config, name=half.name)
        await rig.driver.create(half)
        found = await rig.driver.inspect(half.name)
        assert found is not None
        assert found.status == "running"

    on_docker(scenario)


def test_S15_answers_that_come_too_late_make_no_second_container(
    docker_endpoint: str, manager_id: str, base_image: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with open_proxy(docker_endpoint, tmp_path) as proxy:
            driver = DockerDriver(proxy.endpoint, call_timeout_s=1.5)
            rig = Rig(driver, manager_id)
            try:
                await driver.status()
                containers = [rig.container() for _ in range(3)]
                proxy.delay_s = 2.0
                for container in containers:
                    with pytest.raises(HostUnavailable, match=r"within 1\.5 s"):
                        await driver.create(container)
                proxy.delay_s = 0.0
                many = [container for container in containers for _ in range(33)]
                driver._engine.call_timeout_s = 60.0
                await asyncio.gather(*(driver.create(container) for container in many))
                found = await driver.list_containers(manager_id)
                assert sorted(row.name for row in found) == sorted(container.name for container in containers)
                assert {row.status for row in found} == {"running"}
            finally:
                proxy.delay_s, driver._engine.call_timeout_s = 0.0, 60.0
                await rig.remove_all()
                await driver.close()

    asyncio.run(main())


def test_S6_a_command_that_does_not_exist_is_one_line_and_leaves_nothing(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        containers = [rig.container(SandboxSpec(command=("/nope", "x"))) for _ in range(20)]

        async def start(index: int) -> None:
            await rig.driver.create(containers[index])
            await rig.driver.connect(containers[index].name, containers[index].spec)

        async def one(index: int) -> None:
            with pytest.raises((StartFailed, SandboxUnavailable)) as caught:
                await start(index)
            assert "/nope" in str(caught.value) + caught.value.log_tail
            assert "\n" not in str(caught.value)
            await rig.driver.remove(containers[index].name)

        limit = asyncio.Semaphore(4)

        async def in_turn(index: int) -> None:
            async with limit:
                await one(index)

        await asyncio.gather(*(in_turn(index) for index in range(20)))
        assert await rig.driver.list_containers(rig.manager) == []

    on_docker(scenario)


@pytest.mark.parametrize(
    ("spec", "error", "words"),
    [
        (SandboxSpec(image="rollcage-none"), ImageMissing, "is not on"),
        (SandboxSpec(image="no-such-registry.invalid/image:1"), ImageMissing, "cannot be pulled"),
        (SandboxSpec(image="Not A Name"), BadSpec, "reference"),
        (SandboxSpec(user="root"), BadSpec, "uid:gid"),
        (SandboxSpec(workdir="here"), BadSpec, "absolute"),
        (SandboxSpec(memory_bytes=1), BadSpec, "6 MiB"),
        (SandboxSpec(cpus=1000), BadSpec, "CPUs"),
        (SandboxSpec(num_pids=0), BadSpec, "num_pids"),
        (SandboxSpec(ports=(70000,)), BadSpec, "port 70000"),
        (SandboxSpec(network=("everywhere",)), BadSpec, "host:port"),
        (SandboxSpec(network=("10.0.0.1:80",)), BadSpec, "give an address a name"),
        (SandboxSpec(env={"A=B": ""}), BadSpec, "environment variable"),
    ],
)
def test_what_can_never_work_is_one_typed_line_at_once(
    on_docker: OnDocker, spec: SandboxSpec, error: type[Exception], words: str
) -> None:
    async def scenario(rig: Rig) -> None:
        started = time.monotonic()
        with pytest.raises(error, match=words) as caught:
            await rig.driver.create(rig.container(spec))
        assert "\n" not in str(caught.value)
        assert time.monotonic() - started < 5.0

    on_docker(scenario)


def test_no_daemon_no_permission_and_no_answer_are_told_apart(tmp_path: Path) -> None:
    async def fails(endpoint: str) -> Exception:
        driver = DockerDriver(endpoint, call_timeout_s=0.5)
        started = time.monotonic()
        try:
            with pytest.raises((DaemonUnreachable, DaemonForbidden, HostUnavailable)) as caught:
                await driver.inspect("x")
        finally:
            await driver.close()
            await driver.close()
        assert "\n" not in str(caught.value)
        assert time.monotonic() - started < 2.0
        return caught.value

    async def main() -> None:
        assert isinstance(await fails(f"unix://{tmp_path}/none.sock"), DaemonUnreachable)
        assert isinstance(await fails("tcp://127.0.0.1:9"), DaemonUnreachable)
        assert isinstance(await fails("nonsense"), DaemonUnreachable)
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.bind(f"{tmp_path}/deaf.sock")
            deaf.listen()
            error = await fails(f"unix://{tmp_path}/deaf.sock")
            assert isinstance(error, HostUnavailable)
            assert "within 0.5 s" in str(error)

    asyncio.run(main())


def test_a_user_without_permission_is_told_what_to_do(tmp_path: Path) -> None:
    async def main() -> None:
        driver = DockerDriver(f"unix://{tmp_path}/locked/docker.sock")
        try:
            with pytest.raises(DaemonForbidden, match="no permission"):
                await driver.status()
        finally:
            await driver.close()

    tmp_path.chmod(0o755)
    (tmp_path / "locked").mkdir(mode=0o700)
    pid = os.fork() if os.geteuid() == 0 else 0  # root may do everything: ask as somebody else
    if pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return
    if os.geteuid() != 0:
        (tmp_path / "locked").chmod(0)
        asyncio.run(main())
        return
    code = 1
    try:
        for folder in tmp_path.parents:
            if folder.name.startswith("pytest-"):
                folder.chmod(0o755)
        os.setgid(65534)
        os.setuid(65534)
        asyncio.run(main())
        code = 0
    finally:
        os._exit(code)


def test_S9_a_killed_container_says_how_it_died(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(command=("sh", "-c", "echo last words; sleep 600")))
        running = asyncio.create_task(box.sh("sleep 60"))
        await asyncio.sleep(0.2)
        await rig.driver.kill(box.name)
        await rig.driver.kill(box.name)
        with pytest.raises(GuestLost):
            await running
        with pytest.raises(SandboxUnavailable) as caught:
            await rig.driver.connect(box.name, box.spec)
        error = caught.value
        assert (error.state, error.exit_code, error.oom_killed) == ("exited", 137, False)
        assert "last words" in error.log_tail
        (listed,) = await rig.driver.list_containers(rig.manager)
        assert (listed.status, listed.exit_code) == ("exited", 137)

        greedy = rig.container(SandboxSpec(command=("python3", "-c", "x = bytearray(99 << 20)"), memory_bytes=32 * MIB))
        await rig.driver.create(greedy)
        for _ in range(100):
            found = await rig.driver.inspect(greedy.name)
            if found is not None and found.status == "exited" and found.oom_killed:  # told a moment after the end
                break
            await asyncio.sleep(0.05)
        assert found is not None
        assert (found.exit_code, found.oom_killed) == (137, True)

    on_docker(scenario)


def test_pause_freezes_and_removal_works_on_the_frozen(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        box, frozen = await asyncio.gather(rig.start(), rig.start())
        for _ in range(2):
            await rig.driver.pause(box.name)
        found = await rig.driver.inspect(box.name)
        assert found is not None
        assert found.status == "paused"
        with pytest.raises(SandboxUnavailable) as caught:
            await rig.driver.connect(box.name, box.spec)
        assert caught.value.state == "paused"
        for _ in range(2):
            await rig.driver.unpause(box.name)
        assert (await box.sh("echo on")).stdout == b"on\n"
        await rig.driver.pause(frozen.name)
        await rig.driver.kill(frozen.name)
        await rig.driver.pause(box.name)
        await rig.driver.remove(box.name)
        await rig.driver.remove(frozen.name)
        assert await rig.driver.list_containers(rig.manager) == []
        with pytest.raises(SandboxUnavailable):
            await rig.driver.pause(box.name)

    on_docker(scenario)


def test_events_tell_what_happens_to_this_managers_containers_only(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        seen: list[HostEvent] = []

        async def watch() -> None:
            async for event in rig.driver.events(rig.manager):
                seen.append(event)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.2)
        stranger = rig.container()
        box = await rig.start()
        other = Rig(rig.driver, f"{rig.manager}-other")
        try:
            await other.start(name=f"{stranger.name}-other")
        finally:
            await other.remove_all()
        await rig.driver.pause(box.name)
        await rig.driver.unpause(box.name)
        await box.sh("python3 -c 'x = bytearray(900 << 20)'")
        await rig.driver.kill(box.name)
        await asyncio.sleep(0.3)
        await rig.driver.remove(box.name)
        for _ in range(50):
            if seen and seen[-1].kind == "destroy":
                break
            await asyncio.sleep(0.05)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert {event.container for event in seen} == {box.name}
        kinds = [event.kind for event in seen]
        assert [kind for kind in kinds if kind != "oom"] == ["start", "pause", "unpause", "die", "destroy"], seen
        assert "oom" in kinds
        assert next(event.exit_code for event in seen if event.kind == "die") == 137

    on_docker(scenario)


def test_the_event_stream_of_a_lost_daemon_ends_in_an_error(docker_endpoint: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with open_proxy(docker_endpoint, tmp_path) as proxy:
            driver = DockerDriver(proxy.endpoint)
            stream = driver.events("nobody")
            first = asyncio.ensure_future(anext(aiter(stream)))
            await asyncio.sleep(0.2)
        with pytest.raises(HostUnavailable):
            await first
        await driver.close()

    asyncio.run(main())


def test_a_snapshot_holds_the_files_and_is_listed_oldest_first(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start()
        await box.sh("echo kept > /work/file; sleep 900 &")
        names = [f"{rig.manager}:{number}" for number in (1, 2)]
        for name in names:
            await rig.driver.commit(box.name, name, {LABEL_MANAGER: rig.manager})
            await asyncio.sleep(1.1)  # Docker's clock counts in seconds
        assert await rig.driver.list_images(rig.manager) == names
        again = await rig.start(image=names[0])
        assert (await again.sh("cat file; id -u; ps -e | grep -c sleep")).stdout == b"kept\n1000\n1\n"
        assert (await again.sh("rm file && touch new")).ok
        await rig.driver.remove_image(names[0])  # a container needs it: at most its name goes
        await rig.driver.remove(again.name)
        for name in (*names, "rollcage-none:1"):
            await rig.driver.remove_image(name)
        for image in await rig.driver.list_images(rig.manager):
            await rig.driver.remove_image(image)
        assert await rig.driver.list_images(rig.manager) == []

    on_docker(scenario)


def test_S17_volumes_go_with_their_containers(docker_endpoint: str, on_docker: OnDocker) -> None:
    """50 cycles at full size are in benchmarks/sandbox; here 5."""
    image = asyncio.run(build_bare(docker_endpoint, image="rollcage-test-volume", changes=("VOLUME /data",)))

    async def volumes(rig: Rig) -> set[str]:
        async with rig.driver._engine.call("list volumes") as docker:
            return {row["Name"] for row in (await docker.volumes.list())["Volumes"] or ()}

    async def scenario(rig: Rig) -> None:
        mine: set[str] = set()
        for _ in range(5):
            before = await volumes(rig)
            box = await rig.start(SandboxSpec(image=image, user="0:0"))
            await box.sh("head -c 3000000 /dev/zero > /data/x; head -c 2000000 /dev/zero > /x")
            written = (await rig.driver.written_bytes(rig.manager))[box.name]
            assert 5_000_000 <= written < 5_500_000, "what an image declares as a volume is watched too"
            async with rig.driver._engine.call("inspect") as docker:
                shown = await docker.containers.container(box.name).show()
            mine |= {mount["Name"] for mount in shown["Mounts"]}
            assert mine - before
            await box.guest.close()
            await rig.driver.remove(box.name)
        assert len(mine) == 5
        assert not mine & await volumes(rig)

    on_docker(scenario)


def test_the_host_is_measured(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        status = await rig.driver.status()
        assert status.num_cpus == os.cpu_count()
        assert status.memory_bytes > 10**9
        assert status.free_disk_bytes is not None
        assert status.disk_bytes is not None
        assert 0 < status.free_disk_bytes < status.disk_bytes

    on_docker(scenario)


def test_two_daemons_know_nothing_of_each_other(
    docker_endpoint: str, second_docker_endpoint: str, manager_id: str
) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start()
        assert (await box.sh("echo second")).stdout == b"second\n"
        first = DockerDriver(docker_endpoint)
        try:
            assert await first.list_containers(manager_id) == []
        finally:
            await first.close()
        with pytest.raises(BadSpec, match="network"):  # this daemon runs without: never an open one instead
            await rig.driver.create(rig.container(SandboxSpec(network=("pypi.org:443",))))

    run_on(second_docker_endpoint, manager_id, scenario)
