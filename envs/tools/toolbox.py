"""Carrying out tool calls on a computer that runs commands: a sandbox, or anything else with the same `exec`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from rollcage.envs.tools.calls import ToolCall
from rollcage.sandbox.types import ExecResult

MAX_COMMAND_BYTES = 100_000
"""The kernel takes no longer argument."""
_MAX_FILE_BYTES = 1 << 20
_OVERHEAD_S = 1.0  # a command always gets so long, also at the end of its message's time

_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1"'
_READ = 'if [ -d "$1" ]; then ls -1Ap -- "$1" && exit 3; fi; cat -- "$1"'


class Computer(Protocol):
    """What tools run on: the synchronous side of a sandbox."""

    def exec(
        self,
        command: str | tuple[str, ...],
        *,
        timeout_s: float = 60.0,
        stdin: bytes = b"",
        max_output_bytes: int = 1 << 20,
    ) -> ExecResult:
        """Run a command to its end; see `rollcage.sandbox.base.Sandbox.exec`."""
        ...


class Toolbox:
    """The tools bash, python, view and edit on one computer. What fails is an answer for the model, never an error.

    Args:
        computer: where commands start in the folder that relative paths are meant from.
        timeout_s: for all calls until the next `begin_turn` together.
        max_output_chars: of one answer; what is longer loses its middle.

    Raises:
        SandboxError: of each call, where the computer itself has failed.
    """

    def __init__(self, computer: Computer, *, timeout_s: float = 30.0, max_output_chars: int = 8_000) -> None:
        self._computer, self._timeout_s, self._max_chars = computer, timeout_s, max_output_chars
        self._tools: Mapping[str, Callable[..., str]] = {
            "bash": self._bash,
            "python": self._python,
            "view": self._view,
            "edit": self._edit,
        }
        self.begin_turn()

    def begin_turn(self) -> None:
        """Let the time for a message's calls begin anew."""
        self._ends_at = time.monotonic() + self._timeout_s

    def call(self, call: ToolCall) -> str:
        """Carry out a call of one of the four tools; returns what the model is told."""
        return shorten(self._tools[call.name](**call.arguments), self._max_chars)

    def _bash(self, command: str) -> str:
        if len(command.encode()) > MAX_COMMAND_BYTES:
            return (
                f"The command is longer than {MAX_COMMAND_BYTES} bytes: write a file with the tool edit, and run that."
            )
        return self._told(self._run(("sh", "-c", 'exec bash -c "$1" 2>&1', "sh", command)))

    def _python(self, code: str) -> str:
        return self._told(self._run(("sh", "-c", "exec python3 - 2>&1"), stdin=code.encode()))

    def _view(self, path: str, start_line: int = 1, end_line: int | None = None) -> str:
        result = self._run(("sh", "-c", _READ, "sh", path), max_output_bytes=_MAX_FILE_BYTES)
        if result.exit_code == 3:
            return result.stdout_text or "(an empty folder)"
        if not result.ok:
            return f"{path} cannot be read: {_last_line(result)}"
        if result.truncated:
            return (
                f"{path} is larger than {_MAX_FILE_BYTES} bytes: look at a part of it with bash (sed -n, head, grep)."
            )
        if b"\0" in result.stdout:
            return f"{path} is no text file ({len(result.stdout)} bytes)."
        lines = result.stdout_text.splitlines()
        first, last = max(1, start_line), min(len(lines), end_line if end_line is not None else len(lines))
        if not lines:
            return "(an empty file)"
        if first > last:
            return f"{path} has {len(lines)} lines: there are none from {start_line} to {end_line or len(lines)}."
        return "\n".join(f"{number:6}\t{lines[number - 1]}" for number in range(first, last + 1))

    def _edit(self, path: str, old: str, new: str) -> str:
        result = self._run(("sh", "-c", _READ, "sh", path), max_output_bytes=_MAX_FILE_BYTES)
        if result.truncated:
            return f"{path} is larger than {_MAX_FILE_BYTES} bytes: change it with bash."
        if result.exit_code == 3:
            return f"{path} is a folder."
        before = result.stdout if result.ok else b""
        if not old:
            if before:
                return f"{path} is there already: say in `old` which of its text is to be replaced."
            after = new.encode()
        else:
            if not result.ok:
                return f"{path} cannot be read: {_last_line(result)}"
            count = before.count(old.encode())
            if count != 1:
                seen = "is not in" if count == 0 else f"stands {count} times in"
                return f"Nothing changed: the text `old` {seen} {path}; it must stand there exactly once."
            after = before.replace(old.encode(), new.encode())
        written = self._run(("sh", "-c", _WRITE, "sh", path), stdin=after)
        return f"{path} is written." if written.ok else f"{path} cannot be written: {_last_line(written)}"

    def _run(self, command: tuple[str, ...], *, stdin: bytes = b"", max_output_bytes: int = 1 << 18) -> ExecResult:
        left_s = max(_OVERHEAD_S, self._ends_at - time.monotonic())
        return self._computer.exec(command, timeout_s=left_s, stdin=stdin, max_output_bytes=max_output_bytes)

    def _told(self, result: ExecResult) -> str:
        if result.timed_out:
            end = f"(killed: a message's commands may take {self._timeout_s:g} s together)"
        elif result.signal is not None:
            end = f"(ended by signal {result.signal})"
        else:
            end = f"(exit code {result.exit_code})"
        if result.oom_killed:
            end += " (out of memory: a process was killed)"
        output = (result.stdout + result.stderr).decode(errors="replace")
        return f"{shorten(output, self._max_chars - len(end) - 1).rstrip()}\n{end}".lstrip("\n")


def shorten(text: str, max_chars: int) -> str:
    """Return a text without its middle where it is too long; the gap says how much is left out.

    >>> shorten("0123456789" * 20, 60)
    '01234567890123... (173 characters left out) ...7890123456789'
    """
    if len(text) <= max_chars:
        return text
    gap = "... ({} characters left out) ..."
    room = max(0, max_chars - len(gap.format(len(text))))
    head, tail = (room + 1) // 2, room // 2
    middle = gap.format(len(text) - room)
    return text[:head] + middle + text[len(text) - tail :]


def _last_line(result: ExecResult) -> str:
    if result.timed_out:
        return "it took too long"
    lines = result.stderr_text.strip().splitlines()
    return lines[-1] if lines else f"exit code {result.exit_code}"
