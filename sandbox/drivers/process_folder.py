"""What the process driver keeps of a container or image: folders, files and marked processes. All of it blocks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, unquote

from rollcage.sandbox.drivers.base import LABEL_MANAGER, Observed
from rollcage.sandbox.errors import HostUnavailable, StartFailed
from rollcage.sandbox.guest.agent.processes import list_processes, read_variable, with_descendants
from rollcage.sandbox.types import SandboxSpec

_MARKER = "ROLLCAGE_CONTAINER"
_STARTER = """
import os, sys
pid = os.fork()
if pid:
    os.write(1, b"%d" % pid)
    os._exit(0)
os.setsid()
os.dup2(2, 1)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Leaves its child to PID 1: it must outlive this process, and leave no zombie in it."""
_KEEPER = 'exit=$1; shift; "$@"; echo $? >"$exit"'
"""A shell that runs the main process and writes down how that ended, whoever is there to see it."""


def find_marked(marker: str) -> set[int]:
    """Return the processes of a container: those that carry its marker, and all that descends from them."""
    table = list_processes()
    roots = {pid for pid in table if read_variable(pid, _MARKER.encode()) == os.fsencode(marker)}
    return with_descendants(roots - {1}, table) - {1, os.getpid()}


def signal_all(marker: str, number: int, *, but: int = 0) -> int:
    """Signal a container's processes; returns how many there were."""
    pids = find_marked(marker) - {but}
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
    return len(pids)


def kill_all(marker: str, timeout_s: float, *, but: int = 0) -> None:
    """Kill a container's processes, until none is left; raises HostUnavailable when some cannot be killed."""
    until = time.monotonic() + timeout_s
    signal_all(marker, signal.SIGSTOP, but=but)  # nobody shall tell of another's end
    while signal_all(marker, signal.SIGKILL, but=but):
        if time.monotonic() > until:
            raise HostUnavailable(f"The processes of {marker} do not end.")
        time.sleep(0.005)


@dataclass(frozen=True, slots=True)
class Saved:
    """A container's JSON file.

    Attributes:
        pid, start_ticks: of the keeper; 0 before its start. Together they are unique until the next boot.
        boot_id: of that boot.
    """

    labels: Mapping[str, str]
    pid: int = 0
    start_ticks: int = 0
    boot_id: str = ""
    started_at: float = 0.0
    is_paused: bool = False
    ports: list[int] = field(default_factory=list)

    def is_running(self) -> bool:
        """Whether its keeper lives."""
        return bool(self.pid) and (self.start_ticks, self.boot_id) == (_start_ticks(self.pid), _boot_id())


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_ticks(pid: int) -> int:
    """Return when a process started, 0 where it does not live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


class ContainerFolder:
    """One container's folder under ``root``."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self._path = root / "containers" / quote(name, safe="")
        self.files = self._path / "files"
        self.agent_log = self._path / "agent.log"
        self.marker = str(self._path)
        self.marker_env = {_MARKER: self.marker}

    @classmethod
    def all_of(cls, root: Path) -> Iterator[ContainerFolder]:
        """Yield those that exist."""
        for path in sorted((root / "containers").glob("*/container.json")):
            yield cls(root, unquote(path.parent.name))

    def workdir(self, spec: SandboxSpec) -> Path:
        """Where commands start."""
        return self.files.joinpath(*[part for part in spec.workdir.split("/") if part not in ("", ".", "..")])

    def load(self) -> Saved | None:
        """Return what is saved, None where there is no such container."""
        try:
            return Saved(**json.loads((self._path / "container.json").read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _save(self, saved: Saved) -> None:
        _write_json(self._path / "container.json", asdict(saved))

    def prepare(self, image: ImageFolder | None, spec: SandboxSpec, labels: Mapping[str, str]) -> None:
        """Make the folder anew, whatever an earlier try left."""
        kill_all(self.marker, 10.0)
        self.remove()
        self._path.mkdir(parents=True)
        self._save(Saved(labels=dict(labels), ports=list(spec.ports)))
        if image is not None:
            shutil.copytree(image.files, self.files, symlinks=True)
        self.workdir(spec).mkdir(parents=True, exist_ok=True)

    def start(self, command: tuple[str, ...], env: Mapping[str, str], spec: SandboxSpec) -> None:
        """Start the main process; raises StartFailed."""
        keeper = ("/bin/sh", "-c", _KEEPER, "sh", str(self._path / "exit"), *command)
        with (self._path / "main.log").open("ab") as log:
            starter = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _STARTER, *keeper],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                cwd=self.workdir(spec),
                timeout=30.0,
                check=False,
            )
        if not starter.stdout.strip().isdigit():
            raise StartFailed(f"Container {self.name} cannot be started.", log_tail=self.read_log(20))
        saved = self.load()
        assert saved is not None
        pid = int(starter.stdout)
        # 0 ticks where it has ended already: that is an exited container.
        self._save(
            replace(saved, pid=pid, start_ticks=_start_ticks(pid) or -1, boot_id=_boot_id(), started_at=time.time())
        )

    def observe(self) -> Observed | None:
        """Return the container as it is now."""
        saved = self.load()
        if saved is None:
            return None
        if not saved.pid:
            status = "created"
        elif not saved.is_running():
            status = "exited"
        else:
            status = "paused" if saved.is_paused else "running"
        return Observed(
            name=self.name,
            status=status,
            labels=saved.labels,
            exit_code=self.read_exit_code() if status == "exited" else None,
            started_at=saved.started_at,
            ports={port: port for port in saved.ports},
        )

    def read_exit_code(self) -> int | None:
        """Return how the main process ended, None where nobody saw it."""
        try:
            return int((self._path / "exit").read_text())
        except (OSError, ValueError):
            return None

    def read_log(self, num_lines: int) -> str:
        """Return the main process's last lines, of the last MiB."""
        try:
            with (self._path / "main.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 20)))
                lines = file.read().decode(errors="replace").splitlines(keepends=True)
        except FileNotFoundError:
            return ""
        return "".join(lines[len(lines) - num_lines :] if num_lines < len(lines) else lines)

    def kill_main(self, timeout_s: float) -> None:
        """Kill all but the keeper, which then writes that down and ends."""
        saved = self.load()
        if saved is None or not saved.is_running():
            return
        kill_all(self.marker, timeout_s, but=saved.pid)
        os.kill(saved.pid, signal.SIGCONT)  # where it was paused
        until = time.monotonic() + timeout_s
        while saved.is_running() and time.monotonic() < until:
            time.sleep(0.002)

    def set_paused(self, is_paused: bool) -> bool:
        """Freeze all processes, or thaw them; returns whether that changed anything."""
        saved = self.load()
        if saved is None or not saved.is_running() or saved.is_paused == is_paused:
            return False
        for _ in range(2):  # once more for what was started meanwhile
            signal_all(self.marker, signal.SIGSTOP if is_paused else signal.SIGCONT)
        self._save(replace(saved, is_paused=is_paused))
        return True

    def num_bytes(self) -> int:
        """Return the size of its files."""
        num_bytes = 0
        for folder, _, names in os.walk(self.files):
            for name in names:
                try:
                    num_bytes += os.lstat(os.path.join(folder, name)).st_size
                except FileNotFoundError:
                    pass
        return num_bytes

    def remove(self) -> None:
        """Remove all of it; nothing where there is none."""
        _remove_tree(self._path)


class ImageFolder:
    """One image's folder under ``root``."""

    def __init__(self, root: Path, image: str) -> None:
        self._path = root / "images" / quote(image, safe="")
        self.files = self._path / "files"

    def exists(self) -> bool:
        """Whether there is such an image."""
        return self.files.is_dir()

    def save(self, files: Path, labels: Mapping[str, str]) -> None:
        """Copy ``files``; the image appears as a whole, and replaces one of the same name."""
        part = self._path.with_name("." + self._path.name + ".part")
        _remove_tree(part)
        shutil.copytree(files, part / "files", symlinks=True)
        _write_json(part / "image.json", {"labels": dict(labels), "time": time.time()})
        self.remove()
        part.rename(self._path)

    @classmethod
    def list_of(cls, root: Path, manager: str) -> list[str]:
        """Return the names of a manager's images, oldest first."""
        found = []
        for path in (root / "images").glob("*/image.json"):
            data = json.loads(path.read_text())
            if not path.parent.name.startswith(".") and data["labels"].get(LABEL_MANAGER) == manager:
                found.append((data["time"], unquote(path.parent.name)))
        return [name for _, name in sorted(found)]

    def remove(self) -> None:
        """Remove it; nothing where there is none."""
        _remove_tree(self._path)


def _write_json(path: Path, data: object) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data))
    part.rename(path)


def _remove_tree(path: Path) -> None:
    """Remove a folder, read-only ones inside it too; nothing where there is none."""

    def make_writable(function: object, name: str, error: object) -> None:
        os.chmod(os.path.dirname(name), 0o700)
        os.chmod(name, 0o700) if os.path.isdir(name) else None
        os.rmdir(name) if os.path.isdir(name) and not os.listdir(name) else os.unlink(name)

    if path.is_dir():
        shutil.rmtree(path, onerror=make_writable)
