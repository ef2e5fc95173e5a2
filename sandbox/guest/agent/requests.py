"""What the host may ask for, one method each."""

from __future__ import annotations

import os

from rollcage.sandbox.guest.agent.archives import ArchiveError, pack_archive, unpack_archive
from rollcage.sandbox.guest.agent.frames import PIECE_BYTES, Kept
from rollcage.sandbox.guest.agent.job import Job, Task
from rollcage.sandbox.guest.agent.loop import Loop
from rollcage.sandbox.guest.agent.processes import MARKER
from rollcage.sandbox.guest.agent.shell import Shell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Agent(Loop):
    """The agent: the loop, and what it does for the host."""

    def _environment(self, header: dict[str, Any], marker: bytes) -> dict[bytes, bytes]:
        env = dict(os.environb)
        env.update((_to_bytes(name), _to_bytes(value)) for name, value in header.get("env", {}).items())
        env[MARKER] = marker
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

        self._fork(header, Task(self, header), unpack, wants_stdin=True)

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
        self._fork(header, task, pack, wants_stdin=False)

    def _fork(self, header: dict[str, Any], task: Task, function: Callable[[], None], *, wants_stdin: bool) -> None:
        try:
            Job(self, task, self._marker(header)).fork(function, wants_stdin=wants_stdin)
        except OSError as error:  # it has as many processes as it may have, or no memory
            self.send_error(header["id"], "SandboxUnavailable", f"no process can be started: {error}")

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


def _to_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def main() -> None:
    """Serve stdin and stdout."""
    Agent(0, 1).run()
