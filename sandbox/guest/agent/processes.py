"""The processes inside, as the kernel lists them, and signals that reach nobody else."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MARKER = b"ROLLCAGE_EXEC"
"""In the environment of a command and of all that it starts, however it was detached."""
KILL_S = 3.0
"""Longest hunt for the processes of one command."""


def list_processes() -> dict[int, tuple[int, int, int]]:
    """Return pid -> (parent, session, start in clock ticks) of all processes that live."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open("/proc/" + entry + "/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields and fields[0] not in (b"Z", b"X"):
                table[int(entry)] = (int(fields[1]), int(fields[3]), int(fields[19]))
    return table


def read_cpu_ticks(pid: int) -> int:
    """Return the CPU time that a process has used, in clock ticks, 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, IndexError):
        return 0


def read_variable(pid: int, name: bytes) -> bytes:
    """Return a variable of the environment that a process was started with, b"" where it has none or it is not ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = (b"\0" + file.read()).partition(b"\0" + name + b"=")
    except OSError:
        return b""
    return found[2].partition(b"\0")[0]


def read_children(pid: int) -> set[int]:
    """Return the children of a process, or none where the kernel does not list them."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return {int(child) for child in file.read().split()}
    except OSError:
        return set()


def adopt_orphans() -> None:
    """Become the parent of whatever is detached inside, to reap it (a "child subreaper")."""
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.prctl(36, 1, 0, 0, 0)
        libc.malloc_trim(0)  # compiling this file took 2 MiB; not every C library can give them back
    except (ImportError, OSError, AttributeError):
        pass  # then PID 1 of the container reaps


def send_signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    """Call ``send``, which is `os.kill` or `os.killpg`; one that has ended already is no error."""
    if pid <= 1:
        raise ValueError(f"a signal to {pid} would reach strangers")
    try:
        send(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def with_descendants(roots: set[int], table: dict[int, tuple[int, int, int]]) -> set[int]:
    """Return ``roots`` and all that descends from them in a table of `list_processes`."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found, waiting = set(roots), list(roots)
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in found:
                found.add(pid)
                waiting.append(pid)
    return found
