"""A running command, and what its request is answered with."""

from __future__ import annotations

import os
import signal
import time

from rollcage.sandbox.guest.agent.frames import MAX_PAYLOAD_BYTES, PIECE_BYTES, Kept, charge
from rollcage.sandbox.guest.agent.pipes import Input, Output
from rollcage.sandbox.guest.agent.processes import (
    KILL_S,
    MARKER,
    list_processes,
    read_variable,
    send_signal,
    with_descendants,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rollcage.sandbox.guest.agent.loop import Loop


class Task:
    """What one request is answered with: the output that is kept, and how it ended."""

    def __init__(self, agent: Loop, header: dict[str, Any]) -> None:
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

    def __init__(self, agent: Loop, task: Task, marker: bytes, *, is_ping: bool = False) -> None:
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
            self._kill_until = time.monotonic() + KILL_S
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
            send_signal(os.killpg, self.pid, signal.SIGSTOP)  # nothing of it moves while we look
        victims = self._find()
        for pid in victims:
            send_signal(os.kill, pid, signal.SIGKILL)
        if self.status is None:
            send_signal(os.killpg, self.pid, signal.SIGKILL)
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
            marker = read_variable(pid, MARKER)
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
