"""Shell sessions: commands that follow one another in one shell."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque

from rollcage.sandbox.guest.agent.job import Task
from rollcage.sandbox.guest.agent.loop import STATUS_FD
from rollcage.sandbox.guest.agent.pipes import Input, Output
from rollcage.sandbox.guest.agent.processes import (
    KILL_S,
    MARKER,
    list_processes,
    read_children,
    read_cpu_ticks,
    read_variable,
    send_signal,
    with_descendants,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollcage.sandbox.guest.agent.loop import Loop

_SHELL_GRACE_S = 1.0
"""A shell whose command was killed must answer within this, or is killed too."""
_SHELL_TICKS = 3
"""Reporting takes it less CPU time than this, in clock ticks; one that uses more is at work on something else."""


class Shell:
    """A shell session. It reads commands from a pipe and reports each one's status on a descriptor of its own.

    No prompt is looked for: `eval` runs the command with that descriptor closed and an empty stdin.

    At a deadline in the middle of `a; b` the processes of `a` are killed, and what the shell does next is up to it: a
    shell has no way to be called off in the middle of a line that would leave it alive with its variables. So it is
    watched: one that starts another process, or works on instead of reporting, goes on with `b` and is killed at once,
    its state with it. That leaves `b` some milliseconds: what needs no process, such as `a; b=1` or `a; echo > file`,
    can still happen.
    """

    def __init__(self, agent: Loop, marker: bytes, env: dict[bytes, bytes], cwd: bytes | None) -> None:
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
            % (MARKER, self._run_marker, restore, quoted, STATUS_FD, STATUS_FD)
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
            self._kill_until = time.monotonic() + _SHELL_GRACE_S + KILL_S
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
        if self._reported is None and now > self._kill_until - KILL_S:
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
            send_signal(os.killpg, shell, signal.SIGSTOP)  # nothing of it moves while we look
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
            found = read_variable(pid, MARKER)
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
            send_signal(os.kill, pid, signal.SIGKILL)
        if shell:
            send_signal(os.killpg, shell, signal.SIGCONT)
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
        self._kill_until = time.monotonic() + KILL_S
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
