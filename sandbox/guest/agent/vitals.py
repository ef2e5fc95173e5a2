"""What the container's control group tells: memory, processes, CPU time, and who was killed for memory."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _cgroup_file(controller: str, v1_name: str, v2_name: str) -> str:
    """Return the path of this container's own file of that controller, "" where there is none."""
    own: dict[str, str] = {}
    try:
        with open("/proc/self/cgroup") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                own.update((name, path) for name in controllers.split(","))
    except OSError:
        return ""
    for base, key, name in (
        ("/sys/fs/cgroup/" + controller, controller, v1_name),
        ("/sys/fs/cgroup", "", v2_name),
        ("/sys/fs/cgroup/unified", "", v2_name),
    ):
        # Inside a container the mount often starts at its own group, whatever its path says.
        for folder in (base + own[key].rstrip("/"), base) if key in own else ():
            if os.path.exists(folder + "/" + name):
                return folder + "/" + name
    return ""


def _read_number(path: str, key: bytes = b"") -> int:
    try:
        with open(path, "rb") as file:
            words = file.read().split()
        return int(words[words.index(key) + 1 if key else 0])
    except (OSError, ValueError, IndexError):
        return 0


class Vitals:
    """The container's control-group files, version 1 or 2."""

    def __init__(self) -> None:
        self._oom = _cgroup_file("memory", "memory.oom_control", "memory.events")
        self._memory = _cgroup_file("memory", "memory.usage_in_bytes", "memory.current")
        self._pids = _cgroup_file("pids", "pids.current", "pids.current")
        self._cpu = _cgroup_file("cpuacct", "cpuacct.usage", "cpu.stat")

    def num_oom_kills(self) -> int:
        """Return how many processes the kernel has killed for memory."""
        return _read_number(self._oom, b"oom_kill")

    def read(self) -> dict[str, Any]:
        """Return all of them, as the fields of the host's `Vitals`."""
        if self._cpu.endswith("cpu.stat"):
            cpu_s = _read_number(self._cpu, b"usage_usec") / 1e6
        else:
            cpu_s = _read_number(self._cpu) / 1e9
        return {
            "num_oom_kills": self.num_oom_kills(),
            "memory_bytes": _read_number(self._memory),
            "num_pids": _read_number(self._pids),
            "cpu_s": cpu_s,
        }
