"""The agent: runs inside a container, starts commands there and moves files, told over its stdin and stdout.

This one file needs the standard library of Python 3.7 and Linux, nothing else. The host hands it over stdin, compiled
and as source, so that it needs no file, no network and no rights in the container; importing it on the host does
nothing, so that frames and archives are defined once.

It is one loop over file descriptors: no thread, no polling. A command is a session and process group of its own, and
carries a marker in its environment, by which what it started is found again however it was detached. Files are moved by
a forked child, which is a command like any other.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import selectors
import signal
import stat
import struct
import sys
import termios
import time
from collections import deque

TYPE_CHECKING = False  # loading `typing` would take as long as starting Python
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO

MAGIC = b"\0rollcage-agent-1\n"
"""Comes before the first frame; what was written before it is no answer."""
WINDOW_BYTES = 1 << 19
"""Of one stream, so much may be on its way, unacknowledged."""
PIECE_BYTES = 1 << 16
MAX_PAYLOAD_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 25
"""Holds a command and its environment; the kernel's own limit on those is lower."""

_MARKER = b"ROLLCAGE_EXEC"
_LENGTHS = struct.Struct(">II")
_STATUS_FD = 9
"""Where a shell reports; one digit, since a POSIX shell can redirect no other."""
_KILL_S = 3.0
"""Longest hunt for the processes of one command."""
_SHELL_GRACE_S = 1.0
"""A shell whose command was killed must answer within this, or is killed too."""
_SHELL_TICKS = 3
"""Reporting takes it less CPU time than this, in clock ticks; one that uses more is at work on something else."""
_OOM_SCORE = b"300"
"""The kernel takes commands for memory before it takes the agent."""


class ProtocolError(Exception):
    """What came is no frame."""


class ArchiveError(Exception):
    """An archive cannot be read or written; ``kind`` is the name of the host's error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


# ------------------------------------------------------------------------------------------------------------- frames -


def pack_frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return one frame: two 4-byte lengths, a JSON object, raw bytes."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


def charge(piece: bytes) -> int:
    """Return what a piece of streamed output costs of its window: more than its length, so that tiny ones count."""
    return len(piece) + 512


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Return the frames that ``data`` completes; raises ProtocolError."""
        buffer = self._buffer
        buffer += data
        frames, at = [], 0
        while len(buffer) - at >= 8:
            num_header, num_payload = _LENGTHS.unpack_from(buffer, at)
            if num_header > MAX_HEADER_BYTES or num_payload > MAX_PAYLOAD_BYTES:
                raise ProtocolError("lengths out of range")
            end = at + 8 + num_header + num_payload
            if len(buffer) < end:
                break
            try:
                header = json.loads(bytes(buffer[at + 8 : at + 8 + num_header]).decode())
            except (ValueError, RecursionError) as error:
                raise ProtocolError("the header is no JSON") from error
            if not isinstance(header, dict):
                raise ProtocolError("the header is no object")
            frames.append((header, bytes(buffer[at + 8 + num_header : end])))
            at = end
        if at:
            del buffer[:at]
        return frames


class Kept:
    """Counts all bytes and keeps the first and last halves of ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_bytes = 0
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self.num_bytes += len(data)
        room = self.limit - self.limit // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            tail, most = self._tail, self.limit // 2
            tail += data
            if len(tail) > 2 * most:  # not each time: cutting moves what stays
                del tail[: len(tail) - most]

    def take(self) -> bytes:
        """Return what is kept."""
        tail, most = self._tail, self.limit // 2
        return bytes(self._head + tail[max(0, len(tail) - most) :])


# ----------------------------------------------------------------------------------------------------------- archives -


def pack_archive(path: str, name: str) -> Iterator[bytes]:
    """Yield a tar stream of the file or folder ``path`` (followed, if a link), named ``name`` in it.

    Sockets are left out. Hard links become files of their own.

    Raises:
        ArchiveError: NoSuchPath or UnsafePath (a pipe or a device).
    """
    block = bytearray()
    try:
        path = os.path.realpath(path)
    except OSError as error:
        raise ArchiveError("NoSuchPath", f"{path}: {error.strerror}") from error
    for piece in _archive_pieces(path, name):
        block += piece
        if len(block) >= PIECE_BYTES:
            yield bytes(block)
            block.clear()
    yield bytes(block) + bytes(1024)


def _archive_pieces(top: str, top_name: str) -> Iterator[bytes]:
    import tarfile

    waiting = [(top, top_name)]
    while waiting:
        path, name = waiting.pop()
        try:
            status = os.lstat(path)
        except OSError as error:
            if path != top and error.errno == errno.ENOENT:
                continue
            raise ArchiveError("NoSuchPath", f"{path}: {error.strerror}") from error
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        data: BinaryIO | None = None
        try:
            if stat.S_ISSOCK(status.st_mode):
                continue
            if stat.S_ISLNK(status.st_mode):
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
            elif stat.S_ISDIR(status.st_mode):
                info.type = tarfile.DIRTYPE
                waiting += [(os.path.join(path, n), name + "/" + n) for n in sorted(os.listdir(path), reverse=True)]
            elif stat.S_ISREG(status.st_mode):
                # Not to be led elsewhere, nor held up, by what took the file's place since.
                data = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0)  # noqa: SIM115
                info.size = os.fstat(data.fileno()).st_size
            else:
                raise ArchiveError("UnsafePath", f"{path} is a pipe or a device")
            yield info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
            left = info.size
            while data is not None and left:
                piece = data.read(min(left, PIECE_BYTES))
                if not piece:
                    raise ArchiveError("NoSuchPath", f"{path} became shorter while it was read")
                left -= len(piece)
                yield piece
            yield bytes(-info.size % 512)
        except OSError as error:
            raise ArchiveError("NoSuchPath", f"{path}: {error.strerror}") from error
        finally:
            if data is not None:
                data.close()


def unpack_archive(stream: BinaryIO, folder: str) -> None:
    """Unpack a tar stream into ``folder``, which must exist. Owners are not kept, nor are set-user-id bits.

    A symlink may lead anywhere inside the first folder of its member's name, or of ``folder`` where that name starts
    with "./". Symlinks are made last, so that nothing is written through one.

    Raises:
        ArchiveError: UnsafePath, or NoSuchPath where something cannot be written.
    """
    import tarfile

    class Member(tarfile.TarInfo):
        @classmethod
        def fromtarfile(cls, *arguments: Any) -> Any:  # not frombuf: newer Pythons do not come by there
            try:
                return super().fromtarfile(*arguments)
            except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
                ends.append(True)
                raise

    root = os.path.realpath(folder)
    links: dict[str, tuple[str, str]] = {}
    ends: list[bool] = []
    archive: Any
    try:
        with tarfile.open(
            fileobj=stream, mode="r|", bufsize=PIECE_BYTES, errors="surrogateescape", tarinfo=Member
        ) as archive:
            while True:
                member = archive.next()
                if member is None:
                    break
                archive.members = []  # it would remember every one
                _unpack_member(archive, member, root, links)
            if not ends:  # tarfile takes nonsense, or nothing, behind a member for the end
                raise EOFError("it has no end")
            while stream.read(PIECE_BYTES):  # padding: whoever writes it must not find a closed pipe
                pass
        _make_links(links)
    except OSError as error:
        kinds = {errno.ENOSPC: "DiskPressure", errno.EDQUOT: "DiskPressure", errno.EIO: "SandboxUnavailable"}
        kind = kinds.get(error.errno or 0, "NoSuchPath")
        raise ArchiveError(kind, f"{error.filename or folder}: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ArchiveError("BadArchive", f"not a whole archive: {error}") from error


def _unpack_member(archive: Any, member: Any, root: str, links: dict[str, tuple[str, str]]) -> None:
    path = _place(root, member.name)
    parent = root if path == root else os.path.dirname(path)
    if not _inside(os.path.realpath(parent), root) or any(_inside(path, link) and path != link for link in links):
        raise ArchiveError("UnsafePath", f"{member.name!r} leads through a link")
    os.makedirs(parent, exist_ok=True)
    if member.isdir():
        if not os.path.isdir(path) or os.path.islink(path):
            _clear(path)
            os.mkdir(path)
            os.chmod(path, member.mode & 0o777 | 0o700)
    elif member.issym():
        first = next(part for part in member.name.split("/") if part)
        links[path] = (member.linkname, root if first == "." else os.path.join(root, first))
    elif member.islnk():
        source = _place(root, member.linkname)
        if os.path.islink(source) or not _inside(os.path.realpath(source), root):
            raise ArchiveError("UnsafePath", f"{member.name!r} is a hard link out of the folder")
        _clear(path)
        os.link(source, path)
    elif member.isreg():
        _clear(path)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            source_file, left = archive.extractfile(member), member.size
            while left:
                piece = source_file.read(min(left, PIECE_BYTES))
                if not piece:
                    raise EOFError(f"{member.name!r} ends early")
                left -= len(piece)
                file.write(piece)
            os.fchmod(file.fileno(), member.mode & 0o777)
        os.utime(path, (member.mtime, member.mtime))
    else:
        raise ArchiveError("UnsafePath", f"{member.name!r} is a pipe or a device")


def _place(root: str, name: str) -> str:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        raise ArchiveError("UnsafePath", f"{name!r} leads out of the folder")
    return os.path.join(root, *[part for part in parts if part not in ("", ".")]) if name.strip("./") else root


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _clear(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _make_links(links: dict[str, tuple[str, str]]) -> None:
    for path, (target, _) in links.items():
        _clear(path)
        os.symlink(target, path)
    for path, (target, folder) in links.items():
        if not _inside(os.path.realpath(path), os.path.realpath(folder)) or path == folder:
            for made in links:
                _clear(made)
            raise ArchiveError("UnsafePath", f"the link {path!r} leads out of its folder, to {target!r}")


# ----------------------------------------------------------------------------------------------- processes and vitals -


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


def _adopt_orphans() -> None:
    """Become the parent of whatever is detached inside, to reap it (a "child subreaper")."""
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.prctl(36, 1, 0, 0, 0)
        libc.malloc_trim(0)  # compiling this file took 2 MiB; not every C library can give them back
    except (ImportError, OSError, AttributeError):
        pass  # then PID 1 of the container reaps


def _to_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


# -------------------------------------------------------------------------------------------------------------- pipes -


class Output:
    """The reading end of a command's stdout or stderr.

    Its bytes go to ``task``; without one they are thrown away, at no great pace, so that no background child blocks.
    """

    def __init__(self, agent: Agent, fd: int, source: str, task: Task | None) -> None:
        os.set_blocking(fd, False)
        self.agent, self.fd, self.source, self.task = agent, fd, source, task
        self._registered = False
        self.resume()

    def resume(self) -> None:
        """Read on, if it was paused."""
        if not self._registered and self.fd >= 0:
            self.agent.selector.register(self.fd, selectors.EVENT_READ, self.on_ready)
            self._registered = True

    def pause(self) -> None:
        """Leave it unread: the writer blocks once the pipe is full."""
        if self._registered:
            self.agent.selector.unregister(self.fd)
            self._registered = False

    def on_ready(self) -> None:
        """Take one piece."""
        if not self._registered:
            return
        task, most = self.task, PIECE_BYTES
        if task is not None and self.source in task.streamed:
            most = min(most, task.credit)
            if most <= 0:
                self.pause()
                return
        try:
            data = os.read(self.fd, most)
        except BlockingIOError:  # drained in this very round
            return
        if not data:
            self.close()
        elif task is not None:
            task.take(self.source, data)
        elif len(data) == most:
            self.pause()
            self.agent.at(self, time.monotonic() + 0.02, self.resume)

    def drain(self) -> None:
        """Take what is in the pipe now, without waiting for its end, which background children may hold open."""
        if self.fd < 0:
            return
        count = bytearray(4)
        fcntl.ioctl(self.fd, termios.FIONREAD, count)
        left = struct.unpack("i", count)[0]
        while left > 0:
            data = os.read(self.fd, min(left, PIECE_BYTES))
            if not data:
                return
            left -= len(data)
            if self.task is not None:
                self.task.take(self.source, data)

    def close(self) -> None:
        """Close it; idempotent."""
        if self.fd >= 0:
            self.pause()
            self.agent.timers.pop(self, None)
            os.close(self.fd)
            self.fd = -1


class Input:
    """The writing end of a command's stdin; ``on_taken`` hears how many bytes are gone."""

    def __init__(self, agent: Agent, fd: int, on_taken: Callable[[int], None] | None = None) -> None:
        os.set_blocking(fd, False)
        self.agent, self.fd, self.on_taken = agent, fd, on_taken
        self._waiting = bytearray()
        self._registered = self._ending = False

    def write(self, data: bytes, *, end: bool = False) -> None:
        """Write ``data`` as the command reads it, then close where this is the end."""
        self._ending = self._ending or end
        if self.fd < 0:
            self._taken(len(data))
            return
        self._waiting += data
        self._write()

    def _write(self) -> None:
        if self.fd < 0:
            return
        try:
            while self._waiting:
                num_bytes = os.write(self.fd, self._waiting[:PIECE_BYTES])
                del self._waiting[:num_bytes]
                self._taken(num_bytes)
        except BlockingIOError:
            if not self._registered:
                self.agent.selector.register(self.fd, selectors.EVENT_WRITE, self._write)
                self._registered = True
            return
        except OSError:  # it closed its stdin: what comes is not wanted
            self.close()
            return
        if self._registered:
            self.agent.selector.unregister(self.fd)
            self._registered = False
        if self._ending:
            self.close()

    def _taken(self, num_bytes: int) -> None:
        if self.on_taken is not None and num_bytes:
            self.on_taken(num_bytes)

    def close(self) -> None:
        """Close it; idempotent."""
        if self.fd >= 0:
            if self._registered:
                self.agent.selector.unregister(self.fd)
                self._registered = False
            os.close(self.fd)
            self.fd = -1
            self._taken(len(self._waiting))
            self._waiting.clear()


# ----------------------------------------------------------------------------------------------------------- commands -


class Task:
    """What one request is answered with: the output that is kept, and how it ended."""

    def __init__(self, agent: Agent, header: dict[str, Any]) -> None:
        self.agent = agent
        self.id: int = header["id"]
        limit = int(header.get("max_output_bytes", PIECE_BYTES))
        self.kept = {"stdout": Kept(limit), "stderr": Kept(limit)}
        self.credit = int(header.get("credit", 0))
        self.streamed: tuple[str, ...] = tuple(header.get("streamed", ()))
        self.timeout_s = float(header.get("timeout_s", 60.0))
        self.timed_out = False
        self.started = time.monotonic()
        self.num_oom_kills = agent.vitals.num_oom_kills()

    def take(self, source: str, data: bytes) -> None:
        """Keep a piece of output, and send it where it is streamed."""
        self.kept[source].add(data)
        if source in self.streamed:
            self.credit -= charge(data)
            self.agent.send({"op": "output", "id": self.id, "source": source}, data)

    def answer(self, exit_code: int | None, signal_number: int | None = None, **more: Any) -> None:
        """Send the result."""
        stdout, stderr = (self.kept[source].take() for source in ("stdout", "stderr"))
        blob = stdout + stderr
        while len(blob) > MAX_PAYLOAD_BYTES:
            self.agent.send({"op": "kept", "id": self.id}, blob[:MAX_PAYLOAD_BYTES])
            blob = blob[MAX_PAYLOAD_BYTES:]
        header = {
            "op": "done",
            "id": self.id,
            "exit_code": exit_code,
            "signal": signal_number,
            "timed_out": self.timed_out,
            "oom_killed": self.agent.vitals.num_oom_kills() > self.num_oom_kills,
            "truncated": any(kept.num_bytes > kept.limit for kept in self.kept.values()),
            "num_stdout_bytes": self.kept["stdout"].num_bytes,
            "num_stderr_bytes": self.kept["stderr"].num_bytes,
            "num_stdout_kept": len(stdout),
            "duration_s": time.monotonic() - self.started,
        }
        header.update(more)
        self.agent.send(header, blob)

    def answer_status(self, status: int, **more: Any) -> None:
        """Send the result that a status of `os.waitpid` stands for."""
        if os.WIFSIGNALED(status):
            self.answer(None, os.WTERMSIG(status), **more)
        else:
            self.answer(os.WEXITSTATUS(status), None, **more)

    def answer_not_started(self, program: bytes, error: Exception) -> None:
        """Send what a shell would say of a program that cannot be started."""
        name = getattr(error, "filename", None) or program
        text = os.fsdecode(name) + ": " + str(getattr(error, "strerror", None) or error)
        self.kept["stderr"].add(("cannot start " + text + "\n").encode("utf-8", "replace"))
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        self.answer(127 if missing else 126)


class Job:
    """A running command: its main process, its pipes, its deadline."""

    def __init__(self, agent: Agent, task: Task, marker: bytes, *, is_ping: bool = False) -> None:
        self.agent, self.task, self.marker, self.is_ping = agent, task, marker, is_ping
        self.pid = 0
        self.status: int | None = None
        self.stdin: Input | None = None
        self.outputs: list[Output] = []
        self._start_ticks = 0
        self._kill_until = 0.0
        self.alone = not is_ping and not agent.sessions and all(job.is_ping for job in agent.jobs.values())

    def start(self, argv: list[bytes], env: dict[bytes, bytes], cwd: bytes | None, *, wants_stdin: bool) -> None:
        """Start a program; raises OSError or ValueError."""
        self._run(lambda fds: self.agent.spawn(argv, env, cwd, fds), wants_stdin)

    def fork(self, function: Callable[[], None], *, wants_stdin: bool) -> None:
        """Start a function of this file in a child; raises OSError."""
        self._run(lambda fds: self.agent.fork(function, fds), wants_stdin)

    def _run(self, start: Callable[[tuple[int, int, int]], int], wants_stdin: bool) -> None:
        ours: list[int] = []
        theirs: list[int] = []
        try:
            if wants_stdin:
                reading, writing = os.pipe()
                ours.append(writing)
                theirs.append(reading)
            else:
                theirs.append(os.open(os.devnull, os.O_RDONLY))
            for _ in range(2):
                reading, writing = os.pipe()
                ours.append(reading)
                theirs.append(writing)
            self.pid = start((theirs[0], theirs[1], theirs[2]))
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self.outputs = [
            Output(self.agent, fd, source, self.task)
            for fd, source in zip(ours[-2:], ("stdout", "stderr"))  # noqa: B905
        ]
        if wants_stdin:
            self.stdin = Input(self.agent, ours[0], self._on_stdin_taken)
        agent = self.agent
        if not self.is_ping:
            for job in agent.jobs.values():
                job.alone = False
        agent.jobs[self.task.id] = self
        agent.mains[self.pid] = self.on_exit
        agent.at(self, self.task.started + self.task.timeout_s, self.on_deadline)

    def _on_stdin_taken(self, num_bytes: int) -> None:
        if self.task.id in self.agent.jobs:
            self.agent.send({"op": "credit", "id": self.task.id, "n": num_bytes})

    def on_exit(self, status: int) -> None:
        """The main process has ended, and is reaped."""
        self.status = status
        if not self._kill_until:
            self._finish()

    def on_deadline(self) -> None:
        """Kill it: its time is over."""
        self.task.timed_out = True
        self.kill()

    def kill(self) -> None:
        """Kill all that belongs to it, and answer when nothing is left."""
        if self.status is None and not self._kill_until:
            self._kill_until = time.monotonic() + _KILL_S
            self._hunt()

    def _hunt(self) -> None:
        left = self.kill_once()
        now = time.monotonic()
        if (self.status is not None and not left) or now > self._kill_until:
            self._finish()
        else:
            self.agent.at(self, now + 0.005, self._hunt)

    def kill_once(self) -> int:
        """Kill what belongs to it now; returns how many processes that were."""
        if self.status is None:
            _signal(os.killpg, self.pid, signal.SIGSTOP)  # nothing of it moves while we look
        victims = self._find()
        for pid in victims:
            _signal(os.kill, pid, signal.SIGKILL)
        if self.status is None:
            _signal(os.killpg, self.pid, signal.SIGKILL)
        return len(victims)

    def _find(self) -> set[int]:
        table = list_processes()
        own = os.getpid()
        ours = with_descendants({own}, table)
        self._start_ticks = self._start_ticks or table.get(self.pid, (0, 0, 0))[2]
        roots = set()
        for pid, (parent, session, ticks) in table.items():
            if pid == own or (pid in self.agent.mains and pid != self.pid):
                continue
            marker = read_variable(pid, _MARKER)
            if marker == self.marker:
                roots.add(pid)
            elif self.pid and pid in ours:
                # Detached with a clean environment: it is this command's if it can be no other's.
                is_stray = self.alone and parent == own and not marker and ticks >= self._start_ticks
                if session == self.pid or is_stray:
                    roots.add(pid)
        return with_descendants(roots, table) - {own}

    def _finish(self) -> None:
        agent, task = self.agent, self.task
        agent.timers.pop(self, None)
        del agent.jobs[task.id]
        for output in self.outputs:
            output.drain()
            output.task = None
            output.resume()
        if self.stdin is not None:
            self.stdin.close()
        if self.is_ping:
            if self.status == 0:
                agent.send(dict(agent.vitals.read(), op="vitals", id=task.id))
            else:
                agent.send_error(task.id, "SandboxUnavailable", f"/bin/sh does not run: status {self.status}")
        elif self.status is None:
            task.answer(None, int(signal.SIGKILL))
        else:
            task.answer_status(self.status)


def _signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
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


class Shell:
    """A shell session. It reads commands from a pipe and reports each one's status on a descriptor of its own.

    No prompt is looked for: `eval` runs the command with that descriptor closed and an empty stdin.

    At a deadline in the middle of `a; b` the processes of `a` are killed, and what the shell does next is up to it: a
    shell has no way to be called off in the middle of a line that would leave it alive with its variables. So it is
    watched: one that starts another process, or works on instead of reporting, goes on with `b` and is killed at once,
    its state with it. That leaves `b` some milliseconds: what needs no process, such as `a; b=1` or `a; echo > file`,
    can still happen.
    """

    def __init__(self, agent: Agent, marker: bytes, env: dict[bytes, bytes], cwd: bytes | None) -> None:
        self.agent, self.marker, self.env, self.cwd = agent, marker, env, cwd
        self.pid = 0
        self.task: Task | None = None
        self.closing: int | None = None
        self.waiting: deque[tuple[Task, bytes]] = deque()
        self._between: Task | None = None
        self._outputs: list[Output] = []
        self._stdin: Input | None = None
        self._status_fd = -1
        self._last_status = 0
        self._run_marker = b""
        self._older: set[int] = set()
        self._kill_until = 0.0
        self._kill_all = False
        self._reported: int | None = None
        self._children: set[int] | None = None
        self._ticks = 0

    def start(self) -> None:
        """Start the shell; raises OSError."""
        fds: list[int] = []
        for _ in range(4):
            fds += os.pipe()
        stdin_r, stdin_w, stdout_r, stdout_w, stderr_r, stderr_w, status_r, status_w = fds
        path = self.env.get(b"PATH", os.defpath.encode()).split(b":")
        bash = [folder + b"/bash" for folder in path if folder and os.access(folder + b"/bash", os.X_OK)]
        argv = [bash[0], b"--noprofile", b"--norc", b"-s"] if bash else [b"/bin/sh", b"-s"]
        try:
            self.pid = self.agent.spawn(
                argv, self.env, self.cwd, (stdin_r, stdout_w, stderr_w), status_fd=status_w, name=bash and b"bash"
            )
        except BaseException:
            for fd in (stdin_w, stdout_r, stderr_r, status_r):
                os.close(fd)
            raise
        finally:
            for fd in (stdin_r, stdout_w, stderr_w, status_w):
                os.close(fd)
        self.agent.mains[self.pid] = self.on_exit
        self._stdin = Input(self.agent, stdin_w)
        self._between = Task(self.agent, {"id": 0})
        self._outputs = [
            Output(self.agent, stdout_r, "stdout", self._between),
            Output(self.agent, stderr_r, "stderr", self._between),
        ]
        os.set_blocking(status_r, False)
        self._status_fd = status_r
        self.agent.selector.register(status_r, selectors.EVENT_READ, self._on_status)
        self._stdin.write(b'rollcage_status() { return "$1"; }\n')
        self._last_status = 0
        self._older = set()

    def run(self, task: Task, command: bytes) -> None:
        """Run a command after those that wait."""
        self.waiting.append((task, command))
        self._next()

    def _next(self) -> None:
        if self.task is not None or self.closing is not None or not self.waiting:
            return
        task, command = self.waiting.popleft()
        if b"\0" in command:
            task.answer_not_started(b"command", ValueError("it holds a NUL byte"))
            self._next()
            return
        try:
            if not self.pid:
                self.start()
        except (OSError, ValueError) as error:
            task.answer_not_started(b"shell", error)
            self._next()
            return
        assert self._stdin is not None
        assert self._between is not None
        self.task, task.started = task, time.monotonic()
        for output in self._outputs:
            task.kept[output.source].add(self._between.kept[output.source].take())  # of background jobs
            output.task = task
        self._kill_until, self._kill_all, self._reported = 0.0, False, None
        self._children = None
        # Jobs of earlier commands, which this one's deadline must not kill: the shell's, and those that we adopted.
        self._older = read_children(self.pid) | read_children(os.getpid())
        self._run_marker = self.marker + b".%d" % task.id
        quoted = command.replace(b"'", b"'\\''")
        restore = b"rollcage_status %d; " % self._last_status if self._last_status else b""
        self._stdin.write(  # the empty line takes bash's parser back from a syntax error in an earlier eval
            b"\n{ export %s=%s; } 2>/dev/null; %seval '%s' </dev/null %d>&-; { command echo $? >&%d; } 2>/dev/null\n"
            % (_MARKER, self._run_marker, restore, quoted, _STATUS_FD, _STATUS_FD)
        )
        self.agent.at(self, task.started + task.timeout_s, self._on_deadline)

    def _on_status(self) -> None:
        if self._status_fd < 0:
            return
        try:
            data = os.read(self._status_fd, 256)
        except BlockingIOError:
            return
        if not data:
            self.agent.selector.unregister(self._status_fd)
            os.close(self._status_fd)
            self._status_fd = -1
        elif self.task is not None:
            lines = data.split()
            self._reported = int(lines[-1]) if lines[-1].isdigit() else 1
            if not self._kill_until:
                self._finish()

    def on_exit(self, status: int) -> None:
        """The shell has ended: by `exit`, by `exec` of a program that ended, or killed."""
        self.pid = 0
        task = self.task
        self._on_status()  # what it reported before counts; then the next command may have begun already
        if self.task is task:
            if task is not None and not self._kill_until:
                self._finish(status)
            else:
                self._let_go()

    def _let_go(self) -> None:
        if self._status_fd >= 0:
            self.agent.selector.unregister(self._status_fd)
            os.close(self._status_fd)
            self._status_fd = -1
        if self._stdin is not None:
            self._stdin.close()
        if self._kill_until:
            return  # its output still belongs to the command that is being killed
        for output in self._outputs:
            output.task = None
        self._outputs = []

    def _finish(self, status: int | None = None) -> None:
        task = self.task
        assert task is not None
        self.agent.timers.pop(self, None)
        between = Task(self.agent, {"id": 0})
        for output in self._outputs:
            output.drain()
            output.task = between
        self.task, self._between = None, between
        was_killed, self._kill_until = bool(self._kill_until), 0.0
        if was_killed:
            task.answer(None, int(signal.SIGKILL), replaced=not self.pid)
            self._last_status = 128 + signal.SIGKILL
        elif status is None:
            self._last_status = self._reported or 0
            task.answer(self._last_status, None)
        else:
            task.answer_status(status, replaced=True)
        if not self.pid:
            self._let_go()
        self._next()

    def _on_deadline(self) -> None:
        assert self.task is not None
        self.task.timed_out = True
        self.kill()

    def kill(self) -> None:
        """Kill what the running command started, and the shell too if it does not come back then."""
        if self.task is not None and not self._kill_until:
            self._kill_until = time.monotonic() + _SHELL_GRACE_S + _KILL_S
            self._hunt()

    def cancel(self, task_id: int) -> bool:
        """Kill the command of that id, or forget it where it still waits."""
        if self.task is not None and self.task.id == task_id:
            self.kill()
            return True
        found = [item for item in self.waiting if item[0].id == task_id]
        for item in found:
            self.waiting.remove(item)
            item[0].answer(None, int(signal.SIGKILL))
        return bool(found)

    def _hunt(self) -> None:
        now = time.monotonic()
        if self._reported is None and now > self._kill_until - _KILL_S:
            self._kill_all = True  # it hangs itself
        left = self.kill_once()
        answered = not self.pid or (self._reported is not None and not self._kill_all)
        if (answered and not left) or now > self._kill_until:
            self._finish()
        else:
            self.agent.at(self, now + 0.005, self._hunt)

    def kill_once(self, *, everything: bool = False) -> int:
        """Kill what belongs to the command (or to the session) now; returns how many processes that were."""
        shell = self.pid
        if shell:
            _signal(os.killpg, shell, signal.SIGSTOP)  # nothing of it moves while we look
        table = list_processes()
        self._kill_all = self._kill_all or (not everything and shell > 0 and self._goes_on(table))
        everything = everything or self._kill_all
        own = os.getpid()
        marker = self.marker if everything else self._run_marker
        ours = with_descendants({own}, table)
        roots = set()
        for pid, (parent, session, _) in table.items():
            if pid == own or (pid in self.agent.mains and pid != shell):
                continue
            found = read_variable(pid, _MARKER)
            if (marker and (found == marker or found.startswith(marker + b"."))) or (
                shell
                and session == shell
                and pid in ours
                and (everything or (parent in (shell, own) and pid != shell and pid not in self._older))
            ):
                roots.add(pid)
        victims = with_descendants(roots, table) - {own}
        if not everything:
            victims.discard(shell)
        for pid in victims:
            _signal(os.kill, pid, signal.SIGKILL)
        if shell:
            _signal(os.killpg, shell, signal.SIGCONT)
        return len(victims)

    def _goes_on(self, table: dict[int, tuple[int, int, int]]) -> bool:
        """Whether the shell, since it was first asked, has begun something new."""
        children = {pid for pid, (parent, _, _) in table.items() if parent == self.pid}
        ticks = read_cpu_ticks(self.pid)
        if self._children is None:
            self._children, self._ticks = children, ticks
        return self._reported is None and (bool(children - self._children) or ticks - self._ticks > _SHELL_TICKS)

    def close(self, task_id: int) -> None:
        """Kill all of the session, then answer."""
        self.closing = task_id
        for task, _ in [*self.waiting, *([(self.task, b"")] if self.task else [])]:
            self.agent.send_error(task.id, "SandboxUnavailable", "the session was closed")
        self.waiting.clear()
        self.task = None
        self._kill_until = time.monotonic() + _KILL_S
        self._close()

    def _close(self) -> None:
        left = self.kill_once(everything=True)
        if (left or self.pid) and time.monotonic() < self._kill_until:
            self.agent.at(self, time.monotonic() + 0.005, self._close)
            return
        self.agent.timers.pop(self, None)
        for output in self._outputs:
            output.task = None
        self._kill_until = 0.0
        self._let_go()
        assert self.closing is not None
        self.agent.send({"op": "closed", "id": self.closing})


# ---------------------------------------------------------------------------------------------------------- the agent -


class Agent:
    """The loop."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self.stdin, self.stdout = stdin, stdout
        self.selector = selectors.DefaultSelector()
        self.vitals = Vitals()
        self.jobs: dict[int, Job] = {}
        self.sessions: dict[int, Shell] = {}
        self.mains: dict[int, Callable[[int], None]] = {}
        self.timers: dict[object, tuple[float, Callable[[], None]]] = {}
        self._nonce = f"{os.getpid():x}-{os.urandom(4).hex()}".encode()
        self._reader = FrameReader()
        self._to_send = bytearray()
        self._is_blocked = False
        self._running = True
        self._reserved = self._oom_fd = -1
        self._own_oom_score = b""

    def run(self) -> None:
        """Serve until stdin ends; then kill what still runs for it."""
        _adopt_orphans()
        self._reserved = os.open(os.devnull, os.O_RDONLY)
        if self._reserved != _STATUS_FD:
            os.dup2(self._reserved, _STATUS_FD, inheritable=False)
        try:
            self._oom_fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self._own_oom_score = os.read(self._oom_fd, 16).strip()
        except OSError:
            pass
        waking, woken = os.pipe()
        for fd in (waking, woken, self.stdout):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.selector.register(waking, selectors.EVENT_READ, lambda: self._on_wake(waking))
        self.selector.register(self.stdin, selectors.EVENT_READ, self._on_stdin)
        self._to_send += MAGIC
        self.send({"op": "hello", "pid": os.getpid(), "python": sys.version.split()[0]})
        self._flush()
        import subprocess  # noqa: F401  (`spawn` needs it; loading it takes as long as the host's answer)

        while self._running:
            self._flush()
            now = time.monotonic()
            timeout = max(0.0, min(when for when, _ in self.timers.values()) - now) if self.timers else None
            for key, _ in self.selector.select(timeout):
                key.data()
            if self.timers:
                now = time.monotonic()
                for key_, (when, call) in list(self.timers.items()):
                    if when <= now and self.timers.get(key_) == (when, call):
                        del self.timers[key_]
                        call()
        self._kill_everything()

    def at(self, key: object, when: float, call: Callable[[], None]) -> None:
        """Call ``call`` at that time; replaces the timer of ``key``."""
        self.timers[key] = (when, call)

    # -- processes

    def spawn(
        self,
        argv: list[bytes],
        env: dict[bytes, bytes],
        cwd: bytes | None,
        fds: tuple[int, int, int],
        *,
        status_fd: int = -1,
        name: bytes | list[bytes] = b"",
    ) -> int:
        """Start a program in a session of its own; returns its pid."""
        import subprocess

        if status_fd >= 0:
            os.dup2(status_fd, _STATUS_FD)
        self._set_oom_score(_OOM_SCORE)
        try:
            process = subprocess.Popen(
                [name, *argv[1:]] if isinstance(name, bytes) and name else argv,
                executable=argv[0],
                stdin=fds[0],
                stdout=fds[1],
                stderr=fds[2],
                env=env,
                cwd=cwd,
                start_new_session=True,
                pass_fds=(_STATUS_FD,) if status_fd >= 0 else (),
            )
        finally:
            if self._oom_fd >= 0:
                self._set_oom_score(self._own_oom_score)
            if status_fd >= 0:
                os.dup2(self._reserved, _STATUS_FD, inheritable=False)
        process.returncode = 0  # reaped here, not by subprocess
        return process.pid

    def fork(self, function: Callable[[], None], fds: tuple[int, int, int]) -> int:
        """Start a child that calls ``function`` with those descriptors as stdin, stdout and stderr."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            self._set_oom_score(_OOM_SCORE)
            for target, fd in enumerate(fds):
                os.dup2(fd, target)
            for entry in os.listdir("/proc/self/fd"):
                if int(entry) > 2:
                    try:
                        os.close(int(entry))
                    except OSError:
                        pass
            function()
            code = 0
        except ArchiveError as error:
            os.write(2, json.dumps({"kind": error.kind, "message": str(error)}).encode())
        except BaseException as error:  # noqa: BLE001  (a child must end here, whatever happens)
            os.write(2, json.dumps({"kind": "InternalError", "message": repr(error)}).encode())
        finally:
            os._exit(code)

    def _set_oom_score(self, score: bytes) -> None:
        if self._oom_fd >= 0:
            try:
                os.write(self._oom_fd, score)
            except OSError:
                self._oom_fd = -1

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            on_exit = self.mains.pop(pid, None)
            if on_exit is not None:
                on_exit(status)

    def _kill_everything(self) -> None:
        """Kill what belongs to running commands and to sessions; what ended commands left behind lives on."""
        until = time.monotonic() + _KILL_S
        while time.monotonic() < until:
            left = sum(job.kill_once() for job in self.jobs.values())
            left += sum(shell.kill_once(everything=True) for shell in self.sessions.values())
            if not left:
                return
            time.sleep(0.005)
            while self.mains:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                self.mains.pop(pid, None)

    # -- the connection

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame when this round of the loop is over."""
        self._to_send += pack_frame(header, payload)

    def send_error(self, task_id: Any, kind: str, message: str) -> None:
        """Send an error; ``kind`` is the name of the host's class."""
        self.send({"op": "error", "id": task_id, "kind": kind, "message": message})

    def _flush(self) -> None:
        try:
            while self._to_send:
                num_bytes = os.write(self.stdout, memoryview(self._to_send)[: 1 << 18])
                del self._to_send[:num_bytes]
        except BlockingIOError:
            pass
        except OSError:
            self._running = False  # nobody listens
            return
        if bool(self._to_send) != self._is_blocked:
            self._is_blocked = not self._is_blocked
            self._watch_output(self._is_blocked)

    def _watch_output(self, on: bool) -> None:
        if self.stdout == self.stdin:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if on else 0)
            self.selector.modify(self.stdin, events, self._on_stdin)
        elif on:
            self.selector.register(self.stdout, selectors.EVENT_WRITE, lambda: None)
        else:
            self.selector.unregister(self.stdout)

    def _on_signal(self, *_: object) -> None:
        self._running = False

    def _on_wake(self, fd: int) -> None:
        try:
            os.read(fd, 4096)
        except BlockingIOError:
            pass
        self._reap()

    def _on_stdin(self) -> None:
        try:
            data = os.read(self.stdin, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._running = False
            return
        try:
            frames = self._reader.feed(data)
        except ProtocolError as error:
            sys.stderr.write(f"the agent was sent nonsense: {error}\n")
            self._running = False
            return
        for header, payload in frames:
            self._on_frame(header, payload)

    def _on_frame(self, header: dict[str, Any], payload: bytes) -> None:
        handler = getattr(self, "on_" + str(header.get("op")), None)
        try:
            if handler is None:
                raise ValueError("no such operation")
            handler(header, payload)
        except Exception as error:  # noqa: BLE001  (a bad request must not end the other commands)
            self.send_error(header.get("id"), "InternalError", f"{type(error).__name__}: {error}")

    # -- operations

    def _environment(self, header: dict[str, Any], marker: bytes) -> dict[bytes, bytes]:
        env = dict(os.environb)
        env.update((_to_bytes(name), _to_bytes(value)) for name, value in header.get("env", {}).items())
        env[_MARKER] = marker
        return env

    def _marker(self, header: dict[str, Any]) -> bytes:
        return self._nonce + b".%d" % header["id"]

    def on_exec(self, header: dict[str, Any], payload: bytes) -> None:
        """Run a command; ``stdin_bytes`` of input will come, the first of them as payload."""
        marker = self._marker(header)
        task = Task(self, header)
        command = header["command"]
        shell = [b"/bin/sh", b"-c", _to_bytes(command)] if isinstance(command, str) else []
        argv = shell or [_to_bytes(word) for word in command]
        job = Job(self, task, marker)
        wants_stdin = bool(header.get("stdin_bytes"))
        try:
            if not argv:
                raise ValueError("the command is empty")
            cwd = _to_bytes(header["cwd"]) if header.get("cwd") else None
            job.start(argv, self._environment(header, marker), cwd, wants_stdin=wants_stdin)
        except (OSError, ValueError) as error:
            task.answer_not_started(argv[0] if argv else b"command", error)
            return
        if job.stdin is not None:
            job.stdin.write(payload, end=len(payload) >= header["stdin_bytes"])

    def on_data(self, header: dict[str, Any], payload: bytes) -> None:
        """More input of a command."""
        job = self.jobs.get(header["id"])
        if job is not None and job.stdin is not None:
            job.stdin.write(payload, end=bool(header.get("end")))

    def on_credit(self, header: dict[str, Any], _: bytes) -> None:
        """The host has taken ``n`` bytes of streamed output."""
        job = self.jobs.get(header["id"])
        if job is not None:
            job.task.credit += header["n"]
            for output in job.outputs:
                output.resume()

    def on_cancel(self, header: dict[str, Any], _: bytes) -> None:
        """Kill a command."""
        job = self.jobs.get(header["id"])
        if job is not None:
            job.kill()
        else:
            any(shell.cancel(header["id"]) for shell in self.sessions.values())

    def on_session(self, header: dict[str, Any], _: bytes) -> None:
        """Start a shell."""
        marker = self._marker(header)
        cwd = _to_bytes(header["cwd"]) if header.get("cwd") else None
        shell = Shell(self, marker, self._environment(header, marker), cwd)
        try:
            shell.start()
        except (OSError, ValueError) as error:
            self.send_error(header["id"], "SandboxUnavailable", f"no shell can be started: {error}")
            return
        for job in self.jobs.values():
            job.alone = False
        self.sessions[header["id"]] = shell
        self.send({"op": "opened", "id": header["id"]})

    def on_run(self, header: dict[str, Any], _: bytes) -> None:
        """Run a command in a shell."""
        shell = self.sessions.get(header["session"])
        if shell is None:
            self.send_error(header["id"], "SandboxUnavailable", "the session was closed")
        else:
            shell.run(Task(self, header), _to_bytes(header["command"]))

    def on_close_session(self, header: dict[str, Any], _: bytes) -> None:
        """End a shell."""
        shell = self.sessions.pop(header["session"], None)
        if shell is None:
            self.send({"op": "closed", "id": header["id"]})
        else:
            shell.close(header["id"])

    def on_put(self, header: dict[str, Any], _: bytes) -> None:
        """Unpack the tar stream that will come."""
        folder = header["folder"] or "."

        def unpack() -> None:
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise ArchiveError("NoSuchPath", f"{folder}: {error.strerror}") from error
            with open(0, "rb", buffering=PIECE_BYTES) as stream:
                unpack_archive(stream, folder)

        Job(self, Task(self, header), self._marker(header)).fork(unpack, wants_stdin=True)

    def on_get(self, header: dict[str, Any], _: bytes) -> None:
        """Stream a tar of a path."""
        path = header["path"] or "."

        def pack() -> None:
            name = os.path.basename(os.path.abspath(path)) or "root"
            for piece in pack_archive(path, name):
                while piece:
                    piece = piece[os.write(1, piece) :]

        task = Task(self, header)
        task.kept["stdout"] = Kept(0)
        Job(self, task, self._marker(header)).fork(pack, wants_stdin=False)

    def on_ping(self, header: dict[str, Any], _: bytes) -> None:
        """Start a process, to show that it can be done; answer with the vitals."""
        marker = self._marker(header)
        job = Job(self, Task(self, header), marker, is_ping=True)
        try:
            job.start([b"/bin/sh", b"-c", b":"], self._environment(header, marker), None, wants_stdin=False)
        except (OSError, ValueError) as error:
            self.send_error(header["id"], "SandboxUnavailable", f"no process can be started: {error}")

    def on_shutdown(self, header: dict[str, Any], payload: bytes) -> None:
        """End, as when stdin ends."""
        self._running = False


def main() -> None:
    """Serve stdin and stdout."""
    Agent(0, 1).run()


if __name__ == "__main__":
    main()
