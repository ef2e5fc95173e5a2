"""Attempts to break out of a container as the driver makes it by default: every one must fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.sandbox.drivers.docker_rig import Box, Rig

from rollcage.sandbox.types import MIB, SandboxSpec

OnDocker = Callable[[Callable[[Rig], Any]], None]


async def refused(box: Box, command: str, because: str = "") -> None:
    result = await box.sh(command)
    assert result.exit_code not in (0, None), f"{command!r} worked: {result}"
    assert because.lower() in result.stderr_text.lower(), result


def test_nobody_is_root_or_becomes_it(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start()
        assert (await box.sh("id -u; id -g; id -G")).stdout_text.split() == ["1000", "1000", "1000"]
        status = (await box.sh("cat /proc/self/status")).stdout_text
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert fields["NoNewPrivs"] == "1"
        assert fields["Seccomp"] == "2", "the default filter of system calls is on"
        # set-user-id programs are there, and give nothing
        assert (await box.sh("find / -xdev -perm -4000 -type f 2>/dev/null | head -3")).stdout
        await refused(box, "su -c id")
        await refused(box, "echo x > /etc/passwd", "permission denied")
        await refused(box, "python3 -c 'import os; os.setuid(0)'", "not permitted")
        await refused(box, "chown 0:0 /work", "not permitted")

    on_docker(scenario)


def test_root_inside_is_not_root_of_anything(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(user="0:0"))
        assert (await box.sh("id -u")).stdout == b"0\n"
        await refused(box, "mount -t tmpfs none /mnt", "permission denied")
        await refused(box, "mount --bind / /mnt", "permission denied")
        await refused(box, "unshare --user --map-root-user true", "not permitted")
        await refused(box, "unshare --mount true", "not permitted")
        await refused(box, "chroot / true", "not permitted")
        await refused(box, "mknod /tmp/disk b 254 0", "not permitted")
        await refused(box, "hostname owned")
        await refused(box, "echo 1 > /proc/sys/kernel/panic", "read-only")
        await refused(box, "echo b > /proc/sysrq-trigger")
        await refused(box, "echo x > /sys/kernel/mm/transparent_hugepage/enabled", "read-only")
        await refused(box, "echo '|/tmp/x' > /proc/sys/kernel/core_pattern", "read-only")
        await refused(
            box, "echo 99999 > /sys/fs/cgroup/memory/memory.limit_in_bytes || echo max > /sys/fs/cgroup/memory.max"
        )
        await refused(box, "mkdir /sys/fs/cgroup/memory/out || mkdir /sys/fs/cgroup/out")
        await refused(box, "date -s 2000-01-01 2>&1 >/dev/null | grep . >&2; exit 1", "not permitted")
        await refused(box, "chmod 600 /work && su nobody -s /bin/sh -c true")
        await refused(
            box, "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'", "not permitted"
        )
        await refused(box, "python3 -c 'import ctypes,sys; sys.exit(ctypes.CDLL(None).syscall(246,0,0,0,0) == 0 or 1)'")
        await refused(box, "dd if=/dev/mem of=/dev/null bs=1 count=1")

    on_docker(scenario)


def test_the_host_is_out_of_sight(on_docker: OnDocker, tmp_path: Any) -> None:
    (tmp_path / "secret").write_text("of the host")

    async def scenario(rig: Rig) -> None:
        box = await rig.start()
        await refused(box, f"cat {tmp_path}/secret", "no such file")
        await refused(box, "ls /var/run/docker.sock /run/docker.sock", "no such file")
        assert (await box.sh("find / -name '*docker.sock*' 2>/dev/null")).stdout == b""
        names = (await box.sh("cat /proc/[0-9]*/comm")).stdout_text.split()
        assert set(names) <= {"docker-init", "tini", "sleep", "python3", "cat", "sh"}, "only its own processes"
        await refused(box, "kill -0 2>/dev/null 99999")
        assert set((await box.sh("ls /dev")).stdout_text.split()) <= {
            *("console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin"),
            *("stdout", "tty", "urandom", "zero"),
        }
        mounts = (await box.sh("cat /proc/mounts")).stdout_text.splitlines()
        host = [line for line in mounts if line.startswith("/dev/")]
        assert all(line.split()[1] in ("/etc/resolv.conf", "/etc/hostname", "/etc/hosts") for line in host
                   if "docker-init" not in line and "tini" not in line), host  # fmt: skip
        for kernel in ("kcore", "keys", "timer_list"):
            assert (await box.sh(f"head -c 64 /proc/{kernel}")).stdout == b""
        assert (await box.sh("cat /proc/sys/kernel/random/boot_id >/dev/null; ulimit -c")).stdout == b"0\n"

    on_docker(scenario)


def test_there_is_no_network(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start()
        found = await box.python(
            "import socket\n"
            "print([name for _, name in socket.if_nameindex()])\n"
            "for address in ('172.17.0.1', '10.0.0.1', '8.8.8.8'):\n"
            "    try: socket.create_connection((address, 80), 3)\n"
            "    except OSError as error: print(error.errno)\n"
            "try: socket.getaddrinfo('pypi.org', 80)\n"
            "except OSError as error: print('no name')\n"
        )
        assert found.stdout_text.split("\n")[:5] == ["['lo']", "101", "101", "101", "no name"], "network is unreachable"

    on_docker(scenario)


def test_S12_a_fork_bomb_harms_itself_only(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        bombed, other = await asyncio.gather(rig.start(SandboxSpec(num_pids=64)), rig.start())
        result = await bombed.sh("bomb() { bomb | bomb & }; bomb; sleep 2; true", timeout_s=4)
        assert b"fork" in result.stderr.lower() or result.timed_out
        started = time.monotonic()
        assert (await other.sh("echo ok")).stdout == b"ok\n"
        assert time.monotonic() - started < 1.0
        await rig.driver.kill(bombed.name)
        for _ in range(100):
            found = await rig.driver.inspect(bombed.name)
            assert found is not None
            if found.status == "exited":
                break
            await asyncio.sleep(0.05)
        assert (found.status, found.exit_code) == ("exited", 137), "one kill ends all of them"
        await rig.driver.remove(bombed.name)

    on_docker(scenario)


def test_S11_memory_is_bounded_and_its_end_is_told(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(memory_bytes=64 * MIB))
        result = await box.sh("python3 -c 'x = bytearray(200 << 20)'; echo survived $?")
        assert (result.oom_killed, result.stdout) == (True, b"survived 137\n")
        assert (await box.sh("echo usable")).stdout == b"usable\n"
        assert not (await box.sh("true")).oom_killed
        found = await rig.driver.inspect(box.name)
        assert found is not None
        assert (found.status, found.oom_killed) == ("running", False), "the main process lives"
        swap = await box.sh(
            "cat /sys/fs/cgroup/memory/memory.memsw.limit_in_bytes || cat /sys/fs/cgroup/memory.swap.max"
        )
        assert swap.stdout_text.strip() in (str(64 * MIB), "0"), "no swap"
        # neither is memory to be had through /dev/shm
        assert (await box.sh("head -c 200M /dev/zero > /dev/shm/x; rm -f /dev/shm/x; echo on")).stdout == b"on\n"

    on_docker(scenario)


def test_cpu_is_bounded(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(cpus=0.25))
        busy = "while time.time() < start + 1.5: pass"
        source = (
            f"import time\nstart, used = time.time(), time.process_time()\n{busy}\nprint(time.process_time() - used)"
        )
        used_s = float((await box.python(source)).stdout)
        assert used_s < 1.5 * 0.25 + 0.2

    on_docker(scenario)


def test_a_read_only_root_takes_nothing_but_in_memory_and_capped(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(read_only=True, disk_bytes=8 * MIB))
        await refused(box, "touch /home/agent/x", "read-only")
        await refused(box, "touch /var/tmp/x", "read-only")
        for folder in ("/work", "/tmp"):
            await refused(box, f"head -c 20M /dev/zero > {folder}/big", "no space left")
            await box.sh(f"rm {folder}/big")
            assert (
                await box.sh(f"echo '#!/bin/sh\necho runs' > {folder}/x; chmod +x {folder}/x; {folder}/x")
            ).stdout == b"runs\n"
        assert (await box.sh("stat -c %u:%g:%a /work; stat -c %a /tmp")).stdout == b"1000:1000:755\n1777\n"
        assert (await rig.driver.written_bytes(rig.manager))[box.name] < MIB

    on_docker(scenario)


@pytest.mark.parametrize("image", ["rollcage-base", "rollcage-bare"])
@pytest.mark.parametrize("workdir", ["/work", "/made/on/demand", "/tmp"])
def test_the_working_directory_is_there_and_the_users(on_docker: OnDocker, image: str, workdir: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image, workdir=workdir, user="1234:77"))
        result = await box.sh("pwd; touch mine && stat -c %u:%g mine; stat -c %a .")
        mode = "1777" if workdir == "/tmp" else "755"
        assert result.stdout_text.split() == [workdir, "1234:77", mode]

    on_docker(scenario)


def test_the_log_cannot_fill_the_disk(on_docker: OnDocker) -> None:
    async def scenario(rig: Rig) -> None:
        spec = SandboxSpec(command=("sh", "-c", "yes 'a line of the log' | head -c 20000000; echo the end; sleep 600"))
        container = rig.container(spec)
        await rig.driver.create(container)
        for _ in range(200):
            tail = await rig.driver.logs(container.name, num_lines=3)
            if "the end" in tail:
                break
            await asyncio.sleep(0.1)
        assert tail.endswith("the end\n")
        assert len(await rig.driver.logs(container.name, num_lines=10**6)) < 3 * MIB

    on_docker(scenario)
